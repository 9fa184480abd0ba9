"""From a weight to whole numbers with scales, chosen for the least squared error."""

from typing import Final

import torch

from peagle.errors import UnsupportedError
from peagle.model.quantized_weight import Int4Weight, Int8Weight

GROUP: Final = 32
"""Inputs that share a scale and an offset in int4, as in GGUF's Q4_0 and Q4_1."""
INT8_MOST: Final = 127
INT4_MOST: Final = 15

# Bounds the float32 copies that a search holds.
_VALUES_AT_ONCE: Final = 1 << 22
# Shares of the range that int8 covers, the rest being cut off.
_INT8_SHARES: Final = (1.0, 0.95, 0.9, 0.85, 0.8)
# Shares of the range that int4 starts from, and how often the best line is fitted again.
_INT4_SHARES: Final = (1.0, 0.94, 0.88, 0.82, 0.76)
_INT4_FITS: Final = 2


def quantize_int8(weight: torch.Tensor) -> Int8Weight:
    """Give each output channel the scale with the least squared error among a few.

    The scales tried span the whole range of the channel and somewhat less of it.

    Args:
        weight: `[out, in]`, finite.
    """
    parts = [_int8_rows(rows.float()) for rows in torch.split(weight, _rows_at_once(weight))]
    values, scales = zip(*parts, strict=True)
    return Int8Weight(torch.cat(values), torch.cat(scales))


def quantize_int4(weight: torch.Tensor, name: str = "a weight") -> Int4Weight:
    """Give each group of 32 inputs the scale and offset with the least squared error found.

    From each of several starting ranges the nearest whole numbers are taken, then the line
    through them that fits best, and so on again.

    Args:
        weight: `[out, in]`, finite.
        name: What an error calls it.

    Raises:
        UnsupportedError: The number of inputs is not a multiple of 32.
    """
    if weight.shape[1] % GROUP:
        raise UnsupportedError(
            f"{name} has {weight.shape[1]} inputs, which int4 cannot group by {GROUP}.",
            remedy="Use quantization int8 or none for this model.",
            field="quantization",
        )
    parts = [_int4_rows(rows.float()) for rows in torch.split(weight, _rows_at_once(weight))]
    nibbles, scales, offsets = zip(*parts, strict=True)
    return Int4Weight(torch.cat(nibbles), torch.cat(scales), torch.cat(offsets))


def pack_nibbles(numbers: torch.Tensor) -> torch.Tensor:
    """Pack uint8 `[out, in]` of 0 to 15 into `[out, in / 2]`, input `2i` in the low nibble."""
    return numbers[:, 0::2] | (numbers[:, 1::2] << 4)


def unpack_nibbles(nibbles: torch.Tensor) -> torch.Tensor:
    """Undo `pack_nibbles`."""
    out, half = nibbles.shape
    return torch.stack([nibbles & INT4_MOST, nibbles >> 4], -1).view(out, 2 * half)


def dequantize(weight: Int8Weight | Int4Weight) -> torch.Tensor:
    """Give the weight that the numbers stand for, float32 `[out, in]`."""
    if isinstance(weight, Int8Weight):
        return weight.values.float() * weight.scales[:, None]
    out, groups = weight.scales.shape
    numbers = unpack_nibbles(weight.nibbles).view(out, groups, GROUP).float()
    return (numbers * weight.scales[..., None] + weight.offsets[..., None]).view(out, -1)


def _rows_at_once(weight: torch.Tensor) -> int:
    return max(1, _VALUES_AT_ONCE // weight.shape[1])


def _int8_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    whole = rows.abs().amax(1) / INT8_MOST
    # A channel of zeros keeps the scale 1: its numbers are zero anyway.
    whole = torch.where(whole > 0, whole, 1.0)
    best_error = torch.full_like(whole, torch.inf)
    scales = whole
    for share in _INT8_SHARES:
        tried = whole * share
        error = (_nearest_int8(rows, tried) * tried[:, None] - rows).square_().sum(1)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        scales = torch.where(better, tried, scales)
    return _nearest_int8(rows, scales).to(torch.int8), scales


def _nearest_int8(rows: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (rows / scales[:, None]).round_().clamp_(-INT8_MOST, INT8_MOST)


def _int4_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    out, inner = rows.shape
    groups = rows.view(out, inner // GROUP, GROUP)
    low, high = groups.amin(-1), groups.amax(-1)
    best_error = torch.full_like(low, torch.inf)
    scales, offsets = torch.ones_like(low), low
    for share in _INT4_SHARES:
        middle, reach = (low + high) / 2, (high - low) / 2 * share
        # A group of equal values keeps the scale 1 and is its offset alone.
        scale = torch.where(high > low, 2 * reach / INT4_MOST, 1.0)
        offset = torch.where(high > low, middle - reach, low)
        for fit in range(_INT4_FITS + 1):
            numbers = _nearest_int4(groups, scale, offset)
            if fit:
                error = (numbers * scale[..., None] + offset[..., None] - groups).square_().sum(-1)
                better = error < best_error
                best_error = torch.where(better, error, best_error)
                scales = torch.where(better, scale, scales)
                offsets = torch.where(better, offset, offsets)
            scale, offset = _best_line(groups, numbers, scale, offset)
    numbers = _nearest_int4(groups, scales, offsets).to(torch.uint8).view(out, inner)
    return pack_nibbles(numbers), scales, offsets


def _nearest_int4(groups: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    return ((groups - offset[..., None]) / scale[..., None]).round_().clamp_(0, INT4_MOST)


def _best_line(
    groups: torch.Tensor, numbers: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fit `groups` by `scale * numbers + offset`; where all numbers are equal, keep what is."""
    mean_number, mean = numbers.mean(-1), groups.mean(-1)
    spread = numbers - mean_number[..., None]
    variance = spread.square().sum(-1)
    fitted = (spread * groups).sum(-1) / variance
    usable = (variance > 0) & (fitted > 0)
    scale = torch.where(usable, fitted, scale)
    return scale, torch.where(usable, mean - scale * mean_number, offset)
