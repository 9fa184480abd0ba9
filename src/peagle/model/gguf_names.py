"""What the tensors of a GGUF file are called in Hugging Face's checkpoints.

The names and what llama.cpp's converter does to the values: query and key rows of the Llama family
are put in neighbouring pairs, Gemma's norms are stored with the one added that its model adds,
the experts of a layer are one tensor with a dimension more.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from peagle.catalog.gguf_header import GGUFTensor
from peagle.model.gguf_weights import GGUFWeight

_TOP: Final = MappingProxyType(
    {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
)
_ATTENTION: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_HEAD_NORMS: Final = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_MLP: Final = {
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_PLAIN: Final = {**_ATTENTION, **_MLP, "ffn_norm": "post_attention_layernorm"}
_EXPERTS: Final = {
    "ffn_gate_exps": "gate_proj",
    "ffn_up_exps": "up_proj",
    "ffn_down_exps": "down_proj",
}
_LAYER: Final[Mapping[str, Mapping[str, str]]] = {
    "llama": _PLAIN,
    "smollm3": _PLAIN,
    "qwen2": _PLAIN,
    "qwen3": {**_PLAIN, **_HEAD_NORMS},
    "qwen3moe": {
        **_ATTENTION,
        **_HEAD_NORMS,
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate_inp": "mlp.gate",
    },
    "gemma3": {
        **_ATTENTION,
        **_HEAD_NORMS,
        **_MLP,
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    "phi3": {
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
    },
}
_PAIRED: Final = ("llama", "smollm3")
# Frequencies: read with the configuration, or stored by older converters and recomputed by us.
_IGNORED: Final = (
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
    "attn_rot_embd.weight",
    "rope.freqs",
)

ARCHITECTURES: Final = tuple(_LAYER)


def weights_of(
    stored: GGUFTensor, architecture: str, heads: int, kv_heads: int
) -> Iterator[tuple[str, GGUFWeight]] | None:
    """Give the weights that a tensor holds, by their Hugging Face names.

    Args:
        stored: The tensor.
        architecture: The file's `general.architecture`.
        heads: Query heads of a layer.
        kv_heads: Key and value heads of a layer.

    Returns:
        None if this architecture has no such tensor.
    """
    if stored.name.endswith(_IGNORED):
        return iter(())
    weight = GGUFWeight.whole(stored)
    if architecture == "gemma3" and stored.name.endswith("norm.weight"):
        weight = replace(weight, added=1.0)
    if stored.name in _TOP:
        return iter([(_TOP[stored.name], weight)])
    prefix, _, rest = stored.name.partition(".")
    layer, _, rest = rest.partition(".")
    part, _, kind = rest.partition(".")
    if prefix != "blk" or not layer.isdigit() or kind not in ("weight", "bias"):
        return None
    at = f"model.layers.{layer}."
    if architecture == "qwen3moe" and part in _EXPERTS and len(stored.shape) == 3:
        name = _EXPERTS[part]
        return (
            (f"{at}mlp.experts.{expert}.{name}.{kind}", one)
            for expert, one in enumerate(weight.stacked())
        )
    name = _LAYER[architecture].get(part, "")
    if not name:
        return None
    if architecture in _PAIRED and part in ("attn_q", "attn_k"):
        weight = replace(weight, paired_heads=heads if part == "attn_q" else kv_heads)
    return iter([(f"{at}{name}.{kind}", weight)])
