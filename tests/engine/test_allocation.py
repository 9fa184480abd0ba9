"""Sharing a pass out, over cost curves made by hand."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.draft.tree import GrowingTree
from peagle.engine.allocation import allocate as allocate_calibrated
from peagle.engine.expectation import Calibration
from tests.draft.test_tree import Marginals, some_levels


def allocate(
    trees: Sequence[GrowingTree], seconds: Sequence[float], certain: float, rate: float = 1.0
) -> tuple[list[int], float]:
    return allocate_calibrated(trees, [Calibration(1.0)] * len(trees), seconds, certain, rate)


def chain(*probabilities: float, roots: int = 1, nodes: int = 99) -> GrowingTree:
    """A tree of one token a level, with its probability given the one before."""
    levels = [{1: probability} for probability in probabilities]
    return GrowingTree(Marginals(levels), max_nodes=nodes, max_roots=roots, max_depth=99)


def bushy(seed: int, nodes: int = 31) -> GrowingTree:
    return GrowingTree(Marginals(some_levels(seed)), max_nodes=nodes, max_roots=4, max_depth=9)


def steps(*ends: tuple[int, float]) -> list[float]:
    """Seconds of 0, 1, … nodes: `(last count, seconds)` of each level ground."""
    seconds: list[float] = []
    for last, value in ends:
        seconds += [value] * (last + 1 - len(seconds))
    return seconds


def test_where_rows_cost_nothing_trees_grow_to_their_limits() -> None:
    counts, expected = allocate([bushy(1, 15), bushy(2, 9)], [0.5] * 100, 2, rate=99.0)
    assert counts == [15, 9]
    promised = sum(bushy(1, 15).whole().probabilities) + sum(bushy(2, 9).whole().probabilities)
    assert expected == pytest.approx(2 + promised)


def test_where_every_row_costs_as_much_as_the_first_nothing_is_drafted() -> None:
    linear = [1.0 + nodes for nodes in range(40)]
    assert allocate([bushy(1)], linear, 1) == ([0], 1.0)
    # Not even certain tokens would help then.
    assert allocate([chain(*[1.0] * 9)], linear, 1)[0] == [0]


def test_a_pass_is_filled_up_to_where_it_becomes_dearer() -> None:
    # 8 rows cost as one, 16 a half more: the last committed token takes one of them.
    seconds = steps((7, 1.0), (15, 1.5), (31, 3.0))
    # The second half costs 3 tokens: 0.9^8 + … + 0.9^15 is less.
    assert allocate([chain(*[0.9] * 20)], seconds, 1, rate=6.0)[0] == [7]
    assert allocate([chain(*[0.99] * 20)], seconds, 1, rate=6.0)[0] == [15]


def test_a_dearer_stretch_is_crossed_where_what_follows_pays() -> None:
    """Node 8 alone is not worth its time; nodes 8 to 15 together are."""
    seconds = steps((7, 1.0), (15, 1.25))
    counts, expected = allocate([chain(*[0.97] * 15)], seconds, 1, rate=7.0)
    promised = list(itertools.accumulate([0.97] * 15, lambda a, b: a * b))
    assert promised[7] < 0.25 * 7.0
    assert counts == [15]
    assert expected == pytest.approx(1 + sum(promised))


@pytest.mark.parametrize(("rate", "nodes"), [(1.0, 3), (2.0, 2), (5.0, 1), (9.5, 0)])
def test_a_linear_part_is_paid_for_by_probable_nodes_only(rate: float, nodes: int) -> None:
    # Each row costs a tenth of a second: falling path probabilities 0.9, 0.45, 0.18, 0.07.
    seconds = [1.0 + 0.1 * count for count in range(40)]
    assert allocate([chain(0.9, 0.5, 0.4, 0.4)], seconds, 1, rate)[0] == [nodes]


def test_the_rate_of_many_steps_gives_more_than_the_best_rate_of_each() -> None:
    """Where one step is far more predictable than the next, its last nodes still pay."""
    seconds = [1.0 + 0.1 * count for count in range(40)]
    kinds = [0.95, 0.3]

    def best_rate(certainty: float) -> float:
        rate = 1.0
        for _ in range(20):
            counts, expected = allocate([chain(*[certainty] * 30)], seconds, 1, rate)
            rate = expected / seconds[counts[0]]
        return rate

    def together(rates: Sequence[float]) -> float:
        tokens = time = 0.0
        for certainty, rate in zip(kinds, rates, strict=True):
            counts, expected = allocate([chain(*[certainty] * 30)], seconds, 1, rate)
            tokens += expected
            time += seconds[counts[0]]
        return tokens / time

    rate = 1.0
    for _ in range(20):
        rate = together([rate, rate])
    assert rate > 1.02 * together([best_rate(certainty) for certainty in kinds])


def test_of_two_answers_the_more_predictable_one_gets_the_longer_chain() -> None:
    seconds = [1.0 + 0.12 * nodes for nodes in range(40)]

    def sure() -> GrowingTree:
        return chain(*[0.9] * 8)

    def unsure(probability: float) -> GrowingTree:
        return chain(*[probability] * 8)

    # At 3.6 tokens a second a node has to bring 0.12 · 3.6.
    assert allocate([sure(), unsure(0.5)], seconds, 2, rate=3.6)[0] == [7, 1]
    assert allocate([unsure(0.5), sure()], seconds, 2, rate=3.6)[0] == [1, 7]
    assert allocate([sure(), unsure(0.4)], seconds, 2, rate=3.6)[0] == [7, 0]


def test_one_answer_gets_a_full_tree_where_sixteen_get_none() -> None:
    # Rows are free up to 16 and dear behind.
    seconds = [1.0 if rows <= 16 else 1.0 + 0.2 * (rows - 16) for rows in range(1, 300)]
    assert allocate([chain(*[0.8] * 15, nodes=15)], seconds, 1, rate=4.0)[0] == [15]
    many = [chain(*[0.8] * 15, nodes=15) for _ in range(16)]
    assert allocate(many, seconds[15:], 16, rate=16.0) == ([0] * 16, 16.0)


def test_no_more_nodes_than_a_tree_or_the_step_may_have() -> None:
    free = [1.0] * 12
    assert allocate([chain(*[0.9] * 20, nodes=3), chain(*[0.5] * 20, nodes=4)], free, 2)[0] == [
        3,
        4,
    ]
    assert sum(allocate([chain(*[0.9] * 20), chain(*[0.8] * 20)], free, 2)[0]) == 11
    assert allocate([], free, 3) == ([], 3.0)
    assert allocate([chain(0.9)], [1.0], 1)[0] == [0]


def test_equally_probable_nodes_go_to_the_first_answer() -> None:
    assert allocate([chain(0.5), chain(0.5)], [1.0, 1.1], 2, rate=2.0)[0] == [1, 0]


def test_nodes_that_come_oftener_than_promised_are_worth_more() -> None:
    seconds = [1.0 + 0.12 * nodes for nodes in range(40)]
    trees = chain(*[0.5] * 8), chain(*[0.6] * 8)
    calibrations = Calibration(4.0), Calibration(1.0)
    counts, expected = allocate_calibrated(trees, calibrations, seconds, 2, 2.9)
    # Odds times four: 1/2 counts as 4/5, 1/4 as 4/7, 1/8 as 4/11, 1/16 as 4/19.
    assert counts == [3, 2]
    assert expected == pytest.approx(2 + 4 / 5 + 4 / 7 + 4 / 11 + 0.6 + 0.36)


def test_an_answer_whose_first_nodes_cannot_pay_is_not_asked() -> None:
    class Silent(Marginals):
        def children(self) -> list[tuple[float, int, object]]:  # type: ignore[override]
            raise AssertionError("asked")

    tree = GrowingTree(Silent([]), max_nodes=9, max_roots=4, max_depth=9)
    assert allocate([tree], [1.0 + nodes for nodes in range(9)], 1)[0] == [0]
    with pytest.raises(AssertionError, match="asked"):
        allocate([tree], [1.0] * 9, 1)


def best_by_trying(
    trees: Sequence[GrowingTree], seconds: Sequence[float], certain: float, rate: float
) -> float:
    """Most tokens after paying for the time, over all numbers of nodes, the most probable ones."""
    every = sorted((p for tree in trees for p in tree.whole().probabilities), reverse=True)
    sums = [0.0, *itertools.accumulate(every)]
    return max(certain + s - rate * t for s, t in zip(sums, seconds, strict=False))


@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(0.5, 50.0))
@settings(max_examples=80, deadline=None)
def test_no_other_number_of_nodes_would_be_better(seed: int, answers: int, rate: float) -> None:
    random = np.random.default_rng(seed)
    rises = random.choice([0.0, 0.02, 0.3], 200) * random.random(200)
    seconds = (0.5 + rises.cumsum()).tolist()

    def trees() -> list[GrowingTree]:
        return [bushy(seed + place) for place in range(answers)]

    grown = trees()
    counts, expected = allocate(grown, seconds, answers, rate)
    worth = expected - rate * seconds[sum(counts)]
    assert worth == pytest.approx(best_by_trying(trees(), seconds, answers, rate))
    assert allocate(trees(), seconds, answers, rate) == (counts, expected)
    promised = sum(
        sum(tree.tree.first(count).probabilities) for tree, count in zip(grown, counts, strict=True)
    )
    assert expected == pytest.approx(answers + promised)
    assert worth >= answers - rate * seconds[0], "drafting must never lose to not drafting"
