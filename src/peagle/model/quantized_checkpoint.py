"""Checkpoints quantised to int8 or int4 at load, and kept so in the cache."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from rich.console import Console
from rich.progress import Progress

from peagle.catalog.progress import announce
from peagle.errors import CheckpointError
from peagle.model.config import DecoderConfig
from peagle.model.folder_checkpoint import (
    FolderCheckpoint,
    missing_tensor,
    read_json,
    read_tensors,
    require_shape,
)
from peagle.model.gguf_blocks import INT4_KINDS, int4_blocks
from peagle.model.gguf_checkpoint import GGUFCheckpoint
from peagle.model.gguf_weights import GGUFWeight
from peagle.model.prepared import cached_place, make_folder
from peagle.model.quantized_linear import QuantizedWeight, quantized_bytes
from peagle.model.quantized_weight import Int4Weight, Int8Weight
from peagle.model.quantizing import quantize_int4, quantize_int8
from peagle.model.rope import in_pairs
from peagle.model.smoothing import EMBEDDING, HEAD, smoothed_weights
from peagle.quantization import Quantization

# Counted up whenever the same files come to be quantised to other numbers.
_RECIPE: Final = 1

Source = GGUFCheckpoint | FolderCheckpoint
Named = torch.Tensor | QuantizedWeight


class QuantizedCheckpoint:
    """A folder of the cache with quantised weights.

    Args:
        folder: The folder.

    Raises:
        CheckpointError: A file is missing or cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = DecoderConfig.from_hugging_face(read_json(folder / "config.json"))

    def tensors(self) -> dict[str, Named]:
        """Every weight by name, memory-mapped, query and key rows in neighbouring pairs.

        Raises:
            CheckpointError: The file is truncated or corrupt.
        """
        parts = read_tensors(self.folder)
        found: dict[str, Named] = {}
        for key, part in parts.items():
            name, _, field = key.rpartition(".")
            if field == "values":
                found[name] = Int8Weight(part, parts[f"{name}.scales"])
            elif field == "nibbles":
                found[name] = Int4Weight(part, parts[f"{name}.scales"], parts[f"{name}.offsets"])
            elif field in ("weight", "bias"):
                found[key] = part
        return found


def open_source(files: Path) -> Source:
    """Open a GGUF file or a Hugging Face folder to be quantised; no weight is read yet.

    Raises:
        CheckpointError: Files are missing, truncated or corrupt.
        UnsupportedError: The architecture or quantisation is not one we run.
    """
    return GGUFCheckpoint(files) if files.is_file() else FolderCheckpoint(files)


def open_quantized(
    source: Source, quantization: Quantization, tokens: Sequence[int]
) -> QuantizedCheckpoint:
    """Open the quantised weights of a model, made from its files unless they are in the cache.

    Args:
        source: The model.
        quantization: `int8` or `int4`.
        tokens: A text to look at activations on (`smoothing.calibration_tokens`).

    Raises:
        CheckpointError: A file is truncated or corrupt, or a weight is not finite.
        UnsupportedError: A tensor's quantisation is not one we read, or int4 cannot group it.
        DownloadError: The cache folder is full or cannot be written.
    """
    files = source.path if isinstance(source, GGUFCheckpoint) else source.folder
    folder = cached_place(files, f"{quantization}-{_RECIPE}")
    if not folder.is_dir():
        make_folder(
            folder,
            source.config,
            lambda: _quantized(source, quantization, tokens),
            needed=model_bytes(source.config, quantization, torch.bfloat16),
        )
    return QuantizedCheckpoint(folder)


def model_bytes(
    config: DecoderConfig, quantization: Quantization, embedding_dtype: torch.dtype
) -> int:
    """Memory of a quantised model: products, the head's own copy and the embedding.

    Args:
        config: The model's shape.
        quantization: `int8` or `int4`.
        embedding_dtype: What embeddings are looked up in.
    """
    shapes = config.tensor_shapes()
    products = sum(
        quantized_bytes((shape[0], shape[1]), quantization)
        for name, shape in shapes.items()
        if name.endswith("_proj.weight")
    )
    head = quantized_bytes((config.vocab_size, config.hidden_size), "int8")
    embedding = config.vocab_size * config.hidden_size * embedding_dtype.itemsize
    return products + head + embedding


