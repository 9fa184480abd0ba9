"""From a weight to whole numbers with scales, chosen for the least squared error."""

from typing import Final

import torch

from peagle.errors import UnsupportedError
from peagle.model.quantized_weight import Int4Weight, Int8Weight

GROUP: Final = 32
"""Inputs that share a scale and an offset in int4, as in GGUF's Q4_0 and Q4_1."""
INT8_MOST: Final = 127
INT4_MOST: Final = 15

# Small enough that what a search holds stays in a processor's cache.
_VALUES_AT_ONCE: Final = 1 << 18
# Shares of a group's range that the search for its line starts from, and fits from each.
_INT4_SHARES: Final = (1.0, 0.9, 0.8)
_INT4_FITS: Final = 2


def quantize_int8(weight: torch.Tensor) -> Int8Weight:
    """Give each output channel the scale at which its largest magnitude becomes 127.

    (With 255 steps, cutting off the largest numbers loses more than finer steps give.)

    Args:
        weight: `[out, in]`, finite.
    """
    parts = [_int8_rows(rows.float()) for rows in torch.split(weight, _rows_at_once(weight))]
    values, scales = zip(*parts, strict=True)
    return Int8Weight(torch.cat(values), torch.cat(scales))


def quantize_int4(weight: torch.Tensor, name: str = "a weight") -> Int4Weight:
    """Give each group of 32 inputs the scale and offset with the least squared error found.

    From each of several shares of the group's range, the nearest whole numbers are taken, then
    the line through them that fits best, and so on again.

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
    scales = rows.abs().amax(1) / INT8_MOST
    # A channel of zeros keeps the scale 1: its numbers are zero anyway.
    scales = torch.where(scales > 0, scales, 1.0)
    numbers = (rows / scales[:, None]).round_().clamp_(-INT8_MOST, INT8_MOST)
    return numbers.to(torch.int8), scales


def _int4_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    out, inner = rows.shape
    groups = rows.view(out, inner // GROUP, GROUP)
    low, high = groups.amin(-1), groups.amax(-1)
    mean = groups.mean(-1)
    # A group of equal values keeps the scale 1 and is its offset alone.
    scales, offsets = torch.ones_like(low), low
    most_explained = torch.zeros_like(low)
    for share in _INT4_SHARES:
        reach = (high - low) * (share / INT4_MOST)
        scale = torch.where(reach > 0, reach, 1.0)
        offset = torch.where(reach > 0, (low + high - reach * INT4_MOST) / 2, low)
        for _ in range(_INT4_FITS):
            numbers = _nearest_int4(groups, scale, offset)
            mean_number = numbers.mean(-1)
            variance = numbers.square().mean(-1) - mean_number.square()
            covariance = (numbers * groups).mean(-1) - mean_number * mean
            scale = torch.where(variance > 0, covariance / variance, scale)
            offset = mean - scale * mean_number
            # What the line leaves unexplained is the squared error.
            explained = torch.where(variance > 0, scale * covariance, 0.0)
            better = (explained > most_explained) & (scale > 0)
            most_explained = torch.where(better, explained, most_explained)
            scales = torch.where(better, scale, scales)
            offsets = torch.where(better, offset, offsets)
            scale = torch.where(scale > 0, scale, 1.0)
    numbers = _nearest_int4(groups, scales, offsets).to(torch.uint8).view(out, inner)
    return pack_nibbles(numbers), scales, offsets


def _nearest_int4(groups: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    nearest = (groups - offset[..., None]).div_(scale[..., None])
    return nearest.round_().clamp_(0, INT4_MOST)
