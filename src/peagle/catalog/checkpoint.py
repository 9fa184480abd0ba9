"""Check that a path leads to weights that are read here: safetensors or GGUF, whole."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from safetensors import SafetensorError, safe_open

from peagle.catalog.gguf_header import check_gguf
from peagle.errors import CheckpointError

_PICKLED: Final = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_INDEX: Final = "model.safetensors.index.json"
_NUMBERED: Final = re.compile(r"(.+-)\d{5}(-of-(\d{5})\.safetensors)")
ONLY_SAFE_FORMATS: Final = (
    "Only safetensors and GGUF are read, since a pickle can run code: convert the weights to "
    "safetensors (transformers: model.save_pretrained(FOLDER)) or take a release that has them."
)


def find_checkpoint(path: Path) -> Path:
    """Find the weights that a path means, and check that they are whole.

    Args:
        path: A GGUF file, a folder with one, or a folder with config.json and safetensors.

    Returns:
        The GGUF file, or the folder.

    Raises:
        CheckpointError: Nothing is there, or something else, or only a part.
        UnsupportedError: A GGUF file of a version or kind that is not read.
    """
    if path.is_dir():
        return _in_folder(path)
    if not path.exists():
        raise CheckpointError(
            f"{path} does not exist.",
            remedy="Check the path, or see `peagle models` for models by name.",
            field="model",
        )
    if is_pickled(path.name):
        raise CheckpointError(f"{path} is pickled.", remedy=ONLY_SAFE_FORMATS, field="model")
    if path.suffix == ".safetensors":
        raise CheckpointError(
            f"{path} is a single safetensors file.",
            remedy="Give the folder that holds it together with its config.json.",
            field="model",
        )
    check_gguf(path)
    return path


def check_folder(folder: Path) -> None:
    """Check that a Hugging Face folder is complete: configuration and every part of the weights.

    Raises:
        CheckpointError: A file is missing, cut off or not what its name says.
    """
    if not isinstance(_json(folder / "config.json"), dict):
        raise CheckpointError(
            f"{folder / 'config.json'} is not a JSON object.",
            remedy="Fetch the file again.",
            field="model",
        )
    parts = _parts(folder)
    if not parts:
        raise CheckpointError(
            f"{folder} holds no safetensors.", remedy="Fetch the files again.", field="model"
        )
    for part in parts:
        try:
            # Opening compares the header with the size of the file; no tensor is read.
            with safe_open(part, framework="np"):
                pass
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{part} is missing, damaged or cut off ({error}).",
                remedy="Fetch the file again.",
                field="model",
            ) from error


def is_pickled(name: str) -> bool:
    """Tell by its name whether a file holds a pickle."""
    return name.lower().endswith(_PICKLED)


def _in_folder(folder: Path) -> Path:
    names = sorted(entry.name for entry in folder.iterdir())
    gguf_names = [name for name in names if name.lower().endswith(".gguf")]
    if any(name.endswith(".safetensors") for name in names) or _INDEX in names:
        if "config.json" not in names:
            raise CheckpointError(
                f"{folder} holds safetensors but no config.json.",
                remedy="Put the model's config.json beside the weights.",
                field="model",
            )
        check_folder(folder)
        return folder
    if len(gguf_names) == 1:
        check_gguf(folder / gguf_names[0])
        return folder / gguf_names[0]
    if gguf_names:
        raise CheckpointError(
            f"{folder} holds {len(gguf_names)} GGUF files: {', '.join(gguf_names)}.",
            remedy="Give the path of one of them.",
            field="model",
        )
    if pickled := [name for name in names if is_pickled(name)]:
        raise CheckpointError(
            f"{folder} holds only pickled weights ({', '.join(pickled)}).",
            remedy=ONLY_SAFE_FORMATS,
            field="model",
        )
    raise CheckpointError(
        f"{folder} holds no model." if names else f"{folder} is empty.",
        remedy="Give a folder with config.json and *.safetensors, or a GGUF file.",
        field="model",
    )


def _parts(folder: Path) -> list[Path]:
    if not (folder / _INDEX).exists():
        names = {part.name for part in folder.glob("*.safetensors")}
        return sorted(folder / name for name in names | _siblings(names))
    index = _json(folder / _INDEX)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    parts = set(weight_map.values()) if isinstance(weight_map, dict) else set()
    # A name with a folder in it could lead out of the checkpoint.
    if not parts or any(not isinstance(part, str) or Path(part).name != part for part in parts):
        raise CheckpointError(
            f"{folder / _INDEX} does not name the files of the weights.",
            remedy="Fetch the file again.",
            field="model",
        )
    return sorted(folder / part for part in parts)


def _siblings(names: Iterable[str]) -> set[str]:
    """Name all parts of the weights of which some are there, by their numbers."""
    found = set()
    for name in names:
        if numbered := _NUMBERED.fullmatch(name):
            before, after, count = numbered.groups()
            found |= {f"{before}{part:05}{after}" for part in range(1, int(count) + 1)}
    return found


def _json(file: Path) -> object:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file} cannot be read as JSON ({error}).",
            remedy="Fetch the file again.",
            field="model",
        ) from error
