"""`peagle train` on the real model: a short run, and what a user can get wrong."""

import gzip
import json
import re
from pathlib import Path

import pytest

from peagle.draft.storage import load_drafter
from peagle.train.own_text import OwnText
from tests.cli.conftest import Run

SELF_CHAT = Path(__file__).parents[2] / "data" / "smollm2-self-chat.jsonl.gz"
RECIPE = """
draft_vocab_size: 400
depths: 3
markov_rank: 8
rows_per_step: 600
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "own.jsonl"
    with gzip.open(SELF_CHAT, "rt") as lines:
        path.write_text("".join(line for _, line in zip(range(60), lines, strict=False)))
    return path


def test_a_run_is_trained_gone_on_with_and_drafts(peagle: Run, tmp_path: Path, data: Path) -> None:
    recipe, run = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(RECIPE)
    command = ["train", "smollm2", "--data", str(data), "--output", str(run), "--recipe",
               str(recipe), "--tokens", "1200"]  # fmt: skip
    ran = peagle(*command)
    assert ran.code == 0, ran.err
    assert re.search(r"drafter.safetensors: held-out acceptance length 1\.\d+ after 1\d+ ", ran.out)
    config, tensors = load_drafter(run / "drafter.safetensors")
    assert (config.method, config.draft_vocab_size, config.train_depth) == ("peagle", 400, 3)
    assert tensors["markov.out.weight"].shape == (400, 8)
    assert (run / "learning-curve.png").read_bytes().startswith(b"\x89PNG")
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if "loss" in record][:2] == [1, 2]
    assert records[-1]["held_out_top1"]

    again = peagle(*command)
    assert again.code == 2
    assert "holds a run already" in again.err
    other = peagle(*command[:-4], "--resume", "--tokens", "1200")
    assert other.code == 2
    assert "was begun with recipe" in other.err

    answer = peagle("generate", "Hi", "--drafter", str(run / "drafter.safetensors"),
                    "--max-tokens", "12", "--json", "--spec", '{"method": "peagle"}')  # fmt: skip
    plain = peagle("generate", "Hi", "--max-tokens", "12", "--json", "--no-speculation")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["token_ids"] == json.loads(plain.out)["token_ids"]
    assert json.loads(answer.out)["speculation"]["draft_passes"] > 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--method", "medusa"], "method cannot be 'medusa'"),
        (["--recipe", "none.yaml"], "recipe none.yaml cannot be read"),
        (["--resume"], "holds no run to go on with"),
    ],
)
def test_mistakes_are_named_before_anything_is_loaded(
    peagle: Run, tmp_path: Path, options: list[str], problem: str
) -> None:
    ran = peagle("train", "smollm2", "--data", "missing.jsonl", "--output", str(tmp_path / "run"),
                 *options)  # fmt: skip
    assert ran.code == 2
    assert problem in " ".join(ran.err.split())


def test_a_missing_data_file_is_named(peagle: Run, tmp_path: Path) -> None:
    ran = peagle("train", "smollm2", "--data", "missing.jsonl", "--output", str(tmp_path / "run"))
    assert ran.code == 2
    assert "missing.jsonl cannot be read" in ran.err


def test_a_model_trains_on_text_of_its_own(peagle: Run, tmp_path: Path, data: Path) -> None:
    recipe, run = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(RECIPE)
    # As `tests/train/test_own_text.py` sees it written, but enough to train on.
    own = OwnText.within(run)
    run.mkdir()
    own.data.write_bytes(gzip.compress(data.read_bytes()))
    built = peagle("corpus", "build", str(own.data), "--model", "smollm2", "--output",
                   str(own.corpus))  # fmt: skip
    assert built.code == 0, built.err
    ran = peagle("train", "smollm2", "--output", str(run), "--recipe", str(recipe),
                 "--hours", "1", "--tokens", "600")  # fmt: skip
    assert ran.code == 0, ran.err
    assert load_drafter(run / "drafter.safetensors")[0].draft_vocab_size == 400


def test_without_text_or_time_nothing_is_begun(peagle: Run, tmp_path: Path) -> None:
    ran = peagle("train", "smollm2", "--output", str(tmp_path / "run"))
    assert ran.code == 2
    assert "nothing to train on" in ran.err
    assert not (tmp_path / "run").exists()
