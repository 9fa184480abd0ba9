"""Weights made ready once and kept in the cache as a Hugging Face folder.

Dequantising or quantising takes seconds at every start; reading the same numbers back takes a
fraction of one.
"""

import errno
import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from peagle.catalog.cache import cache_folder, exclusive, require_space
from peagle.catalog.progress import announce
from peagle.model.config import DecoderConfig
from peagle.model.folder_checkpoint import FolderCheckpoint
from peagle.model.gguf_checkpoint import GGUFCheckpoint


def prepared_folder(gguf_file: Path, dtype: torch.dtype) -> Path:
    """Give the folder with `config.json` and `model.safetensors` made from a GGUF file.

    Args:
        gguf_file: The file; a change of its size or time prepares it anew.
        dtype: What the weights are rounded to.

    Raises:
        ModelNotFoundError: There is no such file.
        CheckpointError: The file is truncated, corrupt or incomplete.
        UnsupportedError: Its architecture or quantisation is not one we read.
        DownloadError: The cache folder is full or cannot be written.
    """
    folder = cached_place(gguf_file, str(dtype).removeprefix("torch."))
    if folder.is_dir():
        return folder
    checkpoint = GGUFCheckpoint(gguf_file)

    def weights() -> dict[str, torch.Tensor]:
        announce(f"Preparing the weights of {gguf_file.name} (once).")
        return dict(checkpoint.tensors(dtype))

    values = sum(math.prod(tensor.shape) for tensor in checkpoint.header.tensors)
    make_folder(folder, checkpoint.config, weights, needed=values * dtype.itemsize)
    return folder


def open_checkpoint(files: Path, dtype: torch.dtype) -> FolderCheckpoint:
    """Open a GGUF file or a Hugging Face folder for loading in `dtype`.

    Raises:
        CheckpointError: Files are missing, truncated or corrupt.
        UnsupportedError: The architecture or quantisation is not one we run.
    """
    return FolderCheckpoint(prepared_folder(files, dtype) if files.is_file() else files)


def cached_place(files: Path, kind: str) -> Path:
    """Name the folder of the cache for what is made of a model's files.

    Args:
        files: A GGUF file or a Hugging Face folder; a change of the size or time of a file in it
            gives another name.
        kind: What is made of them.
    """
    if files.is_dir():
        parts = [files / "config.json", *sorted(files.glob("*.safetensors*"))]
        name = files.resolve().name
    else:
        parts, name = [files], files.stem
    states = [(str(part.resolve()), part.stat() if part.is_file() else None) for part in parts]
    what = [(part, state and state.st_size, state and state.st_mtime_ns) for part, state in states]
    # One file is named as ever, so that what is in the cache stays good.
    key = hashlib.blake2b(
        repr(what[0] if len(what) == 1 else what).encode(), digest_size=8
    ).hexdigest()
    return cache_folder() / "prepared" / f"{name}-{kind}-{key}"


def make_folder(
    folder: Path,
    config: DecoderConfig,
    weights: Callable[[], Mapping[str, torch.Tensor]],
    *,
    needed: int,
) -> None:
    """Write a folder of the cache, which gets its name only once it is complete.

    One process at a time makes it; the others wait and find it made.

    Args:
        folder: Where.
        config: The model's shape, for `config.json`.
        weights: Makes the tensors by name.
        needed: Bytes that they take.

    Raises:
        DownloadError: The disk is full, or the cache folder cannot be written.
    """
    with exclusive(f"prepare-{folder.name}", f"the weights {folder.name}"):
        if folder.is_dir():
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        require_space(folder.parent, needed, "Preparing the weights")
        unfinished = folder.with_name(folder.name + ".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        try:
            _save(dict(weights()), unfinished / "model.safetensors")
            written = json.dumps(config.to_hugging_face(), indent=2)
            (unfinished / "config.json").write_text(written + "\n", "utf-8")
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _save(weights: dict[str, torch.Tensor], file: Path) -> None:
    try:
        save_file(weights, file, {"format": "pt"})
    except SafetensorError as error:
        # It tells the system's error as text alone.
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error
