"""Runs learn, stop, go on with the same losses, and refuse what is not theirs."""

import json
from pathlib import Path

import pytest
import torch

from peagle.errors import CheckpointError
from peagle.train.checkpoint import has_checkpoint, read_checkpoint
from peagle.train.trainer import Limits
from tests.train.tiny_training import documents_of, trainer_of


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def stop_after(steps: int):
    class StopError(Exception):
        pass

    def on_step(progress, _loss):
        if progress.step == steps:
            raise StopError

    return StopError, on_step


def test_acceptance_rises(tmp_path: Path) -> None:
    # A random target answers without rules, so what can be learnt is what was shown.
    trainer = trainer_of(tmp_path, documents=documents_of(40, distinct=4))
    before = trainer.measure()
    measured = []
    trainer.train(
        Limits(tokens=30_000, measure_tokens=10_000),
        on_measured=lambda held_out, better: measured.append((held_out, better)),
    )
    after = measured[-1][0]
    assert before.acceptance_length < 1.2
    assert after.acceptance_length > before.acceptance_length + 0.5
    assert after.reached == sorted(after.reached, reverse=True)
    assert trainer.progress.best == max(one.acceptance_length for one, _ in measured)


def test_a_stopped_run_goes_on_with_the_losses_of_an_unbroken_one(tmp_path: Path) -> None:
    limits = Limits(tokens=1_000_000, measure_tokens=10**9)
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    stop, on_step = stop_after(200)
    with pytest.raises(stop):
        trainer_of(unbroken).train(limits, on_step=on_step)
    stop, on_step = stop_after(100)
    with pytest.raises(stop):
        trainer_of(broken).train(limits, on_step=on_step)
    again = trainer_of(broken)
    again.resume()
    assert again.progress.step == 100
    stop, on_step = stop_after(200)
    with pytest.raises(stop):
        again.train(limits, on_step=on_step)
    assert len(losses(broken)) == 200
    assert losses(broken) == losses(unbroken)


def test_steps_behind_the_last_checkpoint_leave_the_log(tmp_path: Path) -> None:
    stop, on_step = stop_after(3)
    limits = Limits(tokens=1_000_000, measure_tokens=10**9)
    trainer = trainer_of(tmp_path)
    with pytest.raises(stop):
        trainer.train(limits, on_step=on_step)
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"step": 4, "loss": 1.0}\n{"step": 5, "lo')
    trainer_of(tmp_path).resume()
    assert len(losses(tmp_path)) == 3


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch) -> None:
    trainer = trainer_of(tmp_path)
    stop, on_step = stop_after(2)
    with pytest.raises(stop):
        trainer.train(Limits(tokens=10**6), on_step=on_step)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("peagle.train.checkpoint.save_file", full)
    with pytest.raises(CheckpointError, match="No space left"):
        trainer.save()
    progress, groups = read_checkpoint(tmp_path, {"model": "tiny"})
    assert progress.step == 2
    assert set(groups) == {"weights", "average", "optimizer"}
    assert all(torch.isfinite(one).all() for one in groups["weights"].values())


def test_another_target_is_refused_by_name(tmp_path: Path) -> None:
    trainer_of(tmp_path).save()
    assert has_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="begun with model tiny, not large") as caught:
        read_checkpoint(tmp_path, {"model": "large"})
    assert caught.value.field == "model"
    with pytest.raises(CheckpointError, match="no checkpoint"):
        read_checkpoint(tmp_path / "elsewhere", {})


def test_a_run_without_progress_ends_early(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, matrix_rate=1e-12, other_rate=1e-12)
    measured = []
    trainer.train(
        Limits(tokens=10**6, measure_tokens=500, patience=3),
        on_measured=lambda _held_out, better: measured.append(better),
    )
    assert measured[1:] == [False] * 3
    assert trainer.progress.tokens < 10_000
