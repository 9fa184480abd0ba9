"""Checkpoints quantised to int8 or int4 at load, and kept so in the cache."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
from rich.console import Console
from rich.progress import Progress

from peagle.catalog.progress import announce
from peagle.errors import CheckpointError
from peagle.model.config import DecoderConfig
from peagle.model.folder_checkpoint import FolderCheckpoint, read_json, read_tensors
from peagle.model.gguf_blocks import INT4_KINDS, int4_blocks
from peagle.model.gguf_checkpoint import GGUFCheckpoint
from peagle.model.prepared import cached_place, make_folder
from peagle.model.quantized_linear import QuantizedWeight, quantized_bytes
from peagle.model.quantized_weight import Int4Weight, Int8Weight
from peagle.model.quantizing import quantize_int4, quantize_int8
from peagle.quantization import Quantization

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"
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
            elif field == "weight":
                found[key] = part
        return found


def open_source(files: Path) -> Source:
    """Open a GGUF file or a Hugging Face folder to be quantised; no weight is read yet.

    Raises:
        CheckpointError: Files are missing, truncated or corrupt.
        UnsupportedError: The architecture or quantisation is not one we run.
    """
    return GGUFCheckpoint(files) if files.is_file() else FolderCheckpoint(files)


def open_quantized(source: Source, quantization: Quantization) -> QuantizedCheckpoint:
    """Open the quantised weights of a model, made from its files unless they are in the cache.

    Args:
        source: The model.
        quantization: `int8` or `int4`.

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
            lambda: _quantized(source, quantization, files.name),
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
    hidden, inner = config.hidden_size, config.intermediate_size
    width = config.num_heads * config.head_dim
    fused = width + 2 * config.num_kv_heads * config.head_dim
    shapes = [(fused, hidden), (hidden, width), (2 * inner, hidden), (hidden, inner)]
    layer = sum(quantized_bytes(shape, quantization) for shape in shapes)
    head = quantized_bytes((config.vocab_size, hidden), "int8")
    embedding = config.vocab_size * hidden * embedding_dtype.itemsize
    return config.num_layers * layer + head + embedding


def _quantized(source: Source, quantization: Quantization, shown: str) -> dict[str, torch.Tensor]:
    """Quantise every product's weight; norms stay as they are, the embedding becomes bfloat16."""
    parts: dict[str, torch.Tensor] = {}
    terminal = sys.stderr.isatty()
    if not terminal:
        announce(f"Quantising {shown} to {quantization} (once).")
    tied = source.config.tied_embeddings
    with Progress(console=Console(stderr=True), transient=True, disable=not terminal) as progress:
        bar = progress.add_task(f"Quantising {shown} to {quantization} (once)", total=None)
        for done, total, name, weight in _weights(source, own_blocks=quantization == "int4"):
            progress.update(bar, completed=done, total=total)
            if isinstance(weight, Int4Weight):
                parts |= _parts(name, weight)
                continue
            if not weight.isfinite().all():
                raise CheckpointError(
                    f"The tensor {name!r} of {shown} holds numbers that are not finite.",
                    remedy="The file is damaged; fetch it again.",
                    field=name,
                )
            if name == EMBEDDING:
                parts[name] = weight.to(torch.bfloat16)
                if tied:
                    parts |= _parts(HEAD, quantize_int8(weight))
            elif name == HEAD:
                if not tied:
                    parts |= _parts(name, quantize_int8(weight))
            elif name.endswith("_proj.weight"):
                by_four = quantization == "int4"
                parts |= _parts(
                    name, quantize_int4(weight, name) if by_four else quantize_int8(weight)
                )
            elif name.endswith("norm.weight"):
                parts[name] = weight.contiguous()
    return parts


def _weights(
    source: Source, *, own_blocks: bool
) -> Iterator[tuple[int, int, str, torch.Tensor | Int4Weight]]:
    """Give every weight with how many there are, query and key rows in neighbouring pairs.

    Args:
        source: The model.
        own_blocks: Whether a GGUF's own 4-bit blocks of products are given as they are.
    """
    if isinstance(source, FolderCheckpoint):
        found = source.tensors()
        for place, (name, weight) in enumerate(found.items()):
            yield place, len(found), name, weight
        return
    total = len(source.header.tensors)
    for place, (name, stored) in enumerate(source.stored()):
        # The head is quantised to int8 whatever it was.
        if own_blocks and name.endswith("_proj.weight") and stored.kind in INT4_KINDS:
            yield place, total, name, int4_blocks(source.packed(stored), stored.kind)
        else:
            # In the file, query and key rows already pair neighbours.
            yield place, total, name, source.values(stored)


def _parts(name: str, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
    if isinstance(weight, Int8Weight):
        return {f"{name}.values": weight.values, f"{name}.scales": weight.scales}
    return {
        f"{name}.nibbles": weight.nibbles,
        f"{name}.scales": weight.scales,
        f"{name}.offsets": weight.offsets,
    }
