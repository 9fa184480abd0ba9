"""A line in the log for every request, with an id and without what was said."""

import json
import logging
import re
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any, Final

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from peagle.llm import Generation
from peagle.serve.forms import Asking
from peagle.serve.page import PAGE_PATHS

_log: Final = logging.getLogger("peagle.serve.requests")
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_QUIET: Final = ("/health", "/ping", "/metrics", "/live", *PAGE_PATHS)


class RequestLog:
    """Gives each request an id, taken from `X-Request-Id` if there is one, and logs how it went.

    Args:
        app: What answers.
        log_prompts: Write prompts and answers, too.
    """

    def __init__(self, app: ASGIApp, *, log_prompts: bool) -> None:
        self._app = app
        self._log_prompts = log_prompts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        told = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = told if _REQUEST_ID.fullmatch(told) else uuid.uuid4().hex
        notes: dict[str, Any] = {}
        scope.setdefault("state", {})["notes"] = notes
        scope["state"]["log_prompts"] = self._log_prompts
        status = 499  # the client went before there was an answer

        async def noted_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._app(scope, receive, noted_send)
        finally:
            level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
            # The route, not the path, which may hold anything.
            route = getattr(scope.get("route"), "path", "unknown")
            fields = {
                "request_id": request_id,
                "method": scope["method"],
                "route": route,
                "status": status,
                "seconds": round(time.perf_counter() - began, 4),
                **notes,
            }
            _log.log(level, "request", extra={"fields": fields})


def note_prompt(
    request: Request, model: str, asking: Asking, generations: Sequence[Generation]
) -> None:
    """Take down what is asked."""
    notes = request.state.notes
    notes["model"] = model
    notes["stream"] = asking.stream
    notes["prompt_tokens"] = sum(len(one.sequences[0].prompt_ids) for one in generations)
    if request.state.log_prompts:
        notes["prompts"] = asking.prompts()


def note_answer(request: Request, generations: Sequence[Generation]) -> None:
    """Take down what was answered."""
    notes = request.state.notes
    sequences = [one for generation in generations for one in generation.sequences]
    notes["completion_tokens"] = sum(len(one.output_ids) for one in sequences)
    notes["finish_reasons"] = [one.stops.finish_reason for one in sequences]
    notes["speculation"] = sequences[0].spec.method
    if request.state.log_prompts:
        notes["answers"] = [one.stops.text for one in sequences]


class LogLine(logging.Formatter):
    """Writes log records as JSON objects, or as lines for people.

    Args:
        as_json: Which of the two.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        fields = getattr(record, "fields", {})
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        stamp = f"{stamp}.{int(record.msecs):03d}Z"
        error = self.formatException(record.exc_info) if record.exc_info else None
        if self._as_json:
            line = {"time": stamp, "level": record.levelname, "message": record.getMessage()}
            return json.dumps(
                {**line, **fields, **({"error": error} if error else {})}, ensure_ascii=False
            )
        told = " ".join(f"{name}={json.dumps(value)}" for name, value in fields.items())
        text = " ".join(filter(None, (stamp, record.levelname, record.getMessage(), told)))
        return f"{text}\n{error}" if error else text


def set_up_logging(*, as_json: bool) -> None:
    """Send what the server logs to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLine(as_json=as_json))
    logger = logging.getLogger("peagle.serve")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
