"""Small random decoders in the form of checkpoints, and transformers' model of the same weights."""

from dataclasses import replace

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from peagle.model.config import DecoderConfig, RopeScaling
from peagle.model.decoder import DecoderWeights
from peagle.model.quantized_linear import QuantizedWeight
from peagle.model.quantizing import quantize_int4, quantize_int8
from peagle.model.rope import pair_neighbours
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
FAMILIES = {"grouped": GROUPED, "llama3": LLAMA3, "mistral": MISTRAL, "windowed": WINDOWED}


def reference_model(config: DecoderConfig, seed: int = 0) -> LlamaForCausalLM | MistralForCausalLM:
    """Make transformers' model with random weights, in float32."""
    written = config.to_hugging_face()
    written.pop("architectures")
    kinds = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "mistral": (MistralConfig, MistralForCausalLM),
    }
    make_config, make_model = kinds[written.pop("model_type")]
    torch.manual_seed(seed)
    model = make_model(make_config(**written, attn_implementation="eager"))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Larger than the usual start, so that attention is far from uniform.
            weight.copy_(torch.randn_like(weight) * (0.1 if weight.dim() > 1 else 0.2))
            if name.endswith("norm.weight"):
                weight.add_(1)
    model.tie_weights()
    return model.eval()


def target_from(
    reference: torch.nn.Module,
    config: DecoderConfig,
    dtype: torch.dtype = torch.float32,
    taps: tuple[int, ...] | None = None,
    quantization: Quantization = "none",
) -> TorchTarget:
    """Make our target with the weights of a transformers model."""
    tensors: dict[str, torch.Tensor | QuantizedWeight] = {}
    for name, weight in reference.state_dict().items():
        kept = weight.detach().clone()
        if name.endswith("q_proj.weight"):
            kept = pair_neighbours(kept, config.num_heads)
        if name.endswith("k_proj.weight"):
            kept = pair_neighbours(kept, config.num_kv_heads)
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
