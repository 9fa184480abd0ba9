"""OpenAI's routes."""

import time
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from peagle.llm import LLM
from peagle.serve.answering import Answering
from peagle.serve.body import description
from peagle.serve.forms import Form
from peagle.serve.openai.answers import ChatWriter, CompletionWriter
from peagle.serve.openai.requests import ChatRequest, CompletionRequest

CHAT: Final = Form(ChatRequest, ChatWriter)
COMPLETION: Final = Form(CompletionRequest, CompletionWriter)


class OpenAIRoutes:
    """OpenAI's interface of one server.

    Args:
        answering: What answers.
    """

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._began = int(time.time())
        self.router = APIRouter()
        self.router.add_api_route(
            "/v1/chat/completions",
            self.chat_completions,
            methods=["POST"],
            openapi_extra=description(ChatRequest),
        )
        self.router.add_api_route(
            "/v1/completions",
            self.completions,
            methods=["POST"],
            openapi_extra=description(CompletionRequest),
        )
        self.router.add_api_route("/v1/models", self.models, methods=["GET"])
        self.router.add_api_route("/v1/models/{name:path}", self.model, methods=["GET"])

    async def chat_completions(self, request: Request) -> Response:
        """Answer a conversation."""
        return await self._answering.response(request, lambda _: CHAT)

    async def completions(self, request: Request) -> Response:
        """Continue text."""
        return await self._answering.response(request, lambda _: COMPLETION)

    async def models(self) -> Response:
        """List the model under all its names."""
        llm = self._answering.service.llm
        described = [self._described(name, llm) for name in self._answering.names]
        return JSONResponse({"object": "list", "data": described})

    async def model(self, name: str) -> Response:
        """Describe the model."""
        self._answering.check_model(name)
        return JSONResponse(self._described(name, self._answering.service.llm))

    def _described(self, name: str, llm: LLM) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._began,
            "owned_by": "peagle",
            "root": self._answering.names[0],
            "max_model_len": llm.context_length,
            "precision": llm.target.precision,
            "parallel_drafting_spec": llm.spec.model_dump(),
        }
