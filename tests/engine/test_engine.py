"""Scheduling: admission, memory, and answers that come and go."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from peagle import LLM, SamplingParams
from peagle.draft.distributions import LevelDistributions
from peagle.draft.native_proposer import NativeProposer
from peagle.draft.network.drafter import DraftLimits
from peagle.draft.network.state import DrafterState
from peagle.draft.tree import CandidateTree
from peagle.draft.untrained import random_drafter
from peagle.engine.engine import Engine
from peagle.errors import InvalidRequestError, OutOfMemoryBudgetError
from tests.conftest import FREE
from tests.engine.test_lossless import NoRepeats, plainly


@pytest.fixture
def small_cache(smollm2: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """The model with a KV cache of three pages, 192 positions."""
    cache = smollm2.target.new_cache(1 << 23)
    pages = cache.bytes_per_page * 3
    engine = Engine(smollm2.target, smollm2.target.new_cache(pages))
    engine.costs = FREE
    monkeypatch.setattr(smollm2, "engine", engine)
    return smollm2


def test_answers_wait_for_memory_and_all_are_given(small_cache: LLM) -> None:
    params = SamplingParams(max_tokens=8)
    prompts = ["Count to five.", "Name a fish.", "Name a bird.", "Say hello."]
    results = small_cache.generate(prompts, params)
    assert [r.token_ids for r in results] == [plainly(small_cache, p, params) for p in prompts]
    assert small_cache.engine.kv_cache.free_pages == 3
    assert not small_cache.engine.running
    assert not small_cache.engine.waiting


def test_a_request_that_can_never_fit_is_refused_at_once(small_cache: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"max_tokens is 500.*Lower max_tokens to \d+"):
        small_cache.generate("Hello", SamplingParams(max_tokens=500))
    sequence = small_cache.stream("Hello", SamplingParams(max_tokens=8)).sequences[0]
    small_cache.abort([sequence])
    sequence.positions = 193
    needed = f"{small_cache.engine.kv_cache.bytes_per_page * 4:,}"
    with pytest.raises(
        OutOfMemoryBudgetError, match=f"193 tokens.*holds 192.*kv_cache_bytes to {needed} or more"
    ):
        small_cache.engine.add(sequence)


@pytest.mark.parametrize(("prompt", "told"), [(192, None), (150, 43), (500, 1)])
def test_where_memory_is_what_lacks_the_bytes_that_would_do_are_named(
    small_cache: LLM, prompt: int, told: int | None
) -> None:
    ids, params = {"prompt_token_ids": [5] * prompt}, SamplingParams(max_tokens=told)
    with pytest.raises(InvalidRequestError) as caught:
        small_cache.stream(ids, params)
    named = re.search(r"or set kv_cache_bytes of LLM to ([\d,]+) or more\.$", str(caught.value))
    assert named is not None
    budget = int(named[1].replace(",", ""))
    assert budget == small_cache.engine.kv_cache.bytes_for(prompt + (told or 1))
    small_cache.engine = Engine(small_cache.target, small_cache.target.new_cache(budget))
    small_cache.stream(ids, params).drop()


def test_where_the_models_context_is_what_lacks_no_memory_is_asked_for(small_cache: LLM) -> None:
    too_long = {"prompt_token_ids": [5] * 8192}
    with pytest.raises(InvalidRequestError, match=r"Shorten the prompt\.$"):
        small_cache.stream(too_long)
    with pytest.raises(InvalidRequestError, match=r"or leave it out\.$"):
        small_cache.stream("Hello", SamplingParams(max_tokens=8192))


def test_without_max_tokens_the_answer_is_bounded_by_the_cache(small_cache: LLM) -> None:
    result = small_cache.generate("Hello", SamplingParams(ignore_eos=True))[0]
    assert result.finish_reason == "length"
    assert len(result.prompt_token_ids) + len(result.token_ids) == 192


def test_leaving_a_stream_early_frees_its_memory(small_cache: LLM) -> None:
    generation = small_cache.stream("Tell me a story.", SamplingParams(max_tokens=60))
    for piece in generation:
        assert piece.token_ids
        break
    assert small_cache.engine.kv_cache.free_pages == 3
    assert not small_cache.engine.running


def test_an_answer_that_cannot_go_on_fails_alone(small_cache: LLM) -> None:
    class Nothing(NoRepeats):
        def allowed(self, output_ids: Sequence[int]) -> torch.Tensor:
            return super().allowed(output_ids) & (len(output_ids) < 3)

    good = small_cache.stream("Say hello.", SamplingParams(max_tokens=8))
    bad = small_cache.stream("Say hello.", SamplingParams(max_tokens=8, logits_mask=Nothing()))
    while not (good.finished and bad.finished):
        small_cache.step()
    assert good.result.token_ids == plainly(small_cache, "Say hello.", SamplingParams(max_tokens=8))
    with pytest.raises(InvalidRequestError, match="No token is allowed as token 3"):
        _ = bad.result
    assert small_cache.engine.kv_cache.free_pages == 3


def test_the_network_answers_those_it_drafts_for_each_its_own(
    small_cache: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_cache.engine.drafter = random_drafter(small_cache.target, layers=1, draft_vocab_size=600)
    told: dict[NativeProposer, list[object]] = {}
    propose = NativeProposer.propose

    def recorded(
        self: NativeProposer, network: LevelDistributions | None = None, **limits: int
    ) -> CandidateTree:
        told.setdefault(self, []).append(network and network.children(1, ()))
        return propose(self, network, **limits)

    monkeypatch.setattr(NativeProposer, "propose", recorded)

    def predictions(*asked: tuple[str, str]) -> list[list[object]]:
        params = SamplingParams(max_tokens=5)
        generations = [
            small_cache.stream(
                prompt, params, parallel_drafting_spec={"method": method, "adaptive": False}
            )
            for prompt, method in asked
        ]
        proposers = [generation.sequences[0].proposer for generation in generations]
        while not all(generation.finished for generation in generations):
            small_cache.step()
        return [told[proposer] for proposer in proposers if proposer is not None]

    (first,) = predictions(("Tell me about bees.", "peagle"))
    (last,) = predictions(("Name a fish.", "peagle"))
    assert None not in first + last
    assert first != last
    together = predictions(
        ("Tell me about bees.", "peagle"), ("Name a bird.", "lookup"), ("Name a fish.", "peagle")
    )
    assert [together[0], together[2]] == [first, last]
    assert set(together[1]) == {None}


@pytest.mark.parametrize(("method", "passes"), [("peagle", [7, 5]), ("eagle3", [18, 15])])
def test_a_network_is_asked_within_the_limits_of_each_answer(
    smollm2: LLM, monkeypatch: pytest.MonkeyPatch, method: Any, passes: list[int]
) -> None:
    """Its depth, also near the end of the answer; a chain, so that all levels are worth asking."""
    drafter = random_drafter(smollm2.target, method=method, layers=1, draft_vocab_size=300)
    asked: list[list[DraftLimits]] = []
    draft = type(drafter).draft

    def recorded(
        states: Sequence[DrafterState], limits: Sequence[DraftLimits]
    ) -> list[LevelDistributions]:
        asked.append(list(limits))
        return draft(drafter, states, limits)

    monkeypatch.setattr(drafter, "draft", recorded)
    monkeypatch.setattr(smollm2.engine, "drafter", drafter)
    block = {"method": method, "lookup": False, "corpus": False, "num_parallel_trees": 1}
    generations = [
        smollm2.stream(
            "Name a fish.",
            SamplingParams(max_tokens=tokens, ignore_eos=True),
            parallel_drafting_spec={**block, "prediction_depth": depth},
        )
        for depth, tokens in ((3, 9), (7, 7))
    ]
    while not all(generation.finished for generation in generations):
        smollm2.step()
    # Nothing is accepted, so each step writes one token and leaves room for one draft token less.
    depths = [[limit.depth for limit in limits] for limits in asked]
    assert depths == [[3, 5], [3, 4], [3, 3], [3, 2], [3, 1], [2], [1]]
    assert asked[0] == [DraftLimits(3, 15, 1), DraftLimits(5, 15, 1)]
    statistics = [generation.result.statistics for generation in generations]
    assert [one.target_passes for one in statistics] == [8, 6]
    assert [one.draft_passes for one in statistics] == passes
