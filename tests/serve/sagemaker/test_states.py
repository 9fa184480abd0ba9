"""What boto3 is told by a server that is not ready, is full, or cannot go on."""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError, EventStreamError

from peagle import LLM
from peagle.serve.errors import not_serving
from peagle.serve.sagemaker.endpoint import StreamWire
from peagle.serve.settings import ServeSettings
from tests.serve.conftest import Served
from tests.serve.sagemaker.conftest import runtime

LONG = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": True}


def refusal(client: Any) -> dict[str, Any]:
    with pytest.raises(ClientError) as caught:
        client.invoke_endpoint(EndpointName="small", Body=json.dumps(LONG))
    return caught.value.response  # type: ignore[return-value]


def stream(client: Any) -> Any:
    return client.invoke_endpoint_with_response_stream(EndpointName="small", Body=json.dumps(LONG))[
        "Body"
    ]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("loading", ("ModelNotReadyException", 429)),
        ("draining", ("ServiceUnavailable", 503)),
        ("failed", ("ModelError", 424)),
    ],
)
def test_states_are_told_apart(
    served: Served,
    client: Any,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    expected: tuple[str, int],
) -> None:
    for path in ("/ping", "/health"):
        ready = served.http.get(path)
        assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
    monkeypatch.setattr(served.service, "state", state)
    for path in ("/ping", "/health"):
        answer = served.http.get(path)
        assert (answer.status_code, answer.json()) == (503, {"status": state})
    response = refusal(client)
    told = (response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"])
    assert told == expected
    if state == "failed":
        assert response["OriginalStatusCode"] == 503


def test_a_full_queue_throttles(smollm2: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2.engine, "max_concurrent", 1)
    with Served(smollm2, ServeSettings(port=0, max_queue=0)) as server:
        client = runtime(server.url)
        running = stream(client)
        assert next(iter(running))["PayloadPart"]["Bytes"]
        response = refusal(client)
        running.close()
    assert response["Error"]["Code"] == "ThrottlingException"
    headers = response["ResponseMetadata"]["HTTPHeaders"]
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 429
    assert int(headers["retry-after"]) >= 1


def test_a_stream_that_takes_too_long_ends_with_an_exception(smollm2: LLM) -> None:
    with Served(smollm2, ServeSettings(port=0, request_timeout=2)) as server:
        parts = []
        with pytest.raises(EventStreamError) as caught:
            parts.extend(event["PayloadPart"] for event in stream(runtime(server.url)))
    assert len(parts) > 1
    error = caught.value.response
    assert error["Error"]["Code"] == "ModelStreamError"
    assert "longer than 2 s" in error["Error"]["Message"]


def test_other_failures_of_a_stream_are_internal() -> None:
    frame = StreamWire().failure(not_serving("draining"), b"")
    assert b"InternalStreamFailure" in frame
    assert b"shutting down" in frame
