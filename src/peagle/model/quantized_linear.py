"""Products with quantised weights, whose rows do not depend on one another.

Each row of activations is rounded to int8 with a scale of its own, so that what is summed are
whole numbers: these sums are exact in any order. What is left is float arithmetic, element by
element and in one order, whatever kernel and number of rows.
"""

from collections.abc import Callable, Iterable

import torch

from peagle.model.integer_product import integer_product
from peagle.model.invariance import RowLadder, agreeing_ladder, row_counts, sum_witnesses
from peagle.model.quantized_weight import Int4Weight, Int8Weight
from peagle.model.quantizing import GROUP, INT8_MOST, unpack_nibbles
from peagle.quantization import Quantization

QuantizedWeight = Int8Weight | Int4Weight


class QuantizedLinear:
    """One quantised weight `[out, in]` and its product; stands where `Linear` does.

    Attributes:
        weight: The weight.
        shape: `(out, in)`.
        most_rows: More rows are multiplied in blocks of so many.
    """

    def __init__(self, weight: QuantizedWeight) -> None:
        self.weight = weight
        self.most_rows: int | None = None
        self.shape = shape_of(weight)

    @property
    def quantization(self) -> Quantization:
        """What the weight is quantised to."""
        return "int8" if isinstance(self.weight, Int8Weight) else "int4"

    @property
    def weight_bytes(self) -> int:
        """Memory of the weight, which one product reads."""
        return quantized_bytes(self.shape, self.quantization)

    @property
    def layout(self) -> str:
        """How the weight is kept, as a person reads it."""
        return f"as {self.quantization} with scales"

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply `rows` `[rows, in]`, giving `[rows, out]` of the same type."""
        if self.most_rows is None or rows.shape[0] <= self.most_rows:
            return self._product(rows)
        return torch.cat([self._product(block) for block in torch.split(rows, self.most_rows)])

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        numbers, row_scales = quantize_rows(rows)
        sums = (
            _int8_sums(numbers, self.weight)
            if isinstance(self.weight, Int8Weight)
            else _int4_sums(numbers, self.weight)
        )
        return (sums * row_scales).to(rows.dtype)


def quantize_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each row to int8, symmetrically, its largest magnitude becoming 127.

    Args:
        rows: `[rows, in]`, finite.

    Returns:
        int8 `[rows, in]`, and float32 scales `[rows, 1]` by which they are to be multiplied.
    """
    wide = rows.float()
    scales = wide.abs().amax(1, keepdim=True) / INT8_MOST
    # A row of zeros, or of numbers too small to divide by, becomes zeros.
    divisors = scales.masked_fill(~(scales > 0), torch.inf)
    return (wide / divisors).round_().clamp_(-INT8_MOST, INT8_MOST).to(torch.int8), scales


def quantized_ladder(
    products: Iterable[QuantizedLinear], others: Iterable[Callable[[int], torch.Tensor]] = ()
) -> RowLadder:
    """Row counts on which these products agree, measured: all of them, unless a kernel errs.

    Args:
        products: The products of a model, all on one device.
        others: Witnesses of what else has to agree (`linear.product_witnesses`).
    """
    kinds = {(type(product.weight).__name__, product.shape): product for product in products}
    witnesses = [*(_witness(kinds[kind]) for kind in sorted(kinds)), *others]
    device = next(iter(kinds.values())).weight.scales.device
    if device.type == "cpu":
        return agreeing_ladder(witnesses)
    counts = row_counts(device)
    sums = sum_witnesses([inner for _, (_, inner) in kinds], counts[-1], device)
    return agreeing_ladder(witnesses + sums, counts, from_first=True)


def quantized_bytes(shape: tuple[int, int], quantization: Quantization) -> int:
    """Memory of a quantised weight `(out, in)` with its scales.

    Args:
        shape: `(out, in)`.
        quantization: `int8` or `int4`.
    """
    out, inner = shape
    return out * (inner + 4) if quantization == "int8" else out * (inner // 2 + 8 * inner // GROUP)


def shape_of(weight: QuantizedWeight) -> tuple[int, int]:
    """Give `(out, in)`."""
    if isinstance(weight, Int8Weight):
        return weight.values.shape[0], weight.values.shape[1]
    return weight.nibbles.shape[0], 2 * weight.nibbles.shape[1]


def joined(weights: list[QuantizedWeight], device: torch.device) -> QuantizedWeight:
    """Put weights of one kind and the same inputs on top of one another, on a device."""

    def together(parts: list[torch.Tensor]) -> torch.Tensor:
        # A lone part may lie in a mapped file; copied, it is read from memory like the others.
        return torch.cat(parts).to(device)

    if isinstance(weights[0], Int8Weight):
        eights = [weight for weight in weights if isinstance(weight, Int8Weight)]
        return Int8Weight(
            together([weight.values for weight in eights]),
            together([weight.scales for weight in eights]),
        )
    fours = [weight for weight in weights if isinstance(weight, Int4Weight)]
    return Int4Weight(
        together([weight.nibbles for weight in fours]),
        together([weight.scales for weight in fours]),
        together([weight.offsets for weight in fours]),
    )


def _int8_sums(numbers: torch.Tensor, weight: Int8Weight) -> torch.Tensor:
    return integer_product(numbers, weight.values).float() * weight.scales


def _int4_sums(numbers: torch.Tensor, weight: Int4Weight) -> torch.Tensor:
    """Sum `scale * (sum of nibble * number) + offset * (sum of numbers)` over the groups."""
    out, groups = weight.scales.shape
    # Whole numbers below 2**24 throughout, hence exact in float32 (in TF32 products, too).
    by_group = numbers.view(-1, groups, GROUP).float().transpose(0, 1)
    nibbles = unpack_nibbles(weight.nibbles).view(out, groups, GROUP).float().permute(1, 2, 0)
    sums = torch.bmm(by_group, nibbles)
    terms = sums * weight.scales.T.unsqueeze(1)
    terms = terms + by_group.sum(2, keepdim=True) * weight.offsets.T.unsqueeze(1)
    return _folded(terms)


def _folded(terms: torch.Tensor) -> torch.Tensor:
    """Sum `[terms, ...]` over the first dimension, the second half onto the first, and again.

    `torch.sum` would choose an order by shape.
    """
    while terms.shape[0] > 1:
        half = (terms.shape[0] + 1) // 2
        behind = terms[half:]
        terms = torch.cat([terms[: behind.shape[0]] + behind, terms[behind.shape[0] : half]])
    return terms[0]


def _witness(product: QuantizedLinear) -> Callable[[int], torch.Tensor]:
    """Give the product of equal rows, which any change in the order of its sums would change."""
    generator = torch.Generator().manual_seed(20)
    row = torch.randn(1, product.shape[1], generator=generator)
    weight = product.weight
    device = weight.scales.device
    rows = row.to(device).repeat(row_counts(device)[-1], 1)
    alike = QuantizedLinear(weight)
    return lambda count: alike(rows[:count].contiguous())
