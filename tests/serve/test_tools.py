"""Tools by OpenAI's own client, with templates of the families that write calls."""

import json
from typing import Any

import pytest

from peagle.llm import Result
from peagle.model.chat_template import ChatTemplate
from peagle.sampling_params import SamplingParams
from tests.serve.conftest import Served
from tests.serve.test_openai import chat

TURNS = """
{%- for message in messages %}
<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
CALL
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
HERMES = """
{%- if tools %}<|im_start|>system
Call functions as <tool_call>\\n{"name": …, "arguments": …}\\n</tool_call>.
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}""" + TURNS.replace(
    "CALL",
    '<tool_call>\n{"name": "{{ call.function.name }}", '
    '"arguments": {{ call.function.arguments | tojson }}}\n</tool_call>',
)
SMOLLM2 = """
{%- if tools %}<|im_start|>system
{{ tools | tojson }} Call as <tool_call>[{"name": …, "arguments": …}]</tool_call>.<|im_end|>
{% endif %}""" + TURNS.replace("CALL", "{{ call.function | tojson }}")
LLAMA = """
{%- if tools %}<|im_start|>system
{{ tools | tojson }} Call as {"name": …, "parameters": …}.<|im_end|>
{% endif %}""" + TURNS.replace("CALL", "{{ call.function | tojson }}")
TEMPLATES = {"hermes": HERMES, "smollm2": SMOLLM2, "llama": LLAMA}

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
TIME: dict[str, Any] = {
    "type": "function",
    "function": {"name": "time", "parameters": {"type": "object", "additionalProperties": False}},
}
ASKED = [{"role": "user", "content": "How is the weather in Rome?"}]


@pytest.fixture(params=TEMPLATES)
def tooled(
    served: Served, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Served:
    template = ChatTemplate(TEMPLATES[request.param])
    monkeypatch.setattr(served.llm._reader, "template", template)
    return served


@pytest.fixture
def hermes(served: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setattr(served.llm._reader, "template", ChatTemplate(HERMES))
    return served


def is_weather(arguments: str) -> bool:
    told = json.loads(arguments)
    return list(told) == ["city", "unit"] and told["unit"] in ("celsius", "fahrenheit")


def plainly(served: Served, messages: Any, tools: Any, **fields: Any) -> Result:
    prompt = {"messages": messages, "tools": tools}
    return served.llm.generate([prompt], SamplingParams(**fields), parallel_drafting=False)[0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_call_that_must_come(tooled: Served, choice: Any, stream: bool) -> None:
    told = {"tools": [WEATHER], "tool_choice": choice, "max_tokens": 80, "temperature": 0}
    if not stream:
        (answer,) = chat(tooled, ASKED, parallel_tool_calls=False, **told).choices
        content, finish = answer.message.content, answer.finish_reason
        (call,) = answer.message.tool_calls
        assert (call.type, call.function.name) == ("function", "weather")
        arguments = call.function.arguments
    else:
        chunks = list(chat(tooled, ASKED, stream=True, parallel_tool_calls=False, **told))
        deltas = [chunk.choices[0].delta for chunk in chunks]
        content = "".join(delta.content or "" for delta in deltas)
        calls = [call for delta in deltas for call in delta.tool_calls or []]
        first, *others = calls
        assert (first.index, first.type, first.function.name) == (0, "function", "weather")
        assert first.id.startswith("call_")
        assert others, "arguments come as they are written"
        assert all((one.index, one.id, one.function.name) == (0, None, None) for one in others)
        arguments = "".join(one.function.arguments for one in calls)
        finish = chunks[-1].choices[0].finish_reason
    assert not content
    assert is_weather(arguments)
    assert finish == ("tool_calls" if choice == "required" else "stop")


def test_one_of_several_functions_is_called(hermes: Served) -> None:
    told = {"tools": [WEATHER, TIME], "max_tokens": 80, "n": 4, "seed": 1, "temperature": 1.5}
    answer = chat(hermes, ASKED, tool_choice="required", parallel_tool_calls=False, **told)
    names = set()
    for choice in answer.choices:
        (call,) = choice.message.tool_calls
        names.add(call.function.name)
        if call.function.name == "time":
            assert json.loads(call.function.arguments) == {}
        else:
            assert is_weather(call.function.arguments)
    assert names <= {"weather", "time"}
    ids = [choice.message.tool_calls[0].id for choice in answer.choices]
    assert len(set(ids)) == 4


SAID = 'Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_may_come(hermes: Served, stream: bool) -> None:
    # The form makes the model say what a larger one would say by itself.
    told: dict[str, Any] = {"tools": [WEATHER], "max_tokens": 60, "temperature": 0}
    said = {"structured_outputs": {"choice": [SAID]}}
    if stream:
        chunks = list(chat(hermes, ASKED, stream=True, extra_body=said, **told))
        deltas = [chunk.choices[0].delta for chunk in chunks]
        content = "".join(delta.content or "" for delta in deltas)
        calls = [call.function for delta in deltas for call in delta.tool_calls or []]
        name, finish = calls[0].name, chunks[-1].choices[0].finish_reason
        arguments = "".join(call.arguments for call in calls)
    else:
        (answer,) = chat(hermes, ASKED, extra_body=said, **told).choices
        content, finish = answer.message.content, answer.finish_reason
        (call,) = answer.message.tool_calls
        name, arguments = call.function.name, call.function.arguments
    assert content == "Let me look.\n"
    assert (name, arguments) == ("weather", '{"city": "Rome"}')
    assert finish == "tool_calls"


def test_an_answer_without_calls_is_text(hermes: Served) -> None:
    told = {"max_tokens": 20, "temperature": 0}
    expected = plainly(hermes, ASKED, [WEATHER], max_tokens=20)
    (answer,) = chat(hermes, ASKED, tools=[WEATHER], **told).choices
    assert answer.message.content == expected.text
    assert answer.message.tool_calls is None
    assert answer.finish_reason == expected.finish_reason
    chunks = list(chat(hermes, ASKED, tools=[WEATHER], stream=True, **told))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected.text


def test_no_tools_where_none_may_be_called(hermes: Served) -> None:
    told = {"max_tokens": 12, "temperature": 0}
    with_none = chat(hermes, ASKED, tools=[WEATHER], tool_choice="none", **told)
    without = chat(hermes, ASKED, **told)
    assert with_none.choices[0].message.content == without.choices[0].message.content
    assert with_none.usage.prompt_tokens == without.usage.prompt_tokens


def test_results_of_tools_are_read(hermes: Served) -> None:
    def conversation(arguments: Any) -> list[dict[str, Any]]:
        call = {"id": "1", "type": "function",
                "function": {"name": "weather", "arguments": arguments}}  # fmt: skip
        return [
            *ASKED,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": '{"sun": true}'},
        ]

    answer = chat(
        hermes, conversation('{"city": "Rome"}'), tools=[WEATHER], max_tokens=12, temperature=0
    )
    expected = plainly(hermes, conversation({"city": "Rome"}), [WEATHER], max_tokens=12)
    assert answer.choices[0].message.content == expected.text
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    prompt = hermes.llm.tokenizer.decode(expected.prompt_token_ids)
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}' in prompt
    assert '"description": "Tells the weather."' in prompt
    assert '{"sun": true}' in prompt


def broken(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {**WEATHER["function"], **fields}}


@pytest.mark.parametrize(
    ("told", "param", "said"),
    [
        ({"tools": "weather"}, "tools", "tools"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type", "tools[0].type"),
        ({"tools": [broken(name="two words")]}, "tools[0].function.name", "two words"),
        ({"tools": [broken(parameters=[])]}, "tools[0].function.parameters", "parameters"),
        ({"tools": [WEATHER], "tool_choice": "always"}, "tool_choice", "always"),
        ({"tool_choice": "required"}, "tool_choice", "Give tools"),
        (
            {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "rain"}}},
            "tool_choice",
            "'rain'",
        ),
        (
            {
                "tools": [broken(parameters={"properties": {"a": {"type": "strin"}}})],
                "tool_choice": "required",
            },
            "tools",
            "strin",
        ),
        (
            {
                "tools": [TIME],
                "tool_choice": "required",
                "response_format": {"type": "json_object"},
            },
            "tool_choice",
            "response_format",
        ),
        (
            {
                "messages": [
                    *ASKED,
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "weather", "arguments": "{"}}],
                    },
                ]
            },
            "messages[1].tool_calls[0].function",
            "JSON text of an object",
        ),
    ],
)
def test_the_field_is_named(hermes: Served, told: dict[str, Any], param: str, said: str) -> None:
    response = hermes.http.post("/v1/chat/completions", json={"messages": ASKED, **told})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert said in error["message"]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_model_without_tools_says_so(served: Served, choice: str) -> None:
    body = {"messages": ASKED, "tools": [WEATHER], "tool_choice": choice}
    response = served.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "tools"
    assert "chat template" in error["message"]
