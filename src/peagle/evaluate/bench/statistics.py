"""Medians, percentiles, and ratios with the uncertainty that repetitions and prompts leave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from peagle.evaluate.bench.answer import Answer

_RESAMPLES: Final = 1000
_SEED: Final = 20260
PERCENTILES: Final = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95% bootstrap confidence interval.

    Attributes:
        value: The estimate.
        low: Lower end; equal to `value` where nothing was repeated.
        high: Upper end.
    """

    value: float
    low: float
    high: float

    def as_object(self) -> dict[str, float]:
        """Give the three numbers as `bench.json` has them."""
        return {
            "value": round(self.value, 4),
            "low": round(self.low, 4),
            "high": round(self.high, 4),
        }


def percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """Give p50, p90 and p99 with linear interpolation; None without values."""
    if not seconds:
        return None
    found = np.percentile(np.asarray(seconds), PERCENTILES)
    return {f"p{rank}": float(value) for rank, value in zip(PERCENTILES, found, strict=True)}


def total_ratio(speeds: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Compare total speeds: the median over repetitions of the ratio within a repetition.

    Args:
        speeds: Tokens per second in each repetition.
        baseline: Those of the baseline in the same repetitions.
    """
    ratios = np.asarray(speeds) / np.asarray(baseline)
    chosen = _generator().integers(len(ratios), size=(_RESAMPLES, len(ratios)))
    return _interval(float(np.median(ratios)), np.median(ratios[chosen], axis=1))


def stream_ratio(
    rounds: Sequence[Sequence[Answer]], baseline: Sequence[Sequence[Answer]]
) -> Interval | None:
    """Compare the speeds of streams, with the uncertainty of prompts and of repetitions.

    The estimate is tokens over seconds of all answers, divided by that of the baseline. Resamples
    draw repetitions, and prompts the same in all of these; a prompt brings both sides' answers.

    Args:
        rounds: Answers in each repetition.
        baseline: Those of the baseline in the same repetitions, to the same prompts.

    Returns:
        The ratio; None without answers.
    """
    if not rounds or not rounds[0]:
        return None
    prompts = {answer.id: place for place, answer in enumerate(rounds[0])}
    counts, seconds = _table(rounds, prompts)
    base_counts, base_seconds = _table(baseline, prompts)
    generator = _generator()
    repetitions = len(rounds)
    found = []
    for _ in range(_RESAMPLES):
        times = generator.integers(repetitions, size=repetitions)[:, None]
        which = generator.integers(len(prompts), size=len(prompts))[None, :]
        ours = counts[times, which].sum() / seconds[times, which].sum()
        theirs = base_counts[times, which].sum() / base_seconds[times, which].sum()
        found.append(ours / theirs)
    value = (counts.sum() / seconds.sum()) / (base_counts.sum() / base_seconds.sum())
    return _interval(float(value), np.asarray(found))


def _table(
    rounds: Sequence[Sequence[Answer]], prompts: Mapping[str, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and seconds, both `[repetitions, prompts]`."""
    counts = np.zeros((len(rounds), len(prompts)))
    seconds = np.zeros_like(counts)
    for row, answers in enumerate(rounds):
        for one in answers:
            counts[row, prompts[one.id]] = one.tokens
            seconds[row, prompts[one.id]] = one.end_to_end_s
    return counts, seconds


def _generator() -> np.random.Generator:
    # Reports of the same timings are the same.
    return np.random.default_rng(_SEED)


def _interval(value: float, resampled: np.ndarray) -> Interval:
    low, high = np.percentile(resampled, (2.5, 97.5))
    return Interval(value, float(low), float(high))
