"""What a step costs: the ground on which candidate trees are shared out."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

BASE_CONTEXT: Final = 256
"""Committed positions behind which passes are measured; shorter contexts count as this long."""

_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CostCurve(BaseModel):
    """Seconds of a pass by its rows; it never falls.

    Between measured counts it is a straight line. Beyond the last one, which is the most rows that
    a pass takes, further passes begin.

    Attributes:
        rows: Measured row counts, ascending from 1.
        seconds: Seconds of a pass over so many rows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: tuple[int, ...] = Field(min_length=1)
    seconds: tuple[_Seconds, ...]
    _table: list[float] = PrivateAttr(default_factory=list)

    @model_validator(mode="after")
    def _is_a_curve(self) -> Self:
        if len(self.rows) != len(self.seconds):
            raise ValueError("rows and seconds differ in length")
        if self.rows[0] != 1 or list(self.rows) != sorted(set(self.rows)):
            raise ValueError("rows do not rise from 1")
        if list(self.seconds) != sorted(self.seconds) or self.seconds[-1] <= 0:
            raise ValueError("seconds fall, or are nothing")
        return self

    def up_to(self, rows: int) -> list[float]:
        """Seconds of steps over 0, 1, … at least `rows` rows; the list is kept, for speed."""
        for more in range(len(self._table), rows + 1):
            self._table.append(self.at(more))
        return self._table

    @classmethod
    def measured(cls, samples: Mapping[int, Sequence[float]]) -> Self:
        """Make the curve of repeated measurements.

        Each count has the median of its measurements. Where more rows came out cheaper, which only
        noise does, neighbouring counts share their mean (pool adjacent violators, the nearest
        monotone curve in least squares).

        Args:
            samples: Seconds of each repetition, by rows.
        """
        counts = sorted(samples)
        pools: list[tuple[float, int]] = []
        for count in counts:
            mean, size = median(samples[count]), 1
            while pools and pools[-1][0] > mean:
                before, other = pools.pop()
                mean, size = (before * other + mean * size) / (other + size), other + size
            pools.append((mean, size))
        seconds = tuple(mean for mean, size in pools for _ in range(size))
        return cls(rows=tuple(counts), seconds=seconds)

    def at(self, rows: int) -> float:
        """Seconds of a step over so many rows."""
        if rows < 1:
            return 0.0
        counts, seconds = self.rows, self.seconds
        full, rest = divmod(rows - 1, counts[-1])
        rest += 1
        place = bisect_left(counts, rest)
        high, above = counts[place], seconds[place]
        if high == rest:
            return full * seconds[-1] + above
        low, below = counts[place - 1], seconds[place - 1]
        return full * seconds[-1] + below + (above - below) * (rest - low) / (high - low)


class StepCosts(BaseModel):
    """What the parts of a step cost on one machine with one model.

    Attributes:
        target: A target pass over the rows of one sequence of `BASE_CONTEXT` positions.
        per_sequence: Seconds more for each further sequence in the pass.
        per_key: Seconds more for each committed position beyond `BASE_CONTEXT` of a sequence.
        per_row_key: The same for each of its rows.
        per_text_node: Seconds in which the text sources propose a node.
        network: A pass of the drafter network over its rows; None without one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: CostCurve
    per_sequence: _Seconds = 0.0
    per_key: _Seconds = 0.0
    per_row_key: _Seconds = 0.0
    per_text_node: _Seconds = 0.0
    network: CostCurve | None = None

    @property
    def network_factor(self) -> float:
        """What passes of the network take, as a multiple of `network`: what was measured."""
        return 1.0

    @property
    def per_network_tree(self) -> float:
        """What is known only from steps (`ObservedCosts.per_network_tree`)."""
        return 0.0

    def step(self, rows: Sequence[tuple[int, int]], nodes: int) -> list[float]:
        """Seconds of a step with 0, 1, … `nodes` draft tokens more.

        Where the draft tokens will stand is not known yet: each counts as one behind the mean
        context.

        Args:
            rows: Committed positions of each sequence in the step, and how many rows it has without
                these draft tokens.
            nodes: Most draft tokens.
        """
        count = sum(own for _, own in rows)
        beyond = [max(0, context - BASE_CONTEXT) for context, _ in rows]
        fixed = self.per_sequence * max(0, len(rows) - 1)
        for keys, (_, own) in zip(beyond, rows, strict=True):
            fixed += keys * (self.per_key + own * self.per_row_key)
        each = self.per_text_node + self.per_row_key * sum(beyond) / max(1, len(rows))
        passes = self.target.up_to(count + nodes)[count : count + nodes + 1]
        return [fixed + seconds + more * each for more, seconds in enumerate(passes)]
