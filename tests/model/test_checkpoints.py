"""Reading GGUF files and Hugging Face folders, and refusing what cannot be run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import save_file

from peagle.errors import CheckpointError, InvalidRequestError, UnsupportedError
from peagle.model.config import DecoderConfig, RopeScaling
from peagle.model.decoder import DecoderWeights
from peagle.model.folder_checkpoint import FolderCheckpoint
from peagle.model.gguf_checkpoint import GGUFCheckpoint
from peagle.model.loading import choose_device, choose_dtype
from peagle.model.prepared import open_checkpoint, prepared_folder
from peagle.model.rope import inverse_frequencies, pair_neighbours
from tests.model.gguf_files import describe, write_weights
from tests.model.random_models import CPU, FAMILIES, GROUPED, LLAMA3, reference_model


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "cache"))


def write_gguf(
    path: Path,
    config: DecoderConfig,
    *,
    leave_out: str = "",
    packing: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    **metadata: Any,
) -> dict[str, torch.Tensor]:
    """Write a random model as llama.cpp's converter would, its matrices packed."""
    model = reference_model(config)
    writer = gguf.GGUFWriter(path, metadata.pop("architecture", "llama"))
    describe(writer, model.config)
    for key, value in metadata.items():
        getattr(writer, f"add_{key}")(value)
    if config.rope_scaling is not None:
        plain = inverse_frequencies(config.head_dim, config.rope_theta, None)
        scaled = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        writer.add_tensor("rope_freqs.weight", (plain / scaled).numpy())
    write_weights(writer, model, "llama", packing, leave_out)
    return model.state_dict()


def write_folder(folder: Path, config: DecoderConfig, **changes: Any) -> dict[str, torch.Tensor]:
    folder.mkdir(exist_ok=True)
    state = {
        name: weight.contiguous()
        for name, weight in reference_model(config).state_dict().items()
        if not (config.tied_embeddings and name == "lm_head.weight")
    }
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config.to_hugging_face(), **changes}))
    return state


STRETCHED = replace(LLAMA3, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192))


@pytest.mark.parametrize("config", [GROUPED, STRETCHED], ids=["tied", "stretched"])
def test_gguf_gives_the_configuration_and_weights_that_were_written(
    tmp_path: Path, config: DecoderConfig
) -> None:
    state = write_gguf(tmp_path / "m.gguf", config)
    checkpoint = GGUFCheckpoint(tmp_path / "m.gguf")
    read = checkpoint.config
    assert replace(read, rms_norm_eps=config.rms_norm_eps) == config
    assert read.rms_norm_eps == pytest.approx(config.rms_norm_eps)
    tensors = dict(checkpoint.tensors())
    tied = {"lm_head.weight"} if config.tied_embeddings else set()
    assert set(tensors) == set(state) - tied
    for name, weight in tensors.items():
        assert torch.equal(weight, state[name]), name


@pytest.mark.parametrize("packing", ["F16", "BF16", "Q8_0", "Q4_1"])
def test_packed_weights_are_those_that_the_gguf_package_reads(tmp_path: Path, packing: str) -> None:
    file = tmp_path / "m.gguf"
    write_gguf(file, GROUPED, packing=gguf.GGMLQuantizationType[packing])
    tensors = dict(GGUFCheckpoint(file).tensors())
    for name, stored in {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.3.mlp.down_proj.weight": "blk.3.ffn_down.weight",
        "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
    }.items():
        read = next(t for t in gguf.GGUFReader(file).tensors if t.name == stored)
        expected = torch.tensor(gguf.dequantize(read.data, read.tensor_type))
        assert torch.equal(tensors[name], expected), name


def test_a_packing_without_dequantisation_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    write_gguf(file, GROUPED, packing=gguf.GGMLQuantizationType.F32)
    content = file.read_bytes()
    at = content.index(b"blk.1.ffn_up.weight") + len(b"blk.1.ffn_up.weight") + 4 + 2 * 8
    whole_numbers = gguf.GGMLQuantizationType.I32.to_bytes(4, "little")
    file.write_bytes(content[:at] + whole_numbers + content[at + 4 :])
    with pytest.raises(UnsupportedError, match=r"'blk\.1\.ffn_up\.weight' has .* I32"):
        list(GGUFCheckpoint(file).tensors())


def test_gguf_with_unknown_rope_scaling_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", LLAMA3)
    with pytest.raises(UnsupportedError, match="rotary frequencies in a way we do not know"):
        GGUFCheckpoint(tmp_path / "m.gguf")


def test_gguf_of_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", GROUPED, architecture="falcon")
    with pytest.raises(UnsupportedError, match="'falcon'"):
        GGUFCheckpoint(tmp_path / "m.gguf")


def test_gguf_with_experts_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", GROUPED, expert_count=8)
    with pytest.raises(UnsupportedError, match="mixture of experts"):
        GGUFCheckpoint(tmp_path / "m.gguf")


def test_a_gguf_without_a_tensor_is_refused_by_its_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", GROUPED, leave_out="blk.2.ffn_up.weight")
    opened = open_checkpoint(tmp_path / "m.gguf", torch.float32)
    with pytest.raises(CheckpointError, match=r"model\.layers\.2\.mlp\.up_proj\.weight"):
        DecoderWeights.prepare(opened.config, opened.tensors(), torch.float32, CPU)


