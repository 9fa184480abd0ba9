"""From cells to figures: one row for each contender and concurrency, ratios to the baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from peagle.evaluate.acceptance import VARIED_ABOVE, distinct_bigrams
from peagle.evaluate.bench.answer import Answer, BenchPrompt, Cell, stream_speed
from peagle.evaluate.bench.contenders import Contender
from peagle.evaluate.bench.parity import Parity, compare_tokens, reference_answers
from peagle.evaluate.bench.services import StartUp, named
from peagle.evaluate.bench.statistics import (
    Interval,
    percentiles,
    stream_ratio,
    total_ratio,
)

Percentiles = Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one contender at one concurrency.

    Attributes:
        contender: Its name.
        concurrency: Requests under way.
        repetitions: How often it was measured.
        total: Tokens per second of all streams together: median over repetitions, lowest, highest.
        stream: Tokens per second that one stream sees, over all repetitions.
        varied_stream: The same without the prompts whose answer by the baseline is repetitive;
            None if none is left.
        ttft: Seconds to the first token.
        inter_token: Seconds before each later token; those that come together share the silence.
        silence: Seconds between tokens that did not come together.
        end_to_end: Seconds to the last token.
        acceptance_length: Tokens per target pass after the first token, pooled in a category and
            averaged over them; None where passes are not known.
        distinct_bigrams: Mean share of distinct bigrams of its own answers.
        repetitive: Its own answers whose share is `VARIED_ABOVE` or less, in one repetition.
        categories: `stream` for each category.
        peak_bytes: Most memory that its process held; None if not known.
        same_answers: Share of its answers that equal plain decoding's without quantisation, token
            for token; None where there is none to compare with.
        total_ratio: Total speed over the baseline's; None if the baseline lacks such a cell.
        stream_ratio: The same of streams.
        varied_ratio: The same without repetitive answers.
        category_ratios: `stream_ratio` within each category.
    """

    contender: str
    concurrency: int
    repetitions: int
    total: Interval
    stream: float
    varied_stream: float | None
    ttft: Percentiles
    inter_token: Percentiles
    silence: Percentiles
    end_to_end: Percentiles
    acceptance_length: float | None
    distinct_bigrams: float
    repetitive: int
    categories: Mapping[str, float]
    peak_bytes: int | None
    same_answers: float | None
    total_ratio: Interval | None
    stream_ratio: Interval | None
    varied_ratio: Interval | None
    category_ratios: Mapping[str, Interval]

    def as_object(self) -> dict[str, Any]:
        """Give the row as `bench.json` has it."""
        return {
            "contender": self.contender,
            "concurrency": self.concurrency,
            "repetitions": self.repetitions,
            "tokens_per_s": {
                "total": self.total.as_object(),
                "stream": round(self.stream, 3),
                "stream_without_repetitive": _rounded(self.varied_stream),
                "stream_by_category": {
                    name: round(one, 3) for name, one in self.categories.items()
                },
            },
            "ratio_to_baseline": {
                "total": _object(self.total_ratio),
                "stream": _object(self.stream_ratio),
                "stream_without_repetitive": _object(self.varied_ratio),
                "stream_by_category": {
                    name: one.as_object() for name, one in self.category_ratios.items()
                },
            },
            "seconds": {
                "ttft": _seconds(self.ttft),
                "inter_token": _seconds(self.inter_token),
                "silence": _seconds(self.silence),
                "end_to_end": _seconds(self.end_to_end),
            },
            "acceptance_length": _rounded(self.acceptance_length),
            "distinct_bigrams": round(self.distinct_bigrams, 4),
            "repetitive_answers": self.repetitive,
            "same_answers": _rounded(self.same_answers),
            "peak_bytes": self.peak_bytes,
        }


@dataclass(frozen=True, slots=True)
class Results:
    """All that a run found.

    Attributes:
        setting: Model, machine, prompts and options.
        baseline: The contender that ratios are to.
        contenders: Everyone, in their order.
        prompts: What was asked.
        rows: The figures, by contender in its order and by concurrency.
        start_ups: How each service started, by its name.
        parity: Whether our own configurations wrote the same tokens.
        ended_early: Why the run did not come to its end; None if it did.
    """

    setting: Mapping[str, Any]
    baseline: str
    contenders: Sequence[Contender]
    prompts: Sequence[BenchPrompt]
    rows: Sequence[Row]
    start_ups: Mapping[str, StartUp]
    parity: Parity
    ended_early: str | None

    @property
    def concurrencies(self) -> list[int]:
        """Those that were measured, in ascending order."""
        return sorted({row.concurrency for row in self.rows})

    @property
    def categories(self) -> list[str]:
        """Categories of the prompts, in their order."""
        return list(dict.fromkeys(one.category for one in self.prompts))

    def row(self, contender: str, concurrency: int) -> Row | None:
        """Find a row."""
        for one in self.rows:
            if (one.contender, one.concurrency) == (contender, concurrency):
                return one
        return None

    def as_object(self) -> dict[str, Any]:
        """Give everything as `bench.json` has it."""
        return {
            **self.setting,
            "baseline": self.baseline,
            "ended_early": self.ended_early,
            "parity": self.parity.as_object(),
            "contenders": [
                {
                    "name": one.name,
                    "service": one.service.name,
                    "request": dict(one.request),
                    "ours": one.ours,
                    "quantization": one.quantization,
                }
                for one in self.contenders
            ],
            "services": {
                name: {
                    "about": dict(one.started.about),
                    "start_up_s": _rounded(one.started.seconds),
                    "first_token_s": _rounded(one.first_token_s),
                    "start_up_peak_bytes": one.started.peak_bytes,
                }
                for name, one in self.start_ups.items()
            },
            "prompts": [
                {
                    "id": one.id,
                    "category": one.category,
                    "prompt_tokens": len(one.token_ids),
                    "max_tokens": one.max_tokens,
                }
                for one in self.prompts
            ],
            "rows": [row.as_object() for row in self.rows],
        }


