"""Prompts that begin as earlier texts: the same bits in the caches, the same tokens."""

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from peagle import LLM, SamplingParams
from peagle.draft.distributions import LevelDistributions
from peagle.draft.network.drafter import Drafter, DraftLimits
from peagle.draft.network.state import DrafterState
from peagle.draft.untrained import random_drafter
from peagle.engine.costs import CostCurve, StepCosts
from peagle.engine.engine import Engine
from peagle.evaluate.oracle import OracleProposer
from peagle.llm import Generation, Result
from peagle.model.kv_cache import KVCache
from peagle.model.prefix_index import PrefixIndex, page_key
from peagle.spec import NetworkMethod
from tests.conftest import FREE

# About 170 tokens: two pages and a part of a third.
SYSTEM = (
    "You are the guide of a small museum of clocks. Answer in full sentences and name the room. "
    "Room one has sundials and water clocks. Room two has the tower clock of the old town hall, "
    "made of iron in 1544, which strikes the hours. Room three has pocket watches, among them one "
    "that a captain carried around the world twice. Room four has a pendulum clock that is three "
    "minutes slow, which nobody may put right. Room five is a workshop, where visitors can take an "
    "alarm clock apart. The museum is closed on Mondays. The shop sells springs, keys and cards."
)
LENGTH = 64
TREE = {"adaptive": False}
DRAFTS: dict[str, dict[str, Any]] = {
    "none": {"method": "none"},
    "lookup": {"method": "lookup", **TREE},
    "network": {"method": "peagle", "lookup": False, "corpus": False, **TREE},
    "all sources": {"method": "peagle", **TREE},
    "adaptive": {"method": "peagle"},
    "eagle3": {"method": "eagle3", **TREE},
    "oracle": {"method": "peagle", **TREE},
}
SAMPLINGS: dict[str, dict[str, Any]] = {"greedy": {}, "sampled": {"temperature": 0.9, "seed": 5}}


def engine_of(
    llm: LLM,
    *,
    pages: int = 40,
    method: NetworkMethod = "peagle",
    max_concurrent: int = 8,
    prefix_caching: bool = True,
) -> Engine:
    """Make an engine with an untrained network and an empty KV cache."""
    engine = Engine(
        llm.target,
        llm.target.new_cache(pages * llm.engine.kv_cache.bytes_per_page),
        random_drafter(llm.target, method=method, layers=1, draft_vocab_size=3000),
        max_concurrent,
        prefix_caching=prefix_caching,
    )
    engine.costs = FREE
    return engine


MODELS = ("smollm2", "smollm2_int8", "smollm2_torch")


@pytest.fixture(params=MODELS)
def llm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LLM:
    loaded: LLM = request.getfixturevalue(request.param)
    monkeypatch.setattr(loaded, "engine", engine_of(loaded))
    return loaded


def asked(llm: LLM, question: str) -> list[int]:
    return llm.encode(
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    )


def begun(
    llm: LLM,
    prompt: Sequence[int],
    params: SamplingParams,
    drafts: str = "none",
    oracle: Sequence[int] = (),
    *,
    scope: str | None = None,
) -> Generation:
    generation = llm.prepare(
        {"prompt_token_ids": list(prompt)},
        params,
        parallel_drafting_spec=DRAFTS[drafts],
        scope=scope,
    )
    if drafts == "oracle":
        for sequence in generation.sequences:
            sequence.proposer = OracleProposer(oracle, vocab_size=llm.target.config.vocab_size)
    llm.queue(generation)
    return generation


def ended(llm: LLM, *generations: Generation) -> list[Result]:
    while not all(generation.finished for generation in generations):
        llm.step()
    return [generation.result for generation in generations]


def answered(
    llm: LLM,
    prompt: Sequence[int],
    params: SamplingParams,
    drafts: str = "none",
    oracle: Sequence[int] = (),
    *,
    scope: str | None = None,
) -> Result:
    return ended(llm, begun(llm, prompt, params, drafts, oracle, scope=scope))[0]


@functools.cache
def _read_anew(llm: LLM, prompt: tuple[int, ...], params: SamplingParams) -> list[int]:
    before = llm.engine
    llm.engine = engine_of(llm, prefix_caching=False)
    try:
        return answered(llm, prompt, params).token_ids
    finally:
        llm.engine = before


def read_anew(llm: LLM, prompt: Sequence[int], params: SamplingParams) -> list[int]:
    """Answer a prompt without speculation in an engine that has seen nothing and keeps nothing."""
    return _read_anew(llm, tuple(prompt), params)


def settings(sampling: str, **told: Any) -> SamplingParams:
    return SamplingParams(
        **{"max_tokens": LENGTH, "ignore_eos": True, **SAMPLINGS[sampling], **told}
    )


