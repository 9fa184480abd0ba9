"""One request through the server, whatever interface it came by: read, queue, write the answer."""

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from peagle.llm import Generation
from peagle.serve.asked import Asked
from peagle.serve.body import checked, parse_object, read_body
from peagle.serve.errors import ApiError
from peagle.serve.forms import Event, Form, Writer
from peagle.serve.request_log import note_answer, note_prompt
from peagle.serve.service import EngineService
from peagle.serve.settings import ServeSettings
from peagle.serve.watched import Watched

Headers = list[tuple[bytes, bytes]]

_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream; charset=utf-8"


class Wire:
    """How the bytes of an answer travel: as they are.

    Args:
        headers: Further headers of the response.
    """

    def __init__(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._headers = list(headers)

    def headers(self, media: str) -> Headers:
        """Give the headers of an answer whose bytes are of a media type."""
        return [(b"content-type", media.encode()), *self._headers]

    def part(self, payload: bytes) -> bytes:
        """Wrap a part of the answer."""
        return payload

    def failure(self, error: ApiError, event: bytes) -> bytes:  # noqa: ARG002
        """Tell within a stream that it cannot go on.

        Args:
            error: The reason.
            event: It as an event of the stream.
        """
        return self.part(event)


PLAIN: Final = Wire()


class Answering:
    """Answers the requests to one server.

    Args:
        service: The engine.
        settings: How the server is run.
        names: What clients may call the model; the first is its own name.

    Attributes:
        service: As given.
        names: As given, each once.
    """

    def __init__(
        self, service: EngineService, settings: ServeSettings, names: Iterable[str]
    ) -> None:
        self.service = service
        self.names = list(dict.fromkeys(names))
        self._settings = settings

    async def response(
        self, request: Request, form: Callable[[dict[str, Any]], Form], wire: Wire = PLAIN
    ) -> Response:
        """Queue what a request asks for, and give what will write the answer.

        Args:
            request: The request.
            form: Tells from the body's fields how it is read and answered.
            wire: How the answer travels.

        Raises:
            ApiError: The body is wrong, or the server cannot take it now.
        """
        llm = self.service.llm
        client = request.state.client
        body = await read_body(request, self._settings.max_body_bytes)

        def prepared() -> tuple[Form, Any, list[Generation]]:
            fields = parse_object(body)
            chosen = form(fields)
            asking: Any = checked(chosen.body, fields)
            if asking.model is not None:
                self.check_model(asking.model)
            return chosen, asking, asking.generations(llm, client)

        chosen, asking, generations = await asyncio.to_thread(prepared)
        model = asking.model or self.names[0]
        note_prompt(request, model, asking, generations)
        asked = Asked(self.service, generations, client)
        writer = chosen.writer(asking, llm, model, generations)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
            try:
                if asking.stream:
                    await _stream(asked, writer, wire, send)
                else:
                    async for _ in asked.pieces():
                        pass
                    await _whole(writer, wire, send)
            finally:
                asked.cancel()
                note_answer(request, generations)

        return Watched(answer)

    def check_model(self, name: str) -> None:
        """Refuse a name that is none of the model's.

        Raises:
            ApiError: It is none.
        """
        if name not in self.names:
            raise ApiError(
                404,
                f"There is no model {name!r} here. Use {' or '.join(map(repr, self.names))}.",
                param="model",
                code="model_not_found",
            )


async def _whole(writer: Writer, wire: Wire, send: Send) -> None:
    body = wire.part(_json(writer.whole()))
    headers = [*wire.headers(_JSON), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _stream(asked: Asked, writer: Writer, wire: Wire, send: Send) -> None:
    """Send server-sent events; what fails before the first of them is an error with a status.

    Raises:
        ApiError: The request failed before anything was sent.
    """
    begun = False

    def written(events: Iterable[Event]) -> bytes:
        return b"".join(writer.event_prefix + _json(event) + b"\n\n" for event in events)

    async def say(payload: bytes) -> None:
        if payload:
            await send({"type": "http.response.body", "body": payload, "more_body": True})

    try:
        async for news in asked.pieces():
            events = [] if begun else writer.opening()
            for place, piece in news:
                events += writer.chunks(place, piece)
            if not begun:
                headers = [
                    *wire.headers(_EVENTS),
                    (b"cache-control", b"no-cache"),
                    (b"x-accel-buffering", b"no"),
                ]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                begun = True
            await say(wire.part(written(events)))
        end = written(writer.closing()) + writer.stream_end
        await say(wire.part(end) if end else b"")
    except ApiError as error:
        if not begun:
            raise
        await say(wire.failure(error, written([error.body])))
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
