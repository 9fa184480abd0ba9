"""Which row counts give a row the same result, bit for bit.

Libraries choose their kernels by shape, and kernels sum in different orders: a row's product may
differ in its last bit between one row and sixteen. Decoding one token at a time and verifying a
tree of sixteen must not differ, so products are only ever run with row counts found here to agree,
and what is missing is padded. (Measured with torch 2.13: bf16 products agree for 1 to 64 rows on
one CPU and for 1 to 32 on another; float32 ones only in multiples of 4, or from 16 rows on.)

GPU libraries have the most kernels to choose from. There a pass has one fixed row count, 64, or one
of a few larger ones where they are found to agree with it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

ROW_COUNTS: Final = (1, 2, 4, 8, 16, 32, 64)

CUDA_ROW_COUNTS: Final = (64, 128, 256)
"""Row counts on a GPU, which reads the weights for 64 rows in hardly more time than for one."""

# Sums of so many rows: two orders may agree on one of them by chance.
_SUMMED_ROWS: Final = 8


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


def row_counts(device: torch.device) -> tuple[int, ...]:
    """Give the row counts that are tried on a device, ascending."""
    return ROW_COUNTS if device.type == "cpu" else CUDA_ROW_COUNTS


def sum_witnesses(
    widths: Iterable[int], most: int, device: torch.device
) -> list[Callable[[int], torch.Tensor]]:
    """Make sums and means along equal rows, as norms and attention take them.

    Args:
        widths: Numbers in a row.
        most: Most rows that will be asked for.
        device: Where they are summed.

    Returns:
        Each takes a row count and gives `[count, 2]`.
    """
    generator = torch.Generator().manual_seed(20)

    def witness(row: torch.Tensor) -> Callable[[int], torch.Tensor]:
        rows = row.to(device).expand(most, -1)

        def summed(count: int) -> torch.Tensor:
            some = rows[:count].contiguous()
            return torch.stack([some.sum(-1), some.mean(-1)], -1)

        return summed

    return [
        witness(torch.rand(1, width, generator=generator))
        for width in sorted(set(widths))
        for _ in range(_SUMMED_ROWS)
    ]


def agreeing_ladder(
    products: Sequence[Callable[[int], torch.Tensor]],
    counts: Sequence[int] = ROW_COUNTS,
    *,
    from_first: bool = False,
) -> RowLadder:
    """Find the row counts on which all products agree about a row, wherever it stands.

    Args:
        products: Each takes a row count and returns its result `[count, ...]` for so many rows
            that are all the same.
        counts: Row counts to try, ascending.
        from_first: Whether the first count in which a row's place does not matter must be in the
            set.

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
    if from_first:
        return RowLadder(tuple(groups[0][1]))
    members = max((members for _, members in groups), key=lambda group: (len(group), group[-1]))
    return RowLadder(tuple(members))


def require_plain_sums(device: torch.device) -> None:
    """Let float32 products on a GPU be float32 ones, and bfloat16 ones sum in float32.

    The settings are torch's, for the whole process; on a CPU nothing is changed.
    """
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
