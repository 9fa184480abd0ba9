"""Correct the costs of steps by what steps really take, since no machine is always as fast."""

import math
from collections.abc import Sequence
from typing import Final

from peagle.engine.costs import CostCurve, StepCosts

_LEVEL_SHARE: Final = 1 / 8
_SHAPE_SHARE: Final = 1 / 32
"""Share of the newest step in what is known of the machine's speed, and of single row counts."""

_FORGOTTEN: Final = 0.998
"""What is left after each step of the correction of row counts that do not come up."""

_LARGEST: Final = math.log(4.0)
_PLACES: Final = 8


class ObservedCosts:
    """Costs of steps, corrected by a factor for all of them and one that depends on the rows.

    Factors are kept as logarithms, those of row counts at 1, 2, 4, … rows with straight lines
    between them. They follow the differences between steps and what was expected of them.

    Args:
        measured: What was measured at start.
    """

    def __init__(self, measured: StepCosts) -> None:
        self._measured = measured
        self._level = 0.0
        self._shape = [0.0] * _PLACES
        self._network = 0.0
        self._network_tree = 0.0

    @property
    def per_text_node(self) -> float:
        """Seconds in which the text sources propose a node."""
        return self._measured.per_text_node

    @property
    def network(self) -> CostCurve | None:
        """A pass of the drafter network over its rows, as measured; None without one."""
        return self._measured.network

    @property
    def network_factor(self) -> float:
        """What passes of the network take, as a multiple of `network`."""
        return math.exp(self._network)

    @property
    def per_network_tree(self) -> float:
        """Seconds more that a tree takes where the network drafts for it, its passes apart."""
        return self._network_tree

    def step(self, rows: Sequence[tuple[int, int]], nodes: int) -> list[float]:
        """Seconds of a step with 0, 1, … `nodes` draft tokens more (`StepCosts.step`)."""
        count = sum(own for _, own in rows)
        seconds = []
        most = 0.0
        for more, measured in enumerate(self._measured.step(rows, nodes)):
            most = max(most, measured * math.exp(self._correction(count + more)))
            seconds.append(most)
        return seconds

    def observe(self, rows: Sequence[tuple[int, int]], seconds: float) -> None:
        """Learn from a step, without its drafting.

        Args:
            rows: As in `step`, with every draft token.
            seconds: What it took.
        """
        count = sum(own for _, own in rows)
        expected = self._measured.step(rows, 0)[0]
        if expected <= 0 or seconds <= 0:
            return
        found = _bounded(math.log(seconds / expected))
        place, share = _place(count)
        shape = self._shape
        for index in range(_PLACES):
            shape[index] *= _FORGOTTEN
        shape[place] += (1 - share) * _SHAPE_SHARE * (found - self._level - shape[place])
        if share:
            shape[place + 1] += share * _SHAPE_SHARE * (found - self._level - shape[place + 1])
        self._level += _LEVEL_SHARE * (found - self._correction(count))

    def observe_network(self, expected: float, seconds: float) -> None:
        """Learn from passes of the drafter network.

        Args:
            expected: What they were to take by `network`.
            seconds: What they took.
        """
        if expected > 0 and seconds > 0:
            found = _bounded(math.log(seconds / expected))
            self._network += _LEVEL_SHARE * (found - self._network)

    def observe_network_trees(self, trees: int, seconds: float) -> None:
        """Learn from trees in which the network took part.

        Args:
            trees: How many, at least one.
            seconds: What they took beyond what the text sources take.
        """
        found = max(0.0, seconds / trees)
        self._network_tree += _LEVEL_SHARE * (found - self._network_tree)

    def _correction(self, rows: int) -> float:
        place, share = _place(rows)
        between = self._shape[place]
        if share:
            between += share * (self._shape[place + 1] - between)
        return self._level + between


def _place(rows: int) -> tuple[int, float]:
    """Where a number of rows stands between two powers of two; beyond the last one, on it."""
    place = rows.bit_length() - 1
    if place >= _PLACES - 1:
        return _PLACES - 1, 0.0
    return place, rows / (1 << place) - 1.0


def _bounded(logarithm: float) -> float:
    """One disturbed step must not count for many."""
    return min(max(logarithm, -_LARGEST), _LARGEST)
