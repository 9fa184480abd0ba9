"""Products, SiLU and exp of every instruction set that this processor runs."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from peagle import native
from peagle.model.quantized_linear import QuantizedLinear
from peagle.model.quantized_weight import Int4Weight, Int8Weight
from peagle.model.quantizing import quantize_int4, quantize_int8, unpack_nibbles

SETS = native.instruction_sets()
# Outputs that fill blocks of sixteen, tiles of three and none of them; inputs that are padded.
INT8_SHAPES = [(1, 16), (16, 64), (47, 80), (49, 96), (320, 576), (333, 160)]
INT4_SHAPES = [(1, 32), (16, 64), (47, 96), (49, 160), (320, 576), (333, 224)]
ROWS = [*range(1, 19), 23, 31, 32, 33, 48, 49, 63, 64, 65, 70]


def multiply(weight: Any, rows: torch.Tensor, out: int, threads: int, name: str) -> torch.Tensor:
    product = torch.full((rows.shape[0], out), torch.nan)
    native.library.multiply(
        weight, rows.numpy(), product.numpy(), native.thread_pool(threads), name
    )
    return product


def random_rows(count: int, inner: int, seed: int = 0) -> torch.Tensor:
    rows = torch.randn(count, inner, generator=torch.Generator().manual_seed(seed))
    rows[0] *= 1e-3
    if count > 2:
        rows[1] = 0
        rows[2, 1:] = 0
    return rows


def int8_weight(out: int, inner: int) -> tuple[Any, torch.Tensor, Callable[..., torch.Tensor]]:
    values = torch.randint(-127, 128, (out, inner), dtype=torch.int8)
    values[0] = 127  # the sums of pairs that sixteen bits hold just so
    values[-1] = -127
    weight = Int8Weight(values, torch.rand(out) / 127)
    packed = native.library.pack_int8(values.numpy(), weight.scales.numpy())

    def reference(rows: torch.Tensor) -> torch.Tensor:
        numbers, scales = rounded(rows)
        sums = (numbers.long() @ values.long().T).float()
        return sums * weight.scales * scales

    return packed, values.float() * weight.scales[:, None], reference


def rounded(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round rows to int8 as the library says it does: by the inverse of their largest number."""
    top = rows.abs().amax(1, keepdim=True)
    inverse = torch.where(top < 1e-30, 0.0, torch.tensor(127.0) / top)
    return (rows * inverse).round(), torch.where(top < 1e-30, 0.0, top / 127.0)


def int4_weight(out: int, inner: int) -> tuple[Any, Int4Weight]:
    weight = quantize_int4(torch.randn(out, inner))
    packed = native.library.pack_int4(
        weight.nibbles.numpy(), weight.scales.numpy(), weight.offsets.numpy()
    )
    return packed, weight


def int4_parts(weight: Int4Weight) -> tuple[torch.Tensor, torch.Tensor]:
    """The two terms whose sum a weight is: nibbles by their scale, and offsets."""
    out, groups = weight.scales.shape
    nibbles = unpack_nibbles(weight.nibbles).view(out, groups, -1).double()
    scaled = nibbles * weight.scales[..., None]
    return scaled.flatten(1), weight.offsets[..., None].double().expand_as(scaled).flatten(1)


def test_this_processor_runs_the_portable_set() -> None:
    assert SETS[-1] == "portable"
    assert len(set(SETS)) == len(SETS)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("shape", INT8_SHAPES)
def test_int8_products_are_exact_sums_of_whole_numbers(shape: tuple[int, int], name: str) -> None:
    torch.manual_seed(1)
    packed, _, reference = int8_weight(*shape)
    for count in ROWS:
        rows = random_rows(count, shape[1], seed=count)
        product = multiply(packed, rows, shape[0], 1, name)
        assert torch.equal(product, reference(rows)), count


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("shape", INT4_SHAPES)
def test_int4_products_are_those_of_the_rounded_rows(shape: tuple[int, int], name: str) -> None:
    torch.manual_seed(2)
    packed, weight = int4_weight(*shape)
    scaled, offsets = int4_parts(weight)
    for count in ROWS:
        rows = random_rows(count, shape[1], seed=count)
        numbers, scales = rounded(rows)
        exact = (numbers.double() * scales.double()) @ (scaled + offsets).T
        size = (numbers.double() * scales.double()).abs() @ (scaled.abs() + offsets.abs()).T
        error = (multiply(packed, rows, shape[0], 1, name) - exact).abs()
        assert bool((error <= 2e-6 * size + 1e-30).all()), count


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("shape", INT8_SHAPES)
def test_bfloat16_products_are_those_of_the_rounded_rows(shape: tuple[int, int], name: str) -> None:
    torch.manual_seed(3)
    weight = torch.randn(shape).bfloat16()
    packed = native.library.pack_bfloat16(weight.view(torch.uint16).numpy())
    for count in ROWS:
        rows = random_rows(count, shape[1], seed=count)
        exact = rows.bfloat16().double() @ weight.double().T
        size = rows.bfloat16().double().abs() @ weight.double().abs().T
        error = (multiply(packed, rows, shape[0], 1, name) - exact).abs()
        assert bool((error <= 2e-6 * size).all()), count


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("form", ["int8", "int4", "bfloat16"])
def test_a_row_has_the_same_bits_alone_in_any_batch_and_with_any_number_of_threads(
    form: str, name: str
) -> None:
    out, inner = 333, 224
    torch.manual_seed(4)
    if form == "int8":
        packed = int8_weight(out, inner)[0]
    elif form == "int4":
        packed = int4_weight(out, inner)[0]
    else:
        weight = torch.randn(out, inner).bfloat16()
        packed = native.library.pack_bfloat16(weight.view(torch.uint16).numpy())
    rows = random_rows(70, inner)
    alone = torch.cat([multiply(packed, row[None], out, 1, name) for row in rows])
    for count, threads in itertools.product(range(1, 71), (1, 2, 3)):
        first = 70 - count if count % 2 else 0
        batch = rows[first : first + count].contiguous()
        product = multiply(packed, batch, out, threads, name)
        assert torch.equal(product, alone[first : first + count]), (count, threads)


