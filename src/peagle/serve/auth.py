"""Who may ask: bearer keys, compared in constant time."""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from peagle.serve.errors import ApiError
from peagle.serve.page import PAGE_PATHS

OPEN_PATHS: Final = frozenset({"/health", "/ping", *PAGE_PATHS})
"""What answers without a key."""


class BearerKeys:
    """Lets requests through that carry one of the keys, and tells whose turn they take.

    Args:
        app: What answers.
        keys: The keys; none lets everybody in.
    """

    def __init__(self, app: ASGIApp, *, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it with 401."""
        if scope["type"] != "http" or (scope["path"] in OPEN_PATHS and not self._needed(scope)):
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        who = f"host:{client[0]}" if client else "host:"
        if self._keys:
            place = self._place(scope)
            if place is None:
                refusal = ApiError(
                    401,
                    "The API key is missing or wrong. Send it as `Authorization: Bearer KEY`.",
                    kind="authentication_error",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await JSONResponse(refusal.body, 401, refusal.headers)(scope, receive, send)
                return
            who = f"key:{place}"
        scope.setdefault("state", {})["client"] = who
        await self._app(scope, receive, send)

    def _needed(self, scope: Scope) -> bool:
        return scope["method"] not in ("GET", "HEAD")

    def _place(self, scope: Scope) -> int | None:
        """Which key a request carries; every key is compared, whatever matched before."""
        told = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, key = told.partition(b" ")
        digest = _digest(key.strip())
        places = [
            place for place, known in enumerate(self._keys) if hmac.compare_digest(known, digest)
        ]
        return places[0] if places and scheme.lower() == b"bearer" else None


def _digest(key: bytes) -> bytes:
    """Keys are compared by their hashes, so that not even their length shows."""
    return hashlib.sha256(key).digest()
