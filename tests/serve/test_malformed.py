"""A thousand malformed requests: never a 5xx, never a crash, and errors that name the field."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode

from peagle import LLM, SamplingParams
from peagle.llm import Generation, Prompt
from peagle.serve.settings import ServeSettings
from tests.serve.conftest import Served

CHAT = {"messages": [{"role": "user", "content": "Hi."}]}
TEXT = {"prompt": "Hi."}
INPUTS = {"inputs": "Hi."}
EXAMPLES = 200
DEEP = json.loads("[" * 150 + "]" * 150)
HUGE = 10**400


@pytest.fixture(scope="module")
def brief(smollm2: LLM) -> Iterator[Served]:
    """A server that checks a request as it is, and then answers it with one token."""
    real = smollm2.prepare

    def prepare(prompt: Prompt, params: SamplingParams | None = None, **told: Any) -> Generation:
        real(prompt, params, **told)
        told_params = params or SamplingParams()
        return real(prompt, told_params.replaced(n=1, max_tokens=1, min_tokens=0), **told)

    with pytest.MonkeyPatch.context() as patch, Served(smollm2, ServeSettings(port=0)) as server:
        patch.setattr(smollm2, "prepare", prepare)
        yield server
        fine = server.http.post("/v1/chat/completions", json=CHAT)
        assert fine.status_code == 200
        assert server.service.open_requests == 0


def error_of(response: Any) -> dict[str, Any]:
    """What a refusal says of itself, whichever interface it came by."""
    body = response.json()
    if "error" in body:
        return dict(body["error"])
    if "OriginalMessage" in body:
        return dict(json.loads(body["OriginalMessage"])["error"])
    return {"message": body["message"], "param": None, "code": response.headers["x-amzn-errortype"]}


def check(response: Any, sent: Any) -> None:
    """Hold that a response is an answer, or a refusal that says what is wrong."""
    assert response.status_code < 500, response.text
    if response.status_code < 400:
        return
    error = error_of(response)
    assert error["message"]
    if error["code"] in ("invalid_value", "unsupported_field", "missing_field"):
        assert error["param"]
        assert error["param"].split(".")[-1].split("[")[0] in error["message"]
    elif error["param"] is None and response.status_code == 400 and isinstance(sent, dict):
        known = error["code"] in ("ValidationError", "invalid_json")
        assert known or any(name in error["message"] for name in sent)


PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/invocations",
    "/endpoints/small/invocations",
    "/endpoints/small/invocations-response-stream",
]


@pytest.mark.parametrize(
    "path", [*PATHS[:3], *(one.replace("small", "{name}") for one in PATHS[3:])]
)
def test_requests_that_the_description_forbids(brief: Served, path: str) -> None:
    schema = schemathesis.openapi.from_dict(brief.http.get("/openapi.json").json())
    cases = schema[path]["POST"].as_strategy(generation_mode=GenerationMode.NEGATIVE)
    http = httpx.Client(base_url=brief.url, timeout=30)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def ask(case: Case) -> None:
        if isinstance(case.body, dict) and case.path_parameters:
            # What is wrong with a body shows only where the endpoint is there.
            case.path_parameters["name"] = "small"
        told = case.as_transport_kwargs(base_url=brief.url)
        sent = told.get("json", told.get("data"))
        content = sent if isinstance(sent, bytes | str) else json.dumps(sent)
        headers = {
            name: value
            for name, value in dict(told["headers"]).items()
            if name.lower() not in ("content-length", "transfer-encoding")
        }
        response = http.request(
            told["method"],
            told["url"],
            params=told.get("params"),
            content=content,
            headers=headers,
        )
        check(response, sent)

    ask()


BY_HAND: list[tuple[str, Any, str]] = [
    (CHAT, {"temperature": float("nan")}, "temperature"),
    (CHAT, {"temperature": float("inf")}, "temperature"),
    (CHAT, {"top_p": -0.5}, "top_p"),
    (CHAT, {"top_k": -2}, "top_k"),
    (CHAT, {"min_p": "x"}, "min_p"),
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"max_tokens": HUGE}, "max_tokens"),
    (CHAT, {"max_tokens": True}, "max_tokens"),
    (CHAT, {"seed": HUGE}, "seed"),
    (CHAT, {"seed": -(2**63) - 1}, "seed"),
    (CHAT, {"n": 0}, "n"),
    (CHAT, {"n": 10**6}, "n"),
    (CHAT, {"stop": ["x"] * 1000}, "stop"),
    (CHAT, {"stop": [["x"]]}, "stop"),
    (CHAT, {"stop": 5}, "stop"),
    (CHAT, {"logit_bias": {"1": 1e300}}, "logit_bias"),
    (CHAT, {"logit_bias": {"-1": 1}}, "logit_bias"),
    (CHAT, {"logit_bias": {"one": 1}}, "logit_bias"),
    (CHAT, {"logit_bias": {"9" * 400: 1}}, "logit_bias"),
    (CHAT, {"logit_bias": [1]}, "logit_bias"),
    (CHAT, {"stop_token_ids": [-1]}, "stop_token_ids"),
    (CHAT, {"stop_token_ids": [HUGE]}, "stop_token_ids"),
    (CHAT, {"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    (CHAT, {"parallel_drafting_spec": DEEP}, "parallel_drafting_spec"),
    (CHAT, {"parallel_drafting_spec": {"method": "magic"}}, "parallel_drafting_spec.method"),
    (CHAT, {"stream_options": {"colour": 1}, "stream": True}, "stream_options.colour"),
    (CHAT, {"messages": None}, "messages"),
    (CHAT, {"messages": {}}, "messages"),
    (CHAT, {"messages": ["Hi."]}, "messages[0]"),
    (CHAT, {"messages": [{"content": "Hi."}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user", "content": DEEP}]}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": "x " * 20_000}]}, "messages"),
    (TEXT, {"prompt": [-1]}, "prompt"),
    (TEXT, {"prompt": [HUGE]}, "prompt"),
    (TEXT, {"prompt": [[]]}, "prompt"),
    (TEXT, {"prompt": [1, "x"]}, "prompt"),
    (TEXT, {"prompt": ["x"] * 1000}, "prompt"),
    (TEXT, {"prompt": ""}, "prompt"),
    (TEXT, {"logprobs": 10**9}, "logprobs"),
    (INPUTS, {"inputs": None}, "inputs"),
    (INPUTS, {"inputs": ["x", None]}, "inputs"),
    (INPUTS, {"inputs": DEEP}, "inputs"),
    (INPUTS, {"parameters": {"temperature": float("-inf")}}, "parameters.temperature"),
    (INPUTS, {"parameters": {"max_new_tokens": HUGE}}, "parameters.max_new_tokens"),
    (INPUTS, {"parameters": {"stop": ["x"] * 1000}}, "parameters.stop"),
    (INPUTS, {"parameters": {"top_n_tokens": -1}}, "parameters.top_n_tokens"),
    (INPUTS, {"parameters": {"seed": 2**64}}, "parameters.seed"),
    (INPUTS, {"parameters": "x"}, "parameters"),
    (INPUTS, {"stream": "yes"}, "stream"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sent", "told", "param"),
    BY_HAND,
    ids=[f"{place}-{one[2]}" for place, one in enumerate(BY_HAND)],
)
def test_by_hand(brief: Served, sent: dict[str, Any], told: dict[str, Any], param: str) -> None:
    paths = PATHS[2:]
    if sent is not INPUTS:
        paths = [*paths, PATHS[0] if sent is CHAT else PATHS[1]]
    body = json.dumps({**sent, **told})
    for path in paths:
        response = brief.http.post(path, content=body)
        assert response.status_code == (424 if path.startswith("/endpoints") else 400)
        error = error_of(response)
        absent = path in PATHS[2:] and next(iter(sent)) in told and told[next(iter(sent))] is None
        assert error["param"] == ("inputs" if absent else param)
        assert error["message"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe\x00",
        b'{"messages": "\xed\xa0\x80"}',
        b'{"messages": "\\ud800"}',
        b"{",
        b"null",
        b"NaN",
        b'"text"',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"inputs": "x", "inputs": 5, "prompt": 5, "messages": 5}',
        b'{"prompt": "x", "max_tokens": ' + b"1" * 5000 + b"}",
        b'{"inputs": "x", "parameters": {"seed": [' + b"1" * 5000 + b"]}}",
        b"\x00" * 100,
        b"x" * 10_000_000,
        b'{"inputs": "' + b"x" * 10_000_000 + b'"}',
    ],
    ids=lambda one: f"{one[:12]!r}",
)
def test_bodies_that_are_no_requests(brief: Served, path: str, body: bytes) -> None:
    response = brief.http.post(path, content=body)
    check(response, None)
    assert response.status_code >= 400


@pytest.mark.parametrize("path", PATHS)
def test_methods_and_headers(brief: Served, path: str) -> None:
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
        response = brief.http.request(method, path)
        assert response.status_code == 405
        assert error_of(response)["message"]
    odd = {"Content-Type": "text/plain; charset=latin-9", "Content-Encoding": "gzip"}
    check(brief.http.post(path, content=b"{}", headers=odd), {})
