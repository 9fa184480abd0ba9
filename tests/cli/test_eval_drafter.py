"""`peagle eval-drafter` on the real model: what it writes, and what a user can get wrong."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle import LLM, catalog
from peagle.draft.formats.writing import export_drafter
from peagle.draft.storage import load_drafter
from peagle.evaluate.answers import save_answers
from peagle.evaluate.recorded import Recorded, read_features
from tests.cli.conftest import Run
from tests.evaluate.drafters import save_informed_drafter

DISTINCT = [504, 253, 260, 282, 284, 288, 314, 281]


@pytest.fixture(scope="module")
def recorded(smollm2: LLM) -> list[Recorded]:
    def answered(name: str, category: str, question: str, answer: list[int]) -> Recorded:
        return Recorded(name, category, smollm2.encode(question), answer, len(answer))

    return [
        answered("a", "qa", "Name three colours.", [*DISTINCT, 2]),
        answered("b", "qa", "Name a city.", [33, 34] * 6),
        answered("c", "code", "Write a loop.", [*DISTINCT[::-1], *DISTINCT]),
    ]


@pytest.fixture(scope="module")
def prompts(recorded: list[Recorded], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "answered.jsonl"
    save_answers(recorded, path)
    return path


@pytest.fixture(scope="module")
def drafter(
    smollm2: LLM, recorded: list[Recorded], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("drafters") / "informed.safetensors"
    features = [read_features(smollm2.target, one) for one in recorded]
    save_informed_drafter(path, smollm2, recorded, features, "peagle")
    return path


@pytest.fixture
def loaded(smollm2: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Spare a test that is about something else the loading."""
    monkeypatch.setattr("peagle.llm.LLM", lambda *_, **__: smollm2)
    return


