"""Structured outputs: the form is kept, and speculation changes no token."""

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from peagle import LLM, SamplingParams
from peagle.draft.untrained import random_drafter
from peagle.engine.sequence import Origin
from peagle.errors import InvalidRequestError
from tests.conftest import FREE
from tests.engine.test_lossless import DRAFTS, drafted, plainly

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "colours": {
            "type": "array",
            "items": {"enum": ["red", "green", "blue"]},
            "minItems": 1,
            "maxItems": 2,
        },
    },
    "required": ["name", "age", "colours"],
    "additionalProperties": False,
}
SUM = """
root ::= term (op term){1,3}
op   ::= " + " | " - "
term ::= [0-9] [0-9]?
"""
WEATHER = ["sunny", "rainy", "it is snowing"]


def is_a_person(text: str) -> bool:
    person = json.loads(text)
    assert list(person) == ["name", "age", "colours"]
    assert isinstance(person["name"], str)
    assert 0 <= person["age"] <= 150
    assert 1 <= len(person["colours"]) <= 2
    return set(person["colours"]) <= {"red", "green", "blue"}


def matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


# The form, what to ask, and what the answer must be.
FORMS: dict[str, tuple[dict[str, Any], str, Callable[[str], bool]]] = {
    "json": ({"json": PERSON}, "Describe a person as JSON.", is_a_person),
    "json without spaces": (
        {"json": json.dumps(PERSON), "disable_any_whitespace": True},
        "Describe a person as JSON.",
        lambda text: is_a_person(text) and text.startswith('{"name":"'),
    ),
    "regex": (
        {"regex": r"\(\d{3}\) \d{3}-\d{4}"},
        "What is your phone number?",
        matches(r"\(\d{3}\) \d{3}-\d{4}"),
    ),
    "choice": ({"choice": WEATHER}, "How is the weather?", WEATHER.__contains__),
    "grammar": ({"grammar": SUM}, "Add some numbers.", matches(r"\d\d?( [+-] \d\d?){1,3}")),
    "unicode": ({"regex": "(é|🐝|ü){3}"}, "Write letters.", matches("(é|🐝|ü){3}")),
}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.1, "top_p": 0.95, "seed": 3},
    "penalised": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "min_tokens": 3},
}
SOURCES = ("none", "random network", "lookup and corpus", "all sources", "adaptive")


