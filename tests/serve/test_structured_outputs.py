"""Structured outputs by OpenAI's own client and vLLM's extra field."""

import json
import re
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from peagle import SamplingParams
from tests.serve.conftest import Served
from tests.serve.test_openai import chat, plainly

ASKED = [{"role": "user", "content": "Describe a person as JSON."}]


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=15)
    age: int = Field(ge=0, le=150)


SCHEMA = Person.model_json_schema()
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}


@pytest.mark.parametrize("temperature", [0, 1.1])
def test_a_json_schema(served: Served, temperature: float) -> None:
    told = {"max_tokens": 60, "temperature": temperature, "seed": 4}
    expected = plainly(served, ASKED, structured_outputs={"json": SCHEMA}, **told)
    answer = chat(
        served, ASKED, response_format=FORMAT, extra_body={"return_token_ids": True}, **told
    )
    (choice,) = answer.choices
    assert choice.token_ids == expected.token_ids
    assert choice.finish_reason == "stop"
    Person.model_validate_json(choice.message.content)


def test_the_client_parses_into_a_model(served: Served) -> None:
    answer = served.openai.chat.completions.parse(
        model="small",
        messages=ASKED,  # type: ignore[arg-type]
        response_format=Person,
        max_tokens=60,
        temperature=0,
    )
    person = answer.choices[0].message.parsed
    assert person is not None
    expected = plainly(served, ASKED, structured_outputs={"json": SCHEMA}, max_tokens=60)
    assert person == Person.model_validate_json(expected.text)


def test_a_json_object_in_a_stream(served: Served) -> None:
    told = {"max_tokens": 40, "temperature": 0}
    expected = plainly(served, ASKED, structured_outputs={"json_object": True}, **told)
    chunks = list(chat(served, ASKED, stream=True, response_format={"type": "json_object"}, **told))
    text = "".join(chunk.choices[0].delta.content for chunk in chunks)
    assert text == expected.text
    assert text.startswith("{")
    assert chunks[-1].choices[0].finish_reason == expected.finish_reason


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": "[a-z]{3,8} is blue"}, "[a-z]{3,8} is blue"),
        ({"choice": ["red", "dark blue"]}, "red|dark blue"),
        ({"grammar": 'root ::= "#" hex hex hex\nhex ::= [0-9a-f]'}, "#[0-9a-f]{3}"),
        ({"json": {"enum": ["red", "blue"]}, "disable_any_whitespace": True}, '"(red|blue)"'),
    ],
    ids=["regex", "choice", "grammar", "json"],
)
def test_vllms_extra_field(served: Served, form: dict[str, Any], pattern: str) -> None:
    asked = [{"role": "user", "content": "Name a colour."}]
    told = {"max_tokens": 30, "temperature": 0.8, "seed": 2, "n": 2}
    expected = plainly(served, asked, structured_outputs=form, **told)
    answer = chat(served, asked, extra_body={"structured_outputs": form}, **told)
    texts = [choice.message.content for choice in answer.choices]
    assert texts == [choice.text for choice in expected.choices]
    assert all(re.fullmatch(pattern, text) for text in texts)
    completed = served.openai.completions.create(
        model="small", prompt="The sky is", temperature=0, extra_body={"structured_outputs": form}
    )
    assert re.fullmatch(pattern, completed.choices[0].text)


def test_constrained_and_free_answers_at_a_time(served: Served) -> None:
    from concurrent.futures import ThreadPoolExecutor

    forms: list[dict[str, Any] | None] = [{"json": SCHEMA}, None, {"choice": ["yes", "no"]}, None]
    told = {"max_tokens": 40, "temperature": 0}
    expected = [
        plainly(served, ASKED, **told, **({"structured_outputs": form} if form else {})).text
        for form in forms
    ]

    def ask(form: dict[str, Any] | None) -> str:
        extra = {"extra_body": {"structured_outputs": form}} if form else {}
        text: str = chat(served, ASKED, **told, **extra).choices[0].message.content
        return text

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, forms * 3)) == expected * 3


def test_log_probabilities_are_those_among_allowed_tokens(served: Served) -> None:
    answer = chat(
        served, ASKED, max_tokens=5, temperature=0, logprobs=True, top_logprobs=5,
        extra_body={"structured_outputs": {"choice": ["yes", "no"]}},
    )  # fmt: skip
    first = answer.choices[0].logprobs.content[0]
    params = SamplingParams(max_tokens=5, logprobs=5, structured_outputs={"choice": ["yes", "no"]})
    expected = served.llm.generate([ASKED], params)[0].choices[0].logprobs
    assert expected is not None
    assert [one.logprob for one in first.top_logprobs] == [pair[1] for pair in expected[0].top]
    assert {one.token for one in first.top_logprobs} <= {"y", "ye", "yes", "n", "no"}
    assert sum(2.718281828**one.logprob for one in first.top_logprobs) == pytest.approx(1)


def wrapped(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


UNMET = {"type": "integer", "minimum": 5, "maximum": 4}


@pytest.mark.parametrize(
    ("told", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "text", "json_schema": {"name": "x", "schema": {}}}},
         "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
         "response_format.json_schema.name"),
        ({"response_format": wrapped({"type": "strin"})}, "response_format.json_schema.schema"),
        ({"response_format": wrapped(UNMET)}, "response_format.json_schema.schema"),
        ({"structured_outputs": {"json": UNMET}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "no"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": "a"}, "structured_outputs"),
        ({"guided_json": {}}, "guided_json"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
         "structured_outputs"),
    ],
)  # fmt: skip
def test_the_field_is_named(served: Served, told: dict[str, Any], param: str) -> None:
    response = served.http.post("/v1/chat/completions", json={"messages": ASKED, **told})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert param.split(".", maxsplit=1)[0] in error["message"]


def test_any_text_is_no_form(served: Served) -> None:
    told = {"max_tokens": 8, "temperature": 0}
    answer = chat(served, ASKED, response_format={"type": "text"}, **told)
    assert answer.choices[0].message.content == plainly(served, ASKED, **told).text
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer.choices[0].message.content)
