"""A replay gives the very counts of the engine: the passes, the drafts, what was accepted."""

from dataclasses import replace

import pytest
import torch

import peagle.draft.peagle.drafter as peagle_drafter
from peagle import LLM, SamplingParams
from peagle.catalog import resolve
from peagle.draft.corpus import Corpus
from peagle.draft.mixture import MixturePrior
from peagle.engine.statistics import SpeculationStatistics, pooled
from peagle.errors import OutOfMemoryBudgetError
from peagle.evaluate.answers import record_answers
from peagle.evaluate.recorded import (
    Features,
    Recorded,
    Sources,
    Way,
    read_features,
    replay_drafts,
)
from peagle.spec import ParallelDraftingSpec
from peagle.train.prompt_lines import PromptEntry

CHAIN = {"lookup": False, "corpus": False, "num_parallel_trees": 1, "prediction_depth": 5,
         "max_tree_nodes": 5}  # fmt: skip
ALONE = {"lookup": False, "corpus": False, "max_tree_nodes": 15}
TOGETHER = {"max_tree_nodes": 15}


def replayed(
    llm: LLM,
    recorded: list[Recorded],
    features: list[Features],
    told: dict,
    *,
    chain: bool = False,
) -> list[SpeculationStatistics]:
    drafter = llm.engine.drafter if told["method"] != "lookup" else None
    sources = Sources(MixturePrior.load(), Corpus.load(resolve("smollm2").corpus), drafter)
    way = Way(ParallelDraftingSpec.parse(told), chain)
    (answers,) = replay_drafts(recorded, [way], sources, features=features)
    assert [answer.token_ids for answer in answers] == [one.answer for one in recorded]
    return [answer.statistics for answer in answers]


def run(llm: LLM, recorded: list[Recorded], told: dict, **params) -> list[SpeculationStatistics]:
    results = llm.generate(
        [{"prompt_token_ids": list(one.prompt)} for one in recorded],
        [SamplingParams(max_tokens=one.limit, seed=one.seed, **params) for one in recorded],
        parallel_drafting_spec=told,
    )
    assert [result.token_ids for result in results] == [one.answer for one in recorded]
    return [result.statistics for result in results]


@pytest.mark.parametrize("shape", [ALONE, TOGETHER], ids=["alone", "together"])
def test_trees_count_what_the_engine_counts(
    drafting: LLM, recorded: list[Recorded], features: list[Features], shape: dict
) -> None:
    told = {"method": drafting.spec.method, "adaptive": False, **shape}
    counted = replayed(drafting, recorded, features, told)
    assert counted == run(drafting, recorded, told)
    total = pooled(counted)
    assert total.draft_passes > 0
    # Enough is accepted for the comparison to mean something, and not everything.
    assert 1.3 < total.acceptance_length < 5


def test_chains_count_what_the_engine_counts(
    drafting: LLM,
    recorded: list[Recorded],
    features: list[Features],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {"method": drafting.spec.method, "adaptive": False, **CHAIN}
    counted = replayed(drafting, recorded, features, told, chain=True)
    # A network that names one token a level leaves the engine nothing but a chain.
    monkeypatch.setattr(peagle_drafter, "TOP_TOKENS", 1)
    assert counted == run(drafting, recorded, told)
    assert pooled(counted).accepted_tokens > 20


def test_text_alone_counts_what_the_engine_counts(
    smollm2: LLM, recorded: list[Recorded], features: list[Features]
) -> None:
    for text in ({"corpus": False}, {}):
        told = {"method": "lookup", "adaptive": False, "max_tree_nodes": 7, **text}
        assert replayed(smollm2, recorded, features, told) == run(smollm2, recorded, told)


def test_sampled_answers_are_accepted_as_the_engine_accepts_them(
    drafting: LLM, entries: list[PromptEntry]
) -> None:
    sampled = record_answers(
        drafting, entries[:1], temperature=0.8, seeds=(1, 2), max_tokens=16, usual_max_tokens=512
    )
    assert [(one.id, one.seed) for one in sampled] == [("qa-05/seed-1", 1), ("qa-05/seed-2", 2)]
    assert sampled[0].answer != sampled[1].answer
    told = {"method": drafting.spec.method, "adaptive": False, **TOGETHER}
    own = [read_features(drafting.target, one) for one in sampled]
    counted = replayed(drafting, sampled, own, told)
    assert counted == run(drafting, sampled, told, temperature=0.8)
    assert pooled(counted).accepted_tokens > 0


def test_features_are_split_by_tap(
    smollm2: LLM, recorded: list[Recorded], features: list[Features]
) -> None:
    taps = smollm2.target.taps
    other = read_features(smollm2.target.with_taps((3, taps[1])), recorded[1])
    length = len(recorded[1].prompt) + len(recorded[1].answer) - 1
    assert list(features[1]) == list(taps)
    assert list(other) == [3, taps[1]]
    assert other[3].shape == (length, 576)
    assert torch.equal(features[1][taps[1]], other[taps[1]])


def test_answers_wait_for_room_and_one_that_never_fits_is_refused(
    drafting: LLM, recorded: list[Recorded], features: list[Features]
) -> None:
    told = {"method": drafting.spec.method, "adaptive": False, **TOGETHER}
    expected = replayed(drafting, recorded, features, told)
    drafter = drafting.engine.drafter
    whole, page = drafter.cache, drafter.cache.bytes_per_page
    try:
        # Room for the longest alone.
        drafter.cache = drafter.network.compute.new_cache(3 * page)
        assert replayed(drafting, recorded, features, told) == expected
        assert drafter.cache.free_pages == 3
        drafter.cache = drafter.network.compute.new_cache(2 * page)
        with pytest.raises(OutOfMemoryBudgetError, match="cache holds 128"):
            replayed(drafting, recorded, features, told)
    finally:
        drafter.cache = whole


def test_an_answer_of_one_token_takes_no_pass(
    drafting: LLM, recorded: list[Recorded], features: list[Features]
) -> None:
    told = {"method": drafting.spec.method, "adaptive": False, **TOGETHER}
    short = replace(recorded[1], answer=recorded[1].answer[:1], limit=1)
    assert replayed(drafting, [short], features[1:2], told) == [SpeculationStatistics()]


def test_ways_that_ask_the_same_share_the_network(
    drafting: LLM, recorded: list[Recorded], features: list[Features], monkeypatch
) -> None:
    drafter = drafting.engine.drafter
    common = {"method": drafting.spec.method, "adaptive": False}
    peagle = drafter.method == "peagle"
    told = [common | TOGETHER, common | ALONE, common | ALONE | {"corpus": True}]
    if peagle:
        told.append(common | ALONE | {"max_tree_nodes": 3, "num_parallel_trees": 1})
    alone = [replayed(drafting, recorded, features, one) for one in told]
    asked = []
    exact = drafter.draft

    def counted(states, limits):
        asked.append(len(states))
        return exact(states, limits)

    monkeypatch.setattr(drafter, "draft", counted)
    ways = [Way(ParallelDraftingSpec.parse(one)) for one in told]
    sources = Sources(MixturePrior.load(), Corpus.load(resolve("smollm2").corpus), drafter)
    together = replay_drafts(recorded, ways, sources, features=features)
    assert [[one.statistics for one in way] for way in together] == alone
    # No place is asked about twice.
    assert sum(asked) <= sum(len(one.answer) - 1 for one in recorded)
    other = Way(ParallelDraftingSpec.parse(common | ALONE | {"prediction_depth": 3}))
    with pytest.raises(ValueError, match="ask the network different things"):
        replay_drafts(recorded, [ways[0], other], sources, features=features)
