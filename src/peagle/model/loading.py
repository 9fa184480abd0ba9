"""From a model's files to a target model and its tokenizer, ready to run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import torch

from peagle.errors import InvalidRequestError, OutOfMemoryBudgetError
from peagle.model.decoder import DecoderWeights
from peagle.model.folder_checkpoint import FolderCheckpoint
from peagle.model.prepared import open_checkpoint
from peagle.model.target import TargetModel
from peagle.model.tokenizer import Tokenizer

DTYPES: Final = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """A target model with its tokenizer.

    Attributes:
        model: The model.
        tokenizer: Its vocabulary.
        weight_bytes: Memory of the weights.
    """

    model: TargetModel
    tokenizer: Tokenizer
    weight_bytes: int


def load_target(
    files: Path,
    *,
    dtype: str = "auto",
    device: str = "auto",
    taps: tuple[int, ...] | None = None,
) -> LoadedTarget:
    """Load a target model.

    Args:
        files: A GGUF file, or a Hugging Face folder with safetensors.
        dtype: `bfloat16`, `float32`, or `auto`: bfloat16 where the processor multiplies it fast.
        device: `cpu`, `cuda`, `cuda:N`, or `auto`: a GPU if there is one.
        taps: Layers whose incoming residual stream a drafter reads; EAGLE-3's if None.

    Raises:
        InvalidRequestError: The dtype or device is unknown or not on this machine.
        CheckpointError: Files are missing, truncated, corrupt or contradict each other.
        UnsupportedError: The architecture or quantisation is not one we run.
        OutOfMemoryBudgetError: The weights do not fit in free memory.
    """
    place = choose_device(device)
    kind = choose_dtype(dtype, place)
    tokenizer = open_tokenizer(files)
    checkpoint = open_checkpoint(files, kind)
    weight_bytes = _weight_bytes(checkpoint, kind)
    _require_memory(weight_bytes, place)
    with torch.inference_mode():
        weights = DecoderWeights.prepare(checkpoint.config, checkpoint.tensors(), kind, place)
        model = TargetModel(checkpoint.config, weights, kind, place, taps)
    return LoadedTarget(model, tokenizer, weight_bytes)


def open_tokenizer(files: Path) -> Tokenizer:
    """Open the vocabulary of a GGUF file or a Hugging Face folder.

    Raises:
        CheckpointError: A file is missing or broken.
        UnsupportedError: The tokenizer is of an unknown kind.
    """
    return Tokenizer.from_gguf(files) if files.is_file() else Tokenizer.from_folder(files)


def choose_device(device: str) -> torch.device:
    """Turn what the user wrote into a device of this machine.

    Raises:
        InvalidRequestError: It is unknown or not here.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = device.partition(":")
    if kind == "cpu" and not index:
        return torch.device("cpu")
    if kind == "cuda" and (not index or index.isdigit()):
        count = torch.cuda.device_count()
        if int(index or 0) < count:
            return torch.device(device)
        raise InvalidRequestError(
            f"device is {device!r}, but this machine has {count} CUDA devices.",
            remedy="Use cpu or auto.",
            field="device",
        )
    raise InvalidRequestError(
        f"device cannot be {device!r}.", remedy="Use auto, cpu, cuda or cuda:N.", field="device"
    )


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """Turn what the user wrote into what the model computes in.

    Raises:
        InvalidRequestError: It is unknown.
    """
    if dtype == "auto":
        fast = device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return torch.bfloat16 if fast else torch.float32
    if dtype not in DTYPES:
        raise InvalidRequestError(
            f"dtype cannot be {dtype!r}.",
            remedy=f"Use auto, {' or '.join(DTYPES)}.",
            field="dtype",
        )
    return DTYPES[dtype]


def _weight_bytes(checkpoint: FolderCheckpoint, dtype: torch.dtype) -> int:
    config = checkpoint.config
    attention = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    layer = config.hidden_size * (attention + 3 * config.intermediate_size)
    # A tied head counts too: its product keeps a copy in the layout it multiplies fastest.
    tables = 2 * config.vocab_size * config.hidden_size
    return (config.num_layers * layer + tables) * dtype.itemsize


def _require_memory(weight_bytes: int, device: torch.device) -> None:
    if device.type == "cpu":
        free = psutil.virtual_memory().available
    else:
        free = torch.cuda.mem_get_info(device)[0]
    if weight_bytes > free:
        raise OutOfMemoryBudgetError(
            f"The weights take {weight_bytes / 1e9:.1f} GB, but {free / 1e9:.1f} GB of "
            f"{device.type} memory are free.",
            remedy="Close other programs, use bfloat16, or choose a smaller model.",
            field="model",
        )
