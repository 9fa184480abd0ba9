import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from peagle.catalog.checkpoint import find_checkpoint
from peagle.errors import CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "model"
    found.mkdir()
    (found / "config.json").write_text('{"model_type": "llama"}')
    save_file({"a": np.ones((4, 8), np.float32)}, found / "model.safetensors")
    return found


def in_two_parts(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    names = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    for name in names:
        save_file({name: np.ones(3, np.float32)}, folder / name)
    index = {"weight_map": {name: name for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_folder_with_safetensors_is_found(folder: Path) -> None:
    assert find_checkpoint(folder) == folder


def test_folder_with_weights_in_parts_is_found(folder: Path) -> None:
    in_two_parts(folder)
    assert find_checkpoint(folder) == folder


def test_gguf_file_and_folder_with_one_are_found(tiny_gguf: Path) -> None:
    assert find_checkpoint(tiny_gguf) == tiny_gguf
    assert find_checkpoint(tiny_gguf.parent) == tiny_gguf


def test_pickles_beside_safetensors_are_ignored(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert find_checkpoint(folder) == folder


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.PKL", "last.ckpt"])
def test_pickled_weights_are_refused_with_a_way_out(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"\x80\x04.")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(CheckpointError) as caught:
            find_checkpoint(path)
        assert name in caught.value.problem
        assert "Only safetensors and GGUF are read" in caught.value.remedy
        assert "convert" in caught.value.remedy


def test_several_gguf_files_are_listed(tmp_path: Path, make_gguf: Callable[..., Path]) -> None:
    make_gguf(tmp_path / "a.gguf")
    make_gguf(tmp_path / "b.gguf")
    with pytest.raises(CheckpointError, match=r"2 GGUF files: a\.gguf, b\.gguf"):
        find_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "is empty"),
        ({"README.md": "hello"}, "holds no model"),
        ({"config.json": "{}"}, "holds no model"),
        ({"model.safetensors": ""}, "no config.json"),
        ({"model.safetensors": "", "config.json": "{"}, r"config\.json cannot be read as JSON"),
        ({"model.safetensors": "", "config.json": "[]"}, r"config\.json is not a JSON object"),
        ({"model.safetensors": "x", "config.json": "{}"}, r"model\.safetensors is missing, dam"),
        ({"model.safetensors.index.json": "{}", "config.json": "{}"}, "does not name the files"),
        (
            {
                "model.safetensors.index.json": '{"weight_map": {"a": "../a.safetensors"}}',
                "config.json": "{}",
            },
            "does not name the files",
        ),
    ],
)
def test_folder_without_a_whole_model_is_refused(
    tmp_path: Path, files: dict[str, str], problem: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(CheckpointError, match=problem):
        find_checkpoint(tmp_path)


def test_cut_off_safetensors_is_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing, damaged or cut off"):
        find_checkpoint(folder)


def test_missing_part_is_named(folder: Path) -> None:
    in_two_parts(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors is missing"):
        find_checkpoint(folder)


def test_safetensors_file_alone_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="single safetensors file"):
        find_checkpoint(folder / "model.safetensors")


def test_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere does not exist"):
        find_checkpoint(tmp_path / "nowhere")
