"""`peagle train` on the real model: short runs, traffic, signals, and what a user can get wrong."""

import errno
import gzip
import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from peagle import catalog
from peagle.cli.train import train
from peagle.draft.storage import load_drafter, read_network_weights
from peagle.train.conversations import Conversation, Sidecar
from peagle.train.own_text import OwnText
from peagle.train.split import held_out
from tests.cli.conftest import Run
from tests.cli.test_interruption import start

SELF_CHAT = Path(__file__).parents[2] / "data" / "smollm2-self-chat.jsonl.gz"
# The rate does not depend on --tokens, so that runs of different lengths begin alike.
RECIPE = """
layers: 1
draft_vocab_size: 400
depths: 3
markov_rank: 8
rows_per_step: 200
warmup_steps: 5
decay_share: 0
"""
TOKENS = "400"


def losses(run: Path) -> list[float]:
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


@pytest.fixture(scope="module")
def conversations() -> list[Conversation]:
    """Short ones, three of them held out."""
    short = []
    with gzip.open(SELF_CHAT, "rt") as lines:
        for line in lines:
            fields = json.loads(line)
            prompt, response = fields["prompt_token_ids"], fields["response_token_ids"]
            if len(prompt) < 70 and 20 < len(response) < 45:
                short.append(Conversation(prompt, response, fields["category"]))
            if len(short) == 300:
                break
    out = held_out(short)
    chosen = [each for each, held in zip(short, out, strict=True) if held][:3]
    chosen += [each for each, held in zip(short, out, strict=True) if not held][:12]
    assert held_out(chosen) == [True] * 3 + [False] * 12
    return chosen


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, conversations: list[Conversation]) -> Path:
    """`own.jsonl` and `recipe.yaml`, and `run` with a drafter that was trained with them."""
    folder = tmp_path_factory.mktemp("train")
    (folder / "own.jsonl").write_text("".join(each.as_line() for each in conversations))
    (folder / "recipe.yaml").write_text(RECIPE)
    train(
        "smollm2",
        output=folder / "run",
        data=[folder / "own.jsonl"],
        recipe=folder / "recipe.yaml",
        tokens=int(TOKENS),
    )
    return folder


def told(folder: Path, run: Path, *more: str, tokens: str = TOKENS) -> list[str]:
    return ["train", "smollm2", "--data", str(folder / "own.jsonl"), "--output", str(run),
            "--recipe", str(folder / "recipe.yaml"), "--tokens", tokens, *more]  # fmt: skip


def test_a_run_leaves_a_drafter_a_log_and_a_picture(folder: Path) -> None:
    run = folder / "run"
    config, tensors = load_drafter(run / "drafter.safetensors")
    assert (config.method, config.draft_vocab_size, config.train_depth) == ("peagle", 400, 3)
    assert config.target_name == "smollm2-135m-instruct"
    assert tensors["markov.out.weight"].shape == (400, 8)
    weights = read_network_weights(run / "drafter.safetensors")
    assert weights is not None
    assert len(weights.weights) == 3
    assert weights.provenance["held_out_documents"] == 3
    nats = weights.provenance["nats_per_token"]
    assert nats["both"] < min(nats["text"], nats["network"])
    assert (run / "learning-curve.png").read_bytes().startswith(b"\x89PNG")
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if "loss" in record][:2] == [1, 2]
    assert records[-1]["held_out_top1"]
    assert sorted(path.name for path in run.iterdir()) == [
        "checkpoint", "drafter.safetensors", "features", "learning-curve.png", "log.jsonl",
    ]  # fmt: skip


def test_what_was_trained_drafts(peagle: Run, folder: Path) -> None:
    answer = peagle("generate", "Hi", "--drafter", str(folder / "run" / "drafter.safetensors"),
                    "--max-tokens", "12", "--json", "--spec", '{"method": "peagle"}')  # fmt: skip
    plain = peagle("generate", "Hi", "--max-tokens", "12", "--json", "--no-speculation")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["token_ids"] == json.loads(plain.out)["token_ids"]
    assert json.loads(answer.out)["speculation"]["draft_passes"] > 0


@pytest.fixture(scope="module")
def traffic(folder: Path, conversations: list[Conversation]) -> Path:
    """A log of the same conversations, one of them twice, and one request without a response."""
    path = folder / "traffic.jsonl"
    lines = [
        json.dumps({"prompt_token_ids": each.prompt, "response_token_ids": each.response})
        for each in [*conversations, conversations[5]]
    ]
    path.write_text("\n".join([*lines, '{"prompt": "Hi."}']))
    return path


