"""The candidate tree: the most probable continuations of a request, found best-first."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol, Self


class Source(IntEnum):
    """What proposed a draft token."""

    NETWORK = 0
    LOOKUP = 1
    CORPUS = 2
    GRAMMAR = 3


Child = tuple[float, int, Source]
"""Negative probability, token and source of one continuation of a branch.

Negative, so that sorting puts the most probable first and, of equals, the lowest token id.
"""


class Branch(Protocol):
    """A path of draft tokens that can be continued."""

    def children(self) -> Sequence[Child]:
        """Return what may follow, sorted, with probabilities given that the path was written."""
        ...

    def child(self, token: int) -> Self:
        """Return the branch one token longer."""
        ...


@dataclass(frozen=True, slots=True)
class CandidateTree:
    """Draft tokens to verify in one target pass, as parallel lists with one entry per node.

    Nodes stand in the order of falling probability and parents before children, so the first n
    nodes are themselves the best tree of n nodes.

    Attributes:
        tokens: Draft token of each node.
        parents: Index of each node's parent; -1 for a child of the last committed token.
        probabilities: Probability that the target writes the whole path to the node.
        sources: What gave most of the node's probability given its parent.
        depths: Number of draft tokens on the path, 1 for a child of the last committed token.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def walk(self, written: Sequence[int]) -> list[int]:
        """Follow what was written; return the nodes passed, from the root down."""
        children = {
            (parent, token): node
            for node, (parent, token) in enumerate(zip(self.parents, self.tokens, strict=True))
        }
        path: list[int] = []
        for token in written:
            node = children.get((path[-1] if path else -1, token))
            if node is None:
                break
            path.append(node)
        return path

    def subtree(self, nodes: Sequence[int]) -> "CandidateTree":
        """Return the tree of some nodes, in this order; with a node its parent, before it."""
        places = {node: place for place, node in enumerate(nodes)}
        return CandidateTree(
            [self.tokens[node] for node in nodes],
            [places.get(self.parents[node], -1) for node in nodes],
            [self.probabilities[node] for node in nodes],
            [self.sources[node] for node in nodes],
            [self.depths[node] for node in nodes],
        )

    def first(self, count: int) -> "CandidateTree":
        """Return the tree of the `count` most probable nodes."""
        return CandidateTree(
            self.tokens[:count],
            self.parents[:count],
            self.probabilities[:count],
            self.sources[:count],
            self.depths[:count],
        )


class GrowingTree:
    """A candidate tree that gives its most probable node not yet taken, as DDTree does.

    A heap holds, for every branch met so far, its best child not yet taken (arXiv 2604.12989).
    Taking one adds its next sibling and its own best child; since no child is more probable than
    its parent, nodes come out in the order of falling probability. Ties go to the shallower node,
    then to the lower token id. Sources are asked about a branch only when the next node depends on
    it, so a tree that is cut short has cost no more than its nodes.

    Args:
        root: The branch of no draft tokens.
        max_nodes: Most nodes in the tree.
        max_roots: Most nodes at depth 1.
        max_depth: Most draft tokens on a path.

    Attributes:
        tree: The nodes taken so far.
    """

    __slots__ = ("_heap", "_max_depth", "_max_nodes", "_max_roots", "_roots", "_unasked", "tree")

    def __init__(self, root: Branch, *, max_nodes: int, max_roots: int, max_depth: int) -> None:
        self.tree = CandidateTree()
        self._heap: list[_Candidate] = []
        self._max_nodes = max_nodes
        self._max_roots = max_roots
        self._max_depth = max_depth
        self._roots = 0
        # The newest node, whose children are not known yet: its index and probability, their
        # depth, the branch before it and its token.
        self._unasked: tuple[int, float, int, Branch, int | None] | None = (
            (-1, 1.0, 1, root, None) if max_nodes > 0 and max_depth > 0 else None
        )

    @property
    def bound(self) -> float:
        """A probability that the next node cannot exceed; 0 where there is none."""
        if self._unasked is not None:
            return self._unasked[1]
        return -self._heap[0][0] if self._heap else 0.0

    @property
    def settled(self) -> bool:
        """Whether `bound` is the very probability of the next node."""
        return self._unasked is None

    def settle(self) -> None:
        """Ask the sources what may follow the newest node."""
        if self._unasked is None:
            return
        node, probability, depth, branch, token = self._unasked
        self._unasked = None
        if token is not None:
            branch = branch.child(token)
        self._offer(_Family(node, probability, depth, branch, branch.children()), 0)

    def take(self) -> float:
        """Take the next node, which must be there, and return its probability."""
        self.settle()
        value, depth, token, _, rank, family = heapq.heappop(self._heap)
        tree = self.tree
        node = len(tree.tokens)
        tree.tokens.append(token)
        tree.parents.append(family.parent)
        tree.probabilities.append(-value)
        tree.sources.append(family.children[rank][2])
        tree.depths.append(depth)
        if node + 1 == self._max_nodes:
            self._heap.clear()
            return -value
        self._roots += depth == 1
        if depth > 1 or self._roots < self._max_roots:
            self._offer(family, rank + 1)
        if depth < self._max_depth:
            self._unasked = (node, -value, depth + 1, family.branch, token)
        return -value

    @property
    def taken(self) -> int:
        """Number of nodes taken so far."""
        return len(self.tree)

    def first(self, count: int) -> CandidateTree:
        """Return the tree of the `count` most probable nodes, of those taken so far."""
        return self.tree.first(count)

    def whole(self) -> CandidateTree:
        """Take all nodes that the limits allow."""
        self.settle()
        while self._heap:
            self.take()
            self.settle()
        return self.tree

    def _offer(self, family: "_Family", rank: int) -> None:
        """Put a family's child of this rank on the heap, if there is one and it may come."""
        if rank < len(family.children):
            negative, token, _ = family.children[rank]
            value = family.probability * negative
            if value < 0:
                one = (value, family.depth, token, family.parent, rank, family)
                heapq.heappush(self._heap, one)


class _Family(NamedTuple):
    """The children of one node, with that node's index and probability."""

    parent: int
    probability: float
    depth: int
    branch: Branch
    children: Sequence[Child]


# Negative probability, depth, token, parent, rank, family: the first four are never all equal,
# as siblings have distinct tokens, so families are never compared.
_Candidate = tuple[float, int, int, int, int, _Family]
