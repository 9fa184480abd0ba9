"""Candidate trees that follow a grammar: what it forbids goes, what it forces comes in."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from peagle.draft.tree import CandidateTree, Source
from peagle.engine.grammar import GrammarState
from peagle.errors import InvalidRequestError

_PROBABLE: Final = 0.1
"""Forced text is looked for behind nodes that are at least as probable, as it costs a mask each."""


def constrained(
    tree: CandidateTree,
    grammar: GrammarState,
    *,
    most_nodes: int,
    most_roots: int,
    most_depth: int,
) -> CandidateTree:
    """Leave out what the grammar forbids, and add the text that it forces.

    Forced text is as probable as the node that it follows, and comes before less probable nodes
    where there is no room for all. Only the model's own choice decides how it is cut into tokens,
    so that forced draft tokens are verified like others.

    Args:
        tree: What the sources propose.
        grammar: Where the answer is.
        most_nodes: Most draft tokens.
        most_roots: Most of them at depth 1.
        most_depth: Most of them on a path.

    Returns:
        The tree, parents before children. Nodes of the sources keep their probabilities.
    """
    growth = _Growth(tree, grammar.branch(), most_depth)
    try:
        growth.grow(-1, -1, (), 1.0)
    except InvalidRequestError:
        # Too complex on some branch: whether that matters, the walk will tell.
        return CandidateTree()
    return growth.best(most_nodes, most_roots)


def proposed_part(tree: CandidateTree, accepted: list[int]) -> tuple[CandidateTree, list[int]]:
    """Give the nodes of a constrained tree that sources proposed, with those of them accepted.

    Args:
        tree: A tree that `constrained` made.
        accepted: The nodes of the path that the target wrote.
    """
    kept = [node for node, source in enumerate(tree.sources) if source is not Source.GRAMMAR]
    places = {node: place for place, node in enumerate(kept)}
    return tree.subtree(kept), [places[node] for node in accepted if node in places]


@dataclass(slots=True)
class _Growth:
    """The nodes that the grammar allows, in the order of a walk; `ranks` says which matter most."""

    proposed: CandidateTree
    grammar: GrammarState
    most_depth: int
    found: CandidateTree = field(default_factory=CandidateTree)
    ranks: list[float] = field(default_factory=list)
    children: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for node, parent in enumerate(self.proposed.parents):
            self.children[parent].append(node)

    def grow(self, node: int, place: int, path: tuple[int, ...], rank: float) -> None:
        """Find what may follow a node.

        Args:
            node: The node in the proposed tree; -1 is the last committed token.
            place: The same in the tree that is found.
            path: The draft tokens to it.
            rank: Probability of the path to it.
        """
        proposed = self.proposed
        room = self.most_depth - len(path)
        forced = self.grammar.forced(path, room) if rank >= _PROBABLE else []
        for child in self.children.get(node, ()):
            token = proposed.tokens[child]
            further = (*path, token)
            if not self.grammar.accepts(further):
                continue
            probability = proposed.probabilities[child]
            child_rank = probability
            if forced and token == forced[0]:
                # The child goes on with the rest of the text.
                forced, child_rank = [], rank
            there = self._add(place, token, probability, proposed.sources[child])
            self.ranks.append(child_rank)
            self.grow(child, there, further, child_rank)
        for token in forced:
            place = self._add(place, token, rank, Source.GRAMMAR)
            self.ranks.append(rank)

    def best(self, most_nodes: int, most_roots: int) -> CandidateTree:
        """Take the nodes of the highest ranks, within the limits."""
        found = self.found
        kept: set[int] = set()
        roots = 0
        # Stable: of equal ranks parents come first.
        for node in sorted(range(len(found)), key=lambda node: -self.ranks[node]):
            parent = found.parents[node]
            if len(kept) == most_nodes:
                break
            if parent < 0 and roots == most_roots:
                continue
            if parent >= 0 and parent not in kept:
                continue
            roots += parent < 0
            kept.add(node)
        return found.subtree(sorted(kept))

    def _add(self, parent: int, token: int, probability: float, source: Source) -> int:
        found = self.found
        found.tokens.append(token)
        found.parents.append(parent)
        found.probabilities.append(probability)
        found.sources.append(source)
        found.depths.append(1 if parent < 0 else found.depths[parent] + 1)
        return len(found) - 1