@pytest.mark.parametrize("share", [0.001, 0.1, 0.9])
def test_a_truncated_gguf_is_refused(tmp_path: Path, share: float) -> None:
    whole = tmp_path / "m.gguf"
    write_gguf(whole, GROUPED)
    content = whole.read_bytes()
    whole.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match="cut off"):
        GGUFCheckpoint(whole)


def test_prepared_weights_are_reused_until_the_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    state = write_gguf(file, GROUPED)
    first = prepared_folder(file, torch.bfloat16)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert prepared_folder(file, torch.bfloat16) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    assert prepared_folder(file, torch.float32) != first
    name = "model.layers.1.self_attn.q_proj.weight"
    prepared = open_checkpoint(file, torch.bfloat16).tensors()[name]
    assert torch.equal(prepared, pair_neighbours(state[name].bfloat16(), GROUPED.num_heads))
    write_gguf(file, STRETCHED)
    assert prepared_folder(file, torch.bfloat16) != first


@pytest.mark.parametrize("config", [*FAMILIES.values(), STRETCHED])
def test_a_folder_gives_the_configuration_it_was_written_with(
    tmp_path: Path, config: DecoderConfig
) -> None:
    write_folder(tmp_path, config)
    assert FolderCheckpoint(tmp_path).config == config


def test_a_folder_of_shards_is_read_whole_and_a_missing_shard_is_named(tmp_path: Path) -> None:
    state = write_folder(tmp_path, GROUPED)
    (tmp_path / "model.safetensors").unlink()
    names = sorted(state)
    shards = {"model-1-of-2.safetensors": names[:9], "model-2-of-2.safetensors": names[9:]}
    for shard, held in shards.items():
        save_file({name: state[name] for name in held}, tmp_path / shard)
    weight_map = {name: shard for shard, held in shards.items() for name in held}
    index = {"metadata": {}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert set(FolderCheckpoint(tmp_path).tensors()) == set(names)
    (tmp_path / "model-2-of-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks model-2-of-2\.safetensors"):
        FolderCheckpoint(tmp_path).tensors()


def test_corrupt_safetensors_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, GROUPED)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        FolderCheckpoint(tmp_path).tensors()


def test_weights_of_another_shape_are_refused_with_both_shapes(tmp_path: Path) -> None:
    write_folder(tmp_path, GROUPED, intermediate_size=150)
    opened = FolderCheckpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"\[160, 96\].*\[150, 96\]"):
        DecoderWeights.prepare(opened.config, opened.tensors(), torch.float32, CPU)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, UnsupportedError, "'GPT2LMHeadModel'"),
        ({"architectures": None}, UnsupportedError, "architecture None"),
        ({"attention_bias": True}, UnsupportedError, "attention_bias = True"),
        ({"quantization_config": {"quant_method": "gptq"}}, UnsupportedError, "GPTQ"),
        ({"quantization_config": {"quant_method": "awq"}}, UnsupportedError, "AWQ"),
        ({"quantization_config": {"quant_method": "fp8"}}, UnsupportedError, "FP8"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors"}},
            UnsupportedError,
            "compressed-tensors, .*quantization int8 or int4",
        ),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, UnsupportedError, "bitsand"),
        ({"quantization_config": {"quant_method": "quanto"}}, UnsupportedError, "'quanto'"),
        ({"hidden_act": "gelu"}, UnsupportedError, "'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, UnsupportedError, "'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, CheckpointError, "rope_scaling"),
        ({"num_hidden_layers": 0}, CheckpointError, "num_layers = 0"),
        ({"num_hidden_layers": "4"}, CheckpointError, "num_hidden_layers = '4'"),
        ({"num_key_value_heads": 4}, CheckpointError, "num_kv_heads = 4"),
        ({"rope_theta": float("nan")}, CheckpointError, "rope_theta = nan"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    write_folder(tmp_path, GROUPED, **changes)
    with pytest.raises(error, match=message):
        FolderCheckpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "title"), [("quantize_config.json", "GPTQ"), ("quant_config.json", "AWQ")]
)
def test_folders_that_older_programs_quantised_are_refused_by_name(
    tmp_path: Path, name: str, title: str
) -> None:
    write_folder(tmp_path, GROUPED)
    (tmp_path / name).write_text("{}")
    with pytest.raises(UnsupportedError, match=f"quantised with {title}"):
        FolderCheckpoint(tmp_path)


def test_a_folder_without_or_with_broken_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        FolderCheckpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        FolderCheckpoint(tmp_path)


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cpu:1", ""])
def test_unknown_devices_are_refused(device: str) -> None:
    with pytest.raises(InvalidRequestError, match="auto, cpu, cuda or cuda:N"):
        choose_device(device)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="CUDA devices"):
        choose_device("cuda:7")


def test_dtypes_are_chosen_by_name() -> None:
    assert choose_dtype("float32", CPU) == torch.float32
    assert choose_dtype("bfloat16", CPU) == torch.bfloat16
    with pytest.raises(InvalidRequestError, match="'float16'"):
        choose_dtype("float16", CPU)
