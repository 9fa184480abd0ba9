"""Weights inside a GGUF file: which rows they are, and their values dequantised piece by piece."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Final

import numpy as np
import torch
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from peagle.catalog.gguf_header import GGUFTensor
from peagle.errors import UnsupportedError
from peagle.model.rope import split_pairs

# Dequantisation makes several temporary arrays of a piece's size.
_PIECE_VALUES: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class GGUFWeight:
    """Rows of a tensor in a file that are one weight under its Hugging Face name.

    Attributes:
        stored: The tensor.
        shape: The weight's shape, `[rows, columns]` or `[values]`.
        first_row: Where its rows begin among all rows of the tensor.
        paired_heads: Heads whose rows the converter put in neighbouring pairs; None if it kept
            Hugging Face's order.
        added: What the converter added to every value.
    """

    stored: GGUFTensor
    shape: tuple[int, ...]
    first_row: int = 0
    paired_heads: int | None = None
    added: float = 0.0

    @classmethod
    def whole(cls, stored: GGUFTensor) -> "GGUFWeight":
        """Take a tensor as it is."""
        return cls(stored, stored.shape)

    def stacked(self) -> "list[GGUFWeight]":
        """Take a tensor `[experts, rows, columns]` apart."""
        experts, *shape = self.shape
        return [
            replace(self, shape=tuple(shape), first_row=expert * shape[0])
            for expert in range(experts)
        ]

    def cut(self, sizes: Sequence[int]) -> "list[GGUFWeight]":
        """Take weights apart that lie on top of one another, so many rows each."""
        ends = list(accumulate(sizes))
        return [
            replace(self, shape=(rows, *self.shape[1:]), first_row=self.first_row + end - rows)
            for rows, end in zip(sizes, ends, strict=True)
        ]

    @property
    def kind(self) -> GGMLQuantizationType:
        """How its values are packed."""
        return self.stored.kind


def read_packed(file: Path, weight: GGUFWeight) -> NDArray[np.uint8]:
    """Read a weight as it is packed, `[rows, bytes]`, rows in Hugging Face's order."""
    rows = weight.shape[0] if len(weight.shape) > 1 else 1
    packed = _read_rows(file, weight, 0, rows)
    if weight.paired_heads is None:
        return packed
    return split_pairs(torch.from_numpy(packed), weight.paired_heads).numpy()


def read_values(file: Path, weight: GGUFWeight, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Read a weight dequantised, rows in Hugging Face's order.

    Beside the result it takes the memory of a few million values.

    Args:
        file: The file.
        weight: Which; its packing is one of `readable_kinds`.
        dtype: What the float32 values are rounded to.
    """
    rows = weight.shape[0] if len(weight.shape) > 1 else 1
    columns = weight.shape[-1]
    values = torch.empty(rows, columns, dtype=dtype)
    step = max(1, _PIECE_VALUES // columns)
    for first in range(0, rows, step):
        packed = _read_rows(file, weight, first, min(step, rows - first))
        piece = torch.from_numpy(quants.dequantize(packed, weight.kind))
        values[first : first + step] = piece - weight.added if weight.added else piece
    if weight.paired_heads is not None:
        values = split_pairs(values, weight.paired_heads)
    return values.view(weight.shape)


def _read_rows(file: Path, weight: GGUFWeight, first: int, rows: int) -> NDArray[np.uint8]:
    """Read rows in the file's own order, `[rows, bytes]`."""
    stored = weight.stored
    (width,) = quants.quant_shape_to_byte_shape(stored.shape[-1:], stored.kind)
    start = stored.start + (weight.first_row + first) * width
    return np.fromfile(file, np.uint8, rows * width, offset=start).reshape(rows, width)


@functools.cache
def readable_kinds() -> tuple[GGMLQuantizationType, ...]:
    """Give the packings that the gguf package turns into numbers, in its own order."""
    return tuple(kind for kind in GGMLQuantizationType if _is_readable(kind))


def require_readable(file: Path, tensors: Iterable[GGUFTensor]) -> None:
    """Check that every tensor can be dequantised.

    Raises:
        UnsupportedError: One cannot.
    """
    for stored in tensors:
        if stored.kind not in readable_kinds():
            kinds = ", ".join(kind.name for kind in readable_kinds())
            raise UnsupportedError(
                f"{file}: the tensor {stored.name!r} has the quantisation {stored.kind.name}, "
                "which is not supported.",
                remedy=f"Use a GGUF file whose weights are of these kinds: {kinds}.",
                field=stored.name,
            )


def _is_readable(kind: GGMLQuantizationType) -> bool:
    _, size = GGML_QUANT_SIZES[kind]
    try:
        quants.dequantize(np.zeros((1, size), np.uint8), kind)
    except NotImplementedError:
        return False
    return True
