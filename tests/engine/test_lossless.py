"""Speculation changes no token: the engine against plain decoding, on the real model."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from peagle import LLM, SamplingParams
from peagle.draft.untrained import random_drafter
from peagle.engine.choice import TokenChooser
from peagle.evaluate.oracle import OracleProposer
from peagle.evaluate.plain import PlainDecoder
from peagle.llm import Result

PROMPTS = [
    "Name three colours.",
    "Repeat this sentence five times: The cat sat on the mat.",
    'Give me a JSON object with the keys "name" and "age".',
    "Write a Python function that adds two numbers.",
    "¿Qué es una abeja? 🐝",
]
# Its answer goes on for longer than any test lets it, and repeats itself.
WORDY = "Repeat the word yes twenty times."
LENGTH = 28
TREE = {"adaptive": False}
DRAFTS: dict[str, dict[str, Any]] = {
    "none": {"method": "none"},
    "random network": {"method": "peagle", "lookup": False, "corpus": False, **TREE},
    "lookup and corpus": {"method": "lookup", **TREE},
    "all sources": {"method": "peagle", **TREE},
    "adaptive": {"method": "peagle"},
    "oracle": {"method": "lookup", **TREE},
    "corrupted oracle": {"method": "lookup", **TREE},
}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "seed": 1},
}


@functools.cache
def decoder(llm: LLM, prompt: str) -> PlainDecoder:
    return PlainDecoder(llm, llm.encode(prompt), 80)


_WRITTEN: dict[tuple[LLM, str, str, int], list[int]] = {}


def plainly(llm: LLM, prompt: str, params: SamplingParams, choice: int = 0) -> list[int]:
    """Write an answer by plain decoding, once for each setting."""
    key = (llm, prompt, repr(params), choice)
    if key not in _WRITTEN:
        _WRITTEN[key] = decoder(llm, prompt).write(params, seed=params.seed or 0, choice=choice)
    return _WRITTEN[key]


def drafted(
    llm: LLM,
    prompts: Sequence[str],
    params: SamplingParams,
    spec: dict[str, Any],
    oracles: Sequence[Sequence[int]] | None = None,
    *,
    corrupted: Sequence[int] = (),
) -> list[Result]:
    """Answer together, with the drafts of oracles if there are any."""
    generations = [llm.stream(p, params, parallel_drafting_spec=spec) for p in prompts]
    for generation, answer in zip(generations, oracles or [], strict=oracles is not None):
        for sequence in generation.sequences:
            sequence.proposer = OracleProposer(
                answer, corrupted=corrupted, vocab_size=llm.target.config.vocab_size
            )
    while not all(generation.finished for generation in generations):
        llm.step()
    return [generation.result for generation in generations]


@pytest.fixture(params=["bfloat16", "float32"])
def llm(request: pytest.FixtureRequest) -> LLM:
    name = "smollm2" if request.param == "bfloat16" else "smollm2_float32"
    loaded: LLM = request.getfixturevalue(name)
    if loaded.engine.drafter is None:
        loaded.engine.drafter = random_drafter(loaded.target, layers=2, draft_vocab_size=6000)
    return loaded


@pytest.mark.parametrize("drafts", DRAFTS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_kind_of_drafts_gives_the_tokens_of_plain_decoding(
    llm: LLM, sampling: str, drafts: str
) -> None:
    params = SamplingParams(max_tokens=LENGTH, **SAMPLINGS[sampling])
    # Two prompts of the slower type do: the whole matrix is scripts/lossless_matrix.py.
    prompts = PROMPTS if llm.target.dtype == torch.bfloat16 else PROMPTS[:2]
    expected = [plainly(llm, prompt, params) for prompt in prompts]
    oracles = expected if "oracle" in drafts else None
    corrupted = (2, 5) if drafts == "corrupted oracle" else ()
    together = drafted(llm, prompts, params, DRAFTS[drafts], oracles, corrupted=corrupted)
    assert [result.token_ids for result in together] == expected
    alone = drafted(
        llm, PROMPTS[1:2], params, DRAFTS[drafts], oracles and oracles[1:2], corrupted=corrupted
    )
    assert alone[0].token_ids == expected[1]
    statistics = together[1].statistics
    if drafts == "oracle":
        assert statistics.acceptance_length is not None
        assert statistics.acceptance_length > 5, "an oracle that is not accepted tests nothing"
    if drafts == "corrupted oracle":
        assert statistics.accepted_depths[1] > 0
    if drafts in ("random network", "all sources", "adaptive"):
        assert statistics.draft_passes > 0


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_eagle3_drafts_give_the_tokens_of_plain_decoding(
    llm: LLM, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = random_drafter(llm.target, method="eagle3", layers=1, draft_vocab_size=6000)
    monkeypatch.setattr(llm.engine, "drafter", network)
    params = SamplingParams(max_tokens=LENGTH, **SAMPLINGS[sampling])
    prompts = PROMPTS[:3] if llm.target.dtype == torch.bfloat16 else PROMPTS[:2]
    expected = [plainly(llm, prompt, params) for prompt in prompts]
    alone = {"method": "eagle3", "lookup": False, "corpus": False, **TREE}
    for spec in (alone, {"method": "eagle3"}):
        together = drafted(llm, prompts, params, spec)
        assert [result.token_ids for result in together] == expected
        assert {result.method for result in together} == {"eagle3"}
    statistics = [result.statistics for result in together]
    for one in statistics:
        assert one.target_passes <= one.draft_passes <= 7 * one.target_passes
    assert sum(one.accepted_tokens for one in statistics) > 5
    assert network.cache.used_bytes == 0


SETTINGS: dict[str, dict[str, Any]] = {
    "repetition penalty": {"repetition_penalty": 1.5},
    "presence and frequency": {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    "logit bias": {"logit_bias": {28: 100.0, 30: -100.0, 17: -100.0}},
    "banned eos": {"min_tokens": 20, "stop_token_ids": (30, 28)},
    "top k": {"temperature": 1.5, "top_k": 40, "seed": 5},
    "top p": {"temperature": 1.2, "top_p": 0.7, "seed": 6},
    "min p": {"temperature": 2.0, "min_p": 0.1, "seed": 7},
    "nearly greedy": {"temperature": 1e-6, "seed": 8},
    "one token of top p": {"temperature": 1.0, "top_p": 1e-9, "seed": 9},
    "everything": {
        "temperature": 0.9,
        "top_k": 60,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.3,
        "min_tokens": 5,
        "logit_bias": {198: 3.0},
        "seed": 10,
    },
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_sampling_setting_holds_inside_the_tree(smollm2: LLM, setting: str) -> None:
    params = SamplingParams(max_tokens=LENGTH, **SETTINGS[setting])
    for prompt in PROMPTS[1:3]:
        expected = plainly(smollm2, prompt, params)
        for corrupted in ((), (3,)):
            result = drafted(
                smollm2, [prompt], params, DRAFTS["oracle"], [expected], corrupted=corrupted
            )[0]
            assert result.token_ids == expected
            assert result.statistics.accepted_tokens >= len(expected) / 3


def test_a_penalty_that_ignores_the_path_is_noticed(
    smollm2: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(
        max_tokens=LENGTH, presence_penalty=2.0, frequency_penalty=2.0, ignore_eos=True
    )
    expected = plainly(smollm2, WORDY, params)
    choose = TokenChooser.choose_row

    def without_path(self: TokenChooser, row: NDArray[np.float32], path: Sequence[int] = ()) -> int:
        return choose(self, row)

    monkeypatch.setattr(TokenChooser, "choose_row", without_path)
    result = drafted(smollm2, [WORDY], params, DRAFTS["oracle"], [expected])[0]
    assert result.token_ids != expected


class NoRepeats:
    """Forbids every token that the output already holds, as a grammar might."""

    def allowed(self, output_ids: Sequence[int]) -> torch.Tensor:
        mask = torch.ones(49_152, dtype=torch.bool)
        mask[list(output_ids)] = False
        return mask


def test_a_logits_mask_is_applied_after_the_path(smollm2: LLM) -> None:
    params = SamplingParams(max_tokens=LENGTH, logits_mask=NoRepeats(), ignore_eos=True)
    expected = plainly(smollm2, WORDY, params)
    assert len(set(expected)) == LENGTH
    result = drafted(smollm2, [WORDY], params, DRAFTS["oracle"], [expected])[0]
    assert result.token_ids == expected
    assert result.statistics.accepted_tokens > LENGTH / 2


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 9])
def test_the_length_limit_cuts_accepted_drafts(smollm2: LLM, max_tokens: int) -> None:
    whole = plainly(smollm2, WORDY, SamplingParams(max_tokens=LENGTH))
    params = SamplingParams(max_tokens=max_tokens)
    result = drafted(smollm2, [WORDY], params, DRAFTS["oracle"], [whole])[0]
    assert result.token_ids == whole[:max_tokens]
    assert result.finish_reason == "length"
    assert result.statistics.emitted_tokens == max_tokens - 1


def test_end_of_sequence_inside_accepted_drafts_ends_the_answer(smollm2: LLM) -> None:
    prompt = "Say hello."
    params = SamplingParams(max_tokens=60)
    expected = plainly(smollm2, prompt, params)
    assert expected[-1] == 2
    for extra in (0, 1, 5):
        oracle = [*expected, *[9] * extra]
        result = drafted(smollm2, [prompt], params, DRAFTS["oracle"], [oracle])[0]
        assert result.token_ids == expected
        assert result.finish_reason == "stop"


def test_ignore_eos_writes_on_as_plain_decoding_does(smollm2: LLM) -> None:
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    expected = plainly(smollm2, "Say hello.", params)
    assert 2 in expected[:-1]
    result = drafted(smollm2, ["Say hello."], params, DRAFTS["oracle"], [expected])[0]
    assert result.token_ids == expected


@pytest.mark.parametrize("stop", ["the mat", "t on", "at sat on the mat. The c", "mat.\nThe"])
def test_stop_strings_cut_at_the_same_place_with_drafts(smollm2: LLM, stop: str) -> None:
    params = SamplingParams(max_tokens=LENGTH, stop=stop)
    expected = plainly(smollm2, PROMPTS[1], params)
    whole = plainly(smollm2, PROMPTS[1], SamplingParams(max_tokens=LENGTH))
    result = drafted(smollm2, PROMPTS[1:2], params, DRAFTS["oracle"], [whole])[0]
    assert result.token_ids == expected
    assert stop not in result.text
    text = smollm2.tokenizer.decode(whole)
    if stop in text:
        assert result.text == text[: text.index(stop)]
        assert result.choices[0].stop_reason == stop


def test_several_answers_draw_by_their_index_and_seeds_repeat(smollm2: LLM) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=42, n=3)
    prompt = PROMPTS[0]
    result = drafted(smollm2, [prompt], params, DRAFTS["lookup and corpus"])[0]
    expected = [plainly(smollm2, prompt, params, choice) for choice in range(3)]
    assert [choice.token_ids for choice in result.choices] == expected
    assert len({tuple(tokens) for tokens in expected}) > 1
    again = drafted(smollm2, [prompt] * 2, params, DRAFTS["none"])
    assert [c.token_ids for c in again[1].choices] == expected


def test_logprobs_with_drafts_equal_those_without(smollm2: LLM) -> None:
    params = SamplingParams(max_tokens=12, logprobs=3, repetition_penalty=1.3)
    expected = plainly(smollm2, PROMPTS[1], params)
    plain = drafted(smollm2, PROMPTS[1:2], params, DRAFTS["none"])[0].choices[0]
    fast = drafted(smollm2, PROMPTS[1:2], params, DRAFTS["oracle"], [expected])[0].choices[0]
    assert fast.statistics.accepted_tokens > 5
    assert fast.logprobs is not None
    assert plain.logprobs == fast.logprobs
    assert [entry.token_id for entry in fast.logprobs] == expected
    assert all(len(entry.top) == 3 for entry in fast.logprobs)
    assert any(entry.rank > 1 for entry in fast.logprobs), "the penalty must have changed a choice"
