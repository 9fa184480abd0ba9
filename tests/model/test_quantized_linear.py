"""Quantised products: against exact sums, and rows that do not depend on one another."""

import pytest
import torch

from peagle.model import integer_product
from peagle.model.integer_product import cpu_kernel_is_exact, float_product
from peagle.model.invariance import ROW_COUNTS
from peagle.model.quantized_linear import (
    QuantizedLinear,
    QuantizedWeight,
    joined,
    quantize_rows,
    quantized_bytes,
    quantized_ladder,
)
from peagle.model.quantizing import dequantize, quantize_int4, quantize_int8, unpack_nibbles
from tests.model.random_models import CPU
from tests.model.test_quantizing import random_weight

QUANTISERS = {"int8": quantize_int8, "int4": quantize_int4}


def rows_of(count: int, inner: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, inner, generator=torch.Generator().manual_seed(9)).to(dtype)


def memory(weight: QuantizedWeight) -> int:
    parts = [getattr(weight, name) for name in type(weight).__slots__]
    return sum(part.numel() * part.itemsize for part in parts)


def test_rows_are_rounded_to_their_own_scale() -> None:
    rows = torch.tensor([[2.54, -0.01, 1.27], [0.0, 0.0, 0.0], [-1e-45, 1e-45, 0.0]])
    numbers, scales = quantize_rows(rows)
    assert numbers[:2].tolist() == [[127, 0, 64], [0, 0, 0]]
    torch.testing.assert_close(scales[:2, 0], torch.tensor([0.02, 0.0]))
    assert (numbers.float() * scales).isfinite().all()


@pytest.mark.parametrize("inner", [8, 96, 1041, 3000])
def test_integer_products_are_exact_in_float32_blocks_and_in_torchs_kernel(inner: int) -> None:
    generator = torch.Generator().manual_seed(inner)
    rows, values = (
        torch.randint(-127, 128, (count, inner), dtype=torch.int8, generator=generator)
        for count in (5, 24)
    )
    rows[0], values[0], values[1] = 127, 127, -127
    expected = rows.long() @ values.long().T
    assert torch.equal(float_product(rows, values).long(), expected)
    assert cpu_kernel_is_exact()
    assert torch.equal(integer_product.integer_product(rows, values).long(), expected)


def test_a_processor_whose_kernel_errs_takes_the_float32_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def saturating(rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return (rows.int() @ values.int()).clamp(max=2**20)

    cpu_kernel_is_exact.cache_clear()
    monkeypatch.setattr(torch, "_int_mm", saturating)
    try:
        assert not cpu_kernel_is_exact()
        rows = torch.full((3, 576), 127, dtype=torch.int8)
        assert integer_product.integer_product(rows, rows[:1]).tolist() == [[127 * 127 * 576]] * 3
    finally:
        cpu_kernel_is_exact.cache_clear()


def test_int8_products_are_the_scaled_exact_sums() -> None:
    weight, rows = random_weight(40, 288), rows_of(6, 288)
    quantised = quantize_int8(weight)
    numbers, scales = quantize_rows(rows)
    sums = (numbers.long() @ quantised.values.long().T).float()
    expected = sums * quantised.scales * scales
    assert torch.equal(QuantizedLinear(quantised)(rows), expected)
    torch.testing.assert_close(expected, rows @ weight.T, rtol=0, atol=0.05)


def test_int4_products_are_the_sums_of_their_groups_in_a_fixed_order() -> None:
    weight, rows = random_weight(40, 160), rows_of(6, 160)
    quantised = quantize_int4(weight)
    numbers, scales = quantize_rows(rows)
    terms = []
    for group in range(5):
        inputs = slice(32 * group, 32 * group + 32)
        own = numbers[:, inputs].long()
        sums = own @ unpack_nibbles(quantised.nibbles)[:, inputs].long().T
        offsets = own.sum(1, keepdim=True).float() * quantised.offsets[:, group]
        terms.append(sums.float() * quantised.scales[:, group] + offsets)
    # Halves onto halves: 5 terms to 3, to 2, to 1.
    expected = ((terms[0] + terms[3]) + terms[2]) + (terms[1] + terms[4])
    found = QuantizedLinear(quantised)(rows)
    assert torch.equal(found, expected * scales)
    exact = (numbers.double() * scales.double()) @ dequantize(quantised).double().T
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", QUANTISERS)
def test_a_row_has_the_same_bits_whatever_else_is_in_the_batch(
    name: str, dtype: torch.dtype
) -> None:
    linear = QuantizedLinear(QUANTISERS[name](random_weight(200, 576)))
    linear.most_rows = 64
    rows = rows_of(130, 576, dtype)
    rows[3] *= 1000
    alone = torch.cat([linear(row[None]) for row in rows])
    assert alone.dtype == dtype
    assert torch.equal(linear(rows), alone)
    for count in (2, 3, 16, 33):
        assert torch.equal(linear(rows[-count:]), alone[-count:])
    assert torch.equal(linear(rows.flip(0)), alone.flip(0))


@pytest.mark.parametrize("name", QUANTISERS)
def test_products_agree_for_every_row_count(name: str) -> None:
    made = QUANTISERS[name]
    products = [QuantizedLinear(made(random_weight(*shape))) for shape in ((96, 64), (64, 160))]
    assert quantized_ladder(products).counts == ROW_COUNTS


def test_a_kernel_that_sums_otherwise_for_many_rows_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = QuantizedLinear._product

    def dependent(self: QuantizedLinear, rows: torch.Tensor) -> torch.Tensor:
        return exact(self, rows) * (1 + 1e-6 * (rows.shape[0] > 16))

    monkeypatch.setattr(QuantizedLinear, "_product", dependent)
    ladder = quantized_ladder([QuantizedLinear(quantize_int8(random_weight(96, 64)))])
    assert ladder.counts == (1, 2, 4, 8, 16)


@pytest.mark.parametrize("name", QUANTISERS)
def test_joined_weights_are_the_weights_of_the_joined(name: str) -> None:
    whole = random_weight(50, 64)
    parts = [QUANTISERS[name](part) for part in torch.split(whole, 20)]
    rows = rows_of(3, 64)
    together = QuantizedLinear(joined(parts, CPU))
    assert together.shape == (50, 64)
    assert torch.equal(together(rows), QuantizedLinear(QUANTISERS[name](whole))(rows))
    assert together.weight_bytes == quantized_bytes((50, 64), together.quantization)
    assert together.weight_bytes == memory(together.weight)
