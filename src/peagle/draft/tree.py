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

    def first(self, count: int) -> "CandidateTree":
        """Return the tree of the `count` most probable nodes."""
        return CandidateTree(
            self.tokens[:count],
            self.parents[:count],
            self.probabilities[:count],
            self.sources[:count],
            self.depths[:count],
        )


def grow(root: Branch, *, max_nodes: int, max_roots: int, max_depth: int) -> CandidateTree:
    """Collect the most probable paths, as DDTree does for parallel drafts (arXiv 2604.12989).

    A heap holds, for every branch met so far, its best child not yet taken. Taking one adds its
    next sibling and its own best child; since no child is more probable than its parent, nodes
    come out in the order of falling probability. Ties go to the shallower node, then to the
    lower token id.

    Args:
        root: The branch of no draft tokens.
        max_nodes: Most nodes in the tree.
        max_roots: Most nodes at depth 1.
        max_depth: Most draft tokens on a path.
    """
    tree = CandidateTree()
    if max_nodes < 1 or max_depth < 1:
        return tree
    heap: list[_Candidate] = []
    roots = 0
    _offer(heap, _Family(-1, 1.0, 1, root, root.children()), 0)
    while heap:
        value, depth, token, _, rank, family = heapq.heappop(heap)
        node = len(tree.tokens)
        tree.tokens.append(token)
        tree.parents.append(family.parent)
        tree.probabilities.append(-value)
        tree.sources.append(family.children[rank][2])
        tree.depths.append(depth)
        if node + 1 == max_nodes:
            break
        roots += depth == 1
        if depth > 1 or roots < max_roots:
            _offer(heap, family, rank + 1)
        if depth < max_depth:
            longer = family.branch.child(token)
            _offer(heap, _Family(node, -value, depth + 1, longer, longer.children()), 0)
    return tree


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


def _offer(heap: list[_Candidate], family: _Family, rank: int) -> None:
    """Put a family's child of this rank on the heap, if there is one and it may come."""
    if rank < len(family.children):
        negative, token, _ = family.children[rank]
        value = family.probability * negative
        if value < 0:
            heapq.heappush(heap, (value, family.depth, token, family.parent, rank, family))
