"""Measuring on the real model; what comes out depends on the machine, its shape does not."""

from peagle import LLM
from peagle.draft.mixture import MixturePrior
from peagle.draft.untrained import random_drafter
from peagle.engine.costs import CostCurve
from peagle.engine.measuring import (
    measure_network,
    measure_step_costs,
    measure_target,
    target_costs_hold,
)


def test_target_passes_are_measured_up_to_the_largest(smollm2: LLM) -> None:
    costs = measure_target(smollm2.target, budget_s=0.0)
    # Without any time to spend, what a slow model gets: the counts that matter most.
    assert costs.target.rows == (1, 4, 16, 32, smollm2.target.rows_per_pass)
    assert costs.target.seconds[-1] > costs.target.seconds[0] > 0
    assert costs.network is None


def test_costs_of_a_machine_ten_times_as_fast_or_slow_do_not_hold(smollm2: LLM) -> None:
    costs = measure_target(smollm2.target, budget_s=0.0)
    for times in (0.1, 10.0):
        other = CostCurve(
            rows=costs.target.rows, seconds=tuple(s * times for s in costs.target.seconds)
        )
        assert not target_costs_hold(smollm2.target, costs.model_copy(update={"target": other}))


def test_all_parts_of_a_step_are_measured(smollm2: LLM) -> None:
    drafter = random_drafter(smollm2.target, layers=1, draft_vocab_size=600)
    free = drafter.cache.free_pages
    costs = measure_step_costs(
        smollm2.target, drafter, corpus=None, prior=MixturePrior.load(), budget_s=0.0
    )
    assert costs.network is not None
    assert costs.network.rows == (1, 4, 8, 16, 32)
    assert 0 < costs.network.at(1) < costs.target.at(32)
    assert 0 < costs.per_text_node < costs.target.at(1)
    assert drafter.cache.free_pages == free


def test_an_eagle3_pass_is_measured_and_a_full_cache_is_left_alone(smollm2: LLM) -> None:
    drafter = random_drafter(smollm2.target, method="eagle3", layers=1, draft_vocab_size=300)
    curve = measure_network(drafter, 0.0)
    assert curve is not None
    assert curve.rows[0] == 1
    longest = drafter.network.config.decoder.context_length
    taken = []
    while drafter.fits(longest):
        taken.append(drafter.open(longest))
    while drafter.fits(1):
        taken.append(drafter.open(1))
    assert measure_network(drafter, 0.0) is None
    for state in taken:
        drafter.close(state)
