"""What an answer's draft tokens are worth, learnt within the request."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from peagle.draft.tree import CandidateTree
from peagle.spec import MAX_DEPTH

TEXT_ODDS: Final = 1.0
NETWORK_ODDS: Final = 1.7
"""How much likelier nodes are than their trees say, as odds, on held-out answers of the small model
(`scripts/calibration.py`). Its network is unsure of much that comes true."""

MATCHES: Final = (2, 4, 8)
"""Longest matches of the request's own text at which the next range begins."""

USUAL_GAIN: Final = (0.3, 0.2, 0.05, 0.05)
"""Tokens a step that a network adds in trees of 15 nodes, by range of the longest match
(`scripts/calibration.py --network`), less what the rows of its larger trees cost."""

_INFORMATION: Final = 6.0
"""What the usual odds are worth, as the sum of p (1 - p) over nodes that were seen to come out."""

_ODDS_LIMIT: Final = 8.0
_GAIN_WORTH: Final = 2.0
_COMPARED_FIRST: Final = 2
_COMPARED_EVERY: Final = 4


class Calibration:
    """Corrects the probabilities of trees by a factor of their odds.

    Small probabilities grow in proportion to it, those near 1 stay there, and the order of nodes
    stays as it is. The factor follows what is accepted: a logistic regression of one intercept, a
    Newton step for each tree.

    Args:
        odds: The factor until something is known.

    Attributes:
        odds: The factor.
    """

    __slots__ = ("_information", "odds")

    def __init__(self, odds: float) -> None:
        self.odds = odds
        self._information = _INFORMATION

    def corrected(self, probability: float) -> float:
        """Give the corrected probability of a node's path."""
        return self.odds * probability / (1.0 + (self.odds - 1.0) * probability)

    def promise(self, tree: CandidateTree) -> float:
        """Expected number of accepted nodes."""
        return sum(self.corrected(probability) for probability in tree.probabilities)

    def observe(self, tree: CandidateTree, accepted: int) -> None:
        """Take note of how many nodes of a tree were accepted."""
        expected = 0.0
        for probability in tree.probabilities:
            value = self.corrected(probability)
            expected += value
            self._information += value * (1.0 - value)
        moved = self.odds * math.exp((accepted - expected) / self._information)
        self.odds = min(max(moved, 1.0 / _ODDS_LIMIT), _ODDS_LIMIT)


class Expectation:
    """What draft tokens of one answer have been worth.

    Attributes:
        text: Calibration of trees of the text sources alone.
        network: Calibration of trees in which the drafter network took part.
        with_network: Whether it takes part in the tree being verified.
        network_depth: Deepest node of the latest tree that it took part in.
        idle: Steps in a row in which the text sources were asked and no node paid.
    """

    __slots__ = (
        "_compared",
        "_counts",
        "_range",
        "_runs",
        "_sums",
        "idle",
        "network",
        "network_depth",
        "text",
        "with_network",
    )

    def __init__(self) -> None:
        self.text = Calibration(TEXT_ODDS)
        self.network = Calibration(NETWORK_ODDS)
        self.with_network = False
        self.network_depth = MAX_DEPTH
        self.idle = 0
        self._sums = [gain * _GAIN_WORTH for gain in USUAL_GAIN]
        self._counts = [_GAIN_WORTH] * len(USUAL_GAIN)
        self._runs = [0] * len(USUAL_GAIN)
        self._compared: CandidateTree | None = None

    @property
    def calibration(self) -> Calibration:
        """The one for the tree of this step."""
        return self.network if self.with_network else self.text

    def network_gain(self, longest_match: int) -> float:
        """Tokens that the network is expected to add to a step, less what more rows cost.

        Where the request's text repeats itself at length, there is little to add.
        """
        place = bisect_right(MATCHES, longest_match)
        return self._sums[place] / self._counts[place]

    def comparison_due(self, longest_match: int) -> bool:
        """Whether to make the tree without the network as well, which costs time; counts steps."""
        place = bisect_right(MATCHES, longest_match)
        self._runs[place] += 1
        return self._runs[place] <= _COMPARED_FIRST or self._runs[place] % _COMPARED_EVERY == 0

    def compare(
        self, longest_match: int, tree: CandidateTree, text: CandidateTree, *, price: float
    ) -> None:
        """Learn what the network adds from the promises of two trees, less what their rows cost.

        Args:
            longest_match: Of the request's own text.
            tree: The tree with the network.
            text: The tree of the text sources alone, of at least as many nodes as would pay.
            price: Tokens that the time of a row could write.
        """
        place = bisect_right(MATCHES, longest_match)
        added = self.network.promise(tree) - price * len(tree)
        # The text's best tree may well be a smaller one.
        surplus = most = 0.0
        for probability in text.probabilities:
            surplus += self.text.corrected(probability) - price
            most = max(most, surplus)
        self._sums[place] += added - most
        self._counts[place] += 1
        self._compared = text

    def observe(self, tree: CandidateTree, accepted: Sequence[int], written: Sequence[int]) -> None:
        """Learn from a verified tree.

        Args:
            tree: The tree.
            accepted: Its nodes on the path that the target wrote.
            written: What the target wrote.
        """
        if tree.tokens:
            self.calibration.observe(tree, len(accepted))
        if self._compared is not None:
            self.text.observe(self._compared, len(self._compared.walk(written)))
            self._compared = None
