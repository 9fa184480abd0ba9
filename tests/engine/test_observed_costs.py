"""Costs that follow what steps take."""

import pytest

from peagle.engine.costs import CostCurve, StepCosts
from peagle.engine.observed_costs import ObservedCosts

MEASURED = StepCosts(
    target=CostCurve(rows=(1, 8, 64), seconds=(1.0, 1.7, 7.3)),
    per_text_node=0.01,
    network=CostCurve(rows=(1,), seconds=(0.5,)),
)


def at(costs: StepCosts | ObservedCosts, rows: int) -> float:
    return costs.step([(10, rows)], 0)[0]


def test_until_something_is_observed_costs_are_those_measured() -> None:
    costs = ObservedCosts(MEASURED)
    assert costs.step([(10, 1), (20, 2)], 9) == pytest.approx(MEASURED.step([(10, 1), (20, 2)], 9))
    assert costs.network_factor == MEASURED.network_factor == 1.0
    assert costs.network == MEASURED.network
    assert costs.per_text_node == MEASURED.per_text_node


def test_a_slower_machine_is_slower_for_all_numbers_of_rows() -> None:
    costs = ObservedCosts(MEASURED)
    for _ in range(100):
        for rows in (1, 8):
            costs.observe([(10, rows)], 2 * at(MEASURED, rows))
    for rows in (1, 2, 5, 8, 40, 100, 1000):
        assert at(costs, rows) == pytest.approx(2 * at(MEASURED, rows), rel=0.06)


def test_one_number_of_rows_may_be_cheaper_than_measured() -> None:
    costs = ObservedCosts(MEASURED)
    for _ in range(600):
        costs.observe([(10, 1)], 0.7)
        costs.observe([(10, 8)], 1.7)
    assert at(costs, 1) == pytest.approx(0.7, rel=0.03)
    assert at(costs, 8) == pytest.approx(1.7, rel=0.03)
    assert at(costs, 3) < at(MEASURED, 3)


def test_costs_never_fall_with_rows() -> None:
    costs = ObservedCosts(MEASURED)
    for _ in range(200):
        costs.observe([(10, 4)], 3.0)
        costs.observe([(10, 8)], 0.5)
    seconds = costs.step([(10, 1)], 63)
    assert seconds == sorted(seconds)
    assert len(seconds) == 64


def test_one_long_pause_does_not_count_for_many_steps() -> None:
    costs = ObservedCosts(MEASURED)
    costs.observe([(10, 1)], 1000.0)
    assert at(costs, 1) < 1.4


def test_what_does_not_come_up_again_is_forgotten() -> None:
    costs = ObservedCosts(MEASURED)
    for _ in range(100):
        costs.observe([(10, 1)], 1.0)
        costs.observe([(10, 16)], 3 * at(MEASURED, 16))
    assert at(costs, 16) > 2 * at(MEASURED, 16)
    for _ in range(2000):
        costs.observe([(10, 1)], 1.0)
    assert at(costs, 16) == pytest.approx(at(MEASURED, 16), rel=0.1)


def test_the_network_is_followed_by_itself() -> None:
    costs = ObservedCosts(MEASURED)
    for _ in range(60):
        costs.observe_network(0.5, 0.25)
    assert costs.network_factor == pytest.approx(0.5, rel=0.06)
    assert at(costs, 1) == 1.0


def test_what_trees_of_the_network_take_is_learnt_a_tree() -> None:
    costs = ObservedCosts(MEASURED)
    assert costs.per_network_tree == MEASURED.per_network_tree == 0.0
    for _ in range(60):
        costs.observe_network_trees(4, 0.002)
    assert costs.per_network_tree == pytest.approx(0.0005, rel=0.01)
    # Faster than the text sources were said to be: nothing more, but no gift.
    for _ in range(200):
        costs.observe_network_trees(1, -0.1)
    assert costs.per_network_tree == pytest.approx(0.0, abs=1e-9)
