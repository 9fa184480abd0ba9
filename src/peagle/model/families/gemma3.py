"""Gemma 3, the text decoder: norms before and after, scaled embeddings, windows in most layers.

Its norms are stored as what is added to one. Layers with a window turn by another base than those
that see everything. A checkpoint with an image encoder holds the same decoder under another
prefix: its text part is loaded, and the encoder is left out.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from peagle.model.families.family import USUAL_CHECKS, Family, Tensors
from peagle.model.families.reading import layers_of_kind, refuse, whole, window

if TYPE_CHECKING:
    from peagle.model.config import DecoderConfig

_PREFIXES = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
_IMAGES = ("vision_tower", "multi_modal_projector", "model.vision_tower",
           "model.multi_modal_projector")  # fmt: skip


def _read(config: Mapping[str, Any]) -> dict[str, Any]:
    remedy = "This engine runs Gemma 3 with plain causal attention and no soft caps."
    for name in (
        "final_logit_softcapping",
        "attn_logit_softcapping",
        "use_bidirectional_attention",
    ):
        refuse(config, name, remedy)
    layers = whole(config, "num_hidden_layers")
    pattern = whole(config, "sliding_window_pattern", 6)
    usual = tuple(index for index in range(layers) if (index + 1) % pattern)
    windowed = layers_of_kind(config, "sliding_attention", usual)
    ropes = config.get("rope_parameters") or {}
    local = (ropes.get("sliding_attention") or {}).get(
        "rope_theta", config.get("rope_local_base_freq", 10_000.0)
    )
    own = window(config)
    return {
        "sliding_window": own,
        "windowed_layers": windowed if own is not None else (),
        "window_rope_theta": float(local),
        "attention_scale": float(config["query_pre_attn_scalar"]) ** -0.5,
        "head_norms": True,
        "norms_after": True,
        "wide_norms": True,
        "embedding_scale": math.sqrt(whole(config, "hidden_size")),
    }


def _write(config: "DecoderConfig") -> dict[str, Any]:
    assert config.window_rope_theta is not None
    return {
        "sliding_window": config.sliding_window,
        "layer_types": config.layer_types(),
        "rope_local_base_freq": config.window_rope_theta,
        "query_pre_attn_scalar": round(config.query_scale**-2),
        "final_logit_softcapping": None,
        "attn_logit_softcapping": None,
    }


def _named(tensors: Tensors, _: "DecoderConfig") -> Tensors:
    """Drop the image encoder, and add the one to the norms."""
    named: Tensors = {}
    for stored, weight in tensors.items():
        if stored.startswith(_IMAGES):
            continue
        name = stored
        for prefix, meant in _PREFIXES:
            if stored.startswith(prefix):
                name = meant + stored.removeprefix(prefix)
        named[name] = weight.float() + 1 if name.endswith("norm.weight") else weight
    return named


GEMMA3 = Family(
    name="gemma3_text",
    architecture="Gemma3ForCausalLM",
    title="Gemma 3 (text)",
    gguf="gemma3",
    read=_read,
    write=_write,
    named=_named,
    activation="gelu_tanh",
    activation_key="hidden_activation",
    activation_name="gelu_pytorch_tanh",
    defaults={
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rope_theta": 1_000_000.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
    },
    vision="Gemma3ForConditionalGeneration",
    checks=(*USUAL_CHECKS, "training"),
)
