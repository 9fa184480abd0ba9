"""GGUF files of every architecture give transformers the model that they were written from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from peagle.catalog.gguf_header import read_gguf_header
from peagle.errors import CheckpointError, UnsupportedError
from peagle.model.folder_checkpoint import common_tensors
from peagle.model.gguf_checkpoint import GGUFCheckpoint
from peagle.model.gguf_config import GGUFConfig
from peagle.model.gguf_names import weights_of
from peagle.model.gguf_weights import GGUFWeight, read_packed, read_values
from peagle.model.rope import in_pairs
from tests.model.gguf_files import write_model

SHAPE = {
    "vocab_size": 200,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
SEVEN = {**SHAPE, "num_hidden_layers": 7}
FACTORS = {"short_factor": [1.0 + 0.1 * i for i in range(6)], "long_factor": [3.0] * 6}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10_000.0, "partial_rotary_factor": 0.75}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**SHAPE, "model_type": "llama", "tie_word_embeddings": False},
    "mistral": {**SHAPE, "model_type": "mistral", "sliding_window": 16},
    "qwen2": {**SHAPE, "model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {**SHAPE, "model_type": "qwen3", "head_dim": 32},
    "qwen3moe": {
        **SHAPE, "model_type": "qwen3_moe", "head_dim": 32, "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True,
    },
    "gemma3": {**SEVEN, "model_type": "gemma3_text", "head_dim": 32, "sliding_window": 8,
               "query_pre_attn_scalar": 32},
    "smollm3": {**SEVEN, "model_type": "smollm3", "tie_word_embeddings": True},
    "phi3": {**SHAPE, "model_type": "phi3", "sliding_window": 16},
    "phi4": {
        **SHAPE, "model_type": "phi3", "original_max_position_embeddings": 256,
        "rope_scaling": LONGROPE | FACTORS, "partial_rotary_factor": 0.75, "rope_theta": 10_000.0,
    },
}  # fmt: skip


def random_model(name: str) -> PreTrainedModel:
    told = dict(FAMILIES[name])
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(told.pop("model_type"), **told), attn_implementation="eager"
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.2)
    return model.eval()


def settings_of(name: str) -> dict[str, Any]:
    return {"sliding_window": 16} if name == "mistral" else {}


def read_config(file: Path) -> GGUFConfig:
    header = read_gguf_header(file)
    return GGUFConfig(file, header, lambda stored: read_values(file, GGUFWeight.whole(stored)))


def read_weights(file: Path) -> dict[str, GGUFWeight]:
    config = read_config(file)
    told, found = config.hugging_face(), {}
    for stored in read_gguf_header(file).tensors:
        weights = weights_of(
            stored, config.architecture(), told["num_attention_heads"], told["num_key_value_heads"]
        )
        assert weights is not None, stored.name
        found |= dict(weights)
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_computes_the_same_from_what_was_read(tmp_path: Path, name: str) -> None:
    model = random_model(name)
    file = tmp_path / "model.gguf"
    write_model(file, model, **settings_of(name))
    folder = tmp_path / "folder"
    folder.mkdir()
    told = {**read_config(file).hugging_face(), "pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps(told))
    weights = {key: read_values(file, one) for key, one in read_weights(file).items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    read, loading = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ids = torch.arange(1, 41)[None] * 7 % 200
    with torch.inference_mode():
        expected, found = model(ids).logits, read(ids).logits
    assert expected.std() > 0.1
    assert torch.allclose(found, expected, atol=1e-4)


KINDS = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0")


@pytest.mark.parametrize("kind", KINDS)
def test_packed_rows_are_those_that_the_gguf_package_reads(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peagle.model.gguf_weights._PIECE_VALUES", 1000)
    file = tmp_path / "model.gguf"
    write_model(file, random_model("qwen3moe"), gguf.GGMLQuantizationType[kind])
    weights = read_weights(file)
    for stored in gguf.GGUFReader(file).tensors:
        expected = torch.tensor(gguf.dequantize(stored.data, stored.tensor_type))
        if stored.name == "blk.1.ffn_down_exps.weight":
            for expert, one in enumerate(expected):
                weight = weights[f"model.layers.1.mlp.experts.{expert}.down_proj.weight"]
                assert torch.equal(read_values(file, weight), one)
        if stored.name == "blk.2.attn_q.weight":
            weight = weights["model.layers.2.self_attn.q_proj.weight"]
            assert torch.equal(read_values(file, weight), expected)
            assert np.array_equal(read_packed(file, weight), stored.data.view(np.uint8))
            rounded = read_values(file, weight, torch.bfloat16)
            assert torch.equal(rounded, expected.bfloat16())


@pytest.mark.parametrize("name", FAMILIES)
def test_common_weights_are_those_of_the_folder_of_the_same_model(
    tmp_path: Path, name: str
) -> None:
    file = tmp_path / "model.gguf"
    write_model(file, random_model(name), **settings_of(name))
    checkpoint = GGUFCheckpoint(file)
    expected = common_tensors(checkpoint.config, dict(checkpoint.tensors()))
    found = {
        key: in_pairs(checkpoint.config, key, checkpoint.values(weight))
        for key, weight in checkpoint.common()
    }
    assert set(found) == set(expected)
    for key, weight in found.items():
        assert torch.equal(weight, expected[key]), key
    shapes = checkpoint.config.tensor_shapes()
    assert set(shapes) - set(found) <= {"lm_head.weight"}


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K"])
def test_k_quants_are_dequantised_as_the_gguf_package_does(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package packs none of them; any bytes are values, if their scales are finite.
    monkeypatch.setattr("peagle.model.gguf_weights._PIECE_VALUES", 2000)
    packing = gguf.GGMLQuantizationType[kind]
    _, size = gguf.GGML_QUANT_SIZES[packing]
    packed = np.random.default_rng(0).integers(0, 60, (12, 2 * size), dtype=np.uint8)
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tensor("blk.0.ffn_up.weight", packed, raw_dtype=packing)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (stored,) = read_gguf_header(file).tensors
    values = read_values(file, GGUFWeight.whole(stored))
    expected = gguf.dequantize(packed, packing)
    assert np.isfinite(expected).all()
    assert np.array_equal(values.numpy(), expected)


@pytest.mark.parametrize("name", ["llama", "smollm3"])
def test_paired_query_rows_are_put_back_packed_or_not(tmp_path: Path, name: str) -> None:
    model = random_model(name)
    file = tmp_path / "model.gguf"
    write_model(file, model, gguf.GGMLQuantizationType.Q8_0)
    weight = read_weights(file)["model.layers.1.self_attn.k_proj.weight"]
    own = model.state_dict()["model.layers.1.self_attn.k_proj.weight"]
    packed = gguf.quantize(own.numpy(), gguf.GGMLQuantizationType.Q8_0)
    assert np.array_equal(read_packed(file, weight), packed)


def test_gemma_27b_scales_queries_by_the_width_of_the_stream(tmp_path: Path) -> None:
    model = random_model("gemma3")
    file = tmp_path / "model.gguf"
    write_model(file, model, block_count=62, sliding_window_pattern=6)
    told = read_config(file).hugging_face()
    assert told["query_pre_attn_scalar"] == 16
    assert told["layer_types"].count("full_attention") == 10
    assert read_config_of(tmp_path, "gemma3")["query_pre_attn_scalar"] == 32


def read_config_of(folder: Path, name: str, **settings: Any) -> dict[str, Any]:
    file = folder / "other.gguf"
    write_model(file, random_model(name), **settings)
    return read_config(file).hugging_face()


def test_what_the_file_says_of_rope_is_kept_for_the_family_to_judge(tmp_path: Path) -> None:
    told = read_config_of(
        tmp_path,
        "gemma3",
        rope_scaling_type=gguf.RopeScalingType.LINEAR,
        rope_scaling_factor=8.0,
    )
    assert told["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert (told["rope_theta"], told["rope_local_base_freq"]) == (1_000_000.0, 10_000.0)
    told = read_config_of(
        tmp_path,
        "qwen2",
        rope_scaling_type=gguf.RopeScalingType.YARN,
        rope_scaling_factor=4.0,
        rope_scaling_orig_ctx_len=128,
    )
    assert told["rope_scaling"] == {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128
    }  # fmt: skip


def bare(folder: Path, architecture: str, tell: Callable[[gguf.GGUFWriter], Any]) -> GGUFConfig:
    file = folder / "bare.gguf"
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_tensor("token_embd.weight", np.zeros((8, 4), np.float32))
    tell(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_config(file)


def test_a_vision_part_is_refused_as_such(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="is the vision part of a model"):
        bare(tmp_path, "clip", lambda writer: writer.add_type("mmproj")).hugging_face()


def test_an_unknown_architecture_is_refused_with_those_that_run(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"'mamba2', which .*llama, .*gemma3, phi3"):
        bare(tmp_path, "mamba2", lambda _: None).hugging_face()


def test_missing_and_odd_metadata_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lacks the metadata qwen3\.embedding_length"):
        bare(tmp_path, "qwen3", lambda _: None).hugging_face()

    def uneven(writer: gguf.GGUFWriter) -> None:
        writer.add_embedding_length(64)
        writer.add_head_count([4, 8])

    with pytest.raises(UnsupportedError, match=r"head_count = \[4, 8\].*one whole number"):
        bare(tmp_path, "qwen3", uneven).hugging_face()
