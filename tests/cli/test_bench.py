"""`peagle bench`: a tiny real run, and what a user can get wrong."""

import json
from pathlib import Path

import pytest

from peagle import catalog
from tests.cli.conftest import Run


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.jsonl"
    path.write_text(
        '{"id": "a", "category": "qa", "prompt": "Name two colours.", "max_tokens": 5}\n'
        '{"id": "b", "category": "chat", "prompt": "Say hello.", "max_tokens": 4}\n'
    )
    return path


def test_a_small_run(peagle: Run, two: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "bench"
    ran = peagle("bench", "smollm2", "--prompts", str(two), "--configurations", "lookup",
                 "--quantizations", "none", "--peers", "none", "--concurrency", "1,2",
                 "--repetitions", "1", "--threads", "1", "--output", str(folder))  # fmt: skip
    assert ran.code == 0, ran.err
    found = json.loads((folder / "bench.json").read_text())
    assert [(row["contender"], row["concurrency"]) for row in found["rows"]] == [
        ("off/bf16", 1), ("off/bf16", 2), ("lookup/bf16", 1), ("lookup/bf16", 2),
    ]  # fmt: skip
    assert found["parity"]["answers"] == 8
    assert found["parity"]["differing"] == []
    assert found["services"]["peagle peagle/bf16"]["first_token_s"] > 0
    assert found["rows"][0]["acceptance_length"] == 1.0
    assert len((folder / "answers.jsonl").read_text().splitlines()) == 4
    assert "<svg" in (folder / "bench.html").read_text()
    assert "All 8 answers of our configurations" in ran.out.replace("\n", " ")


def test_mistakes_are_said_before_anything_runs(peagle: Run, two: Path, tmp_path: Path) -> None:
    said = {
        ("--configurations", "some"): "'some', which is no configuration",
        ("--peers", "llama"): "'llama', which is no peer",
        ("--quantizations", "int3"): "'int3', which is no quantisation",
        ("--concurrency", "3"): "there are only 2 prompts",
        ("--baseline", "vllm"): "not measured in this run",
        ("--prompts", str(tmp_path / "none.jsonl")): "cannot be read",
        ("--url", "localhost"): "not the address of a server",
        ("--url", "http://127.0.0.1:1"): "cannot be reached",
        ("--drafter", str(two)): "two.jsonl",
    }
    for options, problem in said.items():
        usual = {"--prompts": str(two), "--peers": "none", "--concurrency": "1",
                 "--configurations": "off"}  # fmt: skip
        told = [part for pair in (usual | dict([options])).items() for part in pair]
        ran = peagle("bench", "smollm2", *told, "--output", str(tmp_path / "out"))
        assert ran.code == 2, (options, ran.out)
        assert problem in ran.err, (options, ran.err)
        assert ran.err.count("Error:") == 1
    gguf = str(catalog.resolve("smollm2").files)
    ran = peagle("bench", gguf, "--configurations", "eagle3", "--peers", "none")
    assert (ran.code, "there is no drafter for it. Give one with --drafter" in ran.err) == (2, True)
    assert not (tmp_path / "out" / "bench.json").exists()
