"""Folders of the shapes and names that public drafters have, written without the product."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.draft.tiny_drafter import HIDDEN, TAPS, VOCAB

DRAFT_VOCAB = 200
MASK = 317
LAYERS: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000.0,
    "rope_scaling": None,
    "max_position_embeddings": 256,
    "vocab_size": VOCAB,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "model_type": "llama",
}


def weights(
    *, layers: int = 2, taps: int = 3, draft_vocab: int = DRAFT_VOCAB, seed: int = 5
) -> dict[str, torch.Tensor]:
    """Random weights by the names of `RedHatAI/*`, without what only P-EAGLE has."""
    generator = torch.Generator().manual_seed(seed)

    def product(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) / columns**0.5

    def norm(width: int = HIDDEN) -> torch.Tensor:
        return 1 + 0.1 * torch.randn(width, generator=generator)

    found = {"fc.weight": product(HIDDEN, taps * HIDDEN), "norm.weight": norm()}
    found["lm_head.weight"] = 3 * product(draft_vocab, HIDDEN)
    for index in range(layers):
        at, entering = f"layers.{index}.", HIDDEN if index else 2 * HIDDEN
        found |= {
            at + "input_layernorm.weight": norm(),
            at + "post_attention_layernorm.weight": norm(),
            at + "self_attn.q_proj.weight": product(64, entering),
            at + "self_attn.k_proj.weight": product(32, entering),
            at + "self_attn.v_proj.weight": product(32, entering),
            at + "self_attn.o_proj.weight": product(HIDDEN, 64),
            at + "mlp.gate_proj.weight": product(96, HIDDEN),
            at + "mlp.up_proj.weight": product(96, HIDDEN),
            at + "mlp.down_proj.weight": product(HIDDEN, 96),
        }
    found["layers.0.hidden_norm.weight"] = norm()
    if draft_vocab < VOCAB:
        kept = torch.randperm(VOCAB, generator=generator)[:draft_vocab].sort().values
        found["d2t"] = kept - torch.arange(draft_vocab)
        found["t2d"] = torch.zeros(VOCAB, dtype=torch.bool)
        found["t2d"][kept] = True
    return found


def with_masks(found: dict[str, torch.Tensor], embedding: torch.Tensor) -> dict[str, torch.Tensor]:
    """Add what P-EAGLE has: features of mask slots, and an embedding with a row for them."""
    generator = torch.Generator().manual_seed(6)
    own = embedding.clone()
    own[MASK] = torch.randn(HIDDEN, generator=generator)
    width = found["fc.weight"].shape[1]
    masks = torch.randn(1, 1, width, generator=generator)
    return {**found, "embed_tokens.weight": own, "mask_hidden": masks}


def as_amazon(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Name weights as `amazon/*-p-eagle` do."""
    return {name.replace("layers.0.", "midlayer."): weight for name, weight in found.items()}


def raw_config(layers: int = 2, **changes: Any) -> dict[str, Any]:
    """A flat configuration, as `amazon/*-p-eagle` have it; None removes a key."""
    written = {
        **LAYERS,
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": layers,
        "draft_vocab_size": DRAFT_VOCAB,
        "ptd_token_id": MASK,
        "torch_dtype": "bfloat16",
        **changes,
    }
    return {key: value for key, value in written.items() if value is not None}


def speculators_config(kind: str, layers: int = 2, **changes: Any) -> dict[str, Any]:
    """A nested configuration, as `RedHatAI/*` have it; None leaves null, as they do."""
    written: dict[str, Any] = {
        "architectures": ["PEagleSpeculator" if kind == "peagle" else "Eagle3Speculator"],
        "auto_map": {"": "config.Eagle3SpeculatorConfig"},
        "draft_vocab_size": DRAFT_VOCAB,
        "dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": list(TAPS),
        "embed_requires_grad": kind == "peagle",
        "has_no_defaults_at_init": False,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "accept_tolerance": 0.0,
                    "proposal_type": "greedy",
                    "speculative_tokens": 3,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "acme/tiny"},
        },
        "speculators_model_type": kind,
        "speculators_version": "0.8.0.dev0",
        "target_hidden_size": None,
        "transformer_layer_config": {**LAYERS, "num_hidden_layers": layers},
        "transformers_version": "4.57.6",
    }
    if kind == "peagle":
        written["mask_token_id"] = MASK
    return {**written, **changes}


def write(
    folder: Path, config: dict[str, Any], found: dict[str, torch.Tensor], *, shards: int = 1
) -> Path:
    """Write a folder, its weights in one file or in shards with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(found, folder / "model.safetensors")
        return folder
    places = {name: f"model-{at % shards + 1:05}-of-{shards:05}.safetensors"
              for at, name in enumerate(found)}  # fmt: skip
    for file in set(places.values()):
        save_file({n: w for n, w in found.items() if places[n] == file}, folder / file)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
