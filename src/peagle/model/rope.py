"""Rotary position embedding as one complex product.

Pairs of neighbouring values of a head are one complex number, turned by an angle that grows with
the position. Checkpoints that pair value `i` with value `i + head_dim / 2` (Hugging Face's) have
the rows of their query and key weights reordered at load, which changes no product of the two.
"""

import math
from collections.abc import Callable

import torch

from peagle.model.config import DecoderConfig, LayerAttention
from peagle.model.rope_scaling import LinearScaling, LongRope, RopeScaling, Scaling


def inverse_frequencies(
    head_dim: int, theta: float, scaling: Scaling | None, context_length: int = 0
) -> torch.Tensor:
    """Angles per position of each pair, float32 `[head_dim / 2]`.

    Args:
        head_dim: Width of what is turned.
        theta: Base of the frequencies.
        scaling: How wavelengths are stretched.
        context_length: The longest context, by which LongRoPE chooses its divisors.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    if isinstance(scaling, LongRope):
        long = context_length > scaling.original_context
        return 1.0 / (torch.tensor(scaling.long if long else scaling.short) * theta**exponents)
    frequencies = 1.0 / (theta**exponents)
    if isinstance(scaling, LinearScaling):
        return frequencies / scaling.factor
    return frequencies if scaling is None else _stretched(frequencies, scaling)


def _stretched(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Slow down frequencies as Llama 3.1 does (transformers' `rope_type: llama3`)."""
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
        theta: Base of the frequencies; None turns nothing.
        scaling: How wavelengths are stretched, if they are.
        context_length: Positions to prepare.
        device: Where the table lives.
        rotary_dim: Width of the part of a head that is turned; None is all of it.
        longest: The longest context; `context_length` if None.
    """

    def __init__(
        self,
        head_dim: int,
        theta: float | None,
        scaling: Scaling | None,
        context_length: int,
        device: torch.device,
        *,
        rotary_dim: int | None = None,
        longest: int | None = None,
    ) -> None:
        turned = 0 if theta is None else rotary_dim or head_dim
        frequencies = inverse_frequencies(turned, theta or 1.0, scaling, longest or context_length)
        angles = torch.arange(context_length).float()[:, None] * frequencies
        magnitude = scaling.magnitude if isinstance(scaling, LongRope) else 1.0
        turns = torch.polar(torch.full_like(angles, magnitude), angles)
        # What is not turned is multiplied by one, so that turning stays one product.
        rest = torch.ones(context_length, (head_dim - turned) // 2, dtype=turns.dtype)
        self._turns = torch.cat([turns, rest], 1).to(device)

    @classmethod
    def of(
        cls,
        config: DecoderConfig,
        kind: LayerAttention,
        device: torch.device,
        positions: int | None = None,
    ) -> "RotaryEmbedding":
        """Give the angles of a decoder's layers of one kind.

        Args:
            config: The decoder's shape.
            kind: The layers' attention.
            device: Where the table lives.
            positions: Positions to prepare; the whole context if None.
        """
        return cls(
            config.head_dim,
            kind.rope_theta,
            kind.rope_scaling,
            config.context_length if positions is None else positions,
            device,
            rotary_dim=config.rotary_dim,
            longest=config.context_length,
        )

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


def pair_neighbours(
    weight: torch.Tensor, heads: int, rotary_dim: int | None = None
) -> torch.Tensor:
    """Reorder the rows of a query or key weight from half-split to neighbouring pairs.

    Args:
        weight: `[heads * head_dim, ...]`, value `i` paired with `i + rotary_dim / 2`.
        heads: Heads in it.
        rotary_dim: Width of the part of a head that is paired, its beginning; None is all of it.

    Returns:
        The same rows with value `2i` paired with `2i + 1`.
    """
    by_head, turned = _by_head(weight, heads, rotary_dim)
    split = torch.unflatten(by_head[:, :turned], 1, (2, turned // 2)).transpose(1, 2)
    return _whole(split.flatten(1, 2), by_head[:, turned:]).view(weight.shape)


def split_pairs(weight: torch.Tensor, heads: int, rotary_dim: int | None = None) -> torch.Tensor:
    """Undo `pair_neighbours`."""
    by_head, turned = _by_head(weight, heads, rotary_dim)
    paired = torch.unflatten(by_head[:, :turned], 1, (turned // 2, 2)).transpose(1, 2)
    return _whole(paired.flatten(1, 2), by_head[:, turned:]).view(weight.shape)


def in_pairs(
    config: DecoderConfig,
    name: str,
    weight: torch.Tensor,
    turn: Callable[[torch.Tensor, int, int | None], torch.Tensor] = pair_neighbours,
) -> torch.Tensor:
    """Give a tensor with its query and key rows in neighbouring pairs; others as they are.

    Args:
        config: The model's shape.
        name: The tensor's name.
        weight: The tensor, in Hugging Face's order of rows.
        turn: `split_pairs` undoes it.
    """
    for part, heads in (("q", config.num_heads), ("k", config.num_kv_heads)):
        if name.endswith((f"self_attn.{part}_proj.weight", f"self_attn.{part}_proj.bias")):
            return turn(weight, heads, config.rotary_dim)
        if name.endswith(f"self_attn.{part}_norm.weight"):
            return turn(weight, 1, config.rotary_dim)
    return weight


def _whole(turned: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    return torch.cat([turned, rest], 1) if rest.shape[1] else turned


def _by_head(weight: torch.Tensor, heads: int, rotary_dim: int | None) -> tuple[torch.Tensor, int]:
    head_dim = weight.shape[0] // heads
    return weight.reshape(heads, head_dim, *weight.shape[1:]), rotary_dim or head_dim
