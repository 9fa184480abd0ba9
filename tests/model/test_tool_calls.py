"""Calls are found whole, however the text is cut, and everything else stays text."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher

from peagle.model.tool_calls import (
    HERMES,
    LLAMA,
    SMOLLM2,
    CallArguments,
    CallBegun,
    Event,
    ToolCallReader,
    ToolFormat,
    forced_calls,
    tool_format,
)

NAMES = ("weather", "time")


def read(form: ToolFormat, text: str, size: int) -> tuple[str, list[tuple[str, str]]]:
    """Read a text in pieces; give what is text and the calls."""
    reader = ToolCallReader(form, NAMES)
    events: list[Event] = []
    for start in range(0, len(text), size):
        events += reader.push(text[start : start + size])
    events += reader.push("", last=True)
    said = ""
    calls: list[tuple[str, str]] = []
    for event in events:
        match event:
            case CallBegun(name):
                calls.append((name, ""))
            case CallArguments(more):
                assert more
                calls[-1] = (calls[-1][0], calls[-1][1] + more)
            case _:
                assert event
                said += event
    return said, calls


ARGUMENTS = '{"city": "Z\\"}{ü", "days": [1, {"a": "]"}]}'
CALL = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
LLAMA_CALL = f'{{"name": "weather", "parameters": {ARGUMENTS}}}'
ONE = [("weather", ARGUMENTS)]
TWO = [*ONE, ("time", "{}")]
SECOND = '{"name": "time", "arguments": {}}'

READ: list[tuple[ToolFormat, str, str, list[tuple[str, str]]]] = [
    (HERMES, "Just text with < and <tool.", "Just text with < and <tool.", []),
    (HERMES, f"<tool_call>\n{CALL}\n</tool_call>", "", ONE),
    (HERMES, f"<tool_call>{CALL}</tool_call>", "", ONE),
    (HERMES, f"Let me look.\n<tool_call>\n{CALL}\n</tool_call>", "Let me look.\n", ONE),
    (HERMES, f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{SECOND}\n</tool_call>", "", TWO),
    (HERMES, f"<tool_call>\n{CALL}\n</tool_call>\nDone.", "Done.", ONE),
    (HERMES, f"<tool_call>\n{CALL}", "", ONE),
    (HERMES, "<tool_call>\nno call\n</tool_call> so", "<tool_call>\nno call\n</tool_call> so", []),
    (HERMES, "<tool_call>\nno end", "<tool_call>\nno end", []),
    (HERMES, "<tool_call>", "<tool_call>", []),
    (
        HERMES,
        '<tool_call>\n{"arguments": {"a": 1}, "name": "time"}\n</tool_call>',
        "",
        [("time", '{"a": 1}')],
    ),
    (HERMES, '<tool_call>\n{"name": "time"}\n</tool_call>', "", [("time", "{}")]),
    (HERMES, '<tool_call>{"name": "time", "arguments": {"a": 1', "", [("time", '{"a": 1')]),
    (SMOLLM2, f"<tool_call>[{CALL}]</tool_call>", "", ONE),
    (SMOLLM2, f"<tool_call>[\n{CALL},\n{SECOND}\n]</tool_call>", "", TWO),
    (SMOLLM2, "<tool_call>[]</tool_call>", "", []),
    (LLAMA, LLAMA_CALL, "", ONE),
    (LLAMA, f"\n{LLAMA_CALL}", "", ONE),
    (LLAMA, f"{LLAMA_CALL}; {SECOND}", "", TWO),
    (LLAMA, "Hello {there}.", "Hello {there}.", []),
    (LLAMA, '{"answer": 42}', '{"answer": 42}', []),
    (LLAMA, LLAMA_CALL.replace("weather", "other"), LLAMA_CALL.replace("weather", "other"), []),
    (LLAMA, "", "", []),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(("form", "text", "said", "calls"), READ)
def test_an_answer_is_read(
    form: ToolFormat, text: str, said: str, calls: list[tuple[str, str]], size: int
) -> None:
    assert read(form, text, size) == (said, calls)


def test_arguments_come_as_they_are_written() -> None:
    reader = ToolCallReader(HERMES, NAMES)
    assert reader.push("So: <tool") == ["So: "]
    assert reader.push('_call>\n{"name": "time", "arguments": ') == []
    assert reader.push('{"a": ') == [CallBegun("time"), CallArguments('{"a": ')]
    assert reader.push("1}") == [CallArguments("1}")]
    assert reader.push("}\n</tool_") == []
    assert reader.push("call>") == []


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{{ messages }}", None),
        ('{% if tools %}<tool_call>\\n{"name"{% endif %}', HERMES),
        ("{% if tools %}<tool_call>[\n{% endif %}", SMOLLM2),
        ('{% if tools is not none %}"parameters": dictionary{% endif %}', LLAMA),
        ("{{ tools }} unknown", None),
        ("<tool_call> without the variable", None),
    ],
)
def test_the_form_is_known_from_the_template(template: str, form: ToolFormat | None) -> None:
    assert tool_format(template) is form


WEATHER = {
    "properties": {"city": {"$ref": "#/$defs/City"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"City": {"enum": ["Rome", "Ulm"]}},
}
TIME: dict[str, Any] = {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize("form", [HERMES, SMOLLM2, LLAMA])
@pytest.mark.parametrize("several", [False, True])
def test_a_forced_answer_is_calls_and_nothing_else(
    smollm2_tokenizer: Any, form: ToolFormat, several: bool
) -> None:
    grammar = forced_calls(form, [("weather", WEATHER), ("time", TIME)], several=several)

    def may_be(text: str) -> bool:
        matcher = LLMatcher(smollm2_tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)
        assert not matcher.get_error()
        tokens = smollm2_tokenizer.tokenize_str(text)
        return bool(matcher.consume_tokens(tokens)) and matcher.is_accepting()

    def call(name: str, arguments: dict[str, Any]) -> str:
        return f'{{"name": "{name}", "{form.arguments}": {json.dumps(arguments)}}}'

    rome = call("weather", {"city": "Rome"})
    begin, end = (form.begin + "[", "]" + form.end) if form.listed else (form.begin, form.end)
    between = ", " if form.listed else f"{end}\n{begin}"
    assert may_be(begin + rome + end)
    assert may_be(begin + call("time", {}) + end)
    assert read(form, begin + rome + end, 5) == ("", [("weather", '{"city": "Rome"}')])
    two = begin + rome + between + call("time", {}) + end
    assert may_be(two) == (several and form is not LLAMA)
    assert not may_be("")
    assert not may_be(f"Sure: {begin}{rome}{end}")
    assert not may_be(begin + call("weather", {"city": "Paris"}) + end)
    assert not may_be(begin + call("weather", {}) + end)
    assert not may_be(begin + call("other", {}) + end)


@pytest.fixture(scope="module")
def smollm2_tokenizer() -> Any:
    from llguidance import LLTokenizer

    from peagle.catalog import resolve
    from peagle.model.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_gguf(resolve("smollm2").files)
    return LLTokenizer(tokenizer.as_json(), eos_token=sorted(tokenizer.eos_token_ids))
