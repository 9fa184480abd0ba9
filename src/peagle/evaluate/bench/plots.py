"""The pictures of the report, as SVG that stands in the page itself."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from peagle.evaluate.bench.results import Results, Row

_TEXT_AS_TEXT: Final[dict[Any, Any]] = {"svg.fonttype": "none", "svg.hashsalt": "peagle"}
_MARKERS: Final = "osD^vP*Xph"


def pictures(results: Results) -> Mapping[str, str]:
    """Draw everything.

    Returns:
        SVG elements by caption; none where nothing was measured.
    """
    if not results.rows:
        return {}
    drawn = {
        f"Total tokens/s as a multiple of {results.baseline}; bars are medians, lines the 95% "
        "confidence interval": _ratios(results),
        "Tokens/s of one stream against all together: a line goes through the concurrencies, "
        "better is up and to the right": _pareto(results),
        "How speed and slow answers grow with the number of streams": _scaling(results),
    }
    return {caption: _svg(figure) for caption, figure in drawn.items()}


def _ratios(results: Results) -> Figure:
    names, colours = _names(results), _colours(results)
    concurrencies = results.concurrencies
    figure = Figure(figsize=(10, 1.2 + 0.3 * len(names) * len(concurrencies)))
    axes = figure.add_subplot()
    labels, place = [], 0
    for concurrency in concurrencies:
        for name in names:
            row = results.row(name, concurrency)
            found = None if row is None else row.total_ratio
            if found is None:
                continue
            axes.barh(place, found.value, color=colours[name], height=0.8)
            axes.plot((found.low, found.high), (place, place), color="black", linewidth=1)
            axes.text(max(found.value, found.high), place, f" {found.value:.2f}×", va="center",
                      fontsize=8)  # fmt: skip
            labels.append(f"{name}, {concurrency}")
            place += 1
        place += 1
        labels.append("")
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlim(left=0)
    axes.margins(x=0.12)
    return figure


def _pareto(results: Results) -> Figure:
    figure = Figure(figsize=(10, 6))
    axes = figure.add_subplot()
    _lines(axes, results, lambda row: row.total.value, lambda row: row.stream)
    for row in results.rows:
        axes.annotate(f"{row.concurrency}", (row.total.value, row.stream), fontsize=7,
                      xytext=(3, 3), textcoords="offset points")  # fmt: skip
    axes.set(xlabel="tokens/s of all streams together", ylabel="tokens/s of one stream")
    _finish(figure, axes)
    return figure


def _scaling(results: Results) -> Figure:
    figure = Figure(figsize=(10, 8.5))
    speed, slow = figure.subplots(2, 1, sharex=True)
    _lines(speed, results, lambda row: row.concurrency, lambda row: row.total.value)
    _lines(slow, results, lambda row: row.concurrency,
           lambda row: (row.end_to_end or {}).get("p99", np.nan))  # fmt: skip
    speed.set(ylabel="tokens/s of all streams together")
    slow.set(xlabel="requests under way", ylabel="seconds of an answer, p99")
    for axes in (speed, slow):
        axes.set_xscale("log", base=2)
        axes.set_xticks(results.concurrencies, [f"{one}" for one in results.concurrencies])
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    _finish(figure, speed)
    return figure


def _lines(
    axes: Axes, results: Results, x: Callable[[Row], float], y: Callable[[Row], float]
) -> None:
    colours = _colours(results)
    plain = {one.name for one in results.contenders if one.ours and one.request["spec"] is None}
    for place, name in enumerate(_names(results)):
        rows = [row for row in results.rows if row.contender == name]
        axes.plot([x(row) for row in rows], [y(row) for row in rows], color=colours[name],
                  marker=_MARKERS[place % len(_MARKERS)], label=name,
                  linestyle="--" if name in plain else "-")  # fmt: skip


def _finish(figure: Figure, axes: Axes) -> None:
    axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4,
                  fontsize="small")  # fmt: skip


def _names(results: Results) -> Sequence[str]:
    measured = {row.contender for row in results.rows}
    return [one.name for one in results.contenders if one.name in measured]


def _colours(results: Results) -> Mapping[str, Any]:
    names = [one.name for one in results.contenders]
    found = mpl.colormaps["turbo"](np.linspace(0.05, 0.95, len(names)))
    return dict(zip(names, found, strict=True))


def _svg(figure: Figure) -> str:
    figure.set_layout_engine("constrained")
    written = io.StringIO()
    with mpl.rc_context(_TEXT_AS_TEXT):
        figure.savefig(written, format="svg", metadata={"Date": None})
    # An XML declaration and a document type have no place inside HTML.
    return written.getvalue()[written.getvalue().index("<svg") :]
