"""How many tokens a pass of the drafter network adds to a step, learnt within the request."""

from bisect import bisect_right
from typing import Final

_MATCHES: Final = (2, 4, 8)
"""Longest matches of the request's own text at which the next range begins."""

USUAL_GAIN: Final = (0.6, 0.5, 0.35, 0.2)
"""Tokens a step that a network adds, by range of the longest match."""

_WORTH: Final = 2.0
"""How many observations that belief is worth."""

_FIRST: Final = 2
_EVERY: Final = 4


class NetworkGain:
    """What the network adds to one answer's trees, by how well its own text is known.

    Where the text repeats itself at length there is little left to add. The gain is the sum of the
    probabilities in a tree that was made with the network, less that of the tree of as many nodes
    without it; so it is compared only now and then, since the second tree costs time.
    """

    __slots__ = ("_counts", "_runs", "_sums")

    def __init__(self) -> None:
        self._sums = [gain * _WORTH for gain in USUAL_GAIN]
        self._counts = [_WORTH] * len(USUAL_GAIN)
        self._runs = [0] * len(USUAL_GAIN)

    def expected(self, longest_match: int) -> float:
        """Tokens that the network may add to this step."""
        place = bisect_right(_MATCHES, longest_match)
        return self._sums[place] / self._counts[place]

    def due(self, longest_match: int) -> bool:
        """Whether this step, in which the network ran, should be compared; counts the step."""
        place = bisect_right(_MATCHES, longest_match)
        self._runs[place] += 1
        return self._runs[place] <= _FIRST or self._runs[place] % _EVERY == 0

    def observe(self, longest_match: int, gain: float) -> None:
        """Take what a comparison gave."""
        place = bisect_right(_MATCHES, longest_match)
        self._sums[place] += gain
        self._counts[place] += 1
