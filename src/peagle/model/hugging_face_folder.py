"""Write Hugging Face folders: JSON files beside `model.safetensors`."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from peagle.errors import CheckpointError


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Lend a folder to fill, which gets its name only once it is complete.

    Args:
        folder: The name; nothing may be there yet but an empty folder.

    Raises:
        CheckpointError: Something is there, or the folder cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(
            f"{folder} exists and is not an empty folder.",
            remedy="Give a folder that does not exist yet, or remove this one.",
            field="output",
        )
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.unfinished")
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        if folder.exists():
            folder.rmdir()
        unfinished.rename(folder)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{folder} cannot be written ({error}).",
            remedy="Choose a place that may be written to and has space left.",
            field="output",
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_folder(
    folder: Path, files: Mapping[str, Mapping[str, Any]], weights: Mapping[str, torch.Tensor]
) -> None:
    """Write a folder of JSON files and one file of weights.

    Args:
        folder: Where; nothing may be there yet but an empty folder.
        files: Contents by file name.
        weights: Tensors by name.

    Raises:
        CheckpointError: Something is there, or the folder cannot be written.
    """
    with new_folder(folder) as unfinished:
        for name, content in files.items():
            write_json(unfinished / name, content)
        whole = {name: weight.contiguous() for name, weight in weights.items()}
        save_file(whole, unfinished / "model.safetensors", {"format": "pt"})


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file as Hugging Face's tools do."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
