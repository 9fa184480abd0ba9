import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.engine.choice import TokenChooser, draw, highest, highest_logits
from peagle.engine.uniform import uniform
from peagle.errors import CheckpointError, InvalidRequestError
from peagle.sampling_params import SamplingParams

VOCAB = 10
EOS = 9


class EvenSumOnly:
    """Allows the tokens that make the sum of the output even, to stand in for a grammar."""

    def __init__(self, vocab: int = VOCAB) -> None:
        self.vocab = vocab

    def allowed(self, output_ids: Sequence[int]) -> torch.Tensor:
        return (torch.arange(self.vocab) + sum(output_ids)) % 2 == 0


def by_definition(
    row: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    seed: int = 0,
    choice: int = 0,
) -> int:
    """The choice as `TokenChooser` describes it, token by token and without any shortcut."""
    x = [np.float32(value) for value in row]
    ids = range(len(x))
    if params.logits_mask is not None:
        allowed = params.logits_mask.allowed(output)
        assert allowed is not None
        x = [x[i] if allowed[i] else np.float32(-np.inf) for i in ids]
    for i, bias in (params.logit_bias or {}).items():
        x[i] += np.float32(bias)
    if len(output) < params.min_tokens:
        for i in {EOS, *params.stop_token_ids}:
            x[i] = np.float32(-np.inf)
    repetition = np.float32(params.repetition_penalty)
    for i in ids:
        if i in prompt or i in output:
            x[i] = x[i] / repetition if x[i] > 0 else x[i] * repetition
        if i in output:
            count = list(output).count(i)
            penalty = params.frequency_penalty * count + params.presence_penalty
            x[i] = np.float32(float(x[i]) - penalty)
    best = min(ids, key=lambda i: (-x[i], i))
    if params.greedy:
        return best
    with np.errstate(over="ignore"):
        scaled = (np.array(x, np.float64) - float(x[best])) / params.temperature
    w = np.exp(scaled).tolist()
    left = [i for i in ids if w[i] >= params.min_p]
    falling = sorted(left, key=lambda i: (-x[i], i))
    if params.top_k:
        falling = falling[: params.top_k]
    if params.top_p < 1:
        total = list(itertools.accumulate(w[i] for i in sorted(falling)))[-1]
        sums = list(itertools.accumulate(w[i] for i in falling))
        reached = [n for n, s in enumerate(sums) if s >= params.top_p * total]
        falling = falling[: reached[0] + 1] if reached else falling
    kept = sorted(falling)
    sums = list(itertools.accumulate(w[i] for i in kept))
    goal = uniform(seed, choice, len(output)) * sums[-1]
    return next(i for i, s in zip(kept, sums, strict=True) if s > goal)


tokens = st.integers(0, VOCAB - 1)
# Halves, so that equal logits are common, signed zeros too.
rows = st.lists(st.integers(-8, 8).map(lambda i: i / 2 if i else -0.0), min_size=10, max_size=10)
settings_of_requests = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 1e-6, 0.3, 0.7, 1, 2, 100]),
    top_k=st.sampled_from([0, 1, 2, 3, 7, 10, 50]),
    top_p=st.sampled_from([1, 0.999, 0.9, 0.5, 0.25, 1e-9]),
    min_p=st.sampled_from([0, 0.01, 0.2, 1]),
    repetition_penalty=st.sampled_from([1, 1.5, 0.7]),
    presence_penalty=st.sampled_from([0, 0.5, -2]),
    frequency_penalty=st.sampled_from([0, 0.3, 2]),
    logit_bias=st.none() | st.dictionaries(tokens, st.sampled_from([-100, -1, 0.5, 3, 100])),
    min_tokens=st.sampled_from([0, 0, 2, 5]),
    stop_token_ids=st.sampled_from([(), (1,), (1, 4)]),
    logits_mask=st.sampled_from([None, EvenSumOnly()]),
)