def test_a_drafter_learns_from_traffic(
    peagle: Run, tmp_path: Path, folder: Path, traffic: Path
) -> None:
    first = folder / "run" / "drafter.safetensors"
    before = first.read_bytes()
    run = tmp_path / "run"
    ran = peagle("train", "smollm2", "--traffic", str(traffic), "--output", str(run),
                 "--start", str(first), "--recipe", str(folder / "recipe.yaml"))  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.err.startswith(
        "15 logged requests; left out: 1 with same prompt, 1 with no response\n"
    )
    found = re.search(
        r"drafter.safetensors: held-out acceptance length (\d\.\d+) \((\d\.\d+) before\) "
        r"after (\d+) response tokens",
        ran.out,
    )
    assert found is not None, ran.out
    assert float(found[1]) > float(found[2]) > 1
    # Four epochs.
    kept = [json.loads(line) for line in traffic.read_text().splitlines()[3:15]]
    tokens = 4 * sum(len(line["response_token_ids"]) - 1 for line in kept)
    assert tokens <= int(found[3]) < tokens + 200
    _, old = load_drafter(first)
    _, new = load_drafter(run / "drafter.safetensors")
    assert torch.equal(new["d2t"], old["d2t"])
    assert not torch.equal(new["fc.weight"], old["fc.weight"])
    assert first.read_bytes() == before


def test_a_drafter_that_did_not_learn_is_not_kept(
    peagle: Run, tmp_path: Path, folder: Path, traffic: Path
) -> None:
    recipe = tmp_path / "still.yaml"
    recipe.write_text("matrix_rate: 1.0e-12\nother_rate: 1.0e-12\ndepths: 3\n")
    run, first = tmp_path / "run", folder / "run" / "drafter.safetensors"
    ran = peagle("train", "smollm2", "--traffic", str(traffic), "--output", str(run), "--start",
                 str(first), "--recipe", str(recipe), "--tokens", "200")  # fmt: skip
    assert ran.code == 0, ran.err
    assert re.fullmatch(
        rf"The drafter {re.escape(str(first))} stays: held-out acceptance length (\d\.\d+) before, "
        r"\1 after.\n",
        ran.out,
    )
    assert not (run / "drafter.safetensors").exists()


def test_the_recipe_says_which_of_the_models_drafters_goes_on(
    peagle: Run, tmp_path: Path, traffic: Path
) -> None:
    recipe = tmp_path / "still.yaml"
    recipe.write_text("method: eagle3\nmatrix_rate: 1.0e-12\nother_rate: 1.0e-12\ndepths: 3\n")
    ran = peagle("train", "smollm2", "--traffic", str(traffic), "--output", str(tmp_path / "run"),
                 "--recipe", str(recipe), "--tokens", "50")  # fmt: skip
    assert ran.code == 0, ran.err
    first = catalog.resolve("smollm2").drafters["eagle3"]
    assert ran.out.startswith(f"The drafter {first} stays:")


def test_a_log_without_responses_teaches_nothing(peagle: Run, tmp_path: Path, folder: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"prompt": "Hi."}\n{"prompt": "Say no."}\n')
    ran = peagle("train", "smollm2", "--traffic", str(log), "--output", str(tmp_path / "run"),
                 "--start", str(folder / "run" / "drafter.safetensors"))  # fmt: skip
    assert (ran.code, ran.out) == (2, "")
    assert f"None of the 2 requests in {log} has a response." in ran.err


