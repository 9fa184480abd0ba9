import json
import re
import signal
from pathlib import Path

import pytest

from peagle import LLM
from peagle.train.conversations import Sidecar
from peagle.train.synth.output import ConversationWriter
from tests.cli.conftest import Run

PROMPTS = (
    '{"prompt": "Say no."}\n{"prompt": "Say yes."}\n'
    '{"prompt": "Hi.", "response": "Hello.", "category": "chat"}\n{"prompt": "Say no."}\n'
)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text(PROMPTS)
    return path


def told(prompts: Path, output: Path, *more: str) -> tuple[str, ...]:
    return (
        "synth", "smollm2", "--output", str(output), "--prompts", str(prompts),
        "--max-tokens", "4", *more,
    )  # fmt: skip


def test_prompts_are_answered_and_counted(
    peagle: Run, tmp_path: Path, prompts: Path, smollm2: LLM
) -> None:
    output = tmp_path / "data.jsonl"
    ran = peagle(*told(prompts, output))
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [list(line) for line in lines] == [
        ["category", "prompt_token_ids", "response_token_ids"]
    ] * 3
    assert [line["prompt_token_ids"] for line in lines] == [
        smollm2.encode(text) for text in ("Say no.", "Say yes.", "Hi.")
    ]
    assert [line["category"] for line in lines] == ["all", "all", "chat"]
    tokens = sum(len(line["response_token_ids"]) for line in lines)
    assert ran.code == 0
    assert ran.out == (
        f"3 conversations, {tokens} response tokens: {output}\nLeft out: 1 same prompt\n"
    )
    assert ran.err == ""


def test_a_model_talks_to_itself_and_its_text_becomes_a_corpus(peagle: Run, tmp_path: Path) -> None:
    output = tmp_path / "data.jsonl.gz"
    common = (
        "synth", "smollm2", "--output", str(output), "--categories", "qa,open",
        "--max-tokens", "5", "--temperature", "0.8", "--greedy-share", "0.5", "--seed", "3",
    )  # fmt: skip
    ran = peagle(*common, "--conversations", "2")
    assert ran.code == 0
    assert ran.out.startswith("2 conversations, ")
    settings = json.loads((tmp_path / "data.jsonl.gz.meta.json").read_text())["settings"]
    assert settings["categories"] == ["qa", "open"]
    assert (settings["temperature"], settings["greedy_share"], settings["seed"]) == (0.8, 0.5, 3)
    table = tmp_path / "corpus.safetensors"
    built = peagle("corpus", "build", str(output), "--model", "smollm2", "--output", str(table))
    assert re.match(r"\d of 2 conversations, \d held out\n", built.out)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_how_to_go_on(
    peagle: Run,
    tmp_path: Path,
    prompts: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    output = tmp_path / "data.jsonl"
    write = ConversationWriter.write

    def interrupt(self: ConversationWriter, *arguments: object) -> None:
        write(self, *arguments)  # type: ignore[arg-type]
        signal.raise_signal(number)

    before = signal.getsignal(number)
    with monkeypatch.context() as patched:
        patched.setattr(ConversationWriter, "write", interrupt)
        ran = peagle(*told(prompts, output, "--concurrency", "1"))
    assert ran.code == 130
    assert ran.err == ("What is written stays; the same command goes on from here.\nInterrupted.\n")
    assert ran.out.startswith("1 conversations, ")
    assert signal.getsignal(number) is before
    sidecar = Sidecar.beside(output)
    assert sidecar is not None
    assert sidecar.progress.lines == len(output.read_text().splitlines()) == 1
    with output.open("a") as file:
        file.write('{"category":"all","prompt_tok')
    ran = peagle(*told(prompts, output))
    assert ran.code == 0
    assert "was not finished when the run broke off; it was dropped" in ran.err
    assert ran.out.startswith("3 conversations, ")


def test_mistakes_are_one_line_and_exit_code_2(peagle: Run, tmp_path: Path, prompts: Path) -> None:
    output = tmp_path / "data.jsonl"
    common = ("synth", "smollm2", "--output", str(output))
    for arguments, message in (
        ((), "It is not said when to stop"),
        (("--conversations", "0"), "conversations cannot be 0"),
        (("--hours", "nan"), "hours cannot be nan"),
        (("--tokens", "5", "--categories", "qa,news"), "there is no category 'news'"),
        (("--tokens", "5", "--greedy-share", "0.5"), "at temperature 0 every answer is greedy"),
        (("--prompts", str(prompts), "--turns", "2"), "--turns is for prompts that the model"),
        (("--prompts", str(tmp_path / "none")), "none cannot be read"),
    ):
        ran = peagle(*common, *arguments)
        assert ran.code == 2, arguments
        assert message in ran.err
        assert ran.err.startswith("Error: ")
        assert ran.err.count("\n") == 1
        assert not output.exists()
