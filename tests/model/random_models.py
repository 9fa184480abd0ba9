"""Small random decoders in the form of checkpoints, and transformers' model of the same weights."""

from dataclasses import replace

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from peagle.model.config import DecoderConfig, LinearScaling, LongRope, RopeScaling
from peagle.model.decoder import DecoderWeights
from peagle.model.families import Experts
from peagle.model.folder_checkpoint import common_tensors
from peagle.model.quantized_linear import QuantizedWeight
from peagle.model.quantizing import quantize_int4, quantize_int8
from peagle.model.torch_target import TorchTarget
from peagle.quantization import Quantization

CPU = torch.device("cpu")

GROUPED = DecoderConfig(
    family="llama",
    vocab_size=320,
    hidden_size=96,
    intermediate_size=160,
    num_layers=4,
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    rope_scaling=None,
    context_length=1024,
    tied_embeddings=True,
)
LLAMA3 = replace(
    GROUPED,
    num_kv_heads=6,
    tied_embeddings=False,
    rope_theta=500_000.0,
    rope_scaling=RopeScaling(8.0, 1.0, 4.0, 128),
)
MISTRAL = replace(GROUPED, family="mistral", head_dim=32, tied_embeddings=False)
WINDOWED = replace(MISTRAL, sliding_window=70)
QWEN2 = replace(GROUPED, family="qwen2", qkv_bias=True)
QWEN2_WINDOWED = replace(QWEN2, sliding_window=40, windowed_layers=(1, 3))
QWEN3 = replace(GROUPED, family="qwen3", head_dim=32, head_norms=True, rope_theta=1_000_000.0)
QWEN3_MOE = replace(
    QWEN3, family="qwen3_moe", tied_embeddings=False, experts=Experts(8, 3, 64, normalised=True)
)
QWEN3_MOE_SHARES = replace(QWEN3_MOE, experts=Experts(6, 2, 32, normalised=False))
PHI3 = replace(GROUPED, family="phi3", num_kv_heads=6, tied_embeddings=False, sliding_window=45)
PHI4_MINI = replace(
    GROUPED,
    family="phi3",
    rotary_dim=12,
    context_length=256,
    rope_scaling=LongRope(
        short=(1.0, 1.0, 1.1, 1.2, 1.5, 2.0),
        long=(1.0, 1.5, 2.0, 4.0, 8.0, 16.0),
        original_context=256,
        magnitude=1.19,
    ),
)
PHI4_MINI_LONG = replace(PHI4_MINI, context_length=512, rope_scaling=replace(
    PHI4_MINI.rope_scaling, original_context=128
))  # fmt: skip
SMOLLM3 = replace(GROUPED, family="smollm3", rope_theta=2_000_000.0, unturned_layers=(1, 3))
GEMMA3 = replace(
    GROUPED,
    family="gemma3_text",
    head_dim=32,
    rope_theta=1_000_000.0,
    rope_scaling=LinearScaling(8.0),
    sliding_window=50,
    windowed_layers=(0, 2),
    window_rope_theta=10_000.0,
    attention_scale=24**-0.5,
    head_norms=True,
    norms_after=True,
    wide_norms=True,
    embedding_scale=96**0.5,
)
FAMILIES = {"grouped": GROUPED, "llama3": LLAMA3, "mistral": MISTRAL, "windowed": WINDOWED}
"""Llama and Mistral, which every implementation of a target runs."""
OTHER_FAMILIES = {
    "qwen2": QWEN2,
    "qwen2-windowed": QWEN2_WINDOWED,
    "qwen3": QWEN3,
    "qwen3-moe": QWEN3_MOE,
    "qwen3-moe-shares": QWEN3_MOE_SHARES,
    "phi3": PHI3,
    "phi4-mini": PHI4_MINI,
    "smollm3": SMOLLM3,
    "gemma3": GEMMA3,
}


def reference_model(config: DecoderConfig, seed: int = 0) -> PreTrainedModel:
    """Make transformers' model with random weights, in float32."""
    written = config.to_hugging_face()
    written.pop("architectures")
    # Their usual numbers lie behind so small a vocabulary.
    tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    made = AutoConfig.for_model(written.pop("model_type"), **written, **tokens)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(made, attn_implementation="eager")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Larger than the usual start, so that attention is far from uniform.
            weight.copy_(torch.randn_like(weight) * (0.1 if weight.dim() > 1 else 0.2))
            if name.endswith("norm.weight") and not config.wide_norms:
                weight.add_(1)
    model.tie_weights()
    return model.eval()


def tensors_of(reference: torch.nn.Module, config: DecoderConfig) -> dict[str, torch.Tensor]:
    """Give a transformers model's weights as a checkpoint of it gives them."""
    state = {name: weight.detach().clone() for name, weight in reference.state_dict().items()}
    return common_tensors(config, state)


def target_from(
    reference: torch.nn.Module,
    config: DecoderConfig,
    dtype: torch.dtype = torch.float32,
    taps: tuple[int, ...] | None = None,
    quantization: Quantization = "none",
) -> TorchTarget:
    """Make our target with the weights of a transformers model."""
    tensors: dict[str, torch.Tensor | QuantizedWeight] = {}
    for name, kept in tensors_of(reference, config).items():
        tensors[name] = kept if quantization == "none" else quantised(name, kept, quantization)
    weights = DecoderWeights.prepare(config, tensors, dtype, CPU)
    return TorchTarget(config, weights, dtype, CPU, taps)


def quantised(
    name: str, weight: torch.Tensor, quantization: Quantization
) -> torch.Tensor | QuantizedWeight:
    """Quantise a weight as a checkpoint's would be; embedding and norms stay."""
    if name == "lm_head.weight":
        return quantize_int8(weight)
    if not name.endswith("_proj.weight"):
        return weight
    return quantize_int8(weight) if quantization == "int8" else quantize_int4(weight)


def random_target(
    config: DecoderConfig = GROUPED,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    quantization: Quantization = "none",
) -> TorchTarget:
    """Make our target with random weights."""
    return target_from(reference_model(config, seed), config, dtype, quantization=quantization)