def _quantized(
    source: Source, quantization: Quantization, tokens: Sequence[int]
) -> dict[str, torch.Tensor]:
    """Quantise every product's weight; norms are smoothed, the embedding becomes bfloat16."""
    weights = _Weights(source, own_blocks=quantization == "int4")
    what = f"Quantising {weights.shown} to {quantization} (once)"
    terminal = sys.stderr.isatty()
    if not terminal:
        announce(f"{what}.")
    parts: dict[str, torch.Tensor] = {}
    smoothed = smoothed_weights(source.config, weights.read, tokens, fixed=weights.has_own_blocks)
    with Progress(console=Console(stderr=True), transient=True, disable=not terminal) as progress:
        total = len(source.config.tensor_shapes())
        for name, weight in progress.track(smoothed, total, description=what):
            if weights.has_own_blocks(name):
                parts |= _parts(name, weights.own_blocks(name))
            elif name == EMBEDDING:
                parts[name] = weight.to(torch.bfloat16)
            elif name != HEAD and not name.endswith("_proj.weight"):
                parts[name] = weight
            elif name == HEAD or quantization == "int8":
                parts |= _parts(name, quantize_int8(weight))
            else:
                parts |= _parts(name, quantize_int4(weight, name))
    return parts


class _Weights:
    """Reads a source's weights by name, query and key rows in neighbouring pairs.

    Args:
        source: The model.
        own_blocks: Whether a GGUF's own 4-bit blocks are kept as they are.

    Attributes:
        shown: What a person calls the model.
    """

    def __init__(self, source: Source, *, own_blocks: bool) -> None:
        self._source = source
        self._stored: dict[str, GGUFWeight] = {}
        self._found: dict[str, torch.Tensor] = {}
        if isinstance(source, GGUFCheckpoint):
            self.shown = source.path.name
            self._stored = dict(source.common())
        else:
            self.shown = source.folder.name
            self._found = source.tensors()
        self._own_blocks = own_blocks
        self._shapes = source.config.tensor_shapes()

    def read(self, name: str) -> torch.Tensor:
        """Read a tensor.

        Raises:
            CheckpointError: It is missing, of another shape than the configuration says, or
                holds numbers that are not finite.
        """
        source = self._source
        if name not in (self._found or self._stored):
            raise missing_tensor(name)
        if isinstance(source, GGUFCheckpoint):
            weight = in_pairs(source.config, name, source.values(self._stored[name]))
        else:
            weight = self._found[name]
        require_shape(name, weight.shape, self._shapes[name])
        if not weight.isfinite().all():
            raise CheckpointError(
                f"The tensor {name!r} of {self.shown} holds numbers that are not finite.",
                remedy="The file is damaged; fetch it again.",
                field=name,
            )
        return weight

    def has_own_blocks(self, name: str) -> bool:
        """Whether a product's weight is kept as the GGUF's own blocks; the head never is."""
        return (
            self._own_blocks
            and name.endswith("_proj.weight")
            and name in self._stored
            and self._stored[name].kind in INT4_KINDS
        )

    def own_blocks(self, name: str) -> Int4Weight:
        """Read these blocks."""
        assert isinstance(self._source, GGUFCheckpoint)
        stored = self._stored[name]
        packed = torch.from_numpy(self._source.packed(stored))
        return int4_blocks(in_pairs(self._source.config, name, packed).numpy(), stored.kind)


def _parts(name: str, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
    if isinstance(weight, Int8Weight):
        return {f"{name}.values": weight.values, f"{name}.scales": weight.scales}
    return {
        f"{name}.nibbles": weight.nibbles,
        f"{name}.scales": weight.scales,
        f"{name}.offsets": weight.offsets,
    }
