"""The picture of a comparison: acceptance length by category, and acceptance at each depth."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from peagle.evaluate.report import Row

# Deeper draft tokens are rare, and their shares are of few passes.
_DEPTHS_DRAWN = 12
_GROUP_WIDTH = 0.85


def draw_acceptance(rows: Sequence[Row], categories: Sequence[str], path: Path) -> None:
    """Draw bars for each category and configuration, and curves over depth.

    Args:
        rows: The configurations.
        categories: Categories in their order.
        path: Where; the ending decides the format.
    """
    colours = matplotlib.colormaps["turbo"](np.linspace(0.05, 0.95, len(rows)))
    groups = ["mean", "mean, varied", *categories]
    bars = len(groups) * len(rows)
    # Names below the bars take their lines.
    figure = Figure(figsize=(max(12.0, 0.13 * bars), 9.5 + 0.07 * len(rows)))
    grid = figure.add_gridspec(2, 2)
    lengths = figure.add_subplot(grid[0, :])
    width = _GROUP_WIDTH / len(rows)
    for place, (row, colour) in enumerate(zip(rows, colours, strict=True)):
        found = [row.everything.categories.get(name) for name in categories]
        heights = [np.nan if one is None else one
                   for one in (row.everything.mean, row.varied.mean, *found)]  # fmt: skip
        at = np.arange(len(groups)) - _GROUP_WIDTH / 2 + (place + 0.5) * width
        lengths.bar(at, heights, width, color=colour, label=row.configuration.name)
    lengths.axhline(1.0, color="black", linewidth=0.8)
    lengths.set_xticks(np.arange(len(groups)), groups)
    lengths.set(title="Acceptance length", ylabel="tokens per target pass")
    lengths.grid(axis="y", alpha=0.3)
    cumulative, given = figure.add_subplot(grid[1, 0]), figure.add_subplot(grid[1, 1])
    for row, colour in zip(rows, colours, strict=True):
        _curve(cumulative, row.everything.cumulative, colour, chain=row.configuration.chain)
        _curve(given, row.everything.conditional, colour, chain=row.configuration.chain)
    cumulative.set(title="Draft token at a depth accepted", ylabel="share of target passes")
    given.set(title="… given that the one before was", ylabel="share of these passes")
    for axes in (cumulative, given):
        axes.set(xlabel="depth", ylim=(0, 1))
        axes.grid(alpha=0.3)
    figure.legend(*lengths.get_legend_handles_labels(), loc="outside lower center",
                  ncols=3, fontsize="small")  # fmt: skip
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=110)


def _curve(axes: Axes, shares: Sequence[float], colour: np.ndarray, *, chain: bool) -> None:
    drawn = shares[:_DEPTHS_DRAWN]
    axes.plot(range(1, len(drawn) + 1), drawn, color=colour, marker=".",
              linestyle="--" if chain else "-")  # fmt: skip
