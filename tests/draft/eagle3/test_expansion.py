"""The tree that EAGLE-3 grows, against EAGLE-2's algorithm written down once more."""

import random

import pytest

from peagle.draft.eagle3.expansion import Expansion
from peagle.draft.mixture import MixturePrior
from peagle.draft.network.drafter import DraftLimits
from peagle.draft.proposer import Proposer, new_proposer
from peagle.draft.tree import Source
from peagle.spec import ParallelDraftingSpec


class Conditional:
    """A network whose distribution depends on the whole path, and counts who asks."""

    def __init__(self, seed: int, sharpness: float) -> None:
        self.seed, self.sharpness, self.asked = seed, sharpness, 0

    def children(self, path: tuple[int, ...], count: int) -> tuple[list[int], list[float]]:
        self.asked += 1
        rng = random.Random(f"{self.seed} {path}")
        drawn = [rng.random() for _ in range(30)]
        weights = [(value / max(drawn)) ** self.sharpness for value in drawn]
        total = sum(weights)
        ranked = sorted(range(30), key=lambda token: (-weights[token], token))[:count]
        return ranked, [weights[token] / total for token in ranked]


def expanded(network: Conditional, limits: DraftLimits) -> Expansion:
    tree = Expansion(limits)
    paths: list[tuple[int, ...]] = [()]
    every: list[tuple[int, ...]] = []
    while tree.newest:
        assert len(paths) == tree.newest
        tree.record([network.children(path, tree.width) for path in paths])
        every = [*every, *([()] * tree.newest)]
        for row in range(len(every) - tree.newest, len(every)):
            parent = tree.parents[row]
            every[row] = (*(() if parent < 0 else every[parent]), tree.tokens[row])
        asked_by = [paths[place] for place in tree.asked_by]
        paths = every[len(every) - tree.newest :]
        assert [path[:-1] for path in paths] == asked_by
    return tree


def eagle2(network: Conditional, *, depth: int, top: int, nodes: int) -> set[tuple[int, ...]]:
    """All `top` x `top` candidates of every level remembered, the best of all levels taken."""
    frontier: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    remembered: list[tuple[float, tuple[int, ...]]] = []
    for _ in range(depth):
        level = []
        for value, path in frontier:
            ids, probabilities = network.children(path, top)
            level += [
                (value * p, (*path, token)) for token, p in zip(ids, probabilities, strict=True)
            ]
        remembered += level
        frontier = sorted(level, reverse=True)[:top]
    return {path for _, path in sorted(remembered, reverse=True)[:nodes]}


def paths_of(tree) -> set[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*(() if parent < 0 else paths[parent]), token))
    return set(paths)


def proposer(prior: MixturePrior, token_ids: list[int], **block: object) -> Proposer:
    spec = ParallelDraftingSpec.parse({"method": "eagle3", "corpus": False, **block})
    return new_proposer(token_ids, spec=spec, corpus=None, prior=prior)


@pytest.mark.parametrize("sharpness", [1, 4, 20])
@pytest.mark.parametrize(
    ("depth", "top", "nodes"),
    [(7, 10, 59), (5, 4, 15), (7, 3, 7), (1, 4, 9), (6, 2, 1), (4, 10, 3)],
)
def test_the_tree_is_that_of_eagle2(shipped_prior, depth, top, nodes, sharpness):
    for seed in range(5):
        network = Conditional(seed, sharpness)
        wanted = eagle2(network, depth=depth, top=top, nodes=nodes)
        full, network.asked = network.asked, 0
        found = expanded(network, DraftLimits(depth, nodes, top))
        assert network.asked <= full
        tree = proposer(
            shipped_prior, [1], lookup=False, num_parallel_trees=top, prediction_depth=depth,
            max_tree_nodes=max(top, nodes),
        ).propose(found, node_limit=nodes)  # fmt: skip
        assert paths_of(tree) == wanted


def test_nodes_without_a_place_in_the_tree_are_not_asked_about():
    certain = Conditional(1, 40_000)
    tree = expanded(certain, DraftLimits(7, 7, 4))
    assert tree.levels == 7
    assert certain.asked == 1 + len(tree.tokens) < 1 + 6 * 4
    for nodes in (1, 2, 3):
        assert expanded(certain, DraftLimits(7, nodes, 4)).levels == nodes
    flat = Conditional(1, 0)
    assert expanded(flat, DraftLimits(7, 4, 4)).levels == 2


def test_one_parallel_tree_is_a_chain(shipped_prior):
    network = Conditional(3, 1)
    found = expanded(network, DraftLimits(6, 15, 1))
    assert (found.levels, network.asked) == (6, 6)
    assert found.parents == [-1, 0, 1, 2, 3]
    tree = proposer(shipped_prior, [1], lookup=False, num_parallel_trees=1).propose(found)
    assert tree.parents == [-1, 0, 1, 2, 3, 4]
    path: tuple[int, ...] = ()
    for token in tree.tokens:
        assert token == network.children(path, 1)[0][0]
        path = (*path, token)


def test_text_goes_on_where_the_network_was_not_asked(shipped_prior):
    text = [40, 41, 42, 43, 44, 45, 46, 47] * 3
    network = Conditional(5, 2)
    found = expanded(network, DraftLimits(2, 50, 4))
    tree = proposer(shipped_prior, text, max_tree_nodes=50).propose(found)
    paths = paths_of(tree)
    assert (40, 41, 42, 43) in paths
    both = {tree.sources[node] for node in range(len(tree))}
    assert both == {Source.NETWORK, Source.LOOKUP}
    assert found.children(1, (40,)) == ([], [])