def test_int8_products_of_all_sets_have_the_same_bits() -> None:
    torch.manual_seed(5)
    packed = int8_weight(333, 576)[0]
    rows = random_rows(70, 576)
    products = [multiply(packed, rows, 333, 1, name) for name in SETS]
    assert all(torch.equal(products[0], product) for product in products)


def test_int4_products_of_sets_that_fuse_have_the_same_bits() -> None:
    torch.manual_seed(6)
    packed = int4_weight(333, 576)[0]
    rows = random_rows(70, 576)
    # The portable set multiplies and adds where others fuse the two.
    products = [multiply(packed, rows, 333, 1, name) for name in SETS if name != "portable"]
    assert all(torch.equal(products[0], product) for product in products)


def test_quantised_checkpoints_multiply_as_the_torch_backend_does() -> None:
    torch.manual_seed(7)
    dense = torch.randn(96, 160)
    rows = random_rows(9, 160)
    eight, four = quantize_int8(dense), quantize_int4(dense)
    library = native.library
    for weight, packed in (
        (eight, library.pack_int8(eight.values.numpy(), eight.scales.numpy())),
        (
            four,
            library.pack_int4(four.nibbles.numpy(), four.scales.numpy(), four.offsets.numpy()),
        ),
    ):
        ours = multiply(packed, rows, 96, 1, "")
        torch.testing.assert_close(ours, QuantizedLinear(weight)(rows), atol=2e-2, rtol=0)


@pytest.mark.parametrize("name", SETS)
def test_silu_is_exact_to_a_few_units_in_the_last_place(name: str) -> None:
    gate = torch.cat([torch.linspace(-87, 87, 20_000), torch.linspace(-1, 1, 4_000)])
    gate = gate[: len(gate) // 16 * 16].contiguous()
    up = torch.linspace(0.5, 2, len(gate))
    out = torch.empty_like(gate)
    native.library.silu_times(gate.numpy(), up.numpy(), out.numpy(), name)
    wide = gate.double()
    exact = wide / (1 + torch.exp(-wide)) * up.double()
    assert bool(((out - exact).abs() <= 8e-7 * exact.abs()).all())


@pytest.mark.parametrize("name", SETS)
def test_silu_of_extremes_is_finite(name: str) -> None:
    gate = torch.tensor([-1e30, -1000.0, -89.0, -88.0, 0.0, 88.0, 1000.0, 1e30] * 2)
    out = torch.empty_like(gate)
    native.library.silu_times(gate.numpy(), np.ones(16, np.float32), out.numpy(), name)
    assert out[:8].tolist()[4:] == [0.0, 88.0, 1000.0, pytest.approx(1e30)]
    assert bool((out[1:4].abs() < 1e-30).all())


def test_what_does_not_fit_together_is_refused() -> None:
    library = native.library
    packed = int8_weight(48, 64)[0]
    pool = native.thread_pool(1)
    good, out = np.zeros((2, 64), np.float32), np.zeros((2, 48), np.float32)
    library.multiply(packed, good, out, pool, "")
    for rows, room, name in (
        (np.zeros((2, 48), np.float32), out, ""),
        (good, np.zeros((2, 47), np.float32), ""),
        (good, np.zeros((3, 48), np.float32), ""),
        (good, out, "no-such-set"),
    ):
        with pytest.raises(ValueError, match=r"the product|the rows|no instruction set"):
            library.multiply(packed, rows, room, pool, name)
    with pytest.raises(ValueError, match="one scale for each output"):
        library.pack_int8(np.zeros((4, 64), np.int8), np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="a scale for each 32 inputs"):
        library.pack_int4(
            np.zeros((4, 32), np.uint8), np.zeros((4, 2), np.float32), np.zeros((4, 1), np.float32)
        )