@settings(max_examples=600, deadline=None)
@given(
    row=rows,
    params=settings_of_requests,
    prompt=st.lists(tokens, max_size=4),
    output=st.lists(tokens, max_size=6),
    committed=st.integers(0, 6),
    seed=st.integers(0, 2**64 - 1),
    choice=st.integers(0, 127),
)
def test_choice_follows_the_definition_wherever_the_path_begins(
    *,
    row: list[float],
    params: SamplingParams,
    prompt: list[int],
    output: list[int],
    committed: int,
    seed: int,
    choice: int,
) -> None:
    chooser = TokenChooser(
        params, prompt, vocab_size=VOCAB, eos_ids=[EOS], seed=seed, choice=choice
    )
    chooser.commit(output[:committed])
    logits = torch.tensor(row)
    before = logits.clone()
    chosen = chooser.choose(logits, output[committed:])
    assert chosen == by_definition(row, params, prompt, output, seed=seed, choice=choice)
    assert torch.equal(logits, before)
    if chooser.plain_greedy:
        assert highest_logits(logits[None]) == [chosen]


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 4.0])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1),
        SamplingParams(temperature=0.7, top_k=50),
        SamplingParams(temperature=1, top_p=0.9),
        SamplingParams(temperature=2, top_p=0.999),
        SamplingParams(temperature=1, top_p=math.nextafter(1, 0)),
        SamplingParams(temperature=0.8, top_k=300, top_p=0.95, min_p=0.05),
    ],
    ids=lambda p: "+".join(f"{k}={getattr(p, k)}" for k in sorted(p.model_fields_set)),
)
def test_shortcuts_for_large_vocabularies_change_nothing(
    params: SamplingParams, spread: float
) -> None:
    rng = np.random.default_rng(5)
    row = (rng.standard_normal(5000) * spread).astype(np.float32).round(2)
    chooser = TokenChooser(params, [], vocab_size=5000, eos_ids=[EOS], seed=3)
    for _ in range(5):
        output = rng.integers(0, 5000, 4).tolist()
        chosen = chooser.choose(torch.from_numpy(row), output)
        assert chosen == by_definition(row, params, [], output, seed=3)


def chooser_of(vocab: int = VOCAB, **params: object) -> TokenChooser:
    return TokenChooser(SamplingParams(**params), [], vocab_size=vocab, eos_ids=[EOS], seed=0)


@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 2, "top_k": 1}, {"temperature": 2, "top_p": 1e-9}],
)
def test_the_lowest_of_equal_tokens_wins_where_one_remains(params: dict[str, float]) -> None:
    row = torch.tensor([0.0, 1.0, 5.0, 5.0, 5.0])
    chooser = chooser_of(5, **params)
    assert {chooser.choose(row, [0] * position) for position in range(20)} == {2}


@pytest.mark.parametrize("temperature", [1e-6, 5e-324])
def test_a_tiny_temperature_is_greedy_without_overflow(temperature: float) -> None:
    row = torch.tensor([0.0, 1.0, 5.0, 4.99, -1e30])
    chooser = chooser_of(5, temperature=temperature)
    assert {chooser.choose(row, [0] * position) for position in range(20)} == {2}


def test_min_p_of_one_leaves_the_tokens_equal_to_the_best() -> None:
    chooser = chooser_of(5, temperature=2, min_p=1)
    row = torch.tensor([4.9, 1.0, 5.0, 5.0, -1.0])
    assert {chooser.choose(row, [0] * position) for position in range(50)} == {2, 3}


@pytest.mark.parametrize("number", [0.0, 0.5, math.nextafter(1, 0)])
def test_draw_never_takes_a_token_of_no_probability(number: float) -> None:
    scores = np.full(9, -np.inf, np.float32)
    scores[[3, 5]] = 0
    assert draw(scores, SamplingParams(temperature=1), number) == (3 if number < 0.5 else 5)


def test_draw_takes_the_first_sum_above_the_number() -> None:
    scores = np.log(np.array([0.25, 0.25, 0.5], np.float32))
    params = SamplingParams(temperature=1)
    expected = {0.0: 0, 0.24: 0, 0.26: 1, 0.49: 1, 0.51: 2, math.nextafter(1, 0): 2}
    assert {number: draw(scores, params, number) for number in expected} == expected


def test_top_k_and_top_p_cut_ties_at_the_lowest_ids() -> None:
    scores = np.zeros(2000, np.float32)
    last = math.nextafter(1, 0)
    assert draw(scores, SamplingParams(temperature=1, top_k=700), last) == 699
    assert draw(scores, SamplingParams(temperature=1, top_p=0.5), last) == 999
    # top_p counts probabilities among what top_k left.
    assert draw(scores, SamplingParams(temperature=1, top_k=700, top_p=0.5), last) == 349


def test_top_p_keeps_all_where_rounding_never_reaches_it() -> None:
    # By rising id the small weights are added first and count; by falling logit they vanish.
    scores = np.full(1001, -39, np.float32)
    scores[-1] = 0
    params = SamplingParams(temperature=1, top_p=math.nextafter(1, 0))
    assert draw(scores, params, 0.0) == 0
    assert draw(scores, SamplingParams(temperature=1, top_p=0.9), 0.0) == 1000


