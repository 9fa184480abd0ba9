from typing import Any

import pytest

from peagle.errors import InvalidRequestError
from peagle.train.synth.settings import AnswerSettings, SelfPromptSettings


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"temperature": -1}, "temperature cannot be -1"),
        ({"top_p": 0}, "top_p cannot be 0"),
        ({"max_tokens": 0}, "max_tokens cannot be 0"),
        ({"seed": -1}, "seed cannot be -1"),
        ({"greedy_share": 0.5}, "at temperature 0 every answer is greedy"),
        ({"greedy_share": 2, "temperature": 1}, "greedy_share cannot be 2"),
        ({"turns": 0}, "turns cannot be 0"),
        ({"prompt_temperature": 0}, "prompt_temperature cannot be 0"),
        ({"categories": ("qa", "news")}, "there is no category 'news'. Known: open, "),
        ({"categories": ("qa", "qa")}, "a category is named twice. Name each once"),
        ({"categories": ()}, "categories cannot be"),
    ],
)
def test_impossible_settings_are_refused(told: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        SelfPromptSettings(**told)
    assert message in str(raised.value)


def test_defaults_are_greedy_answers_in_all_categories() -> None:
    settings = SelfPromptSettings()
    assert (settings.temperature, settings.max_tokens, settings.seed) == (0, 512, 0)
    assert settings.categories == (
        "open",
        "summarization",
        "code",
        "qa",
        "json",
        "chat",
        "long",
    )
    assert AnswerSettings(temperature=0.7).greedy_share == 0
