"""Phi-3 and Phi-4-mini: fused weights, a part of each head turned, LongRoPE."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from peagle.model.families.family import Family, Tensors
from peagle.model.families.reading import whole, window, wrong

if TYPE_CHECKING:
    from peagle.model.config import DecoderConfig


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise wrong("partial_rotary_factor", share, "a share between 0 and 1")
    width = config.get("head_dim") or whole(config, "hidden_size") // whole(
        config, "num_attention_heads"
    )
    turned = int(width * share)
    read: dict[str, Any] = {
        "sliding_window": window(config),
        "rotary_dim": None if turned == width else turned,
    }
    if rope.get("rope_type", rope.get("type")) in ("longrope", "su"):
        original = config.get("original_max_position_embeddings") or rope.get(
            "original_max_position_embeddings"
        )
        # The set of divisors for short contexts serves these; see `rope_scaling.LongRope`.
        if original:
            longest = whole(config, "max_position_embeddings", 4096)
            read["context_length"] = min(original, longest)
    return read


def _write(config: "DecoderConfig") -> dict[str, Any]:
    turned = config.rotary_dim or config.head_dim
    written: dict[str, Any] = {
        "partial_rotary_factor": turned / config.head_dim,
        "sliding_window": config.sliding_window,
    }
    original = getattr(config.rope_scaling, "original_context", None)
    return written | ({"original_max_position_embeddings": original} if original else {})


def fused_parts(name: str, config: "DecoderConfig") -> dict[str, int]:
    """Give the weights that a fused one holds, and the rows of each, in their order.

    Args:
        name: The name of a weight.
        config: The decoder's shape.

    Returns:
        Rows by name; nothing for a weight that is not fused.
    """
    at, _, part = name.removesuffix(".weight").rpartition(".")
    width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    fused = {
        "qkv_proj": {"q_proj": width, "k_proj": kv_width, "v_proj": kv_width},
        "gate_up_proj": dict.fromkeys(("gate_proj", "up_proj"), config.intermediate_size),
    }
    return {f"{at}.{own}.weight": rows for own, rows in fused.get(part, {}).items()}


def _named(tensors: Tensors, config: "DecoderConfig") -> Tensors:
    """Take the fused weights apart."""
    named: Tensors = {}
    for name, weight in tensors.items():
        parts = fused_parts(name, config)
        if parts and weight.shape[0] == sum(parts.values()):
            named |= zip(parts, torch.split(weight, list(parts.values())), strict=True)
        else:
            named[name] = weight
    return named


PHI3 = Family(
    name="phi3",
    architecture="Phi3ForCausalLM",
    title="Phi-3, Phi-4",
    gguf="phi3",
    read=_read,
    write=_write,
    named=_named,
    defaults={"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
)
