"""Signatures: AWS's published requests, botocore's own, and what tampering does to them."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.serve.sagemaker.errors import AwsError
from peagle.serve.sigv4 import (
    Claim,
    SignedRequest,
    check_signature,
    read_claim,
    signature,
)

SUITE = json.loads((Path(__file__).parent / "aws_signing_test_suite.json").read_text("utf-8"))
PUBLISHED = SUITE["requests"]
PUBLISHED_SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
KEY, SECRET = "AKIDTEST", "secret/with+signs" * 2
BODY = b'{"inputs": "Once"}'
PATH = "/endpoints/small/invocations"


def parsed(text: str) -> tuple[SignedRequest, bytes]:
    """Read a request as it goes over the wire."""
    head, _, body = text.partition("\n\n")
    first, *lines = head.replace("\n ", " ").split("\n")
    method, target = first.removesuffix(" HTTP/1.1").split(" ", 1)
    path, _, query = target.encode().partition(b"?")
    pairs = [line.encode().partition(b":") for line in lines]
    headers = [(name.lower(), value.strip()) for name, _, value in pairs]
    return SignedRequest(method, path, query, headers), body.strip("\n").encode()


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_requests(name: str) -> None:
    request, body = parsed(PUBLISHED[name])
    claim = Claim.read(request.value("authorization") or "")
    digest = hashlib.sha256(body).hexdigest()
    assert signature(request, claim, PUBLISHED_SECRET, digest) == claim.signature
    check_signature(request, claim, PUBLISHED_SECRET, body)
    with pytest.raises(AwsError, match="does not match the signature you provided"):
        check_signature(request, claim, PUBLISHED_SECRET + "x", body)


def signed(
    url: str = f"http://localhost:8080{PATH}",
    body: bytes = BODY,
    service: str = "sagemaker",
    secret: str = SECRET,
    token: str | None = None,
    **headers: str,
) -> SignedRequest:
    """A request as botocore signs it now."""
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    request = AWSRequest("POST", url, headers=told, data=body)
    SigV4Auth(Credentials(KEY, secret, token), service, "eu-central-1").add_auth(request)
    parts = urlsplit(url)
    pairs = [
        (name.lower().encode(), str(value).encode()) for name, value in request.headers.items()
    ]
    host = (b"host", parts.netloc.encode())
    return SignedRequest("POST", parts.path.encode(), parts.query.encode(), [host, *pairs])


def verify(request: SignedRequest, body: bytes = BODY, later: timedelta = timedelta()) -> str:
    claim = read_claim(request, {KEY: SECRET}, datetime.now(UTC) + later)
    check_signature(request, claim, SECRET, body)
    return claim.access_key


def refused(request: SignedRequest, body: bytes = BODY, later: timedelta = timedelta()) -> AwsError:
    with pytest.raises(AwsError) as caught:
        verify(request, body, later)
    assert caught.value.status == 403
    return caught.value


def replaced(request: SignedRequest, name: str, value: str) -> SignedRequest:
    headers = [(told, one) for told, one in request.headers if told != name.encode()]
    return dataclasses.replace(request, headers=[*headers, (name.encode(), value.encode())])


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=12)


@settings(deadline=None, max_examples=100)
@given(st.lists(TEXT, max_size=4), st.dictionaries(TEXT, TEXT, max_size=4), st.binary(max_size=50))
def test_whatever_botocore_signs_is_verified(
    path: list[str], query: dict[str, str], body: bytes
) -> None:
    pairs = "&".join(f"{quote(k, safe='~')}={quote(v, safe='~')}" for k, v in query.items())
    joined = "/".join(quote(one, safe="~") for one in path)
    request = signed(f"http://localhost:8080/{joined}?{pairs}", body, x_amzn_some="a  b ")
    assert verify(request, body) == KEY


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (lambda one: dataclasses.replace(one, method="PUT"), "does not match"),
        (lambda one: dataclasses.replace(one, path=b"/endpoints/other/invocations"), "not match"),
        (lambda one: dataclasses.replace(one, query=b"a=b"), "does not match"),
        (lambda one: replaced(one, "host", "elsewhere"), "does not match"),
        (lambda one: replaced(one, "content-type", "text/plain"), "does not match"),
        (lambda one: replaced(one, "x-amz-meta", "new"), "must include x-amz-meta"),
    ],
)
def test_another_request_is_refused(
    tamper: Callable[[SignedRequest], SignedRequest], message: str
) -> None:
    request = signed(content_type="application/json")
    assert verify(request) == KEY
    error = refused(tamper(request))
    assert message in error.message
    assert error.headers["x-amzn-ErrorType"] == error.kind


def test_another_body_is_refused_even_with_a_hash_of_it() -> None:
    assert refused(signed(), BODY + b" ").kind == "InvalidSignatureException"
    told = signed(x_amz_content_sha256=hashlib.sha256(BODY).hexdigest())
    assert verify(told) == KEY
    assert refused(told, b"{}").kind == "InvalidSignatureException"
    # The signature covers the word, not the body.
    unsigned = signed(x_amz_content_sha256="UNSIGNED-PAYLOAD")
    assert refused(unsigned).kind == "InvalidSignatureException"


def test_signatures_hold_for_five_minutes_either_way() -> None:
    request = signed()
    for minutes in (-4.9, 0, 4.9):
        assert verify(request, later=timedelta(minutes=minutes)) == KEY
    expired = refused(request, later=timedelta(minutes=5.1))
    assert expired.kind == "InvalidSignatureException"
    assert expired.message.startswith("Signature expired: ")
    early = refused(request, later=timedelta(minutes=-5.1))
    assert early.message.startswith("Signature not yet current: ")
    moved = replaced(request, "x-amz-date", datetime.now(UTC).strftime("%Y%m%dT235959Z"))
    assert refused(moved).kind == "InvalidSignatureException"
    assert (
        "is no time"
        in refused(
            replaced(request, "x-amz-date", datetime.now(UTC).strftime("%Y%m%dT256199Z"))
        ).message
    )
    other_day = refused(replaced(request, "x-amz-date", "20150830T123600Z"))
    assert "does not match that of X-Amz-Date" in other_day.message


def test_keys_that_are_not_known_are_refused() -> None:
    assert "does not match" in refused(signed(secret=SECRET + "x")).message
    request = signed()
    named = (request.value("authorization") or "").replace(KEY, "AKIDOTHER")
    assert refused(replaced(request, "authorization", named)).kind == "UnrecognizedClientException"
    assert refused(signed(token="session")).kind == "UnrecognizedClientException"
    assert "scoped to the service 'sagemaker'" in refused(signed(service="s3")).message


@pytest.mark.parametrize(
    "authorization",
    [
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 nonsense",
        "AWS4-HMAC-SHA256 Credential=a/b/c/d/aws4_request, SignedHeaders=host",
        "AWS4-HMAC-SHA256 Credential=a/b/c/aws4_request, SignedHeaders=host, Signature=0",
        "AWS4-HMAC-SHA256 Credential=a/b/c/d/e, SignedHeaders=host, Signature=0",
        "AWS4-HMAC-SHA256 Credential=a/b//d/aws4_request, SignedHeaders=host, Signature=0",
        "AWS4-HMAC-SHA256 Credential=a/b/c/d/aws4_request, SignedHeaders=host, Signature=0, "
        "Signature=1",
        "AWS4-ECDSA-P256-SHA256 Credential=a/b/c/d/aws4_request, SignedHeaders=host, Signature=0",
    ],
)
def test_broken_headers_are_refused(authorization: str) -> None:
    error = refused(replaced(signed(), "authorization", authorization))
    assert error.kind == "IncompleteSignatureException"


def test_what_decides_must_be_signed_and_there() -> None:
    request = signed()
    told = request.value("authorization") or ""
    without_host = replaced(request, "authorization", told.replace("host;", ""))
    assert "must include host" in refused(without_host).message
    absent = replaced(request, "authorization", told.replace("host;", "host;range;"))
    assert "names 'range', which the request does not have" in refused(absent).message
    undated = [one for one in request.headers if one[0] != b"x-amz-date"]
    error = refused(dataclasses.replace(request, headers=undated))
    assert "X-Amz-Date must be there" in error.message
    twice = dataclasses.replace(request, headers=[*request.headers, (b"x-amz-date", b"x")])
    assert refused(twice).kind == "IncompleteSignatureException"