def test_traffic_needs_a_drafter_to_begin_with(peagle: Run, tmp_path: Path) -> None:
    gguf = str(catalog.resolve("smollm2").files)
    ran = peagle("train", gguf, "--traffic", "log.jsonl", "--output", str(tmp_path / "run"))
    assert ran.code == 2
    assert "has no drafter of its own that could learn from traffic" in ran.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_process_goes_on_to_the_same_losses(
    peagle: Run, tmp_path: Path, folder: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    process = start(*told(folder, run, tokens="1000000"))
    log = run / "log.jsonl"
    while not (log.exists() and log.read_text().count("loss") > 1):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    second = peagle(*told(folder, run))
    assert second.code == 2
    assert f"Another process is writing to {run}." in second.err
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.decode().splitlines()[-2:] == [
        "Stopped; go on with the same command and --resume.",
        "Interrupted.",
    ]
    assert b"Traceback" not in err
    done = losses(run)
    state = json.loads((run / "checkpoint" / "state.json").read_text())
    assert state["progress"]["step"] == len(done) > 1
    ran = peagle(*told(folder, run, "--resume"))
    assert ran.code == 0, ran.err
    expected = losses(folder / "run")
    assert losses(run)[: len(expected)] == expected
    assert losses(run)[: len(done)] == done


def test_a_run_goes_on_with_what_it_was_begun_with_alone(
    peagle: Run, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = folder / "run"
    state = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    command = told(folder, run)
    again = peagle(*command)
    assert again.code == 2
    assert "holds a run already" in again.err
    other_data = tmp_path / "own.jsonl"
    other_data.write_text((folder / "own.jsonl").read_text().replace("[1,", "[2,", 1))
    for change, what in (
        (["--data", str(other_data)], "data"),
        (["--start", str(run / "drafter.safetensors")], "start"),
    ):
        ran = peagle(*command, "--resume", *change)
        assert ran.code == 2, what
        assert re.search(rf"Error: The run in \S+ was begun with {what} \w+, not \w+\.", ran.err)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE + "seed: 5\n")
    ran = peagle(*command, "--resume", "--recipe", str(recipe))
    assert "was begun with recipe" in ran.err
    monkeypatch.setattr("peagle.train.run._digest", lambda _: "another target")
    ran = peagle(*command, "--resume")
    assert ran.code == 2
    assert re.search(
        r"was begun with model smollm2-135m-instruct \(\w+\), not .* \(another target\)", ran.err
    )
    assert {path: path.read_bytes() for path in state} == state


def test_a_full_disk_is_one_line(
    peagle: Run, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("peagle.train.checkpoint.save_file", full)
        ran = peagle(*told(folder, tmp_path / "run", "--no-cache-features", tokens="50"))
    assert ran.code == 2
    last = ran.err.splitlines()[-1]
    assert last.startswith(f"Error: The checkpoint in {tmp_path / 'run'} cannot be written")
    assert "No space left" in last
    assert "Traceback" not in ran.err
    with monkeypatch.context() as patched:
        patched.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
        ran = peagle(*told(folder, tmp_path / "other"))
    assert ran.code == 2
    assert "Caching the target's features needs" in ran.err
    assert ran.err.count("\n") == 1


GOOD = '{"prompt_token_ids":[1,2],"response_token_ids":[3,4]}\n'


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "holds no conversations"),
        (GOOD + '{"prompt_token_ids": "Hi"}\n', 'own.jsonl, line 2: prompt_token_ids is "Hi"'),
        (GOOD + GOOD.replace("4", "49152"), "own.jsonl, line 2: response_token_ids holds 49152"),
        (GOOD, "Of 1 conversations none is left to"),
        (None, "own.jsonl was made by other with tokenizer 0000"),
    ],
)
def test_unusable_data_is_named(
    peagle: Run, tmp_path: Path, content: str | None, problem: str
) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(GOOD if content is None else content)
    if content is None:
        sidecar = Sidecar(model="other", tokenizer_fingerprint="0" * 64, settings={})
        Sidecar.path_of(path).write_text(sidecar.model_dump_json())
    ran = peagle("train", "smollm2", "--data", str(path), "--output", str(tmp_path / "run"))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("Error: ")
    assert problem in ran.err
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--method", "medusa"], "method cannot be 'medusa'"),
        (["--recipe", "none.yaml"], "recipe none.yaml cannot be read"),
        (["--resume"], "holds no run to go on with"),
        (["--hours", "nan"], "hours cannot be nan"),
        (["--hours", "0"], "hours cannot be 0"),
        (["--start", "none.safetensors"], "none.safetensors"),
        (["--output", __file__], "test_train.py is no folder"),
    ],
)
def test_mistakes_are_named_before_anything_is_loaded(
    peagle: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], problem: str
) -> None:
    monkeypatch.setattr("peagle.model.loading.load_target", None)
    ran = peagle("train", "smollm2", "--data", "missing.jsonl", "--output", str(tmp_path / "run"),
                 *options)  # fmt: skip
    assert ran.code == 2
    assert problem in ran.err
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_missing_files_are_named_before_training(peagle: Run, tmp_path: Path) -> None:
    command = ["train", "smollm2", "--output", str(tmp_path / "run")]
    ran = peagle(*command)
    assert ran.code == 2
    assert "There is nothing to train on" in ran.err
    ran = peagle(*command, "--data", "missing.jsonl")
    assert ran.code == 2
    assert "missing.jsonl cannot be read" in ran.err
    ran = peagle(*command, "--data", "missing.jsonl", "--corpus", "none.safetensors")
    assert ran.code == 2
    assert "There is no corpus at none.safetensors" in ran.err


def test_a_model_trains_on_text_of_its_own(peagle: Run, tmp_path: Path, folder: Path) -> None:
    # What `tests/train/test_own_text.py` sees written, but enough to train on.
    own = OwnText.within(tmp_path / "run")
    own.data.parent.mkdir()
    own.data.write_bytes(gzip.compress((folder / "own.jsonl").read_bytes()))
    built = peagle("corpus", "build", str(own.data), "--model", "smollm2", "--output",
                   str(own.corpus))  # fmt: skip
    assert built.code == 0, built.err
    ran = peagle("train", "smollm2", "--output", str(tmp_path / "run"), "--recipe",
                 str(folder / "recipe.yaml"), "--hours", "1", "--tokens", "600")  # fmt: skip
    assert ran.code == 0, ran.err
    assert load_drafter(tmp_path / "run" / "drafter.safetensors")[0].draft_vocab_size == 400
