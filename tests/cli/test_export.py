"""`peagle export` on the real model."""

import json
from pathlib import Path

import pytest
import torch

from peagle import LLM, SamplingParams
from peagle.draft.storage import load_drafter, save_drafter
from peagle.draft.untrained import random_drafter, random_tensors
from peagle.model.loading import load_target
from tests.cli.conftest import Run
from tests.conftest import MODEL

PROMPTS = ["Name three colours.", "def add(a, b):", "¿Qué es una abeja? 🐝"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("export") / "smollm2"
    from peagle.catalog import resolve
    from peagle.model.target_export import export_target

    export_target(resolve(MODEL).files, folder)
    return folder


def test_transformers_writes_the_same_tokens_from_an_exported_model(exported: Path) -> None:
    """In float32, where both round alike."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    llm = LLM(str(exported), dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(exported)
    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).eval()
    for prompt in PROMPTS:
        messages = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )["input_ids"]
        result = llm.generate(messages, SamplingParams(max_tokens=16))[0]
        assert ids[0].tolist() == result.prompt_token_ids
        with torch.no_grad():
            written = model.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :]
        assert written.tolist() == result.token_ids
        assert tokenizer.decode(written, skip_special_tokens=True) == result.text
        assert tokenizer(prompt)["input_ids"] == llm.tokenizer.encode(prompt)


def test_an_exported_model_is_the_one_that_runs_here(exported: Path, smollm2: LLM) -> None:
    found = load_target(exported, dtype="bfloat16")
    assert found.model.config == smollm2.target.config
    assert torch.equal(found.model.weights.embedding, smollm2.target.weights.embedding)
    assert found.tokenizer.fingerprint() == smollm2.tokenizer.fingerprint()
    assert found.tokenizer.eos_token_ids == smollm2.tokenizer.eos_token_ids
    assert found.tokenizer.chat_template == smollm2.tokenizer.chat_template
    assert sorted(entry.name for entry in exported.iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip


def test_a_model_is_exported_once(peagle: Run, tmp_path: Path) -> None:
    folder = tmp_path / "here" / "smollm2"
    ran = peagle("export", "--target", MODEL, "--output", str(folder))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"{folder} holds {MODEL} in bfloat16, for transformers and others.\n"
    again = peagle("export", "--target", MODEL, "--output", str(folder))
    assert (again.code, again.out) == (2, "")
    assert "exists and is not an empty folder" in again.err
    whole = peagle("export", "--target", str(folder), "--output", str(tmp_path / "b"))
    assert whole.code == 2
    assert "is a Hugging Face folder already" in whole.err


@pytest.mark.parametrize("form", ["vllm", "speculators"])
@pytest.mark.parametrize("method", ["peagle", "eagle3"])
def test_an_exported_drafter_is_loaded_as_it_was(
    peagle: Run, tmp_path: Path, smollm2: LLM, form: str, method: str
) -> None:
    config = random_drafter(
        smollm2.target,
        method=method,  # type: ignore[arg-type]
        layers=1,
        draft_vocab_size=500,
        fingerprint=smollm2.tokenizer.fingerprint(),
    ).network.config
    halved = {
        name: found if name == "d2t" else found.bfloat16()
        for name, found in random_tensors(config, 1).items()
    }
    file, folder = tmp_path / "mine.safetensors", tmp_path / "public"
    save_drafter(file, config, halved)
    ran = peagle("export", str(file), "--model", MODEL, "--format", form, "--output", str(folder))
    assert (ran.code, ran.err) == (0, "")
    assert f"holds the {method} drafter" in ran.out
    params = SamplingParams(max_tokens=8)
    drafted = []
    for drafter in (file, folder):
        llm = LLM(MODEL, drafter=str(drafter), dtype="bfloat16")
        block = {"lookup": False, "corpus": False}
        result = llm.generate(PROMPTS[0], params, parallel_drafting_spec=block)[0]
        assert result.method == method
        drafted.append((result.token_ids, result.statistics))
        assert llm.engine.drafter is not None
        assert llm.engine.drafter.network.config.own_embedding is False
    assert drafted[0] == drafted[1]
    assert (
        load_drafter(file)[0].target_name in (folder / "config.json").read_text() or form == "vllm"
    )
    assert json.loads((folder / "config.json").read_text())["draft_vocab_size"] == 500


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x.safetensors"], "There is no --output"),
        (["--output", "o"], "There is nothing to write"),
        (["x.safetensors", "--target", MODEL, "--output", "o"], "Both a drafter and --target"),
        (["--target", MODEL, "--format", "vllm", "--output", "o"], "are for drafters"),
        (["x.safetensors", "--output", "o", "--format", "vllm"], "There is no --model"),
        (["x.safetensors", "--output", "o", "--model", MODEL], "There is no --format"),
        (
            ["x.safetensors", "--model", MODEL, "--format", "vllm", "--output", "o"],
            "There is no drafter file x.safetensors",
        ),
        (["--target", "smollm3", "--output", "o"], "no model called 'smollm3'"),
    ],
)
def test_an_incomplete_command_says_what_is_missing(
    peagle: Run, arguments: list[str], message: str
) -> None:
    ran = peagle("export", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert not Path("o").exists()
