"""Configurations of every family are read, written and refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from peagle.errors import CheckpointError, UnsupportedError
from peagle.model.config import DecoderConfig, LayerAttention, LinearScaling, LongRope
from peagle.model.families import Experts
from peagle.model.folder_checkpoint import FolderCheckpoint, common_tensors
from tests.model.random_models import (
    GEMMA3,
    OTHER_FAMILIES,
    PHI4_MINI,
    QWEN3_MOE,
    reference_model,
    tensors_of,
)


@pytest.mark.parametrize("name", OTHER_FAMILIES)
def test_a_folder_as_transformers_saves_it_gives_the_same_model(tmp_path: Path, name: str) -> None:
    config = OTHER_FAMILIES[name]
    reference = reference_model(config)
    reference.save_pretrained(tmp_path)  # type: ignore[operator]
    checkpoint = FolderCheckpoint(tmp_path)
    assert checkpoint.config == config
    found, expected = checkpoint.tensors(), tensors_of(reference, config)
    if config.tied_embeddings:
        expected.pop("lm_head.weight")
        found.pop("lm_head.weight", None)
    assert found.keys() == expected.keys()
    for tensor, weight in expected.items():
        assert torch.equal(found[tensor], weight), tensor
    assert {name: tuple(weight.shape) for name, weight in found.items()} == {
        name: shape
        for name, shape in config.tensor_shapes().items()
        if name != "lm_head.weight" or not config.tied_embeddings
    }


@pytest.mark.parametrize("name", OTHER_FAMILIES)
def test_a_written_configuration_reads_back(name: str) -> None:
    config = OTHER_FAMILIES[name]
    written = json.loads(json.dumps(config.to_hugging_face()))
    assert DecoderConfig.from_hugging_face(written) == config


def test_published_configurations_are_understood() -> None:
    """Keys as they stand in releases: sizes of the models, few of them in Gemma's."""
    qwen = DecoderConfig.from_hugging_face({
        "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 896,
        "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 21,
        "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
        "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
    })  # fmt: skip
    assert (qwen.head_dim, qwen.qkv_bias, qwen.sliding_window) == (64, True, None)
    moe = DecoderConfig.from_hugging_face({
        "architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 1, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5472,
        "max_position_embeddings": 262144, "max_window_layers": 28, "mlp_only_layers": [],
        "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32,
        "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 10000000, "sliding_window": None, "tie_word_embeddings": False,
        "use_sliding_window": False, "vocab_size": 151936,
    })  # fmt: skip
    assert moe.experts == Experts(count=128, active=8, width=768, normalised=True)
    phi = DecoderConfig.from_hugging_face({
        "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "hidden_act": "silu",
        "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 131072,
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 262144,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
        "tie_word_embeddings": True, "vocab_size": 200064,
    })  # fmt: skip
    assert (phi.rotary_dim, phi.head_dim, phi.context_length) == (96, 128, 4096)
    assert isinstance(phi.rope_scaling, LongRope)
    assert phi.rope_scaling.magnitude == pytest.approx(1.1902380714238083)
    gemma = DecoderConfig.from_hugging_face({
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
            "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
    })  # fmt: skip
    assert (gemma.num_heads, gemma.num_kv_heads, gemma.head_dim) == (8, 4, 256)
    assert gemma.attentions == (
        LayerAttention(1024, 10_000.0, None),
        LayerAttention(None, 1_000_000.0, LinearScaling(8.0)),
    )
    assert [index for index, kind in enumerate(gemma.layer_types()) if kind[0] == "f"] == [
        5, 11, 17, 23, 29,
    ]  # fmt: skip


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_of_a_gemma_with_an_image_encoder_the_text_part_is_loaded(prefix: str) -> None:
    state = reference_model(GEMMA3).state_dict()
    stored = {
        name.replace("model.", prefix, 1): weight
        for name, weight in state.items()
        if name != "lm_head.weight"
    }
    stored["vision_tower.vision_model.embeddings.patch_embedding.weight"] = torch.ones(2)
    stored["multi_modal_projector.mm_input_projection_weight"] = torch.ones(2)
    found = common_tensors(GEMMA3, stored)
    expected = common_tensors(GEMMA3, state)
    expected.pop("lm_head.weight")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_experts_in_one_tensor_and_one_by_one_are_the_same() -> None:
    stacked = reference_model(QWEN3_MOE).state_dict()
    one_by_one = common_tensors(QWEN3_MOE, stacked)
    name = "model.layers.2.mlp.experts."
    gate_up, down = stacked[f"{name}gate_up_proj"], stacked[f"{name}down_proj"]
    assert torch.equal(one_by_one[f"{name}5.gate_proj.weight"], gate_up[5, :64])
    assert torch.equal(one_by_one[f"{name}5.up_proj.weight"], gate_up[5, 64:])
    assert torch.equal(one_by_one[f"{name}7.down_proj.weight"], down[7])


