"""The routes of a SageMaker endpoint, and of the container behind it."""

from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from peagle.serve.answering import Answering, Wire
from peagle.serve.body import description
from peagle.serve.errors import ApiError
from peagle.serve.forms import Form
from peagle.serve.openai.requests import ChatRequest, CompletionRequest
from peagle.serve.openai.routes import CHAT, COMPLETION
from peagle.serve.sagemaker.endpoint import StreamWire, answer_headers, check_headers
from peagle.serve.sagemaker.errors import validation_error
from peagle.serve.sagemaker.generate_answers import GenerateWriter
from peagle.serve.sagemaker.generate_request import GenerateRequest

_FORMS: Final = {
    "inputs": Form(GenerateRequest, GenerateWriter),
    "messages": CHAT,
    "prompt": COMPLETION,
}


class SageMakerRoutes:
    """SageMaker's runtime interface of one server.

    Args:
        answering: What answers; the model's names are those of the endpoint.
    """

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self.router = APIRouter()
        body = description(GenerateRequest, ChatRequest, CompletionRequest)
        for path, route in (
            ("/invocations", self.invocations),
            ("/endpoints/{name:path}/invocations", self.invoke),
            ("/endpoints/{name:path}/invocations-response-stream", self.invoke_streaming),
        ):
            self.router.add_api_route(path, route, methods=["POST"], openapi_extra=body)
        self.router.add_api_route("/ping", self.ping, methods=["GET"])

    async def ping(self) -> Response:
        """Tell whether the container answers."""
        state = self._answering.service.state
        return JSONResponse({"status": state}, 200 if state == "ready" else 503)

    async def invocations(self, request: Request) -> Response:
        """Answer as a container."""
        return await self._answering.response(request, _form)

    async def invoke(self, request: Request, name: str) -> Response:
        """Answer as an endpoint."""
        return await self._invoked(request, name, Wire)

    async def invoke_streaming(self, request: Request, name: str) -> Response:
        """Answer as an endpoint, in AWS's event-stream framing."""
        return await self._invoked(request, name, StreamWire)

    async def _invoked(self, request: Request, name: str, wire: type[Wire]) -> Response:
        if name not in self._answering.names:
            known = ", ".join(self._answering.names)
            raise validation_error(f"Endpoint {name} not found. Endpoints here: {known}.")
        check_headers(request)
        return await self._answering.response(request, _form, wire(answer_headers(request)))


def _form(fields: dict[str, Any]) -> Form:
    """Tell the form of a body by what it asks to have answered.

    Raises:
        ApiError: It is of none, or of several.
    """
    told = [name for name in _FORMS if name in fields]
    if len(told) == 1:
        return _FORMS[told[0]]
    has = f"has {' and '.join(told)}" if told else "has none of inputs, messages and prompt"
    raise ApiError(
        400,
        f"The body {has}. Send inputs (as text-generation containers take it), or messages or "
        "prompt (as OpenAI does), and one of them.",
        param=told[1] if told else "inputs",
        code="invalid_value" if told else "missing_field",
    )
