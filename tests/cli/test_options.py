import pytest

from peagle import LLM, SamplingParams
from peagle.cli.options import with_usual_length


@pytest.mark.parametrize(("told", "given"), [(None, 512), (7, 7), (600, 600)])
def test_an_answer_has_the_usual_length_unless_told(
    smollm2: LLM, told: int | None, given: int
) -> None:
    params = SamplingParams(max_tokens=told, temperature=0.5)
    limited = with_usual_length(params, smollm2, "Say hello.")
    assert limited == SamplingParams(max_tokens=given, temperature=0.5)


@pytest.mark.parametrize(("prompt", "left"), [(100, 28), (127, 1), (128, 1), (500, 1)])
def test_an_answer_gets_what_the_context_leaves(cramped: LLM, prompt: int, left: int) -> None:
    limited = with_usual_length(SamplingParams(), cramped, {"prompt_token_ids": [5] * prompt})
    assert limited.max_tokens == left