@pytest.fixture
def llm(smollm2: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    monkeypatch.setattr(smollm2.engine, "costs", FREE)
    network = random_drafter(smollm2.target, layers=2, draft_vocab_size=6000)
    monkeypatch.setattr(smollm2.engine, "drafter", network)
    return smollm2


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_kept_and_equals_plain_decoding(llm: LLM, form: str, sampling: str) -> None:
    structured, prompt, holds = FORMS[form]
    params = SamplingParams(max_tokens=90, structured_outputs=structured, **SAMPLINGS[sampling])
    expected = plainly(llm, prompt, params)
    for drafts in SOURCES:
        result = drafted(llm, [prompt], params, DRAFTS[drafts])[0]
        assert result.token_ids == expected, drafts
    assert result.finish_reason == "stop"
    assert holds(result.text), result.text


def test_constrained_and_free_answers_share_their_steps(llm: LLM) -> None:
    prompts = [prompt for _, prompt, _ in FORMS.values()] + ["Name three colours."]
    forms = [form for form, _, _ in FORMS.values()] + [None]
    settings = [
        SamplingParams(max_tokens=90 if form else 24, structured_outputs=form, seed=5,
                       temperature=0.9 * (place % 2))
        for place, form in enumerate(forms)
    ]  # fmt: skip
    expected = [
        plainly(llm, prompt, params) for prompt, params in zip(prompts, settings, strict=True)
    ]
    for drafts in ("all sources", "adaptive"):
        results = llm.generate(prompts, settings, parallel_drafting_spec=DRAFTS[drafts])
        assert [result.token_ids for result in results] == expected


def test_forced_text_is_drafted(smollm2: LLM) -> None:
    prompt = FORMS["json"][1]
    params = SamplingParams(
        max_tokens=90, structured_outputs={"json": PERSON, "disable_any_whitespace": True}
    )
    expected = plainly(smollm2, prompt, params)
    result = drafted(smollm2, [prompt], params, {"method": "lookup", "adaptive": False})[0]
    assert result.token_ids == expected
    origins = result.choices[0].origins
    assert origins.count(Origin.GRAMMAR) >= 8
    assert result.statistics.target_passes < 0.6 * len(expected)


def test_several_answers_follow_a_grammar_each_its_own_way(smollm2: LLM) -> None:
    form, prompt, _ = FORMS["grammar"]
    params = SamplingParams(
        n=3, max_tokens=30, temperature=1.2, seed=8, structured_outputs=form, stop=" - "
    )
    result = drafted(smollm2, [prompt], params, DRAFTS["lookup and corpus"])[0]
    expected = [plainly(smollm2, prompt, params, choice) for choice in range(3)]
    assert [choice.token_ids for choice in result.choices] == expected
    assert len({choice.text for choice in result.choices}) > 1
    assert all(re.fullmatch(r"\d\d?( \+ \d\d?)*", choice.text) for choice in result.choices)


def test_a_complete_grammar_ends_the_answer_at_once(smollm2: LLM) -> None:
    params = SamplingParams(
        max_tokens=40, min_tokens=30, ignore_eos=True, structured_outputs={"choice": ["yes"]}
    )
    for drafts in ("none", "lookup and corpus"):
        result = drafted(smollm2, ["Is it?"], params, DRAFTS[drafts])[0]
        assert (result.text, result.finish_reason) == ("yes", "stop")
        assert smollm2.tokenizer.decode(result.token_ids, skip_special_tokens=False) == "yes"


def test_the_length_limit_cuts_a_form(smollm2: LLM) -> None:
    form, prompt, _ = FORMS["json"]
    params = SamplingParams(max_tokens=6, structured_outputs=form)
    whole = plainly(smollm2, prompt, params.replaced(max_tokens=90))
    result = drafted(smollm2, [prompt], params, DRAFTS["lookup and corpus"])[0]
    assert (result.token_ids, result.finish_reason) == (whole[:6], "length")


def test_logprobs_are_those_among_allowed_tokens_with_and_without_drafts(smollm2: LLM) -> None:
    form, prompt = {"regex": r"\([0-9]{3}\) [0-9]{3}"}, FORMS["regex"][1]
    params = SamplingParams(max_tokens=30, structured_outputs=form, logprobs=20)
    plain = drafted(smollm2, [prompt], params, DRAFTS["none"])[0].choices[0]
    fast = drafted(smollm2, [prompt], params, DRAFTS["lookup and corpus"])[0].choices[0]
    assert fast.statistics.accepted_tokens > 0
    assert plain.logprobs == fast.logprobs
    assert plain.logprobs is not None
    assert [one.token_id for one in plain.logprobs] == plain.token_ids
    assert all(one.rank == 1 for one in plain.logprobs), "greedy among what is allowed"
    first, second = plain.logprobs[:2]
    # "(" alone begins the number, or with a digit behind it.
    spelt = [smollm2.tokenizer.decode([token]) for token, _ in first.top]
    assert all(re.fullmatch(r"\([0-9]*", piece) for piece in spelt)
    assert sum(math.exp(logprob) for _, logprob in first.top) == pytest.approx(1)
    spelt = [smollm2.tokenizer.decode([token]) for token, _ in second.top]
    assert all(re.fullmatch(r"[0-9]+(\) ?)?", piece) for piece in spelt)


def test_a_mask_and_a_form_hold_together(smollm2: LLM) -> None:
    class NoThrees:
        def allowed(self, output_ids: Any) -> Any:
            import torch

            mask = torch.ones(49_152, dtype=torch.bool)
            mask[smollm2.tokenizer.encode("3")] = False
            return mask

    params = SamplingParams(
        max_tokens=30, structured_outputs={"regex": "[0-9]{6}"}, logits_mask=NoThrees(), logprobs=0
    )
    result = drafted(smollm2, ["Count to three."], params, DRAFTS["lookup and corpus"])[0]
    assert result.token_ids == plainly(smollm2, "Count to three.", params)
    assert re.fullmatch("[0-24-9]{6}", result.text)


def test_nothing_left_to_choose_names_the_form(smollm2: LLM) -> None:
    class OnlyB:
        def allowed(self, output_ids: Any) -> Any:
            import torch

            mask = torch.zeros(49_152, dtype=torch.bool)
            mask[smollm2.tokenizer.encode("b")] = True
            return mask

    params = SamplingParams(max_tokens=3, logits_mask=OnlyB(), structured_outputs={"choice": ["a"]})
    with pytest.raises(InvalidRequestError, match="No token is allowed") as raised:
        smollm2.generate("Hello", params)
    assert raised.value.field == "structured_outputs"