@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        ("qwen3", {"attention_bias": True}, UnsupportedError, "attention_bias = True"),
        ("qwen3", {"rope_scaling": {"rope_type": "yarn"}}, UnsupportedError, "'yarn'"),
        ("qwen3-moe", {"mlp_only_layers": [0]}, UnsupportedError, "mlp_only_layers"),
        ("qwen3-moe", {"decoder_sparse_step": 2}, UnsupportedError, "decoder_sparse_step"),
        ("qwen3-moe", {"num_experts_per_tok": 9}, CheckpointError, "experts"),
        ("gemma3", {"final_logit_softcapping": 30.0}, UnsupportedError, "softcapping = 30.0"),
        ("gemma3", {"hidden_activation": "gelu"}, UnsupportedError, "'gelu'"),
        ("gemma3", {"layer_types": ["full_attention"]}, CheckpointError, "a list of 4 names"),
        ("gemma3", {"sliding_window": 0}, CheckpointError, "sliding_window = 0"),
        ("phi4-mini", {"partial_rotary_factor": 2}, CheckpointError, "partial_rotary_factor = 2"),
        ("phi4-mini", {"rope_scaling": {"type": "longrope"}}, CheckpointError, "longrope scaling"),
        ("smollm3", {"no_rope_layers": [1]}, CheckpointError, "a list of 4 zeros and ones"),
    ],
)
def test_what_a_family_cannot_run_is_refused_by_name(
    name: str, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    written = OTHER_FAMILIES[name].to_hugging_face() | changes
    with pytest.raises(error, match=message):
        DecoderConfig.from_hugging_face(written)


@pytest.mark.parametrize("count", [5, 7])
def test_divisors_that_are_not_one_for_each_frequency_are_refused(count: int) -> None:
    written = PHI4_MINI.to_hugging_face()
    written["rope_scaling"] = written["rope_scaling"] | {"short_factor": [1.0] * count}
    with pytest.raises(CheckpointError, match="6 positive divisors"):
        DecoderConfig.from_hugging_face(written)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"architectures": ["LlavaForConditionalGeneration"], "vision_config": {"depth": 2}},
            r"'LlavaForConditionalGeneration' reads images, .* text model.*Qwen3ForCausalLM",
        ),
        (
            {"architectures": ["MambaForCausalLM"]},
            r"'MambaForCausalLM' is not supported\. This engine runs LlamaForCausalLM, .*Gemma3",
        ),
        ({"architectures": "LlavaLlama", "mm_vision_tower": "clip"}, r"'LlavaLlama' reads images"),
        ({"architectures": []}, r"The architecture None is not supported"),
        ({}, r"The architecture None is not supported"),
    ],
)
def test_other_architectures_are_refused_with_those_that_run(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        DecoderConfig.from_hugging_face(config)


@pytest.mark.parametrize("told", [{}, {"text_config": None}])
def test_a_gemma_with_an_image_encoder_must_tell_its_text_part(told: dict[str, Any]) -> None:
    config = {"architectures": ["Gemma3ForConditionalGeneration"], **told}
    with pytest.raises(CheckpointError, match=r"text_config = None.*text part's configuration"):
        DecoderConfig.from_hugging_face(config)
