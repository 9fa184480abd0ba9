"""Adaptive trees in the engine, on the real small model over cost curves made by hand."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from peagle import LLM, SamplingParams
from peagle.draft.native_proposer import NativeGrowingTree, NativeProposer
from peagle.draft.untrained import random_drafter
from peagle.engine.costs import CostCurve, StepCosts
from peagle.engine.engine import Engine
from peagle.model.kv_cache import KVCache
from peagle.model.rows import SequenceRows
from peagle.model.target import StepOutput
from tests.conftest import FREE
from tests.engine.test_lossless import plainly

LOOPING = {"prompt": "The cat sat. The cat sat. The cat sat. The cat"}
WRITING = SamplingParams(max_tokens=24, ignore_eos=True)


def costs(
    *points: tuple[int, float], network: tuple[tuple[int, float], ...] = (), **others: float
) -> StepCosts:
    def curve(of: Sequence[tuple[int, float]]) -> CostCurve:
        return CostCurve(rows=tuple(r for r, _ in of), seconds=tuple(s for _, s in of))

    return StepCosts(target=curve(points), network=curve(network) if network else None, **others)


# Every row costs as much as the first.
LINEAR = costs((1, 1.0), (128, 128.0))
# Twenty rows are free, each further one costs half a pass.
TWENTY = costs((1, 1.0), (20, 1.0), (128, 55.0))


@pytest.fixture
def llm(smollm2: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    """The model with an engine of its own."""
    engine = Engine(smollm2.target, smollm2.engine.kv_cache)
    engine.drafter = random_drafter(smollm2.target, layers=1, draft_vocab_size=600)
    monkeypatch.setattr(smollm2, "engine", engine)
    return smollm2


@pytest.fixture
def steps(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Rows of the writing answers, step by step."""
    told: list[list[int]] = []
    forward = llm.target.forward

    def recorded(cache: KVCache, rows: Sequence[SequenceRows], **options: bool) -> StepOutput:
        told.append([len(part.tokens) for part in rows if part.parents is not None])
        return forward(cache, rows, **options)

    monkeypatch.setattr(llm.target, "forward", recorded)
    return told


def test_where_every_row_costs_a_pass_nothing_is_drafted_nor_the_network_run(llm: LLM) -> None:
    llm.engine.costs = LINEAR.model_copy(update={"network": LINEAR.target})
    result = llm.generate("Name a fish.", WRITING, parallel_drafting_spec={"method": "peagle"})[0]
    assert result.token_ids == plainly(llm, "Name a fish.", WRITING)
    assert result.statistics.drafted_tokens == 0
    assert result.statistics.draft_passes == 0
    assert result.statistics.target_passes == 23


def test_where_rows_cost_nothing_trees_are_as_large_as_pinned_ones(
    llm: LLM, steps: list[list[int]]
) -> None:
    llm.engine.costs = FREE
    adaptive, pinned = (
        llm.generate(LOOPING, WRITING, parallel_drafting_spec={"method": "lookup", **spec})[0]
        for spec in ({}, {"adaptive": False})
    )
    assert adaptive.statistics == pinned.statistics
    assert [16] in steps


def test_many_answers_share_the_free_rows_and_one_gets_a_full_tree(
    llm: LLM, steps: list[list[int]]
) -> None:
    llm.engine.costs = TWENTY
    spec = {"method": "lookup"}
    llm.generate([LOOPING] * 8, WRITING, parallel_drafting_spec=spec)
    together = [rows for rows in steps if len(rows) == 8]
    assert together
    assert all(sum(rows) == 20 for rows in together if max(rows) > 1)
    assert any(max(rows) > 1 for rows in together), "no drafts were verified beside others"
    steps.clear()
    llm.generate(LOOPING, WRITING, parallel_drafting_spec=spec)
    assert [16] in steps


def test_a_pinned_answer_keeps_its_shape_beside_adaptive_ones(
    llm: LLM, steps: list[list[int]]
) -> None:
    # Seven rows are free: the pinned tree and the last tokens take them.
    llm.engine.costs = costs((1, 1.0), (7, 1.0), (128, 999.0))
    generations = [
        llm.stream(LOOPING, WRITING, parallel_drafting_spec={"method": "lookup", **spec})
        for spec in ({"adaptive": False, "max_tree_nodes": 5}, {})
    ]
    while not all(generation.finished for generation in generations):
        llm.step()
    both = [rows for rows in steps if len(rows) == 2]
    assert [6, 1] in both
    assert {rows[1] for rows in both} == {1}


def test_features_wait_until_the_network_pays(llm: LLM) -> None:
    """What it then predicts is what it would have predicted, had it read them at once."""
    told: list[tuple[int, list[Any]]] = []
    predict = type(llm.engine.drafter).draft

    def run(first: StepCosts) -> list[int]:
        llm.engine.costs = first
        generation = llm.stream(
            "Name a fish.", WRITING, parallel_drafting_spec={"method": "peagle", "corpus": False}
        )
        sequence = generation.sequences[0]
        while len(sequence.output_ids) < 12:
            llm.step()
        if first is dear:
            assert sequence.drafter is not None
            assert sequence.statistics.draft_passes == 0
            assert sequence.drafter.waiting == len(sequence.prompt_ids) + 12 - 1
        llm.engine.costs = cheap
        while not generation.finished:
            llm.step()
        assert generation.result.statistics.draft_passes > 0
        return generation.result.token_ids

    def recorded(states: Any, limits: Any) -> Any:
        predicted = predict(llm.engine.drafter, states, limits)
        told.append((states[0].observed, predicted[0].children(1, ())))
        return predicted

    llm.engine.drafter.draft = recorded  # type: ignore[union-attr, method-assign]
    cheap = costs((1, 1.0), (128, 1.0), network=((1, 1e-6), (32, 1e-6)))
    dear = costs((1, 1.0), (128, 1.0), network=((1, 9.0), (32, 9.0)))
    assert run(dear) == plainly(llm, "Name a fish.", WRITING)
    late = dict(told)
    told.clear()
    run(cheap)
    always = dict(told)
    common = late.keys() & always.keys()
    assert common
    assert {place: late[place] for place in common} == {place: always[place] for place in common}


def test_where_drafts_never_pay_text_is_asked_only_now_and_then(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    growing = NativeProposer.growing

    def counted(self: NativeProposer, *arguments: Any, **limits: Any) -> NativeGrowingTree:
        nonlocal asked
        asked += 1
        return growing(self, *arguments, **limits)

    monkeypatch.setattr(NativeProposer, "growing", counted)
    llm.engine.costs = LINEAR
    spec = {"method": "lookup", "lookup": False}
    result = llm.generate("Name a fish.", WRITING, parallel_drafting_spec=spec)[0]
    assert result.statistics.target_passes == 23
    assert asked <= 6


def test_an_eagle3_level_must_be_worth_its_pass(llm: LLM) -> None:
    llm.engine.drafter = random_drafter(llm.target, method="eagle3", layers=1, draft_vocab_size=300)
    spec = {"method": "eagle3", "lookup": False, "corpus": False, "num_parallel_trees": 1}

    def passes(seconds: float) -> int:
        level = ((1, seconds), (32, seconds))
        llm.engine.costs = costs((1, 1.0), (128, 1.0), network=level)
        result = llm.generate("Name a fish.", WRITING, parallel_drafting_spec=spec)[0]
        assert result.token_ids == plainly(llm, "Name a fish.", WRITING)
        return result.statistics.draft_passes

    # Random weights promise next to nothing: where a pass costs, one level is all that is asked.
    free, priced = passes(1e-9), passes(0.03)
    assert free > 2 * priced > 0
