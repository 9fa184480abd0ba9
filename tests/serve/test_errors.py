"""What is wrong with a request is said in OpenAI's shape, with the field's name."""

from typing import Any

import pytest

from tests.serve.conftest import Served

HI = [{"role": "user", "content": "Hi."}]


@pytest.mark.parametrize(
    ("told", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": 10**6}, "max_completion_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "Hi."}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"logit_bias": {"1": 1e9}}, "logit_bias"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"stop": ["x"] * 1000}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"nonsense": 1}, "nonsense"),
        (
            {"parallel_drafting_spec": {"max_tree_nodes": 0}},
            "parallel_drafting_spec.max_tree_nodes",
        ),
    ],
)
def test_the_field_is_named(served: Served, told: dict[str, Any], param: str) -> None:
    response = served.http.post("/v1/chat/completions", json={"messages": HI, **told})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"\xff\xfe", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"[" * 100_000, 400),
        (b'{"messages": [{"role": "user", "content": "Hi."}], "temperature": NaN}', 400),
        (b"x" * 10_000_000, 413),
    ],
    ids=["utf-8", "half", "list", "deep", "nan", "large"],
)
def test_bodies_that_are_no_requests(served: Served, body: bytes, status: int) -> None:
    response = served.http.post("/v1/chat/completions", content=body)
    assert response.status_code == status
    assert response.json()["error"]["message"]
