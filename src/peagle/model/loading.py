"""From a model's files to a target model and its tokenizer, ready to run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

import psutil
import torch

from peagle.errors import InvalidRequestError, OutOfMemoryBudgetError, PeagleError
from peagle.model.config import DecoderConfig
from peagle.model.decoder import DecoderWeights
from peagle.model.folder_checkpoint import FolderCheckpoint
from peagle.model.native_target import NativeTarget, obstacle
from peagle.model.prepared import open_checkpoint
from peagle.model.quantized_checkpoint import (
    QuantizedCheckpoint,
    model_bytes,
    open_quantized,
    open_source,
)
from peagle.model.smoothing import calibration_tokens
from peagle.model.target import Target
from peagle.model.tokenizer import Tokenizer
from peagle.model.torch_target import TorchTarget
from peagle.quantization import QUANTIZATIONS, Quantization

DTYPES: Final = {"bfloat16": torch.bfloat16, "float32": torch.float32}
BACKENDS: Final = ("native", "torch")
_Model_co = TypeVar("_Model_co", bound=Target, covariant=True)


@dataclass(frozen=True, slots=True)
class LoadedTarget(Generic[_Model_co]):
    """A target model with its tokenizer.

    Attributes:
        model: The model.
        tokenizer: Its vocabulary.
        weight_bytes: Memory of the weights.
    """

    model: _Model_co
    tokenizer: Tokenizer
    weight_bytes: int


def load_target(
    files: Path,
    *,
    dtype: str = "auto",
    quantization: str = "auto",
    usual_quantization: Mapping[str, Quantization] | None = None,
    device: str = "auto",
    backend: str = "auto",
    taps: tuple[int, ...] | None = None,
) -> LoadedTarget[Target]:
    """Load a target model.

    Args:
        files: A GGUF file, or a Hugging Face folder with safetensors.
        dtype: `bfloat16`, `float32`, or `auto`: bfloat16 where the processor multiplies it fast.
        quantization: `none`, `int8`, `int4`, or `auto` (`choose_quantization`).
        usual_quantization: What `auto` is on each kind of device; `none` where nothing is said.
        device: `cpu`, `cuda`, `cuda:N`, or `auto`: a GPU if there is one.
        backend: `native`, `torch`, or `auto`: the native step wherever it runs the model.
        taps: Layers whose incoming residual stream a drafter reads; EAGLE-3's if None.

    Raises:
        InvalidRequestError: The dtype, quantization, device or backend is unknown, not on this
            machine or not for this model, or two of them contradict each other.
        CheckpointError: Files are missing, truncated, corrupt or contradict each other.
        UnsupportedError: The architecture or quantisation is not one we run.
        DownloadError: The cache folder, where prepared weights are kept, is full or unwritable.
        OutOfMemoryBudgetError: The weights do not fit in free memory.
    """
    _check_backend(backend)
    place = choose_device(device)
    kind = choose_dtype(dtype, place)
    usual = (usual_quantization or {}).get(place.type, "none")
    quantised = choose_quantization(quantization, dtype, usual)
    tokenizer = open_tokenizer(files)
    checkpoint, weight_bytes = _open(files, tokenizer, quantised, kind, place)
    with torch.inference_mode():
        model: Target
        if _native(backend, checkpoint.config, kind, quantised, place):
            model = NativeTarget(checkpoint.config, checkpoint.tensors(), taps)
        else:
            model = _torch_target(checkpoint, kind, place, taps)
    return LoadedTarget(model, tokenizer, weight_bytes)


def load_torch_target(
    files: Path,
    *,
    dtype: str = "auto",
    device: str = "auto",
    taps: tuple[int, ...] | None = None,
) -> LoadedTarget[TorchTarget]:
    """Load a target model in torch, not quantised, for what reads its layers one by one.

    Args:
        files: As in `load_target`.
        dtype: As in `load_target`.
        device: As in `load_target`.
        taps: As in `load_target`.

    Raises:
        PeagleError: As in `load_target`.
    """
    place = choose_device(device)
    kind = choose_dtype(dtype, place)
    tokenizer = open_tokenizer(files)
    checkpoint, weight_bytes = _open(files, tokenizer, "none", kind, place)
    with torch.inference_mode():
        return LoadedTarget(_torch_target(checkpoint, kind, place, taps), tokenizer, weight_bytes)


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
        UnsupportedError: The tokenizer is of an unknown kind, or the model is not one we run.
    """
    try:
        return Tokenizer.from_gguf(files) if files.is_file() else Tokenizer.from_folder(files)
    except PeagleError:
        # A model that does not run is a better reason than its vocabulary.
        open_source(files)
        raise


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


def _check_backend(backend: str) -> None:
    if backend not in ("auto", *BACKENDS):
        raise InvalidRequestError(
            f"backend cannot be {backend!r}.",
            remedy=f"Use auto, {' or '.join(BACKENDS)}.",
            field="backend",
        )


def _native(
    backend: str,
    config: DecoderConfig,
    dtype: torch.dtype,
    quantization: Quantization,
    device: torch.device,
) -> bool:
    """Whether the native step runs a model.

    Raises:
        InvalidRequestError: It was asked for and cannot.
    """
    if backend == "torch":
        return False
    if device.type != "cpu":
        against: str | None = f"it runs on the processor, not on {device}"
    else:
        against = obstacle(config, dtype, quantization)
    if against is not None and backend == "native":
        raise InvalidRequestError(
            f"backend is 'native', but the native step cannot run this model: {against}.",
            remedy="Use auto or torch.",
            field="backend",
        )
    return against is None


def _open(
    files: Path,
    tokenizer: Tokenizer,
    quantization: Quantization,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[FolderCheckpoint | QuantizedCheckpoint, int]:
    """Open a checkpoint, giving the memory of its weights, too, for which there is room."""
    if quantization == "none":
        plain = open_checkpoint(files, dtype)
        weight_bytes = _weight_bytes(plain, dtype)
        _require_memory(weight_bytes, device)
        return plain, weight_bytes
    source = open_source(files)
    weight_bytes = model_bytes(source.config, quantization, dtype)
    _require_memory(weight_bytes, device)
    return open_quantized(source, quantization, calibration_tokens(tokenizer)), weight_bytes


def _torch_target(
    checkpoint: FolderCheckpoint | QuantizedCheckpoint,
    dtype: torch.dtype,
    device: torch.device,
    taps: tuple[int, ...] | None,
) -> TorchTarget:
    weights = DecoderWeights.prepare(checkpoint.config, checkpoint.tensors(), dtype, device)
    return TorchTarget(checkpoint.config, weights, dtype, device, taps)


def _weight_bytes(checkpoint: FolderCheckpoint, dtype: torch.dtype) -> int:
    config = checkpoint.config
    values = sum(
        math.prod(shape)
        for name, shape in config.tensor_shapes().items()
        if name.endswith("_proj.weight")
    )
    # A tied head counts too: its product keeps a copy in the layout it multiplies fastest.
    tables = 2 * config.vocab_size * config.hidden_size
    return (values + tables) * dtype.itemsize


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