@given(values=st.lists(st.sampled_from([-1.0, -0.0, 0.0, 2.5, -math.inf]), min_size=1, max_size=9))
def test_highest_keeps_the_first_of_equal_values(values: list[float]) -> None:
    falling = sorted(range(len(values)), key=lambda i: (-values[i], i))
    for k in range(1, len(values) + 2):
        kept = highest(np.array(values, np.float32), k)
        assert kept.tolist() == sorted(falling[:k])


def test_repetition_penalty_counts_prompt_output_and_path() -> None:
    row = torch.tensor([2.0, 2.1, 2.2, 2.3, 1.9])
    params = SamplingParams(repetition_penalty=1.5)
    chooser = TokenChooser(params, [3], vocab_size=5, eos_ids=[], seed=0)
    assert chooser.choose(row) == 2
    assert chooser.choose(row, [2]) == 1
    chooser.commit([2])
    assert chooser.choose(row, [1]) == 0
    assert chooser.choose(row, [1, 0]) == 4
    assert chooser.choose(row) == 1  # A path that was not taken leaves nothing behind.


def test_frequency_grows_with_each_occurrence_and_presence_does_not() -> None:
    row = torch.tensor([3.0, 2.1])
    frequency = chooser_of(2, frequency_penalty=0.5)
    presence = chooser_of(2, presence_penalty=0.5)
    assert [frequency.choose(row, [0] * n) for n in range(4)] == [0, 0, 1, 1]
    assert [presence.choose(row, [0] * n) for n in range(4)] == [0, 0, 0, 0]
    stronger = chooser_of(2, presence_penalty=1)
    assert [stronger.choose(row, [0] * n) for n in range(3)] == [0, 1, 1]


def test_bias_of_100_forces_and_forbids() -> None:
    row = torch.tensor([3.0, 2.0, 1.0])
    assert chooser_of(3, logit_bias={0: -100}).choose(row) == 1
    assert chooser_of(3, logit_bias={2: 100}).choose(row) == 2


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_ends_are_forbidden_until_min_tokens_along_the_path(ignore_eos: bool) -> None:
    row = torch.zeros(VOCAB)
    row[EOS], row[4] = 5, 4
    chooser = chooser_of(min_tokens=3, stop_token_ids=(4,), ignore_eos=ignore_eos)
    chooser.commit([7])
    assert [chooser.choose(row, [1] * n) for n in range(4)] == [0, 0, EOS, EOS]


def test_plain_greedy_waits_for_min_tokens() -> None:
    chooser = chooser_of(min_tokens=2)
    chooser.commit([1])
    assert not chooser.plain_greedy
    chooser.commit([1])
    assert chooser.plain_greedy


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1},
        {"logit_bias": {0: 1}},
        {"presence_penalty": 1},
        {"frequency_penalty": 1},
        {"repetition_penalty": 2},
        {"logits_mask": EvenSumOnly()},
    ],
)
def test_settings_that_shape_the_choice_are_not_plain_greedy(params: dict[str, object]) -> None:
    assert not chooser_of(**params).plain_greedy


class Nothing:
    def allowed(self, output_ids: Sequence[int]) -> torch.Tensor:
        return torch.zeros(VOCAB, dtype=torch.bool)


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_mask_of_nothing_is_a_request_error(temperature: float) -> None:
    chooser = chooser_of(temperature=temperature, logits_mask=Nothing())
    with pytest.raises(InvalidRequestError, match="token 2 of the output") as raised:
        chooser.choose(torch.zeros(VOCAB), [1, 2])
    assert raised.value.field == "logits_mask"


def test_a_mask_of_another_length_is_a_request_error() -> None:
    chooser = chooser_of(logits_mask=EvenSumOnly(7))
    with pytest.raises(InvalidRequestError, match=r"shape \[7\]"):
        chooser.choose(torch.zeros(VOCAB))


@pytest.mark.parametrize("field", ["logit_bias", "stop_token_ids"])
def test_tokens_outside_the_vocabulary_are_refused(field: str) -> None:
    value = {VOCAB: 1.0} if field == "logit_bias" else (VOCAB,)
    with pytest.raises(InvalidRequestError, match=f"{field}: token 10"):
        chooser_of(**{field: value})


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_not_numbers_are_an_error(value: float, temperature: float) -> None:
    row = torch.zeros(VOCAB)
    row[3] = value
    with pytest.raises(CheckpointError, match="not finite"):
        chooser_of(temperature=temperature).choose(row)
    with pytest.raises(CheckpointError, match="not finite"):
        highest_logits(row[None])
