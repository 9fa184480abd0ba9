"""Exact products of whole numbers: the same sums whatever kernel computes them, in any order."""

import functools
from typing import Final

import torch

# `torch._int_mm` on CUDA takes more than 16 rows, and multiples of 8 of the rest.
_CUDA_ROWS: Final = 32
_CUDA_MULTIPLE: Final = 8
# float32 holds every whole number up to 2**24, so sums of so many products of two int8 are exact
# in it, whatever the order.
_EXACT_INPUTS: Final = 2**24 // 127**2


def integer_product(rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Multiply int8 by int8.

    Args:
        rows: `[rows, in]`, -127 to 127.
        values: `[out, in]`, -127 to 127.

    Returns:
        Exact sums, int32 `[rows, out]`.
    """
    if rows.device.type == "cuda":
        return _cuda_product(rows, values)
    if cpu_kernel_is_exact():
        return torch._int_mm(rows, values.T)
    return float_product(rows, values)


@functools.cache
def cpu_kernel_is_exact() -> bool:
    """Whether torch's own int8 product gives exact sums on this processor.

    Processors without VNNI may add pairs of products in 16 bits, which overflow: the largest
    numbers of either sign show it, with few rows and many, and with a part of a vector left over.
    """
    for inner in (64, 96, 576):
        values = torch.full((32, inner), 127, dtype=torch.int8)
        values[1::2] = -127
        for count in (1, 7, 64):
            rows = torch.full((count, inner), 127, dtype=torch.int8)
            rows[1::2] = -127
            if not torch.equal(torch._int_mm(rows, values.T), float_product(rows, values)):
                return False
    return True


def float_product(rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Compute `integer_product` in float32, over as many inputs at a time as stay exact."""
    blocks = zip(
        torch.split(rows, _EXACT_INPUTS, 1), torch.split(values, _EXACT_INPUTS, 1), strict=True
    )
    sums = [(some.float() @ block.float().T).to(torch.int32) for some, block in blocks]
    return torch.stack(sums).sum(0, dtype=torch.int32)


def _cuda_product(rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    count, out = rows.shape[0], values.shape[0]
    inner = -rows.shape[1] % _CUDA_MULTIPLE
    padded = _extended(rows, max(_CUDA_ROWS - count, -count % _CUDA_MULTIPLE), inner)
    whole = _extended(values, -out % _CUDA_MULTIPLE, inner)
    return torch._int_mm(padded, whole.T)[:count, :out]


def _extended(matrix: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Add zeros at the end; a matrix that needs none, as nearly all, is not copied."""
    if rows or columns:
        return torch.nn.functional.pad(matrix, (0, columns, 0, rows))
    return matrix
