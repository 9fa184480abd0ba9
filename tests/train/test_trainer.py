"""Runs learn, stop, go on with the same losses, and refuse what is not theirs."""

import json
import signal
from pathlib import Path

import pytest
import torch

from peagle.errors import CheckpointError, InvalidRequestError
from peagle.train.checkpoint import has_checkpoint, read_checkpoint
from peagle.train.interruption import sigterm_as_ctrl_c
from peagle.train.trainer import Limits
from tests.train.tiny_training import SAME, documents_of, trainer_of


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def measurements(run: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if "held_out_top1" in line]


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
        Limits(tokens=12_000, measure_tokens=4000),
        on_measured=lambda held_out, better: measured.append((held_out, better)),
    )
    after = measured[-1][0]
    assert before.acceptance_length < 1.2
    assert after.acceptance_length > before.acceptance_length + 0.5
    assert after.reached == sorted(after.reached, reverse=True)
    assert trainer.progress.best == max(one.acceptance_length for one, _ in measured)


def test_a_stopped_run_goes_on_with_the_losses_of_an_unbroken_one(tmp_path: Path) -> None:
    # Measurements, epochs and the falling learning rate all lie across the stop.
    limits = Limits(tokens=5000, measure_tokens=1100)
    small = {"documents": documents_of(60, answer=12), "depths": 3, "rows_per_step": 50,
             "decay_share": 0.8}  # fmt: skip
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    stop, on_step = stop_after(200)
    with pytest.raises(stop):
        trainer_of(unbroken, **small).train(limits, on_step=on_step)
    stop, on_step = stop_after(100)
    with pytest.raises(stop):
        trainer_of(broken, **small).train(limits, on_step=on_step)
    again = trainer_of(broken, **small)
    again.resume()
    assert again.progress.step == 100
    assert again.progress.epoch > 0
    stop, on_step = stop_after(200)
    with pytest.raises(stop):
        again.train(limits, on_step=on_step)
    assert len(losses(broken)) == 200
    assert losses(broken) == losses(unbroken)
    assert measurements(broken) == measurements(unbroken)
    assert len(measurements(broken)) > 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_an_update_loses_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    limits = Limits(tokens=10**6, measure_tokens=10**9)
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    stop, on_step = stop_after(6)
    with pytest.raises(stop):
        trainer_of(unbroken).train(limits, on_step=on_step)
    trainer = trainer_of(broken)
    trainer.network.register_forward_hook(
        lambda *_: signal.raise_signal(number) if trainer.progress.step == 2 else None
    )
    with sigterm_as_ctrl_c(), pytest.raises(KeyboardInterrupt):
        trainer.train(limits)
    assert len(losses(broken)) == 3
    again = trainer_of(broken)
    again.resume()
    assert again.progress.step == 3
    stop, on_step = stop_after(6)
    with pytest.raises(stop):
        again.train(limits, on_step=on_step)
    assert losses(broken) == losses(unbroken)


def test_documents_of_a_failed_update_are_trained_on_later(tmp_path: Path) -> None:
    limits = Limits(tokens=10**6, measure_tokens=10**9)
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    stop, on_step = stop_after(4)
    with pytest.raises(stop):
        trainer_of(unbroken).train(limits, on_step=on_step)
    trainer = trainer_of(broken)

    def full(*_: object) -> None:
        if trainer.progress.step == 2:
            raise CheckpointError("The disk is full.", remedy="Free some.")

    trainer.network.register_forward_pre_hook(full)
    with pytest.raises(CheckpointError, match="disk is full"):
        trainer.train(limits)
    again = trainer_of(broken)
    again.resume()
    stop, on_step = stop_after(4)
    with pytest.raises(stop):
        again.train(limits, on_step=on_step)
    assert losses(broken) == losses(unbroken)


def test_a_gradient_that_is_not_finite_never_reaches_the_weights(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)

    def spoil(_module: object, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        return output * float("nan") if trainer.progress.step == 2 else output

    trainer.network.register_forward_hook(spoil)
    with pytest.raises(InvalidRequestError, match="gradient of update 3 is not finite") as caught:
        trainer.train(Limits(tokens=10**6, measure_tokens=10**9))
    assert caught.value.field == "matrix_rate"
    progress, groups = read_checkpoint(tmp_path, SAME)
    assert progress.step == 2
    assert all(torch.isfinite(one).all() for one in groups["weights"].values())


def test_an_update_that_breaks_half_way_is_no_checkpoint(tmp_path: Path, monkeypatch) -> None:
    trainer = trainer_of(tmp_path)
    stop, on_step = stop_after(2)
    with pytest.raises(stop):
        trainer.train(Limits(tokens=10**6), on_step=on_step)

    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(trainer, "_follow", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train(Limits(tokens=10**6))
    progress, groups = read_checkpoint(tmp_path, SAME)
    assert progress.step == 2
    moved = dict(trainer.network.named_parameters())["fc.weight"]
    assert not torch.equal(groups["weights"]["fc.weight"], moved)


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

    with monkeypatch.context() as patched:
        patched.setattr("peagle.train.checkpoint.save_file", full)
        with pytest.raises(CheckpointError, match=r"No space left.*last checkpoint is still there"):
            trainer.train(Limits(tokens=10**6, checkpoint_seconds=0.0))
    assert trainer.progress.step == 3
    progress, groups = read_checkpoint(tmp_path, SAME)
    assert progress.step == 2
    assert set(groups) == {"weights", "average", "optimizer"}
    assert all(torch.isfinite(one).all() for one in groups["weights"].values())
    again = trainer_of(tmp_path)
    again.resume()
    assert len(losses(tmp_path)) == 2


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=r"The log in .* cannot be written \(Is a directory"):
        trainer.train(Limits(tokens=10**6))
    assert read_checkpoint(tmp_path, SAME)[0].step == 1


def test_a_run_killed_between_two_checkpoints_has_the_older_one(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.save()
    (tmp_path / "checkpoint").rename(tmp_path / "checkpoint.old")
    assert has_checkpoint(tmp_path)
    trainer.progress.step = 7
    trainer.save()
    assert read_checkpoint(tmp_path, SAME)[0].step == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]


def test_another_target_is_refused_by_name(tmp_path: Path) -> None:
    trainer_of(tmp_path).save()
    assert has_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="begun with model tiny, not large") as caught:
        read_checkpoint(tmp_path, SAME | {"model": "large"})
    assert caught.value.field == "model"
    with pytest.raises(CheckpointError, match="begun with start none, not 0123") as caught:
        read_checkpoint(tmp_path, SAME | {"start": "0123"})
    assert caught.value.field == "start"
    with pytest.raises(CheckpointError, match="begun with data same, not none"):
        read_checkpoint(tmp_path, {"model": "tiny", "recipe": "one"})
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


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    trainer_of(tmp_path).save()
    state = tmp_path / "checkpoint" / "state.json"
    whole = state.read_text()
    for content in ("{", "[]", '{"progress": {"steps": 1}, "identity": {}}'):
        state.write_text(content)
        with pytest.raises(CheckpointError, match="is damaged"):
            read_checkpoint(tmp_path, SAME)
    state.write_text(whole)
    (tmp_path / "checkpoint" / "state.safetensors").write_bytes(b"short")
    with pytest.raises(CheckpointError, match="is damaged"):
        read_checkpoint(tmp_path, SAME)
