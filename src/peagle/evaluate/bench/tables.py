"""The figures as tables of text, for the terminal and for the HTML report."""

from collections.abc import Sequence

from peagle.evaluate.bench.results import Percentiles, Results
from peagle.evaluate.bench.statistics import Interval
from peagle.evaluate.report import TextTable

_NOTHING = "–"


def tables(results: Results) -> list[TextTable]:
    """Give all tables, what a reader wants first in front."""
    return [
        _ratios(results),
        _speeds(results),
        *(_categories(results, concurrency) for concurrency in results.concurrencies),
        _latencies(results),
        _waits(results),
        _drafts(results),
        _start_ups(results),
    ]


def _ratios(results: Results) -> TextTable:
    concurrencies = results.concurrencies
    rows = []
    for name in _names(results):
        found = [results.row(name, one) for one in concurrencies]
        first = found[0]
        rows.append([
            name,
            *(_ratio(None if one is None else one.total_ratio) for one in found),
            _ratio(None if first is None else first.varied_ratio),
        ])  # fmt: skip
    return TextTable(
        f"Total tokens/s as a multiple of {results.baseline} (95% confidence interval)",
        [
            "contender",
            *(f"{one} stream{'s' * (one > 1)}" for one in concurrencies),
            f"{concurrencies[0]}, without repetitive" if concurrencies else "",
        ],
        rows,
    )


def _speeds(results: Results) -> TextTable:
    rows = []
    for name in _names(results):
        found = [results.row(name, one) for one in results.concurrencies]
        rows.append([
            name,
            *(_NOTHING if one is None else f"{one.total.value:.1f} / {one.stream:.1f}"
              for one in found),
        ])  # fmt: skip
    headings = [f"{one} stream{'s' * (one > 1)}" for one in results.concurrencies]
    return TextTable("Tokens/s: all streams / one stream", ["contender", *headings], rows)


def _categories(results: Results, concurrency: int) -> TextTable:
    rows = []
    for name in _names(results):
        row = results.row(name, concurrency)
        if row is not None:
            ratios = [row.category_ratios.get(one) for one in results.categories]
            rows.append([name, _ratio(row.stream_ratio), *map(_ratio, ratios)])
    return TextTable(
        f"A stream's tokens/s as a multiple of {results.baseline}, {concurrency} at a time",
        ["contender", "all", *results.categories],
        rows,
    )


def _latencies(results: Results) -> TextTable:
    rows = [
        [row.contender, f"{row.concurrency}", *_milliseconds(row.ttft),
         *_milliseconds(row.inter_token)]
        for row in results.rows
    ]  # fmt: skip
    return TextTable(
        "Latency in ms: first token (TTFT), and before each later token",
        ["contender", "at a time", "TTFT p50", "p90", "p99", "token p50", "p90", "p99"],
        rows,
    )


def _waits(results: Results) -> TextTable:
    rows = [
        [row.contender, f"{row.concurrency}", *_milliseconds(row.silence),
         *_seconds(row.end_to_end)]
        for row in results.rows
    ]  # fmt: skip
    return TextTable(
        "Latency: silence between tokens that did not come together in ms, whole answers in s",
        ["contender", "at a time", "silence p50", "p90", "p99", "answer p50", "p90", "p99"],
        rows,
    )


def _drafts(results: Results) -> TextTable:
    rows = [
        [
            row.contender,
            f"{row.concurrency}",
            _NOTHING if row.acceptance_length is None else f"{row.acceptance_length:.2f}",
            f"{row.distinct_bigrams:.2f}",
            f"{row.repetitive}",
            _NOTHING if row.same_answers is None else f"{100 * row.same_answers:.0f}%",
            _NOTHING if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.0f}",
        ]
        for row in results.rows
    ]
    return TextTable(
        "Answers, drafts and memory",
        ["contender", "at a time", "acceptance length", "distinct bigrams", "repetitive answers",
         "same as plain bf16", "peak MB"],
        rows,
    )  # fmt: skip


def _start_ups(results: Results) -> TextTable:
    rows = []
    for name, one in results.start_ups.items():
        about = ", ".join(f"{key} {value}" for key, value in one.started.about.items())
        seconds, first = one.started.seconds, one.first_token_s
        rows.append([
            name,
            _NOTHING if seconds is None else f"{seconds:.1f}",
            _NOTHING if first is None else f"{first:.1f}",
            about,
        ])  # fmt: skip
    return TextTable(
        "Start-up", ["service", "loaded after s", "first token after s", "what it is"], rows
    )


def _names(results: Results) -> list[str]:
    measured = {row.contender for row in results.rows}
    return [one.name for one in results.contenders if one.name in measured]


def _ratio(interval: Interval | None) -> str:
    if interval is None:
        return _NOTHING
    return f"{interval.value:.2f} ({interval.low:.2f}–{interval.high:.2f})"


def _milliseconds(found: Percentiles) -> Sequence[str]:
    return _shown(found, 1000.0, 1)


def _seconds(found: Percentiles) -> Sequence[str]:
    return _shown(found, 1.0, 2)


def _shown(found: Percentiles, factor: float, digits: int) -> Sequence[str]:
    if found is None:
        return [_NOTHING] * 3
    return [f"{one * factor:.{digits}f}" for one in found.values()]
