"""Which draft tokens EAGLE-3 is asked about, level by level: the dynamic tree of EAGLE-2."""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from peagle.draft.distributions import Children
from peagle.draft.network.drafter import DraftLimits


class _Node(NamedTuple):
    """A draft token that the network is asked to continue.

    Attributes:
        value: Probability of the path to it.
        path: Its draft tokens, its own the last.
        row: Where it stands among the rows asked about; -1 for the last real slot.
    """

    value: float
    path: tuple[int, ...]
    row: int

    @property
    def rank(self) -> tuple[float, int]:
        """Sorts as the tree does: the more probable first, of equals the shallower."""
        return -self.value, len(self.path)


class Expansion:
    """The part of one sequence's candidate tree that the network was asked about.

    Every node asked about gets its `roots` most probable children, and the `roots` most probable of
    the children of a level are asked about next (arXiv 2406.16858; its top-k is our number of
    parallel trees, so one tree is a chain). A child that could have no place in the best tree of
    `nodes` nodes is not asked about, since nothing behind it could have one either: the best tree
    is the same, and drafting ends as soon as it is settled. It ends before that where the next
    level is not worth its price: what it will promise is foretold from the share of probability
    that the level before it kept.

    Args:
        limits: How much of the tree is wanted.

    Attributes:
        tokens: Draft tokens asked about so far, a row each, parents before their children.
        parents: Row of each one's parent; -1 for a child of the last real slot.
        asked_by: For each row of the newest level, the place of its parent among the rows of the
            level before.
        levels: Levels predicted so far.
    """

    def __init__(self, limits: DraftLimits) -> None:
        self._limits = limits
        self._children: dict[tuple[int, ...], Children] = {}
        self._ranks: list[tuple[float, int]] = []
        self._newest = [_Node(1.0, (), -1)]
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.asked_by: list[int] = []
        self.levels = 0

    @property
    def width(self) -> int:
        """Most children of a node that count, and most nodes asked about in a level."""
        return min(self._limits.roots, self._limits.nodes)

    @property
    def newest(self) -> int:
        """Nodes whose continuation is asked for now; at first the last real slot alone."""
        return len(self._newest)

    def children(self, depth: int, path: Sequence[int]) -> Children:  # noqa: ARG002
        """Predict the token behind the draft tokens of `path`, if it was asked for."""
        return self._children.get(tuple(path), ([], []))

    def record(self, predicted: Sequence[Children]) -> None:
        """Take the continuations of the newest nodes, and choose the nodes to ask about next.

        Args:
            predicted: For each of the newest nodes its children, at least `width` of them unless
                the draft vocabulary has fewer.
        """
        self.levels += 1
        met: list[tuple[_Node, int]] = []
        for place, (node, best) in enumerate(zip(self._newest, predicted, strict=True)):
            ids, probabilities = best[0][: self.width], best[1][: self.width]
            self._children[node.path] = (ids, probabilities)
            met.extend(
                (_Node(node.value * probability, (*node.path, token), node.row), place)
                for token, probability in zip(ids, probabilities, strict=True)
                # No comparison with NaN is true: a broken network is asked nothing more.
                if probability > 0
            )
        self._ranks.extend(node.rank for node, _ in met)
        chosen = self._worth_asking(met) if self.levels < self._limits.depth else []
        asked = sum(node.value for node in self._newest)
        kept = sum(node.value for node, _ in met) / asked if asked else 0.0
        if kept * sum(node.value for node, _ in chosen) < self._limits.price:
            chosen = []
        self._newest = []
        self.asked_by = []
        for node, place in chosen:
            self._newest.append(node._replace(row=len(self.tokens)))
            self.asked_by.append(place)
            self.tokens.append(node.path[-1])
            self.parents.append(node.row)

    def _worth_asking(self, met: list[tuple[_Node, int]]) -> list[tuple[_Node, int]]:
        """Choose from the nodes of a level those that a child in the best tree could have."""
        # A child ranks behind its parent, so a parent in the last place of the tree has none.
        best = heapq.nsmallest(self._limits.nodes - 1, self._ranks)
        if not best:
            return []
        hopeful = [one for one in met if one[0].rank <= best[-1]]
        hopeful.sort(key=lambda one: (one[0].rank, one[0].path))
        return hopeful[: self.width]
