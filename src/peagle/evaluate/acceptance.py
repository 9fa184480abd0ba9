"""Acceptance length over a workload, so reported that neither loops nor averages flatter it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from peagle.engine.statistics import SpeculationStatistics, pooled

VARIED_ABOVE = 0.6


def distinct_bigrams(token_ids: Sequence[int]) -> float:
    """Share of distinct pairs of neighbouring tokens; 1 for an answer of fewer than two pairs.

    Small models fall into loops, and loops are easy to draft: figures are given again for answers
    above `VARIED_ABOVE`.
    """
    pairs = list(pairwise(token_ids))
    return len(set(pairs)) / len(pairs) if len(pairs) > 1 else 1.0


def conditional(cumulative: Sequence[float]) -> list[float]:
    """Turn the share of steps accepted to each depth into that of those accepted to the one before.

    Args:
        cumulative: `SpeculationStatistics.acceptance_by_depth`.
    """
    return [here / above for above, here in pairwise((1.0, *cumulative))]


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer of a workload.

    Attributes:
        category: Its prompt's category.
        token_ids: Its tokens.
        statistics: What speculation did.
    """

    category: str
    token_ids: Sequence[int]
    statistics: SpeculationStatistics

    @property
    def varied(self) -> bool:
        """Whether the answer repeats itself little."""
        return distinct_bigrams(self.token_ids) > VARIED_ABOVE


def by_category(answers: Iterable[Answered]) -> dict[str, SpeculationStatistics]:
    """Pool the counts of each category's answers."""
    groups: dict[str, list[SpeculationStatistics]] = {}
    for answer in answers:
        groups.setdefault(answer.category, []).append(answer.statistics)
    return {category: pooled(parts) for category, parts in groups.items()}


def mean_acceptance_length(answers: Iterable[Answered]) -> float:
    """Acceptance length pooled within each category, then averaged over categories.

    Categories without a decode pass are left out; without any, the length is that of plain
    decoding, 1.
    """
    lengths = [
        statistics.acceptance_length
        for statistics in by_category(answers).values()
        if statistics.acceptance_length is not None
    ]
    return sum(lengths) / len(lengths) if lengths else 1.0
