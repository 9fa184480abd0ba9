"""Rotary position embedding as one complex product.

Pairs of neighbouring values of a head are one complex number, turned by an angle that grows with
the position. Checkpoints that pair value `i` with value `i + head_dim / 2` (Hugging Face's) have
the rows of their query and key weights reordered at load, which changes no product of the two.
"""

import math

import torch

from peagle.model.config import RopeScaling


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> torch.Tensor:
    """Angles per position of each pair, float32 `[head_dim / 2]`.

    With `scaling`, wavelengths are stretched as Llama 3.1 does (transformers' `rope_type: llama3`).
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (theta**exponents)
    if scaling is None:
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    longest_kept = scaling.original_context / scaling.high_freq_factor
    shortest_slowed = scaling.original_context / scaling.low_freq_factor
    blend = (scaling.original_context / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    slowed = frequencies / scaling.factor
    between = (1 - blend) * slowed + blend * frequencies
    kept_or_between = torch.where(wavelengths < longest_kept, frequencies, between)
    return torch.where(wavelengths > shortest_slowed, slowed, kept_or_between)


class RotaryEmbedding:
    """The turning angles of every position of the context, computed once.

    Args:
        head_dim: Width of one head.
        theta: Base of the frequencies.
        scaling: Llama 3's stretching, if the model has it.
        context_length: Positions to prepare.
        device: Where the table lives.
    """

    def __init__(
        self,
        head_dim: int,
        theta: float,
        scaling: RopeScaling | None,
        context_length: int,
        device: torch.device,
    ) -> None:
        frequencies = inverse_frequencies(head_dim, theta, scaling)
        angles = torch.arange(context_length).float()[:, None] * frequencies
        self._turns = torch.polar(torch.ones_like(angles), angles).to(device)

    def turns(self, positions: torch.Tensor) -> torch.Tensor:
        """Complex turns of `positions` `[rows]`, as `[rows, 1, head_dim / 2]`."""
        return self._turns.index_select(0, positions).unsqueeze(1)


def rotate(heads: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Turn `heads` `[rows, heads, head_dim]` by `turns` `[rows, 1 or heads, head_dim / 2]`.

    Returns:
        Float32 `[rows, heads, head_dim]`.
    """
    rows, count, width = heads.shape
    pairs = torch.view_as_complex(heads.float().view(rows, count, width // 2, 2))
    return torch.view_as_real(pairs * turns).view(rows, count, width)


def pair_neighbours(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of a query or key weight from half-split to neighbouring pairs.

    Args:
        weight: `[heads * head_dim, ...]`, value `i` paired with `i + head_dim / 2`.
        heads: Heads in it.

    Returns:
        The same rows with value `2i` paired with `2i + 1`.
    """
    split = weight.view(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return split.transpose(1, 2).reshape(weight.shape)


def split_pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo `pair_neighbours`."""
    paired = weight.view(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return paired.transpose(1, 2).reshape(weight.shape)
