"""Weights to whole numbers: the values, and how near they come."""

import pytest
import torch

from peagle.errors import UnsupportedError
from peagle.model.quantizing import (
    dequantize,
    pack_nibbles,
    quantize_int4,
    quantize_int8,
    unpack_nibbles,
)


def random_weight(out: int, inner: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(out, inner, generator=torch.Generator().manual_seed(seed)) * 0.05


def test_int8_scales_each_channel_by_its_largest_magnitude() -> None:
    weight = torch.tensor([[0.5, -1.27, 0.004], [0.0, 0.0, 0.0], [254.0, 3.0, -127.0]])
    found = quantize_int8(weight)
    assert found.values.tolist() == [[50, -127, 0], [0, 0, 0], [127, 2, -64]]
    torch.testing.assert_close(found.scales, torch.tensor([0.01, 1.0, 2.0]))
    assert (found.values.dtype, found.scales.dtype) == (torch.int8, torch.float32)


def test_int8_is_within_half_a_step_of_the_weight() -> None:
    weight = random_weight(700, 448)
    found = quantize_int8(weight)
    error = (dequantize(found) - weight).abs()
    assert (error <= found.scales[:, None] * 0.5001).all()
    assert found.values.abs().amax(1).eq(127).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_numbers_too_small_for_a_scale_become_zero(dtype: torch.dtype) -> None:
    weight = torch.full((1, 32), 1e-44).to(dtype)
    found = quantize_int8(weight)
    assert found.scales.isfinite().all()
    assert found.values.abs().max() <= 127
    assert dequantize(quantize_int4(weight)).isfinite().all()


def test_nibbles_hold_even_inputs_low_and_odd_ones_high() -> None:
    numbers = torch.arange(8, dtype=torch.uint8).view(2, 4)
    assert pack_nibbles(numbers).tolist() == [[0x10, 0x32], [0x54, 0x76]]
    assert torch.equal(unpack_nibbles(pack_nibbles(numbers)), numbers)


def test_int4_finds_a_line_that_fits_exactly() -> None:
    numbers = torch.arange(64).view(2, 32) % 16
    weight = torch.stack([numbers[0] * 0.25 - 1.5, numbers[1] * 0.01 + 3])
    found = quantize_int4(weight)
    assert torch.equal(unpack_nibbles(found.nibbles), numbers.to(torch.uint8))
    torch.testing.assert_close(found.scales, torch.tensor([[0.25], [0.01]]), rtol=1e-3, atol=0)
    torch.testing.assert_close(found.offsets, torch.tensor([[-1.5], [3.0]]), rtol=1e-3, atol=0)
    torch.testing.assert_close(dequantize(found), weight, rtol=0, atol=2e-3)


def test_a_group_of_equal_values_is_its_offset() -> None:
    weight = torch.full((3, 64), 0.7)
    weight[1] = 0
    assert torch.equal(dequantize(quantize_int4(weight)), weight)


def test_int4_is_nearer_than_the_line_from_least_to_greatest() -> None:
    weight = random_weight(256, 192)
    groups = weight.view(256, 6, 32)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = (high - low) / 15
    plain = ((groups - low) / step).round() * step + low
    ours = dequantize(quantize_int4(weight)).view_as(groups)
    error, plain_error = ((found - groups).square().mean() for found in (ours, plain))
    assert error < 0.93 * plain_error


def test_int4_finds_what_a_long_search_finds_or_nearly_so() -> None:
    weight = random_weight(16, 32)
    low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    best = torch.full((16,), torch.inf)
    for share in torch.linspace(0.6, 1.05, 46):
        for shift in torch.linspace(-0.1, 0.1, 41):
            step = (high - low) * share / 15
            start = (low + high) / 2 - step * 7.5 + (high - low) * shift
            tried = ((weight - start) / step).round().clamp(0, 15) * step + start
            best = torch.minimum(best, (tried - weight).square().sum(1))
    ours = (dequantize(quantize_int4(weight)) - weight).square().sum(1)
    assert ours.mean() < 1.12 * best.mean()


def test_int4_refuses_inputs_that_do_not_fill_groups() -> None:
    with pytest.raises(UnsupportedError, match=r"'w' has 48 inputs.* Use quantization int8"):
        quantize_int4(torch.zeros(4, 48), "'w'")
