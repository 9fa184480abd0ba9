"""`peagle export` on the real model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import torch
from safetensors.torch import load_file

from peagle import LLM, SamplingParams
from peagle.catalog import ResolvedModel
from peagle.draft.peagle.config import PEagleConfig
from peagle.draft.storage import load_drafter, save_drafter
from peagle.draft.untrained import random_drafter, random_tensors
from peagle.engine.statistics import SpeculationStatistics
from peagle.llm.prompt import PromptReader
from peagle.model.loading import load_target
from peagle.model.rows import SequenceRows
from peagle.spec import NetworkMethod
from tests.cli.conftest import Run
from tests.conftest import MODEL

METHODS: Final[tuple[NetworkMethod, ...]] = ("peagle", "eagle3")
PROMPTS = ["Name three colours.", "def add(a, b):", "¿Qué es una abeja? 🐝"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("export") / "smollm2"
    from peagle.catalog import resolve
    from peagle.model.target_export import export_target

    export_target(resolve(MODEL).files, folder)
    return folder


def test_transformers_reads_an_exported_model_as_it_is_read_here(exported: Path) -> None:
    """The same ids, logits (in float32, where both round alike) and text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    here = load_target(exported, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(exported)
    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).eval()
    reader = PromptReader(here.tokenizer, None, here.model.config.vocab_size, "smollm2")
    assert model.generation_config.eos_token_id == sorted(here.tokenizer.eos_token_ids)
    cache = here.model.new_cache(64 << 20)
    for prompt in PROMPTS:
        messages = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )["input_ids"]
        assert ids[0].tolist() == reader.encode(messages)
        rows = SequenceRows(cache.open(ids.shape[1]), ids[0].tolist())
        ours = here.model.forward(cache, [rows]).logits[0]
        with torch.no_grad():
            theirs = model(ids).logits[0]
        assert theirs.abs().max() > 10
        torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=0)
        assert tokenizer(prompt)["input_ids"] == here.tokenizer.encode(prompt)
        for skip in (False, True):
            text = tokenizer.decode(ids[0], skip_special_tokens=skip)
            assert text == here.tokenizer.decode(ids[0].tolist(), skip_special_tokens=skip)


def test_an_exported_model_is_the_one_that_runs_here(exported: Path, smollm2: LLM) -> None:
    found = load_target(exported, dtype="bfloat16")
    assert found.model.config == smollm2.target.config
    assert torch.equal(found.model.embedding, smollm2.target.embedding)
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


@pytest.fixture(scope="module")
def drafter_files(
    smollm2: LLM, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, Path]]:
    """By method, a drafter as it is trained here, and the same without a Markov head."""
    files = {}
    for method in METHODS:
        config = random_drafter(
            smollm2.target,
            method=method,
            layers=1,
            draft_vocab_size=500,
            fingerprint=smollm2.tokenizer.fingerprint(),
        ).network.config
        whole = replace(config, markov_rank=16) if isinstance(config, PEagleConfig) else config
        halved = {
            name: found if name == "d2t" else found.bfloat16()
            for name, found in random_tensors(whole, 1).items()
        }
        plain = {name: found for name, found in halved.items() if "markov" not in name}
        folder = tmp_path_factory.mktemp(method)
        files[method] = (folder / "mine.safetensors", folder / "plain.safetensors")
        save_drafter(files[method][0], whole, halved)
        save_drafter(files[method][1], config, plain)
    return files


def drafts_of(drafter: Path) -> tuple[list[int], SpeculationStatistics]:
    """What the model answers with a drafter alone, and how its drafts fared."""
    llm = LLM(MODEL, drafter=str(drafter), dtype="bfloat16")
    # Pinned: adaptive trees follow costs, which are measured for each drafter.
    block = {"lookup": False, "corpus": False, "adaptive": False}
    params = SamplingParams(max_tokens=8)
    result = llm.generate(PROMPTS[0], params, parallel_drafting_spec=block)[0]
    assert llm.engine.drafter is not None
    assert llm.engine.drafter.network.config.own_embedding is False
    assert result.method == llm.engine.drafter.method
    return result.token_ids, result.statistics


@pytest.mark.parametrize("method", METHODS)
def test_an_exported_drafter_drafts_as_it_did(
    peagle: Run, tmp_path: Path, drafter_files: dict[str, tuple[Path, Path]], method: str
) -> None:
    file, plain = drafter_files[method]
    expected = drafts_of(plain)
    for form in ("vllm", "speculators"):
        folder = tmp_path / form
        ran = peagle(
            "export", str(file), "--model", MODEL, "--format", form, "--output", str(folder)
        )
        assert ran.code == 0
        assert ran.out == f"{folder} holds the {method} drafter of untrained ({form}).\n"
        left_out = "Left out: the Markov head (rank 16)" if method == "peagle" else ""
        assert ran.err.startswith(left_out)
        assert ran.err.count("\n") == (1 if left_out else 0)
        assert drafts_of(folder) == expected
        written = json.loads((folder / "config.json").read_text())
        assert (written["draft_vocab_size"], written["target_hidden_size"]) == (500, 576)
        assert written["eagle_aux_hidden_state_layer_ids"] == [2, 15, 27]


def test_a_public_drafter_becomes_the_other_form(
    peagle: Run, tmp_path: Path, drafter_files: dict[str, tuple[Path, Path]]
) -> None:
    _, plain = drafter_files["peagle"]
    source = plain
    for form in ("speculators", "vllm"):
        folder = tmp_path / form
        ran = peagle(
            "export", str(source), "--model", MODEL, "--format", form, "--output", str(folder)
        )
        assert (ran.code, ran.err) == (0, "")
        source = folder
    ours = load_drafter(plain)[1]
    stored = load_file(source / "model.safetensors")
    assert torch.equal(stored["midlayer.mlp.up_proj.weight"], ours["layers.0.mlp.up_proj.weight"])
    assert torch.equal(stored["embed_tokens.weight"][-1], ours["mask_embedding"])


def test_without_a_drafter_the_models_own_is_written(
    peagle: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    exported: Path,
    drafter_files: dict[str, tuple[Path, Path]],
) -> None:
    asked = ["export", "--format", "vllm", "--model", str(exported)]
    ran = peagle(*asked, "--output", str(tmp_path / "a"))
    assert (ran.code, ran.out) == (2, "")
    assert "smollm2 has no drafter of its own" in ran.err
    own = ResolvedModel("smollm2", exported, drafters={"eagle3": drafter_files["eagle3"][0]})
    monkeypatch.setattr("peagle.catalog.resolve", lambda _: own)
    ran = peagle(*asked, "--output", str(tmp_path / "b"))
    assert (ran.code, ran.err) == (0, "")
    assert (tmp_path / "b" / "config.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x.safetensors"], "There is no --output"),
        (["--output", "o"], "There is nothing to write"),
        (["x.safetensors", "--target", MODEL, "--output", "o"], "do not go with --target"),
        (["--target", MODEL, "--format", "vllm", "--output", "o"], "do not go with --target"),
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
