"""Weights of a GGUF file, dequantised once and kept in the cache as a Hugging Face folder.

Dequantising takes seconds at every start; reading the same numbers back takes a fraction of one.
"""

import hashlib
import json
import math
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from peagle.catalog.cache import cache_folder, exclusive, require_space
from peagle.catalog.progress import announce
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
    folder = _place(gguf_file, dtype)
    if folder.is_dir():
        return folder
    with exclusive(f"prepare-{folder.name}", f"the weights of {gguf_file.name}"):
        if folder.is_dir():
            return folder
        checkpoint = GGUFCheckpoint(gguf_file)
        announce(f"Preparing the weights of {gguf_file.name} (once).")
        values = sum(math.prod(tensor.shape) for tensor in checkpoint.header.tensors)
        folder.parent.mkdir(parents=True, exist_ok=True)
        require_space(folder.parent, values * dtype.itemsize, "Preparing the weights")
        weights = {name: weight.to(dtype) for name, weight in checkpoint.tensors()}
        unfinished = folder.with_name(folder.name + ".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        save_file(weights, unfinished / "model.safetensors", {"format": "pt"})
        written = json.dumps(checkpoint.config.to_hugging_face(), indent=2)
        (unfinished / "config.json").write_text(written + "\n", "utf-8")
        unfinished.rename(folder)
    return folder


def open_checkpoint(files: Path, dtype: torch.dtype) -> FolderCheckpoint:
    """Open a GGUF file or a Hugging Face folder for loading in `dtype`.

    Raises:
        CheckpointError: Files are missing, truncated or corrupt.
        UnsupportedError: The architecture or quantisation is not one we run.
    """
    return FolderCheckpoint(prepared_folder(files, dtype) if files.is_file() else files)


def _place(gguf_file: Path, dtype: torch.dtype) -> Path:
    state = gguf_file.stat() if gguf_file.is_file() else None
    what = (str(gguf_file.resolve()), state and state.st_size, state and state.st_mtime_ns)
    key = hashlib.blake2b(repr(what).encode(), digest_size=8).hexdigest()
    kind = str(dtype).removeprefix("torch.")
    return cache_folder() / "prepared" / f"{gguf_file.stem}-{kind}-{key}"