def conversation(llm: LLM, params: SamplingParams) -> tuple[list[int], list[int], list[int]]:
    """Give a first prompt, its answer, and the prompt of the second turn."""
    first = asked(llm, "Which clock is slow?")
    answer = read_anew(llm, first, params)
    return (
        first,
        answer,
        first + answer + llm.tokenizer.encode("\nAnd which one strikes the hours?"),
    )


# Of the slower backend the kinds that hold all others.
@pytest.mark.parametrize(
    ("llm", "drafts"),
    [(model, drafts) for model in MODELS[:2] for drafts in DRAFTS]
    + [(MODELS[2], drafts) for drafts in ("none", "all sources", "oracle")],
    indirect=["llm"],
)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_conversation_goes_on_as_if_it_were_read_anew(
    llm: LLM, drafts: str, sampling: str
) -> None:
    if drafts == "eagle3":
        llm.engine = engine_of(llm, method="eagle3")
    params = settings(sampling)
    first, answer, second = conversation(llm, params)
    other = asked(llm, "When is the museum closed?")
    opened = answered(llm, first, params, drafts, answer)
    assert (opened.token_ids, opened.cached_tokens) == (answer, 0)
    # The answer's last token is written but not read: its page is not among them.
    whole = (len(first) + len(answer) - 1) // 64 * 64
    assert whole > len(first) // 64 * 64, "a page of the answer is to be taken over"
    expected = read_anew(llm, second, params)
    again = answered(llm, second, params, drafts, expected)
    assert (again.token_ids, again.cached_tokens) == (expected, whole)
    if drafts == "oracle":
        assert again.statistics.accepted_tokens > LENGTH // 2
    # Another question after the same system prompt.
    expected = read_anew(llm, other, params)
    beside = answered(llm, other, params, drafts, expected)
    assert (beside.token_ids, beside.cached_tokens) == (expected, 128)
    prefixes = llm.engine.prefixes
    assert prefixes is not None
    assert prefixes.queried == len(first) + len(second) + len(other)
    assert prefixes.hits == whole + 128
    assert llm.engine.kv_cache.used_bytes == 0


