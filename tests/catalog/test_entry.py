from pathlib import Path

import pytest

from peagle.catalog.entry import CatalogEntry, entries, entry_called, entry_from, read_entries
from peagle.catalog.source import HubModel
from peagle.errors import InvalidRequestError, ModelNotFoundError

BLOCK = """
[[models]]
name = "one"
title = "One"
source = "hf:org/one"
default_spec = { method = "lookup" }
context_length = 100
parameters = 10
licence = "MIT"
weight_bytes = 20
kv_bytes_per_token = 3
engine = "peagle"
"""


def read(tmp_path: Path, text: str) -> tuple[CatalogEntry, ...]:
    file = tmp_path / "models.toml"
    file.write_text(text)
    return read_entries(file)


def test_first_entry_is_smollm2_with_everything_set() -> None:
    entry = entries()[0]
    assert entry.name == "smollm2-135m-instruct"
    assert entry.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert entry.default_spec.method == "lookup"
    assert (entry.context_length, entry.parameters) == (8192, 134_515_008)
    assert entry.weight_bytes == 2 * entry.parameters
    assert entry.kv_bytes_per_token == 2 * 30 * 3 * 64 * 2
    assert entry.memory_bytes(100) == 269_030_016 + 100 * 23_040
    assert entry.memory_bytes() == entry.memory_bytes(8192)
    assert (entry.engine, entry.needs) == ("peagle", ())


@pytest.mark.parametrize(
    ("name", "engine", "drafter"),
    [
        (
            "qwen3-coder-30b-a3b-instruct",
            "peagle",
            "hf:amazon/qwen3-coder-30b-a3b-instruct-p-eagle",
        ),
        ("gpt-oss-20b", "vllm", "hf:amazon/gpt-oss-20b-p-eagle"),
        ("gpt-oss-120b", "vllm", "hf:amazon/gpt-oss-120b-p-eagle"),
    ],
)
def test_large_entries_say_what_runs_them_and_what_they_need(
    name: str, engine: str, drafter: str
) -> None:
    entry = entry_called(name)
    assert entry is not None
    assert entry.engine == engine
    assert entry.needs == ("gpu", "hub")
    assert {method: found.lower() for method, found in entry.drafters.items()} == {
        "peagle": drafter
    }
    assert entry.default_spec.method == "peagle"


def test_names_and_aliases_are_found_in_any_case() -> None:
    assert entry_called("SmolLM2-135M-Instruct") is entries()[0]
    assert entry_called("SmolLM2") is entries()[0]
    assert entry_called("smollm") is None


def test_entry_is_found_by_its_source_unless_another_revision_is_asked_for() -> None:
    found = entry_from(HubModel("openai/GPT-OSS-20b"))
    assert found is not None
    assert found.name == "gpt-oss-20b"
    assert entry_from(HubModel("openai/gpt-oss-20b", "other")) is None


def test_default_spec_is_dumped_as_it_was_written(tmp_path: Path) -> None:
    (entry,) = read(tmp_path, BLOCK)
    assert entry.model_dump(mode="json")["default_spec"] == {"method": "lookup"}


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('"lookup"', '"magic"', InvalidRequestError),
        ('"hf:org/one"', '"org/one"', ModelNotFoundError),
        (
            'engine = "peagle"',
            'engine = "peagle"\ndrafters = { peagle = "hf:nowhere" }',
            ModelNotFoundError,
        ),
        ('engine = "peagle"', 'engine = "peagle"\ndrafters = { medusa = "file" }', ValueError),
        ('engine = "peagle"', f'engine = "peagle"\nsha256 = "{"0" * 64}"', ValueError),
        ('"peagle"', '"peagle"\ncolour = "red"', ValueError),
        ('"peagle"', '"peagle"\nquantization = { cpu = "int3" }', ValueError),
        ('"peagle"', '"peagle"\nquantization = { tpu = "int8" }', ValueError),
        ("= 100", "= 0", ValueError),
        ('"one"', '"One"', ValueError),
    ],
)
def test_wrong_block_is_refused(tmp_path: Path, old: str, new: str, error: type[Exception]) -> None:
    assert old in BLOCK
    with pytest.raises(error):
        read(tmp_path, BLOCK.replace(old, new))


def test_quantization_is_told_for_each_kind_of_device(tmp_path: Path) -> None:
    (entry,) = read(tmp_path, BLOCK + 'quantization = { cpu = "int8" }\n')
    assert entry.quantization == {"cpu": "int8"}
    assert read(tmp_path, BLOCK)[0].quantization == {}


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="more than one model is called one"):
        read(tmp_path, BLOCK + BLOCK.replace('"One"', '"Two"'))
