"""Who may ask: bearer keys and AWS signatures, compared in constant time."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from peagle.serve.body import read_body
from peagle.serve.errors import ApiError
from peagle.serve.page import PAGE_PATHS
from peagle.serve.refusal import refusal
from peagle.serve.sigv4 import ALGORITHM, SignedRequest, check_signature, read_claim

OPEN_PATHS: Final = frozenset({"/health", "/ping", *PAGE_PATHS})
"""What answers without a key."""


class KeyCheck:
    """Lets requests through that carry or are signed with a key, and tells whose turn they take.

    Args:
        app: What answers.
        keys: Bearer keys.
        secrets: Secret keys by access key, for AWS signatures. Without keys of either kind
            everybody is let in.
        max_body_bytes: Largest body, which must be read to verify a signature.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Sequence[str],
        secrets: Mapping[str, str],
        max_body_bytes: int,
    ) -> None:
        self._app = app
        self._keys = [_digest(key.encode()) for key in keys]
        self._secrets = secrets
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it with 401 or, in AWS's shape, with 403."""
        if scope["type"] != "http" or (scope["path"] in OPEN_PATHS and not self._needed(scope)):
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        who = f"host:{client[0]}" if client else "host:"
        if self._keys or self._secrets:
            try:
                who, receive = await self._admitted(scope, receive)
            except ApiError as error:
                await refusal(scope, error)(scope, receive, send)
                return
        scope.setdefault("state", {})["client"] = who
        await self._app(scope, receive, send)

    def _needed(self, scope: Scope) -> bool:
        return scope["method"] not in ("GET", "HEAD")

    async def _admitted(self, scope: Scope, receive: Receive) -> tuple[str, Receive]:
        """Tell who asks, and give what reads the body.

        Raises:
            ApiError: Nobody known does.
        """
        told = dict(scope["headers"]).get(b"authorization", b"")
        if told.startswith(ALGORITHM.encode()):
            return await self._signed(scope, receive)
        place = self._place(told)
        if place is None:
            raise ApiError(
                401,
                "The API key is missing or wrong. Send it as `Authorization: Bearer KEY`"
                f"{', or sign the request with an access key' if self._secrets else ''}.",
                kind="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return f"key:{place}", receive

    async def _signed(self, scope: Scope, receive: Receive) -> tuple[str, Receive]:
        path, query = scope["raw_path"], scope["query_string"]
        signed = SignedRequest(scope["method"], path, query, list(scope["headers"]))
        claim = read_claim(signed, self._secrets, datetime.now(UTC))
        body = await read_body(Request(scope, receive), self._max_body_bytes)
        check_signature(signed, claim, self._secrets[claim.access_key], body)
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return unread.pop() if unread else await receive()

        return f"access-key:{claim.access_key}", again

    def _place(self, authorization: bytes) -> int | None:
        """Which key a request carries; every key is compared, whatever matched before."""
        scheme, _, key = authorization.partition(b" ")
        digest = _digest(key.strip())
        places = [
            place for place, known in enumerate(self._keys) if hmac.compare_digest(known, digest)
        ]
        return places[0] if places and scheme.lower() == b"bearer" else None


def _digest(key: bytes) -> bytes:
    """Keys are compared by their hashes, so that not even their length shows."""
    return hashlib.sha256(key).digest()
