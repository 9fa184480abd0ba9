"""Which row counts give a row the same result, bit for bit.

Libraries choose their kernels by shape, and kernels sum in different orders: a row's product may
differ in its last bit between one row and sixteen. Decoding one token at a time and verifying a
tree of sixteen must not differ, so products are only ever run with row counts found here to agree,
and what is missing is padded. (Measured with torch 2.13: bf16 products agree for 1 to 64 rows on
one CPU and for 1 to 32 on another; float32 ones only in multiples of 4, or from 16 rows on.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class RowLadder:
    """Row counts that agree with one another, ascending.

    Attributes:
        counts: Every product runs with one of these.
    """

    counts: tuple[int, ...]

    @property
    def largest(self) -> int:
        """Most rows one product takes; more rows are multiplied in blocks of so many."""
        return self.counts[-1]

    def padded(self, rows: int) -> int:
        """Rows to compute for `rows` real ones: full blocks and the smallest count for the rest."""
        rest = rows % self.largest
        return rows - rest + (min(c for c in self.counts if c >= rest) if rest else 0)


def cancelling_operands(
    rows: int, inner: int, columns: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make a product `[rows, inner] x [columns, inner]` of equal rows whose true result is zero.

    What is left is the rounding error, which any other order of summation changes: the most
    sensitive witness of a kernel's order.

    Returns:
        Activations `[rows, inner]`, every row the same, and weights `[columns, inner]`.
    """
    generator = torch.Generator().manual_seed(20)
    half = inner // 2
    order = torch.randperm(2 * half, generator=generator)
    left = torch.randn(1, half, generator=generator)
    # A block of rows repeated down the matrix: as telling as fresh ones, and much faster to make.
    block = torch.randn(min(columns, 512), half, generator=generator)
    activations = torch.zeros(1, inner)
    weights = torch.zeros(block.shape[0], inner)
    activations[:, : 2 * half] = torch.cat([left, -left], 1)[:, order]
    weights[:, : 2 * half] = torch.cat([block, block], 1)[:, order]
    weights = weights.to(device=device, dtype=dtype)
    weights = weights.repeat(-(-columns // weights.shape[0]), 1)[:columns].contiguous()
    return activations.to(device=device, dtype=dtype).repeat(rows, 1), weights


def agreeing_ladder(
    products: Sequence[Callable[[int], torch.Tensor]], counts: Sequence[int] = ROW_COUNTS
) -> RowLadder:
    """Find the row counts on which all products agree about a row, wherever it stands.

    Args:
        products: Each takes a row count and returns its result `[count, ...]` for so many rows
            that are all the same.
        counts: Row counts to try, ascending.

    Returns:
        The largest set of agreeing counts; of equally large ones, that with the most rows.
        A single count, if no two agree: every pass is then padded to it.
    """
    groups: list[tuple[list[torch.Tensor], list[int]]] = []
    for count in counts:
        results = [product(count) for product in products]
        if not all(torch.equal(result, result[:1].expand_as(result)) for result in results):
            continue
        rows = [result[0] for result in results]
        for seen, members in groups:
            if all(torch.equal(row, other) for row, other in zip(rows, seen, strict=True)):
                members.append(count)
                break
        else:
            groups.append((rows, [count]))
    if not groups:
        return RowLadder((1,))
    members = max((members for _, members in groups), key=lambda group: (len(group), group[-1]))
    return RowLadder(tuple(members))