def sum_up(
    cells: Sequence[Cell],
    contenders: Sequence[Contender],
    prompts: Sequence[BenchPrompt],
    *,
    baseline: str,
    setting: Mapping[str, Any],
    start_ups: Mapping[str, StartUp],
    ended_early: str | None = None,
) -> Results:
    """Turn cells into figures; a baseline that was not measured leaves ratios out.

    Args:
        cells: What was measured, whole or not.
        contenders: Everyone.
        prompts: What was asked.
        baseline: The name of the contender that ratios are to.
        setting: Model, machine, prompts and options, for the record.
        start_ups: How each service started.
        ended_early: Why the run did not come to its end.
    """
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.contender, cell.concurrency), []).append(cell)
    by_name = named(contenders)
    plain = reference_answers(cells, by_name).get("none", {})
    first_baseline = next((cell for cell in cells if cell.contender == baseline), None)
    varied = {
        one.id
        for one in (first_baseline.answers if first_baseline else ())
        if distinct_bigrams(one.token_ids) > VARIED_ABOVE
    }
    rows = [
        _row(groups[one.name, concurrency], groups.get((baseline, concurrency), []), varied, plain)
        for one in contenders
        for concurrency in sorted({cell.concurrency for cell in cells})
        if (one.name, concurrency) in groups
    ]
    return Results(
        setting=setting,
        baseline=baseline,
        contenders=contenders,
        prompts=prompts,
        rows=rows,
        start_ups=start_ups,
        parity=compare_tokens(cells, by_name),
        ended_early=ended_early,
    )


def _row(
    cells: Sequence[Cell],
    base: Sequence[Cell],
    varied: set[str],
    plain: Mapping[str, Sequence[int]],
) -> Row:
    answers = [one for cell in cells for one in cell.answers]
    first = cells[0].answers
    categories = list(dict.fromkeys(one.category for one in answers))
    speeds = [cell.tokens_per_s for cell in cells]
    # Ratios are within a repetition, so those that only one of the two has are left out.
    base_by_round = {cell.repetition: cell for cell in base}
    both = [
        (cell, base_by_round[cell.repetition]) for cell in cells if cell.repetition in base_by_round
    ]

    def ratio(keep: Mapping[str, bool]) -> Interval | None:
        return stream_ratio(
            [[one for one in mine.answers if keep[one.id]] for mine, _ in both],
            [[one for one in other.answers if keep[one.id]] for _, other in both],
        )

    found = {name: ratio({one.id: one.category == name for one in first}) for name in categories}
    peaks = [cell.peak_bytes for cell in cells if cell.peak_bytes is not None]
    same = [list(one.token_ids) == list(plain[one.id]) for one in answers if one.id in plain]
    return Row(
        contender=cells[0].contender,
        concurrency=cells[0].concurrency,
        repetitions=len(cells),
        total=Interval(median(speeds), min(speeds), max(speeds)),
        stream=stream_speed(answers) or 0.0,
        varied_stream=stream_speed([one for one in answers if one.id in varied]),
        ttft=percentiles([one.ttft_s for one in answers]),
        inter_token=percentiles([gap for one in answers for gap in one.token_latencies_s]),
        silence=percentiles([gap for one in answers for gap in one.gaps_s]),
        end_to_end=percentiles([one.end_to_end_s for one in answers]),
        acceptance_length=_acceptance_length(answers),
        distinct_bigrams=sum(distinct_bigrams(one.token_ids) for one in first) / len(first),
        repetitive=sum(distinct_bigrams(one.token_ids) <= VARIED_ABOVE for one in first),
        categories={
            name: stream_speed([one for one in answers if one.category == name]) or 0.0
            for name in categories
        },
        peak_bytes=max(peaks, default=None),
        same_answers=sum(same) / len(same) if same else None,
        total_ratio=total_ratio(
            [mine.tokens_per_s for mine, _ in both], [other.tokens_per_s for _, other in both]
        )
        if both
        else None,
        stream_ratio=ratio({one.id: True for one in first}),
        varied_ratio=ratio({one.id: one.id in varied for one in first}),
        category_ratios={name: one for name, one in found.items() if one is not None},
    )


def _acceptance_length(answers: Sequence[Answer]) -> float | None:
    """Pool each category, then average; None where no passes were counted."""
    counts: dict[str, tuple[int, int]] = {}
    for one in answers:
        if one.passes is None:
            return None
        tokens, passes = counts.get(one.category, (0, 0))
        counts[one.category] = (tokens + one.tokens - 1, passes + one.passes)
    lengths = [tokens / passes for tokens, passes in counts.values() if passes]
    return sum(lengths) / len(lengths) if lengths else None


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 4)


def _object(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else interval.as_object()


def _seconds(found: Percentiles) -> dict[str, float] | None:
    return None if found is None else {rank: round(one, 5) for rank, one in found.items()}