def pages_of(cache: KVCache, scope: object, tokens: Sequence[int]) -> torch.Tensor:
    """What the pages of a text hold, `[layers, 2, pages, …]`, as bits."""
    keys = (
        page_key(scope, number, tokens[64 * number : 64 * number + 64])
        for number in range(len(tokens) // 64)
    )
    return cache.pool[:, :, [one.page for one in cache.find(keys)]].view(torch.int32)


def test_what_trees_committed_is_bit_for_bit_what_reading_gives(llm: LLM) -> None:
    params = settings("greedy", max_tokens=100)
    first = asked(llm, "Which clock is slow?")
    answer = read_anew(llm, first, params)
    whole = first + answer
    result = answered(llm, first, params, "oracle", answer)
    assert result.statistics.accepted_tokens > 70
    written = llm.engine
    llm.engine = engine_of(llm)
    answered(llm, [*whole, 1], settings("greedy", max_tokens=2), "all sources")
    assert llm.engine.drafter is not None
    assert written.drafter is not None
    pages = (len(whole) - 1) // 64
    assert pages >= len(first) // 64 + 1
    for cache, reference, text, scope in (
        (written.kv_cache, llm.engine.kv_cache, whole[: 64 * pages], None),
        (written.drafter.cache, llm.engine.drafter.cache, whole[1 : 64 * pages], (None, whole[0])),
    ):
        own, read = pages_of(cache, scope, text), pages_of(reference, scope, text)
        assert own.shape[2] == len(text) // 64
        assert torch.equal(own, read)
        assert own.any()


@pytest.mark.parametrize("method", ["peagle", "eagle3"])
def test_the_network_predicts_as_if_it_had_read_the_whole_prompt(
    smollm2: LLM, monkeypatch: pytest.MonkeyPatch, method: NetworkMethod
) -> None:
    told: list[list[Any]] = []
    draft = Drafter.draft

    def recorded(
        self: Drafter, states: Sequence[DrafterState], limits: Sequence[DraftLimits]
    ) -> list[LevelDistributions]:
        found = draft(self, states, limits)
        told.append([one.children(1, ()) for one in found])
        return found

    monkeypatch.setattr(Drafter, "draft", recorded)

    def predictions(prompt: Sequence[int]) -> list[list[Any]]:
        told.clear()
        answered(smollm2, prompt, settings("greedy", max_tokens=12), method_of[method])
        return list(told)

    method_of = {"peagle": "network", "eagle3": "eagle3"}
    params = settings("greedy")
    monkeypatch.setattr(smollm2, "engine", engine_of(smollm2, method=method))
    first, _, second = conversation(smollm2, params)
    anew = predictions(second)
    monkeypatch.setattr(smollm2, "engine", engine_of(smollm2, method=method))
    answered(smollm2, first, params, method_of[method])
    assert predictions(second) == anew
    assert smollm2.engine.prefixes is not None
    assert smollm2.engine.prefixes.hits >= 192
    # The network blind for one page: what the comparison finds then.
    adopt = Drafter.adopt

    def blind(self: Drafter, state: DrafterState, pages: Any) -> None:
        adopt(self, state, pages)
        self.cache.pool[:, :, state.cache.pages[0]] = 0

    monkeypatch.setattr(Drafter, "adopt", blind)
    assert predictions(second) != anew


def test_a_network_that_was_never_run_has_read_the_text_all_the_same(
    smollm2: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(smollm2)
    dear = CostCurve(rows=(1, 128), seconds=(1e6, 1e6))
    engine.costs = StepCosts(target=FREE.target, network=dear)
    monkeypatch.setattr(smollm2, "engine", engine)
    params = settings("greedy")
    first, answer, second = conversation(smollm2, params)
    opened = answered(smollm2, first, params, "adaptive")
    assert (opened.token_ids, opened.statistics.draft_passes) == (answer, 0)
    again = answered(smollm2, second, params, "all sources")
    assert again.statistics.draft_passes > 0
    assert again.cached_tokens == (len(first) + len(answer) - 1) // 64 * 64


def test_where_the_token_behind_a_page_differs_a_drafted_answer_begins_a_page_earlier(
    smollm2: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "engine", engine_of(smollm2))
    params = settings("greedy", max_tokens=6)
    text = asked(smollm2, "Which clock is slow?")
    answered(smollm2, text, params, "network")
    other = [*text[:128], text[128] + 1, *text[129:]]
    for drafts, cached in (("network", 64), ("lookup", 128), ("none", 128)):
        result = answered(smollm2, other, params, drafts)
        assert result.token_ids == read_anew(smollm2, other, params)
        assert result.cached_tokens == cached
    # Now that it has been read, it is known.
    assert answered(smollm2, other, params, "network").cached_tokens == 128


@pytest.mark.parametrize("length", [63, 64, 65, 128, 129])
def test_a_prompts_last_token_is_read_always(
    smollm2: LLM, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr(smollm2, "engine", engine_of(smollm2))
    prompt = asked(smollm2, "Which clock is slow?")[:length]
    params = settings("greedy", max_tokens=4)
    for drafts in ("network", "none"):
        results = [answered(smollm2, prompt, params, drafts) for _ in range(2)]
        assert {tuple(one.token_ids) for one in results} == {
            tuple(read_anew(smollm2, prompt, params))
        }
        assert results[1].cached_tokens == (length - 1) // 64 * 64


def test_answers_together_share_pages_and_stay_each_its_own(llm: LLM) -> None:
    questions = ("Which clock is slow?", "What does the shop sell?", "What is in room three?")
    prompts = [asked(llm, question) for question in questions]
    many = settings("sampled", n=2, max_tokens=20)
    expected = {
        place: read_anew(llm, prompt, settings("greedy", max_tokens=20))
        for place, prompt in enumerate(prompts)
    }
    fresh = ended(llm, begun(llm, prompts[0], many, "none"))[0]
    llm.engine = engine_of(llm)
    greedy = [
        begun(llm, prompt, settings("greedy", max_tokens=20), drafts)
        for prompt, drafts in zip(prompts, ("all sources", "lookup", "network"), strict=True)
    ]
    sampled = begun(llm, prompts[0], many, "all sources")
    *results, drawn = ended(llm, *greedy, sampled)
    assert {place: one.token_ids for place, one in enumerate(results)} == expected
    assert [one.token_ids for one in drawn.choices] == [one.token_ids for one in fresh.choices]
    # Those that began after the first had read the system prompt did not read it.
    assert results[2].cached_tokens == 128
    assert [one.cached_tokens for one in sampled.sequences] == [128, 128]
    # Three questions and their answers of a page or two each, and the system prompt once.
    assert llm.engine.kv_cache.kept_pages <= 2 + 2 * len(questions) + 2


def test_an_answer_whose_slots_others_take_over_still_has_one_to_draft_from(
    smollm2: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "engine", engine_of(smollm2))
    prompt = asked(smollm2, "Which clock is slow?")
    params = settings("greedy", max_tokens=12)
    one = begun(smollm2, prompt[:128], params, "network")
    smollm2.step()
    state = one.sequences[0].drafter
    assert state is not None
    # Both pages of slots could be filled, which would leave none.
    assert (state.observed, state.waiting) == (128, 128)
    two = begun(smollm2, prompt, params, "network")
    results = ended(smollm2, one, two)
    assert results[0].token_ids == read_anew(smollm2, prompt[:128], params)
    assert results[1].token_ids == read_anew(smollm2, prompt, params)
    assert results[1].cached_tokens == 64
    assert results[0].statistics.draft_passes > 0


def test_under_a_small_budget_pages_go_and_come_and_nobody_waits_for_them(
    smollm2: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(smollm2, pages=9, max_concurrent=3)
    monkeypatch.setattr(smollm2, "engine", engine)
    evicted = []
    evict = PrefixIndex.evict

    def counted(self: PrefixIndex) -> int:
        evicted.append(evict(self))
        return evicted[-1]

    monkeypatch.setattr(PrefixIndex, "evict", counted)
    questions = ["Which clock is slow?", "What does the shop sell?", "What is in room three?"]
    texts = [asked(smollm2, question) for question in questions]
    texts = [text[cut:] for cut in (0, 10, 20, 30) for text in texts]
    work = [
        (text, settings("sampled", max_tokens=24, seed=3), drafts)
        for drafts, text in zip(
            ["network", "lookup", "none", "all sources"] * 6, texts * 2, strict=True
        )
    ]
    running = [begun(smollm2, *one) for one in work]
    results = ended(smollm2, *running)
    for (prompt, params, _), result in zip(work, results, strict=True):
        assert result.token_ids == read_anew(smollm2, prompt, params)
    assert len(evicted) > 10
    assert sum(one.cached_tokens for one in results) > 5 * 64
    cache = engine.kv_cache
    assert cache.free_pages == cache.total_pages == 9
    # All that is kept is no obstacle to a request that needs every page.
    assert cache.kept_pages > 3
    wide = begun(smollm2, texts[0], settings("greedy", max_tokens=64 * 9 - len(texts[0])))
    smollm2.step()
    assert engine.running == wide.sequences
    wide.drop()
    assert cache.free_pages == 9


def test_what_a_dropped_or_failed_answer_had_read_is_kept(
    smollm2: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "engine", engine_of(smollm2))
    text = (asked(smollm2, "Which clock is slow?") * 3)[:500]
    params = settings("greedy", max_tokens=5)
    rows = smollm2.target.rows_per_pass
    gone = begun(smollm2, text, params, "network")
    smollm2.step()
    assert gone.sequences[0].prefilling
    gone.drop()
    result = answered(smollm2, text, params, "network")
    assert result.cached_tokens == rows
    assert result.token_ids == read_anew(smollm2, text, params)

    class Nothing:
        def allowed(self, output_ids: Sequence[int]) -> torch.Tensor:
            return torch.zeros(smollm2.target.config.vocab_size, dtype=torch.bool)

    other = text[10:]
    failed = begun(smollm2, other, params.replaced(logits_mask=Nothing()), "network")
    while not failed.finished:
        smollm2.step()
    assert failed.sequences[0].error is not None
    again = answered(smollm2, other, params, "network")
    assert again.cached_tokens == rows
    assert again.token_ids == read_anew(smollm2, other, params)


def test_scopes_share_nothing(smollm2: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "engine", engine_of(smollm2))
    prompt = asked(smollm2, "Which clock is slow?")
    params = settings("greedy", max_tokens=5)
    for drafts in ("none", "network"):
        cached = [
            answered(smollm2, prompt, params, drafts, scope=f"{drafts} {scope}").cached_tokens
            for scope in ("mine", "yours", "mine")
        ]
        assert cached == [0, 0, 128]


def test_nothing_is_kept_where_prefix_caching_is_off(
    smollm2: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "engine", engine_of(smollm2, prefix_caching=False))
    prompt = asked(smollm2, "Which clock is slow?")
    results = [answered(smollm2, prompt, settings("greedy", max_tokens=3)) for _ in range(2)]
    assert [one.cached_tokens for one in results] == [0, 0]
    assert smollm2.engine.kv_cache.kept_pages == 0
    assert smollm2.engine.prefixes is None


def test_a_prompt_beyond_the_networks_context_reuses_the_targets_pages(
    smollm2: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(smollm2)
    monkeypatch.setattr(smollm2, "engine", engine)
    assert engine.drafter is not None
    monkeypatch.setattr(engine.drafter, "reads", lambda prompt: prompt <= 100)
    prompt = asked(smollm2, "Which clock is slow?")
    params = settings("greedy", max_tokens=5)
    results = [answered(smollm2, prompt, params, "network") for _ in range(2)]
    assert [one.cached_tokens for one in results] == [0, 128]
    assert {tuple(one.token_ids) for one in results} == {tuple(read_anew(smollm2, prompt, params))}
    assert [one.statistics.draft_passes for one in results] == [0, 0]
