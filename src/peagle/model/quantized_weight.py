"""Weights in whole numbers with scales: what every quantised product multiplies with."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A weight with one scale an output channel: `weight = values * scale`.

    Attributes:
        values: int8 `[out, in]`, -127 to 127.
        scales: float32 `[out]`.
    """

    values: torch.Tensor
    scales: torch.Tensor


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """A weight in groups of 32 inputs: `weight = scale * nibble + offset`.

    Attributes:
        nibbles: uint8 `[out, in / 2]`, each two of 0 to 15, input `2i` in the low one.
        scales: float32 `[out, in / 32]`.
        offsets: float32 `[out, in / 32]`.
    """

    nibbles: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor
