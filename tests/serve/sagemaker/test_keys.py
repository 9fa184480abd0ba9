"""A server with keys of both kinds: boto3, curl and bearers get in, nobody else does."""

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from botocore.exceptions import ClientError

from peagle import LLM
from peagle.serve.settings import ServeSettings
from tests.serve.conftest import Served
from tests.serve.sagemaker.conftest import runtime

KEY, SECRET = "AKIDTEST", "s3cret/" * 6
BODY = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 4}}
PATH = "/endpoints/small/invocations"


@pytest.fixture(scope="module")
def locked(smollm2: LLM) -> Iterator[Served]:
    settings = ServeSettings(port=0, api_keys=("bearer",), access_keys=(f"{KEY}:{SECRET}",))
    with Served(smollm2, settings) as server:
        yield server


def ask(client: Any) -> Any:
    answer = client.invoke_endpoint(EndpointName="small", Body=json.dumps(BODY))
    return json.loads(answer["Body"].read())


def refusal(client: Any) -> tuple[int, str, str]:
    with pytest.raises(ClientError) as caught:
        ask(client)
    response = caught.value.response
    error = response["Error"]
    return response["ResponseMetadata"]["HTTPStatusCode"], error["Code"], error["Message"]


def test_signed_requests_and_bearers_get_in(locked: Served) -> None:
    by_boto3 = ask(runtime(locked.url, KEY, SECRET))
    bearer = {"Authorization": "Bearer bearer"}
    by_bearer = locked.http.post(PATH, json=BODY, headers=bearer).json()
    told = [
        "curl", "-sS", f"{locked.url}{PATH}", "--aws-sigv4", "aws:amz:eu-central-1:sagemaker",
        "--user", f"{KEY}:{SECRET}", "-H", "Content-Type: application/json",
        "-d", json.dumps(BODY),
    ]  # fmt: skip
    by_curl = json.loads(subprocess.run(told, capture_output=True, check=True).stdout)
    assert by_boto3 == by_bearer == by_curl
    assert by_boto3[0]["generated_text"]


def test_a_signed_stream_goes_on_and_a_signature_opens_every_route(locked: Served) -> None:
    answer = runtime(locked.url, KEY, SECRET).invoke_endpoint_with_response_stream(
        EndpointName="small", Body=json.dumps({**BODY, "stream": True})
    )
    text = b"".join(event["PayloadPart"]["Bytes"] for event in answer["Body"])
    assert text.count(b"data:") == 4
    told = [
        "curl", "-sS", f"{locked.url}/v1/models", "--aws-sigv4", "aws:amz:x:sagemaker",
        "--user", f"{KEY}:{SECRET}",
    ]  # fmt: skip
    listed = json.loads(subprocess.run(told, capture_output=True, check=True).stdout)
    assert [one["id"] for one in listed["data"]] == [locked.llm.name, "small"]


def test_wrong_keys_are_refused_in_aws_shape(locked: Served) -> None:
    status, code, message = refusal(runtime(locked.url, KEY, SECRET + "x"))
    assert (status, code) == (403, "InvalidSignatureException")
    assert "Check the secret access key" in message
    status, code, _ = refusal(runtime(locked.url, "AKIDOTHER", SECRET))
    assert (status, code) == (403, "UnrecognizedClientException")


@pytest.mark.parametrize(("minutes", "reason"), [(-6, "expired"), (6, "not yet current")])
def test_old_signatures_are_refused(locked: Served, minutes: int, reason: str) -> None:
    moved = datetime.now(UTC) + timedelta(minutes=minutes)
    with patch("botocore.auth.get_current_datetime", lambda: moved.replace(tzinfo=None)):
        status, code, message = refusal(runtime(locked.url, KEY, SECRET))
    assert (status, code) == (403, "InvalidSignatureException")
    assert f"Signature {reason}" in message


def test_tampered_requests_are_refused(locked: Served) -> None:
    client = runtime(locked.url, KEY, SECRET)

    def tamper(request: Any, **_: Any) -> None:
        request.body = request.body.replace(b"Once", b"Never")

    client.meta.events.register("before-send.sagemaker-runtime.*", tamper)
    status, code, _ = refusal(client)
    assert (status, code) == (403, "InvalidSignatureException")


def test_whoever_has_no_key_gets_nothing(locked: Served) -> None:
    routes = [
        ("POST", PATH, 403),
        ("POST", "/endpoints/small/invocations-response-stream", 403),
        ("POST", "/endpoints/nowhere/invocations", 403),
        ("POST", "/invocations", 401),
        ("POST", "/v1/chat/completions", 401),
        ("POST", "/v1/completions", 401),
        ("GET", "/v1/models", 401),
        ("GET", "/metrics", 401),
        ("GET", "/openapi.json", 401),
        ("POST", "/ping", 401),
        ("POST", "/health", 401),
        ("GET", "/ping", 200),
        ("GET", "/health", 200),
    ]
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        for method, path, status in routes:
            answer = locked.http.request(method, path, headers=headers)
            assert (path, answer.status_code) == (path, status)
    answer = locked.http.post(PATH, json=BODY)
    assert answer.headers["x-amzn-errortype"] == "MissingAuthenticationTokenException"
    assert "sign the request with an access key" in answer.json()["message"]


def test_bodies_are_limited_before_they_are_verified(locked: Served) -> None:
    client = runtime(locked.url, KEY, SECRET)
    with pytest.raises(client.exceptions.ValidationError, match="larger than"):
        client.invoke_endpoint(EndpointName="small", Body=b"x" * 5_000_000)
