"""Which products of queries with a page of keys give a query the same result, bit for bit.

On a CPU the number of pages at a time changes nothing, as some numbers of them show. On a GPU a
library may choose another kernel for it, so only numbers that were measured are used.
"""

from collections.abc import Callable
from typing import Final

import torch

from peagle.errors import UnsupportedError
from peagle.model.config import DecoderConfig
from peagle.model.invariance import (
    ROW_COUNTS,
    RowLadder,
    agreeing_ladder,
    cancelling_operands,
    sum_witnesses,
)
from peagle.model.kv_cache import PAGE_POSITIONS

CUDA_ROWS: Final = (4, 16)
"""Rows that share a page in one product on a GPU: short branches of a tree, and whole trees."""

CUDA_JOBS: Final = (16, 64, 256)
"""Pages that one batched product on a GPU takes."""

_KINDS: Final = ("keys", "values")


def page_ladder(config: DecoderConfig, device: torch.device) -> RowLadder:
    """Give the query counts on which the products with few and many pages agree.

    Args:
        config: The decoder's shape.
        device: Where attention runs.

    Returns:
        Multiples of `config.queries_per_kv_head`.
    """
    counts = tuple(config.queries_per_kv_head * rows for rows in ROW_COUNTS)
    products = [_product(config, device, kind, (1, 3, 48)) for kind in _KINDS]
    return agreeing_ladder(products, counts)


def counted_page_products(
    config: DecoderConfig, device: torch.device
) -> tuple[RowLadder, RowLadder]:
    """Give the counts of queries, and of pages at a time, on which all products agree.

    Args:
        config: The decoder's shape.
        device: Where attention runs.

    Returns:
        Query counts, multiples of `config.queries_per_kv_head`, and counts of pages.

    Raises:
        UnsupportedError: A query's result depends on its place in every shape tried.
    """
    kv_heads = config.num_kv_heads
    widths = tuple(config.queries_per_kv_head * rows for rows in CUDA_ROWS)

    def batched(kind: str, width: int) -> Callable[[int], torch.Tensor]:
        return lambda jobs: _product(config, device, kind, (jobs * kv_heads,))(width)

    def summed(witness: Callable[[int], torch.Tensor], width: int) -> Callable[[int], torch.Tensor]:
        return lambda jobs: witness(jobs * kv_heads * width)

    most = CUDA_JOBS[-1] * kv_heads * widths[-1]
    sums = sum_witnesses([PAGE_POSITIONS], most, device)
    jobs = agreeing_ladder(
        [batched(kind, width) for kind in _KINDS for width in widths]
        + [summed(witness, width) for witness in sums for width in widths],
        CUDA_JOBS,
    )
    # Each width agrees with itself over these counts of pages; now one width with the other.
    fixed = jobs.largest * kv_heads
    queries = agreeing_ladder(
        [_product(config, device, kind, (fixed,)) for kind in _KINDS]
        + [summed(witness, jobs.largest) for witness in sums],
        widths,
    )
    if jobs.largest not in CUDA_JOBS or queries.largest not in widths:
        raise UnsupportedError(
            f"On {device} the attention of a row depends on which other rows are computed with it.",
            remedy="Run the model on the processor: device cpu.",
            field="device",
        )
    return queries, jobs


def _product(
    config: DecoderConfig, device: torch.device, kind: str, batches: tuple[int, ...]
) -> Callable[[int], torch.Tensor]:
    """Multiply equal queries with equal pages, of keys or of values, so many pages at a time."""
    head_dim = config.head_dim
    inner, out = (head_dim, PAGE_POSITIONS) if kind == "keys" else (PAGE_POSITIONS, head_dim)

    def product(count: int) -> torch.Tensor:
        """Give one row for each query of each page, which must all be the same."""
        rows, weight = cancelling_operands(count, inner, out, torch.float32, device)
        results = []
        for pages in batches:
            operand = weight.expand(pages, -1, -1).contiguous().transpose(1, 2)
            if kind == "values":
                operand = operand.contiguous()
            queries = rows.expand(pages, -1, -1).contiguous()
            results.append(torch.bmm(queries, operand).view(pages * count, out))
        return torch.cat(results)

    return product
