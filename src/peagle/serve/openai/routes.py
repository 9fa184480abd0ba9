"""OpenAI's routes."""

import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any, Final, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from peagle.llm import LLM, Generation
from peagle.serve.asked import Asked
from peagle.serve.body import checked, parse_object, read_body
from peagle.serve.errors import ApiError
from peagle.serve.openai.answers import AnswerWriter, ChatWriter, CompletionWriter
from peagle.serve.openai.requests import ChatRequest, CompletionRequest, GenerationRequest
from peagle.serve.request_log import note_answer, note_prompt
from peagle.serve.service import EngineService
from peagle.serve.settings import ServeSettings
from peagle.serve.watched import Watched

_STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_DONE: Final = b"data: [DONE]\n\n"

Asking = TypeVar("Asking", bound=GenerationRequest)


class OpenAIRoutes:
    """OpenAI's interface of one server.

    Args:
        service: The engine.
        settings: How the server is run.
        names: What clients may call the model; the first is its own name.
    """

    def __init__(
        self, service: EngineService, settings: ServeSettings, names: Iterable[str]
    ) -> None:
        self._service = service
        self._settings = settings
        self._names = list(dict.fromkeys(names))
        self._began = int(time.time())
        self.router = APIRouter()
        self.router.add_api_route(
            "/v1/chat/completions",
            self.chat_completions,
            methods=["POST"],
            openapi_extra=_describes(ChatRequest),
        )
        self.router.add_api_route(
            "/v1/completions",
            self.completions,
            methods=["POST"],
            openapi_extra=_describes(CompletionRequest),
        )
        self.router.add_api_route("/v1/models", self.models, methods=["GET"])
        self.router.add_api_route("/v1/models/{name:path}", self.model, methods=["GET"])

    async def chat_completions(self, request: Request) -> Response:
        """Answer a conversation."""
        return await self._answer(request, ChatRequest, ChatWriter)

    async def completions(self, request: Request) -> Response:
        """Continue text."""
        return await self._answer(request, CompletionRequest, CompletionWriter)

    async def models(self) -> Response:
        """List the model under all its names."""
        llm = self._service.llm
        return JSONResponse(
            {"object": "list", "data": [self._described(name, llm) for name in self._names]}
        )

    async def model(self, name: str) -> Response:
        """Describe the model."""
        self._known(name)
        return JSONResponse(self._described(name, self._service.llm))

    async def _answer(
        self, request: Request, kind: type[Asking], writer_kind: type[AnswerWriter]
    ) -> Response:
        llm = self._service.llm
        body = await read_body(request, self._settings.max_body_bytes)
        client = request.state.client
        asking, generations = await asyncio.to_thread(self._prepared, llm, body, kind, client)
        model = asking.model or self._names[0]
        note_prompt(request, model, asking, generations)
        asked = Asked(self._service, generations, client)
        writer = writer_kind(asking, llm, model, generations)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                if asking.stream:
                    await _stream(asked, writer, scope, receive, send)
                else:
                    async for _ in asked.pieces():
                        pass
                    await JSONResponse(writer.whole())(scope, receive, send)
            finally:
                asked.cancel()
                note_answer(request, generations)

        return Watched(answer)

    def _prepared(
        self, llm: LLM, body: bytes, kind: type[Asking], client: str
    ) -> tuple[Asking, list[Generation]]:
        asking = checked(kind, parse_object(body))
        if asking.model is not None:
            self._known(asking.model)
        return asking, asking.generations(llm, client)

    def _known(self, name: str) -> None:
        if name not in self._names:
            raise ApiError(
                404,
                f"There is no model {name!r} here. Use {' or '.join(map(repr, self._names))}.",
                param="model",
                code="model_not_found",
            )

    def _described(self, name: str, llm: LLM) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._began,
            "owned_by": "peagle",
            "root": self._names[0],
            "max_model_len": llm.context_length,
            "precision": llm.target.precision,
            "parallel_drafting_spec": llm.spec.model_dump(),
        }


async def _stream(
    asked: Asked, writer: AnswerWriter, scope: Scope, receive: Receive, send: Send
) -> None:
    """Send server-sent events; what fails before the first of them is an error with a status."""
    begun = False
    try:
        async for news in asked.pieces():
            chunks = [] if begun else writer.opening()
            chunks += [writer.chunk(place, piece) for place, piece in news]
            if not begun:
                await send(
                    {"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS}
                )
                begun = True
            await _send_events(send, chunks)
        await _send_events(send, writer.closing(), _DONE)
    except ApiError as error:
        if not begun:
            await JSONResponse(error.body, error.status, error.headers)(scope, receive, send)
            return
        await _send_events(send, [error.body])
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_events(send: Send, events: list[dict[str, Any]], end: bytes = b"") -> None:
    body = b"".join(
        b"data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
        for event in events
    )
    await send({"type": "http.response.body", "body": body + end, "more_body": True})


def _describes(kind: type[GenerationRequest]) -> dict[str, Any]:
    """Describe a body in the OpenAPI document; it is read by hand, off the event loop."""
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _inlined(schema, definitions)}},
        }
    }


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(one, definitions) for one in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _inlined(definitions[reference.rsplit("/", 1)[1]], definitions)
    return {key: _inlined(value, definitions) for key, value in schema.items()}
