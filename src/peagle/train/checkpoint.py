"""A run's state on disk: weights, their average, optimizers, and where in the data it stands."""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from peagle.errors import CheckpointError

_FOLDER: Final = "checkpoint"
_GROUPS: Final = ("weights", "average", "optimizer")


@dataclass(slots=True)
class Progress:
    """Where a run stands.

    Attributes:
        step: Updates made.
        tokens: Response tokens trained on, each counted with all its depths.
        epoch: Times the data was gone through.
        cursor: Documents of this epoch that are done.
        seconds: Time spent training, measuring and the target's reading apart.
        reading_seconds: Time that the target spent reading what is trained on.
        begun_with: Held-out acceptance length of the drafter that the run began with; 0 for none.
        best: Best held-out acceptance length so far.
        stale: Measurements since then.
        measured: Measurements that were due, and made.
    """

    step: int = 0
    tokens: int = 0
    epoch: int = 0
    cursor: int = 0
    seconds: float = 0.0
    reading_seconds: float = 0.0
    begun_with: float = 0.0
    best: float = 0.0
    stale: int = 0
    measured: int = 0


Tensors = dict[str, torch.Tensor]


def write_checkpoint(
    run: Path, progress: Progress, identity: dict[str, str], groups: dict[str, Tensors]
) -> None:
    """Write a checkpoint; the one before stays until the new one is whole.

    Args:
        run: The run's folder.
        progress: Where it stands.
        identity: What must agree when it is resumed: target, recipe, data.
        groups: `weights`, `average` and `optimizer` by name.

    Raises:
        CheckpointError: It cannot be written; the last checkpoint is still there.
    """
    unfinished, place = run / f"{_FOLDER}.part", run / _FOLDER
    old = run / f"{_FOLDER}.old"
    flat = {f"{group}/{name}": t.detach().cpu().contiguous().clone()
            for group, tensors in groups.items() for name, t in tensors.items()}  # fmt: skip
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        save_file(flat, unfinished / "state.safetensors")
        written = json.dumps({"progress": asdict(progress), "identity": identity}, indent=1)
        (unfinished / "state.json").write_text(written + "\n", "utf-8")
        if place.exists():
            shutil.rmtree(old, ignore_errors=True)
            place.rename(old)
        unfinished.rename(place)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CheckpointError(
            f"The checkpoint in {run} cannot be written ({error}).",
            remedy="The last checkpoint is still there: free some space, then go on with --resume.",
            field="output",
        ) from error


def has_checkpoint(run: Path) -> bool:
    """Whether a run's folder has a checkpoint."""
    return _place(run) is not None


def read_checkpoint(run: Path, identity: dict[str, str]) -> tuple[Progress, dict[str, Tensors]]:
    """Read a run's last checkpoint.

    Args:
        run: The run's folder.
        identity: What it must have been written with.

    Raises:
        CheckpointError: There is none, it is damaged, or it was written with something else.
    """
    progress = require_same(run, identity)
    place = _place(run)
    assert place is not None
    try:
        groups: dict[str, Tensors] = {group: {} for group in _GROUPS}
        with safe_open(place / "state.safetensors", framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118  (not a mapping)
                group, name = key.split("/", 1)
                groups[group][name] = opened.get_tensor(key)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise _damaged(place, error) from None
    return progress, groups


def require_same(run: Path, identity: dict[str, str]) -> Progress:
    """Refuse to go on with a run that was begun with something else.

    Args:
        run: The run's folder.
        identity: What it must have been written with, no more and no less.

    Returns:
        Where it stands.

    Raises:
        CheckpointError: There is no checkpoint, it is damaged, or something differs.
    """
    place = _place(run)
    if place is None:
        raise CheckpointError(
            f"There is no checkpoint in {run}.",
            remedy="Leave --resume out to begin a run, or give the folder of one.",
            field="output",
        )
    try:
        state = json.loads((place / "state.json").read_text("utf-8"))
        progress, before = Progress(**state["progress"]), dict(state["identity"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(place, error) from None
    for what in {**identity, **before}:
        then, now = before.get(what, "none"), identity.get(what, "none")
        if then != now:
            raise CheckpointError(
                f"The run in {run} was begun with {what} {then}, not {now}.",
                remedy=f"Give the same {what} again, or begin a new run in another folder.",
                field=what,
            )
    return progress


def _damaged(place: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint in {place} is damaged ({error}).",
        remedy="Begin a new run in another folder.",
        field="output",
    )


def _place(run: Path) -> Path | None:
    # `old` is what remains if a run was killed between the two renames.
    for name in (_FOLDER, f"{_FOLDER}.old"):
        if (run / name / "state.json").is_file():
            return run / name
    return None
