import math
from typing import Any

import pytest

from peagle import SamplingParams
from peagle.errors import InvalidRequestError


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "hot"},
        {"top_p": 0},
        {"top_p": 1.01},
        {"top_k": -1},
        {"top_k": 1.5},
        {"min_p": 1.1},
        {"max_tokens": 0},
        {"max_tokens": True},
        {"min_tokens": -1},
        {"n": 0},
        {"seed": -1},
        {"seed": 2**64},
        {"repetition_penalty": 0},
        {"presence_penalty": 2.5},
        {"frequency_penalty": -2.5},
        {"logit_bias": {5: 101.0}},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {5: math.nan}},
        {"stop": ""},
        {"stop": ["a", ""]},
        {"stop": ["a"] * 65},
        {"logprobs": 21},
        {"logits_mask": "yes"},
        {"ignore_eos": "yes"},
        {"top_n": 1},
    ],
)
def test_impossible_values_are_refused_naming_the_field(fields: dict[str, Any]) -> None:
    name = next(iter(fields))
    with pytest.raises(InvalidRequestError, match=name) as refused:
        SamplingParams(**fields)
    assert refused.value.field == name
    assert refused.value.remedy


def test_the_defaults_are_greedy() -> None:
    params = SamplingParams()
    assert params.greedy
    assert (params.n, params.max_tokens, params.top_p, params.top_k) == (1, None, 1.0, 0)


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="a").stop == ("a",)


def test_a_changed_copy_is_checked_too() -> None:
    params = SamplingParams(temperature=0.5, seed=1)
    assert params.replaced(seed=2).seed == 2
    assert params.replaced(seed=2).temperature == 0.5
    with pytest.raises(InvalidRequestError):
        params.replaced(temperature=-1)