def test_drafters_and_sources_are_compared(
    peagle: Run, loaded: None, prompts: Path, drafter: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "run"
    ran = peagle("eval-drafter", "smollm2", "--drafter", f"mine={drafter}", "--drafter",
                 str(drafter), "--prompts", str(prompts), "--nodes", "3,7", "--chain", "2",
                 "--output", str(folder))  # fmt: skip
    assert ran.code == 0, ran.err
    found = json.loads((folder / "eval-drafter.json").read_text())
    assert found["drafters"]["mine"]["method"] == "peagle"
    names = [one["name"] for one in found["configurations"]]
    # Two drafters: chain and two trees alone, two trees in three mixes; text in three mixes.
    assert len(names) == len(set(names)) == 2 * (3 + 2 * 3) + 3 * 2
    assert names[:4] == ["mine, chain 2", "mine, tree 3", "mine, tree 7", "informed, chain 2"]
    assert names[-1] == "informed + lookup + corpus, tree 7"
    by_name = {one["name"]: one for one in found["configurations"]}
    assert by_name["mine, tree 7"]["all"] == by_name["informed, tree 7"]["all"]
    assert [one["distinct_bigrams"] for one in found["answers"]] == [1.0, 0.1818, 1.0]
    assert found["repetitive"]["answers"] == 1

    chain = by_name["mine, chain 2"]
    counted = chain["all"]
    assert counted["emitted_tokens"] == 8 + 11 + 15
    assert counted["draft_passes"] > 0
    # The drafter was fitted to these answers.
    cumulative = counted["acceptance_by_depth"]["cumulative"]
    assert cumulative[0] > 0.5
    assert counted["acceptance_by_depth"]["conditional"][0] == cumulative[0]
    lengths = counted["acceptance_length"]
    assert lengths["mean"] == pytest.approx(sum(lengths["categories"].values()) / 2, abs=1e-4)
    assert lengths["pooled"] == pytest.approx(34 / counted["target_passes"], abs=1e-4)
    assert chain["without_repetitive"]["answers"] == 2
    assert chain["without_repetitive"]["emitted_tokens"] == 8 + 15

    # Lookup finds nothing in the first answer and sees through the loop in 4 passes of 11 tokens.
    lookup = by_name["lookup, tree 7"]
    qa = lookup["all"]["acceptance_length"]["categories"]["qa"]
    assert qa == pytest.approx((8 + 11) / (8 + 4), abs=1e-4)
    assert lookup["without_repetitive"]["acceptance_length"]["categories"]["qa"] == 1.0

    written = (folder / "eval-drafter.md").read_text()
    shown = (
        f"| mine, chain 2 | {lengths['mean']:.2f} | {lengths['pooled']:.2f} "
        f"| {lengths['categories']['qa']:.2f} |"
    )
    assert shown in written
    assert "| b | qa | 12 | 0.18 |" in written
    assert f"{lengths['mean']:.2f}" in ran.out
    assert "3 answers with 37 tokens" in ran.out
    assert (folder / "acceptance.png").read_bytes().startswith(b"\x89PNG")

    # What was answered can be measured again, with the same result.
    again = peagle("eval-drafter", "smollm2", "--drafter", f"mine={drafter}", "--prompts",
                   str(folder / "answers.jsonl"), "--nodes", "7", "--chain", "0", "--sources",
                   "network, corpus+lookup + network", "--json")  # fmt: skip
    assert again.code == 0, again.err
    repeated = {one["name"]: one for one in json.loads(again.out)["configurations"]}
    assert list(repeated) == ["mine, tree 7", "mine + lookup + corpus, tree 7"]
    for name, one in repeated.items():
        assert one == by_name[name]


@pytest.mark.usefixtures("loaded")
def test_public_folders_are_compared_too(
    peagle: Run, smollm2: LLM, prompts: Path, drafter: Path, tmp_path: Path
) -> None:
    target = smollm2.target
    config, tensors = load_drafter(drafter)
    folder = tmp_path / "public"
    export_drafter(
        config, tensors, folder, "vllm", target=target.config, embedding=target.embedding
    )
    ran = peagle("eval-drafter", "smollm2", "--drafter", str(folder), "--drafter",
                 f"own={drafter}", "--prompts", str(prompts), "--nodes", "7", "--chain", "3",
                 "--sources", "network", "--json")  # fmt: skip
    assert ran.code == 0, ran.err
    public, own = (
        [one["all"] for one in json.loads(ran.out)["configurations"] if name in one["name"]]
        for name in ("public", "own")
    )
    assert len(public) == 2
    assert public == own


def test_prompts_are_answered_and_sampled(
    peagle: Run, loaded: None, smollm2: LLM, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Name three colours.", "id": "x"}\n')
    common = ("eval-drafter", "smollm2", "--prompts", str(prompts), "--max-tokens", "6",
              "--nodes", "7", "--sources", "lookup+corpus")  # fmt: skip
    ran = peagle(*common, "--output", str(tmp_path / "greedy"))
    assert ran.code == 0, ran.err
    answer = json.loads((tmp_path / "greedy" / "answers.jsonl").read_text())
    assert answer["response_token_ids"] == smollm2.generate(
        "Name three colours.", _limited(temperature=0.0)
    )[0].token_ids  # fmt: skip
    sampled = peagle(*common, "--temperature", "0.9", "--seed", "5", "--seed", "6", "--json",
                     "--output", str(tmp_path / "sampled"))  # fmt: skip
    found = json.loads(sampled.out)
    assert [(one["id"], one["seed"]) for one in found["answers"]] == [
        ("x/seed-5", 5),
        ("x/seed-6", 6),
    ]
    assert found["configurations"][0]["all"]["answers"] == 2
    lines = (tmp_path / "sampled" / "answers.jsonl").read_text().splitlines()
    assert json.loads(lines[1])["response_token_ids"] == smollm2.generate(
        "Name three colours.", _limited(temperature=0.9, seed=6)
    )[0].token_ids  # fmt: skip


def _limited(**params):
    from peagle import SamplingParams

    return SamplingParams(max_tokens=6, **params)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--nodes", "7,0"], "nodes holds '0'. Give different whole numbers from 1 to 255"),
        (["--nodes", "7,256"], "nodes holds '256'"),
        (["--nodes", "7,7"], "nodes holds '7' twice"),
        (["--nodes", "many"], "nodes holds 'many'"),
        (["--chain", "33"], "chain cannot be 33. Give a whole number from 1 to 32"),
        (["--seed", "1"], "--seed 1 is given, but at temperature 0 answers are greedy"),
        (["--temperature", "1", "--seed", "1", "--seed", "1"], "twice with the same value"),
        (["--temperature", "-1"], "temperature cannot be -1.0"),
        (["--drafter", "none.safetensors"], "There is no drafter file none.safetensors"),
        (["--drafter", "corpus=x"], "--drafter corpus=x has the name 'corpus'"),
        (["--drafter", "a/x.st", "--drafter", "b/x.st"], "Two drafters are called 'x'"),
        (["--sources", "lookup,memory"], "sources holds 'memory'. Give different mixes of"),
        (["--sources", "lookup,lookup"], "sources holds 'lookup' twice"),
        (["--output", "/dev/null/x"], "/dev/null/x cannot be written"),
    ],
)
def test_mistakes_are_named_before_anything_is_loaded(
    peagle: Run, monkeypatch: pytest.MonkeyPatch, options: list[str], problem: str
) -> None:
    monkeypatch.setattr("peagle.llm.LLM", lambda *_, **__: pytest.fail("loaded"))
    ran = peagle("eval-drafter", "smollm2", *options)
    assert ran.code == 2
    assert problem in ran.err
    assert ran.err.startswith("Error: ")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "prompts.jsonl holds no prompts"),
        ("{", "line 1: it is not valid JSON"),
        ('{"prompt": "Hi", "answer": "Ho"}', "line 1: answer: Extra inputs are not permitted"),
        ('{"prompt_token_ids": [1], "response_token_ids": [50000]}', "holds 50000"),
        ('{"prompt": "Hi", "response": "Ho"}', "prompts.jsonl, line 1 is answered already"),
        (json.dumps({"prompt_token_ids": [5] * 9000}), "the prompt has 9000 tokens and the answer"),
    ],
)
def test_prompts_that_cannot_be_used_are_named(
    peagle: Run, loaded: None, tmp_path: Path, line: str, problem: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(line + "\n")
    ran = peagle("eval-drafter", "smollm2", "--prompts", str(path), "--temperature", "0.5")
    assert ran.code == 2
    assert problem in ran.err
    assert ran.err.count("\n") == 1


def test_a_missing_file_of_prompts_is_named(peagle: Run, loaded: None) -> None:
    ran = peagle("eval-drafter", "smollm2", "--prompts", "none.jsonl")
    assert ran.code == 2
    assert "none.jsonl cannot be read (No such file or directory)" in ran.err


def test_a_drafter_of_another_target_is_refused(
    peagle: Run, loaded: None, smollm2: LLM, recorded: list[Recorded], tmp_path: Path
) -> None:
    path = tmp_path / "other.safetensors"
    features = [read_features(smollm2.target, recorded[0])]
    for change, problem in (
        ({"tokenizer_fingerprint": "0" * 64}, "this target, the drafter has tokenizer 0000"),
        ({"taps": (2, 15, 30)}, "the target has layers 0 to 29"),
    ):
        save_informed_drafter(path, smollm2, recorded[:1], features, "peagle", **change)
        ran = peagle("eval-drafter", "smollm2", "--drafter", str(path))
        assert ran.code == 2
        assert f"Error: --drafter {path}: The drafter does not fit" in ran.err
        assert problem in ran.err


def test_a_model_without_a_drafter_has_text_sources_alone(
    peagle: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peagle.llm.LLM", lambda *_, **__: pytest.fail("loaded"))
    gguf = str(catalog.resolve("smollm2").files)
    ran = peagle("eval-drafter", gguf, "--sources", "network")
    assert ran.code == 2
    assert "sources holds 'network', but there is no drafter" in " ".join(ran.err.split())
