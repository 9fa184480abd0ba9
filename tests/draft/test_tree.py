import heapq
import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.draft.tree import CandidateTree, Child, GrowingTree, Source


class Marginals:
    """A branch whose children depend on its depth alone."""

    def __init__(self, levels: Sequence[dict[int, float]], path: tuple[int, ...] = ()) -> None:
        self.levels = levels
        self.path = path

    def children(self) -> list[Child]:
        if len(self.path) == len(self.levels):
            return []
        return sorted(
            (-p, token, Source.NETWORK) for token, p in self.levels[len(self.path)].items()
        )

    def child(self, token: int) -> "Marginals":
        return Marginals(self.levels, (*self.path, token))


def grown(root: Marginals, *, max_nodes: int, max_roots: int, max_depth: int) -> CandidateTree:
    return GrowingTree(root, max_nodes=max_nodes, max_roots=max_roots, max_depth=max_depth).whole()


def paths_of(tree: CandidateTree) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def all_paths(levels: Sequence[dict[int, float]]) -> dict[tuple[int, ...], float]:
    found = {}
    for depth in range(1, len(levels) + 1):
        for path in itertools.product(*levels[:depth]):
            probability = 1.0
            for level, token in zip(levels, path, strict=False):
                probability *= level[token]
            found[path] = probability
    return found


def some_levels(seed: int, depth: int = 4, width: int = 5) -> list[dict[int, float]]:
    random = np.random.default_rng(seed)
    return [
        dict(zip(range(10, 10 + width), random.dirichlet(np.ones(width)).tolist(), strict=True))
        for _ in range(depth)
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("nodes", [1, 7, 15, 40])
def test_tree_holds_the_most_probable_paths(seed: int, nodes: int) -> None:
    levels = some_levels(seed)
    tree = grown(Marginals(levels), max_nodes=nodes, max_roots=64, max_depth=9)
    best = heapq.nlargest(nodes, all_paths(levels).items(), key=lambda item: item[1])
    assert set(paths_of(tree)) == {path for path, _ in best}
    assert tree.probabilities == pytest.approx([probability for _, probability in best])


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_limits_hold_and_parents_precede_children(
    seed: int, nodes: int, roots: int, depth: int
) -> None:
    tree = grown(Marginals(some_levels(seed)), max_nodes=nodes, max_roots=roots, max_depth=depth)
    assert 1 <= len(tree) <= nodes
    assert 1 <= tree.parents.count(-1) <= roots
    assert all(parent < node for node, parent in enumerate(tree.parents))
    assert tree.depths == [len(path) for path in paths_of(tree)]
    assert max(tree.depths) <= depth
    assert tree.probabilities == sorted(tree.probabilities, reverse=True)
    assert len(set(paths_of(tree))) == len(tree)


def test_few_roots_are_the_most_probable_ones() -> None:
    levels = [{1: 0.4, 2: 0.3, 3: 0.2, 4: 0.1}]
    tree = grown(Marginals(levels), max_nodes=9, max_roots=2, max_depth=9)
    assert tree.tokens == [1, 2]


def test_equal_paths_are_taken_shallow_first_then_by_token() -> None:
    levels = [{5: 0.5, 3: 0.5}, {9: 1.0}]
    tree = grown(Marginals(levels), max_nodes=4, max_roots=4, max_depth=9)
    assert paths_of(tree) == [(3,), (5,), (3, 9), (5, 9)]


def test_first_nodes_are_the_smaller_tree() -> None:
    levels = some_levels(3)
    large = grown(Marginals(levels), max_nodes=20, max_roots=3, max_depth=9)
    small = grown(Marginals(levels), max_nodes=6, max_roots=3, max_depth=9)
    assert large.first(6) == small


def test_impossible_children_are_not_drafted() -> None:
    tree = grown(Marginals([{1: 1.0, 2: 0.0}]), max_nodes=9, max_roots=4, max_depth=9)
    assert tree.tokens == [1]


@pytest.mark.parametrize(("nodes", "depth"), [(0, 5), (5, 0)])
def test_no_room_makes_an_empty_tree(nodes: int, depth: int) -> None:
    tree = grown(Marginals(some_levels(0)), max_nodes=nodes, max_roots=4, max_depth=depth)
    assert tree == CandidateTree()


def test_branches_are_asked_about_only_where_the_next_node_depends_on_it() -> None:
    asked: list[tuple[int, ...]] = []

    class Counting(Marginals):
        def children(self) -> list[Child]:
            asked.append(self.path)
            return super().children()

        def child(self, token: int) -> "Counting":
            return Counting(self.levels, (*self.path, token))

    growing = GrowingTree(Counting([{1: 0.75, 2: 0.25}] * 3), max_nodes=4, max_roots=4, max_depth=3)
    assert (growing.bound, growing.settled, asked) == (1.0, False, [])
    growing.settle()
    assert (growing.bound, growing.settled, asked) == (0.75, True, [()])
    assert growing.take() == 0.75
    # Its children cannot be more probable than itself.
    assert (growing.bound, growing.settled, asked) == (0.75, False, [()])
    growing.settle()
    assert (growing.bound, asked) == (0.75 * 0.75, [(), (1,)])
    assert growing.whole().tokens == [1, 1, 1, 2]
    assert (growing.bound, growing.settled) == (0.0, True)
    assert asked == [(), (1,), (1, 1)], "a node in the last place has no use for children"
