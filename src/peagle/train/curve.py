"""The picture of a run: loss, held-out acceptance length, and acceptance at each depth."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

# Losses are averaged over so many points of the picture.
_POINTS = 200


def draw_learning_curve(log: Sequence[dict[str, object]], path: Path) -> None:
    """Draw a run's log as a PNG or SVG file.

    Args:
        log: Records of the log, updates and measurements.
        path: Where; the ending decides the format.
    """
    steps = [record for record in log if "loss" in record]
    measured = [record for record in log if "held_out_acceptance_length" in record]
    figure = Figure(figsize=(15, 4.2))
    left, middle, right = figure.subplots(1, 3)
    if steps:
        groups = np.array_split(np.arange(len(steps)), min(_POINTS, len(steps)))
        tokens = [_mean(steps, "tokens", group) for group in groups]
        left.plot(tokens, [_mean(steps, "loss", group) for group in groups])
    left.set(title="Training loss", xlabel="response tokens", ylabel="KL to the target, nats")
    at = [record["tokens"] for record in measured]
    middle.plot(at, [record["held_out_acceptance_length"] for record in measured], marker="o")
    middle.set(
        title="Held-out acceptance length, greedy chain",
        xlabel="response tokens", ylabel="tokens per target pass",
    )  # fmt: skip
    depths = np.array([record["held_out_top1"] for record in measured])
    for depth in range(depths.shape[1] if depths.size else 0):
        right.plot(at, depths[:, depth], marker=".", label=f"depth {depth + 1}")
    right.set(title="Best token is the one written", xlabel="response tokens", ylabel="share")
    if depths.size:
        right.legend(fontsize="small")
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _mean(records: Sequence[dict[str, object]], key: str, group: np.ndarray) -> float:
    return float(np.mean([float(str(records[index][key])) for index in group]))
