"""Products with weights, in the form that the processor multiplies fastest."""

from collections.abc import Callable, Iterable
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)

from peagle.model.invariance import (
    RowLadder,
    agreeing_ladder,
    cancelling_operands,
    row_counts,
    sum_witnesses,
)

_PREPACK: Final = ("_reorder_linear_weight", "_linear_pointwise")


class Linear:
    """One weight `[out, in]` and its product.

    bfloat16 weights on a CPU are kept in oneDNN's blocked layout, which this machine's matrix
    instructions read in order (measured: about twice as fast as `F.linear` for 1 to 64 rows);
    the plain weight is then not kept.

    Attributes:
        shape: `(out, in)`.
        weight_bytes: Memory of the weight, which one product reads.
        most_rows: More rows are multiplied in blocks of so many, because the kernel for more
            would sum in another order (`invariance`).
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self.most_rows: int | None = None
        self.shape = (weight.shape[0], weight.shape[1])
        self.prepacked = prepacks(weight.dtype, weight.device)
        self.weight_bytes = weight.numel() * weight.itemsize
        self._weight = (
            torch.ops.mkldnn._reorder_linear_weight(weight, 16) if self.prepacked else weight
        )

    @property
    def layout(self) -> str:
        """How the weight is kept, as a person reads it."""
        return "in oneDNN's blocked layout" if self.prepacked else "as they are"

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply `rows` `[rows, in]`, giving `[rows, out]`."""
        if self.most_rows is None or rows.shape[0] <= self.most_rows:
            return self._product(rows)
        return torch.cat([self._product(block) for block in torch.split(rows, self.most_rows)])

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        if self.prepacked:
            product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                rows, self._weight, None, "none", [], ""
            )
            return product
        return F.linear(rows, self._weight)


def prepacks(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether weights of this kind are kept in oneDNN's blocked layout."""
    return (
        dtype == torch.bfloat16
        and device.type == "cpu"
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        and all(hasattr(torch.ops.mkldnn, name) for name in _PREPACK)
    )


def product_ladder(
    shapes: Iterable[tuple[int, int]], dtype: torch.dtype, device: torch.device
) -> RowLadder:
    """Row counts on which products with weights of these shapes agree, measured.

    On a GPU the sums of norms over their inputs agree, too.

    Args:
        shapes: `(out, in)` of every weight.
        dtype: What products are computed in.
        device: Where.
    """
    shapes, counts = sorted(set(shapes)), row_counts(device)
    products = product_witnesses(shapes, dtype, device)
    if device.type == "cpu":
        return agreeing_ladder(products)
    sums = sum_witnesses([inner for _, inner in shapes], counts[-1], device)
    return agreeing_ladder(products + sums, counts, from_first=True)


def product_witnesses(
    shapes: Iterable[tuple[int, int]], dtype: torch.dtype, device: torch.device
) -> list[Callable[[int], torch.Tensor]]:
    """Make products of equal rows with weights of these shapes.

    Args:
        shapes: `(out, in)` of every weight.
        dtype: What products are computed in.
        device: Where.

    Returns:
        Each takes a row count and gives `[count, out]`.
    """

    def product(out: int, inner: int) -> Callable[[int], torch.Tensor]:
        most = row_counts(device)[-1]
        rows, weight = cancelling_operands(most, inner, out, dtype, device)
        linear = Linear(weight)
        return lambda count: linear(rows[:count].contiguous())

    return [product(out, inner) for out, inner in sorted(set(shapes))]
