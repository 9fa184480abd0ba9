"""GGUF files of transformers models, with what llama.cpp's converter does to names and values."""

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel

from peagle.model.rope import pair_neighbours

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_GEMMA3_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
ARCHITECTURES = {"qwen3_moe": "qwen3moe", "gemma3_text": "gemma3", "mistral": "llama"}


def write_model(
    path: Path,
    model: PreTrainedModel,
    packing: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    **settings: Any,
) -> None:
    """Write a transformers model; `settings` are further calls of `GGUFWriter.add_…`."""
    config = model.config
    architecture = ARCHITECTURES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    describe(writer, config)
    rope = config.rope_parameters
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if architecture == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    if architecture == "phi3":
        _describe_phi3(writer, config)
    if architecture == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    for key, value in settings.items():
        getattr(writer, f"add_{key}")(value)
    write_weights(writer, model, architecture, packing)


def describe(writer: gguf.GGUFWriter, config: Any) -> None:
    """Write what is told of every architecture."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])


def write_weights(
    writer: gguf.GGUFWriter,
    model: PreTrainedModel,
    architecture: str,
    packing: gguf.GGMLQuantizationType,
    leave_out: str = "",
) -> None:
    """Write the weights of a transformers model, its matrices packed, and close the file."""
    config = model.config
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for stored, values in _converted(name, weight, architecture, config):
            if stored == leave_out:
                continue
            kind = packing if values.ndim > 1 else gguf.GGMLQuantizationType.F32
            packed = gguf.quantize(np.ascontiguousarray(values.numpy()), kind)
            writer.add_tensor(stored, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe_phi3(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = config.rope_parameters
    width = config.hidden_size // config.num_attention_heads
    original, context = config.original_max_position_embeddings, config.max_position_embeddings
    writer.add_sliding_window(config.sliding_window or 0)
    writer.add_rope_dimension_count(int(width * rope.get("partial_rotary_factor", 1.0)))
    writer.add_rope_scaling_orig_ctx_len(original)
    if rope["rope_type"] == "longrope":
        scale = math.log(context / original) / math.log(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + scale))
        for length in ("long", "short"):
            factors = np.array(rope[f"{length}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors)


def _converted(
    name: str, weight: torch.Tensor, architecture: str, config: Any
) -> list[tuple[str, torch.Tensor]]:
    if architecture == "gemma3" and name.endswith("norm.weight"):
        weight = weight + 1
    if name in _TOP:
        return [(_TOP[name], weight)]
    _, _, layer, rest = name.split(".", 3)
    if rest == "mlp.experts.gate_up_proj":
        gate, up = weight.chunk(2, dim=1)
        return [
            (f"blk.{layer}.ffn_gate_exps.weight", gate),
            (f"blk.{layer}.ffn_up_exps.weight", up),
        ]
    if rest == "mlp.experts.down_proj":
        return [(f"blk.{layer}.ffn_down_exps.weight", weight)]
    part, kind = rest.rsplit(".", 1)
    if architecture in ("llama", "smollm3"):
        if part == "self_attn.q_proj":
            weight = pair_neighbours(weight, config.num_attention_heads)
        if part == "self_attn.k_proj":
            weight = pair_neighbours(weight, config.num_key_value_heads)
    names = {**_NAMES, **(_GEMMA3_NAMES if architecture == "gemma3" else {})}
    return [(f"blk.{layer}.{names[part]}.{kind}", weight)]
