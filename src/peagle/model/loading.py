"""From a model's files to a target model and its tokenizer, ready to run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import torch

from peagle.errors import InvalidRequestError, OutOfMemoryBudgetError
from peagle.model.decoder import DecoderWeights
from peagle.model.folder_checkpoint import FolderCheckpoint
from peagle.model.prepared import open_checkpoint
from peagle.model.quantized_checkpoint import (
    QuantizedCheckpoint,
    model_bytes,
    open_quantized,
    open_source,
)
from peagle.model.smoothing import calibration_tokens
from peagle.model.target import TargetModel
from peagle.model.tokenizer import Tokenizer
from peagle.quantization import QUANTIZATIONS, Quantization

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
    quantization: str = "auto",
    usual_quantization: Mapping[str, Quantization] | None = None,
    device: str = "auto",
    taps: tuple[int, ...] | None = None,
) -> LoadedTarget:
    """Load a target model.

    Args:
        files: A GGUF file, or a Hugging Face folder with safetensors.
        dtype: `bfloat16`, `float32`, or `auto`: bfloat16 where the processor multiplies it fast.
        quantization: `none`, `int8`, `int4`, or `auto` (`choose_quantization`).
        usual_quantization: What `auto` is on each kind of device; `none` where nothing is said.
        device: `cpu`, `cuda`, `cuda:N`, or `auto`: a GPU if there is one.
        taps: Layers whose incoming residual stream a drafter reads; EAGLE-3's if None.

    Raises:
        InvalidRequestError: The dtype, quantization or device is unknown, not on this machine, or
            the first two contradict each other.
        CheckpointError: Files are missing, truncated, corrupt or contradict each other.
        UnsupportedError: The architecture or quantisation is not one we run.
        DownloadError: The cache folder, where prepared weights are kept, is full or unwritable.
        OutOfMemoryBudgetError: The weights do not fit in free memory.
    """
    place = choose_device(device)
    kind = choose_dtype(dtype, place)
    usual = (usual_quantization or {}).get(place.type, "none")
    quantised = choose_quantization(quantization, dtype, usual)
    tokenizer = open_tokenizer(files)
    checkpoint: FolderCheckpoint | QuantizedCheckpoint
    if quantised == "none":
        checkpoint = open_checkpoint(files, kind)
        weight_bytes = _weight_bytes(checkpoint, kind)
        _require_memory(weight_bytes, place)
    else:
        source = open_source(files)
        weight_bytes = model_bytes(source.config, quantised, kind)
        _require_memory(weight_bytes, place)
        checkpoint = open_quantized(source, quantised, calibration_tokens(tokenizer))
    with torch.inference_mode():
        weights = DecoderWeights.prepare(checkpoint.config, checkpoint.tensors(), kind, place)
        model = TargetModel(checkpoint.config, weights, kind, place, taps)
    return LoadedTarget(model, tokenizer, weight_bytes)


def prepare_usual(files: Path, usual_quantization: Mapping[str, Quantization]) -> None:
    """Prepare a model's weights in the cache as `load_target` wants them unless told otherwise.

    Args:
        files: A GGUF file, or a Hugging Face folder with safetensors.
        usual_quantization: As in `load_target`.

    Raises:
        PeagleError: As in `load_target`.
    """
    place = choose_device("auto")
    usual = usual_quantization.get(place.type, "none")
    if usual == "none":
        open_checkpoint(files, choose_dtype("auto", place))
    else:
        open_quantized(open_source(files), usual, calibration_tokens(open_tokenizer(files)))


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


def choose_quantization(quantization: str, dtype: str, usual: Quantization) -> Quantization:
    """Turn what the user wrote into what weights are quantised to.

    Args:
        quantization: `none`, `int8`, `int4`, or `auto`: `none` where a dtype is told, or else
            what is usual.
        dtype: As the user wrote it.
        usual: What is usual for this model and device.

    Raises:
        InvalidRequestError: It is unknown, or contradicts the dtype.
    """
    if quantization == "auto":
        return usual if dtype == "auto" else "none"
    for known in QUANTIZATIONS:
        if quantization == known:
            if known != "none" and dtype != "auto":
                raise InvalidRequestError(
                    f"quantization is {known!r}, but dtype is {dtype!r}: a told dtype means "
                    "weights that are not quantised.",
                    remedy="Leave one of them out.",
                    field="quantization",
                )
            return known
    raise InvalidRequestError(
        f"quantization cannot be {quantization!r}.",
        remedy=f"Use auto, {', '.join(QUANTIZATIONS[:-1])} or {QUANTIZATIONS[-1]}.",
        field="quantization",
    )


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
            remedy="Close other programs, use quantization int8 or int4, or a smaller model.",
            field="model",
        )
