"""Quantising checkpoints at load, keeping them, and a GGUF's own blocks as they are."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from peagle.errors import (
    CheckpointError,
    DownloadError,
    InvalidRequestError,
    OutOfMemoryBudgetError,
    UnsupportedError,
)
from peagle.model import loading, prepared, quantized_checkpoint
from peagle.model.decoder import DecoderWeights
from peagle.model.gguf_blocks import int4_blocks
from peagle.model.gguf_checkpoint import GGUFCheckpoint
from peagle.model.loading import choose_quantization
from peagle.model.quantized_checkpoint import (
    Named,
    model_bytes,
    open_quantized,
    open_source,
)
from peagle.model.quantized_weight import Int4Weight, Int8Weight
from peagle.model.quantizing import dequantize, quantize_int4, quantize_int8
from peagle.model.rope import pair_neighbours
from peagle.quantization import Quantization
from tests.model.random_models import CPU, GROUPED, LLAMA3
from tests.model.test_checkpoints import STRETCHED, write_folder, write_gguf

TEXT = [7 * token % 320 for token in range(48)]
BLOCKS = {"Q4_0": gguf.GGMLQuantizationType.Q4_0, "Q4_1": gguf.GGMLQuantizationType.Q4_1}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "cache"))


def opened(files: Path, quantization: Quantization) -> dict[str, Named]:
    return open_quantized(open_source(files), quantization, TEXT).tensors()


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_stand_for_the_bits_that_the_gguf_package_reads(name: str) -> None:
    values = np.random.default_rng(3).standard_normal((6, 96), dtype=np.float32)
    packed = gguf.quantize(values, BLOCKS[name])
    found = int4_blocks(packed, BLOCKS[name])
    assert (found.nibbles.shape, found.scales.shape) == ((6, 48), (6, 3))
    expected = torch.from_numpy(gguf.dequantize(packed, BLOCKS[name]))
    assert torch.equal(dequantize(found), expected)
    if name == "Q4_0":
        assert torch.equal(found.offsets, -8 * found.scales)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_ggufs_own_blocks_are_not_quantised_twice(tmp_path: Path, name: str) -> None:
    file = tmp_path / "m.gguf"
    write_gguf(file, GROUPED, packing=BLOCKS[name])
    plain = dict(GGUFCheckpoint(file).tensors())
    found = opened(file, "int4")
    for each, weight in plain.items():
        own = found[each]
        if not each.endswith("_proj.weight"):
            assert isinstance(own, torch.Tensor), each
            continue
        assert isinstance(own, Int4Weight), each
        heads = {"q_proj": GROUPED.num_heads, "k_proj": GROUPED.num_kv_heads}
        count = heads.get(each.split(".")[-2])
        expected = weight if count is None else pair_neighbours(weight, count)
        assert torch.equal(dequantize(own), expected), each


def test_a_folder_is_quantised_by_tensor_with_a_head_of_its_own(tmp_path: Path) -> None:
    state = write_folder(tmp_path / "model", GROUPED)
    embedding = state["model.embed_tokens.weight"]
    for quantization in ("int8", "int4"):
        found = opened(tmp_path / "model", quantization)
        head = found["lm_head.weight"]
        assert isinstance(head, Int8Weight)
        kept = found["model.embed_tokens.weight"]
        assert isinstance(kept, torch.Tensor)
        assert torch.equal(kept, embedding.bfloat16())
        down = found["model.layers.2.mlp.down_proj.weight"]
        assert isinstance(down, Int8Weight if quantization == "int8" else Int4Weight)
        assert set(found) == {*state, "lm_head.weight"}


def test_weights_are_quantised_once_until_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file = tmp_path / "model", tmp_path / "m.gguf"
    write_folder(folder, LLAMA3)
    write_gguf(file, GROUPED)
    made: list[str] = []
    quantise = quantized_checkpoint._quantized

    def counted(
        source: quantized_checkpoint.Source, kind: Quantization, tokens: Sequence[int]
    ) -> dict[str, torch.Tensor]:
        made.append(f"{type(source).__name__} {kind}")
        return quantise(source, kind, tokens)

    monkeypatch.setattr(quantized_checkpoint, "_quantized", counted)
    for _ in range(2):
        for files in (folder, file):
            for quantization in ("int8", "int4"):
                opened(files, quantization)
    assert made == [
        "FolderCheckpoint int8",
        "FolderCheckpoint int4",
        "GGUFCheckpoint int8",
        "GGUFCheckpoint int4",
    ]
    write_gguf(file, STRETCHED)
    weights = folder / "model.safetensors"
    os.utime(weights, ns=(1, 1))
    opened(folder, "int8")
    opened(file, "int4")
    assert made[4:] == ["FolderCheckpoint int8", "GGUFCheckpoint int4"]


def test_what_is_kept_takes_the_bytes_that_were_reckoned(tmp_path: Path) -> None:
    write_folder(tmp_path / "model", GROUPED)
    source = open_source(tmp_path / "model")
    for quantization in ("int8", "int4"):
        checkpoint = open_quantized(source, quantization, TEXT)
        stored = load_file(checkpoint.folder / "model.safetensors")
        bytes_ = sum(part.numel() * part.itemsize for name, part in stored.items()
                     if not name.endswith("norm.weight"))  # fmt: skip
        assert model_bytes(GROUPED, quantization, torch.bfloat16) == bytes_


def test_a_disk_without_room_is_told_before_and_while_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "model", GROUPED)

    def full(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(prepared, "save_file", full)
    with pytest.raises(DownloadError, match=r"The disk that holds .* is full"):
        opened(tmp_path / "model", "int8")
    assert not list((tmp_path / "cache" / "prepared").iterdir())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(DownloadError, match=r"needs .* of disk"):
        opened(tmp_path / "model", "int8")


def test_weights_that_are_not_numbers_are_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    state = write_folder(folder, GROUPED)
    state["model.layers.1.mlp.up_proj.weight"][3, 4] = torch.nan
    save_file(state, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj.* not finite"):
        opened(folder, "int8")


def test_weights_of_another_shape_are_refused_before_they_are_multiplied(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    state = write_folder(folder, GROUPED)
    state["model.layers.1.mlp.up_proj.weight"] = torch.ones(150, 96)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"\[150, 96\].*\[160, 96\]"):
        opened(folder, "int8")
    del state["model.layers.2.mlp.gate_proj.weight"]
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no tensor 'model\.layers\.1\.mlp\.up_proj"):
        opened(folder, "int8")


def test_a_width_that_int4_cannot_group_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    state = write_folder(folder, GROUPED)
    for name in state:
        if "gate_proj" in name or "up_proj" in name:
            state[name] = state[name][:144].contiguous()
        if "down_proj" in name:
            state[name] = state[name][:, :144].contiguous()
    save_file(state, folder / "model.safetensors")
    config = {**GROUPED.to_hugging_face(), "intermediate_size": 144}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match=r"down_proj.* 144 inputs"):
        opened(folder, "int4")
    assert opened(folder, "int8")


def test_quantised_weights_of_another_shape_are_refused_with_both_shapes() -> None:
    tensors: dict[str, Named] = {
        "model.embed_tokens.weight": torch.zeros(320, 96),
        "model.layers.0.input_layernorm.weight": torch.ones(96),
        "model.layers.0.self_attn.q_proj.weight": quantize_int4(torch.zeros(96, 64)),
    }
    with pytest.raises(CheckpointError, match=r"q_proj.*\[96, 64\].*\[96, 96\]"):
        DecoderWeights.prepare(GROUPED, tensors, torch.float32, CPU)
    tensors["model.layers.0.self_attn.q_proj.weight"] = quantize_int8(torch.zeros(64, 96))
    with pytest.raises(CheckpointError, match=r"q_proj.*\[64, 96\].*\[96, 96\]"):
        DecoderWeights.prepare(GROUPED, tensors, torch.float32, CPU)


def test_memory_is_reckoned_for_the_quantised_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "m.gguf", GROUPED)
    monkeypatch.setattr(
        loading, "open_tokenizer", lambda _: SimpleNamespace(encode=lambda _text: TEXT)
    )
    needed = model_bytes(GROUPED, "int8", torch.bfloat16)
    plain = 2 * (needed - 320 * 96 * 2)
    free = SimpleNamespace(available=(needed + plain) // 2)
    monkeypatch.setattr(loading.psutil, "virtual_memory", lambda: free)
    loaded = loading.load_target(tmp_path / "m.gguf", quantization="int8", device="cpu")
    assert loaded.weight_bytes <= 320 * 96 * 4 + needed
    assert loaded.model.quantization == "int8"
    with pytest.raises(OutOfMemoryBudgetError, match="use quantization int8 or int4"):
        loading.load_target(tmp_path / "m.gguf", dtype="float32", device="cpu")


@pytest.mark.parametrize(
    ("quantization", "dtype", "usual", "chosen"),
    [
        ("auto", "auto", "none", "none"),
        ("auto", "auto", "int8", "int8"),
        ("auto", "bfloat16", "int8", "none"),
        ("none", "auto", "int8", "none"),
        ("none", "float32", "int8", "none"),
        ("int4", "auto", "int8", "int4"),
    ],
)
def test_a_told_dtype_means_none_and_auto_what_is_usual(
    quantization: str, dtype: str, usual: Quantization, chosen: Quantization
) -> None:
    assert choose_quantization(quantization, dtype, usual) == chosen


def test_contradictions_and_unknown_names_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"'int8', but dtype is 'bfloat16'.*Leave one"):
        choose_quantization("int8", "bfloat16", "none")
    with pytest.raises(InvalidRequestError, match=r"'int3'.* auto, none, int8 or int4"):
        choose_quantization("int3", "auto", "none")
