"""The routes of a server, and what stands before them."""

from collections.abc import Iterable
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import Response

from peagle.serve.answering import Answering
from peagle.serve.auth import KeyCheck
from peagle.serve.errors import ApiError
from peagle.serve.live import LiveFigures
from peagle.serve.metrics import EngineMetrics
from peagle.serve.openai.routes import OpenAIRoutes
from peagle.serve.page import add_page
from peagle.serve.refusal import refusal
from peagle.serve.request_log import RequestLog
from peagle.serve.sagemaker.routes import SageMakerRoutes
from peagle.serve.service import EngineService
from peagle.serve.settings import ServeSettings

_UNEXPECTED: Final = ApiError(
    500,
    "The server failed on this request; its log says why.",
    kind="server_error",
    code="unexpected",
)


def build_app(
    service: EngineService,
    metrics: EngineMetrics,
    settings: ServeSettings,
    names: Iterable[str],
) -> FastAPI:
    """Put a server together.

    Args:
        service: The engine.
        metrics: What it counts.
        settings: How the server is run.
        names: What clients may call the model.
    """
    app = FastAPI(title="peagle", docs_url=None, redoc_url=None)
    answering = Answering(service, settings, names)
    app.include_router(OpenAIRoutes(answering).router)
    app.include_router(SageMakerRoutes(answering).router)
    add_page(app)
    live = LiveFigures()
    service.observers.append(live)

    @app.get("/health")
    async def health() -> Response:
        """Tell whether the server answers."""
        return JSONResponse({"status": service.state}, 200 if service.state == "ready" else 503)

    @app.get("/metrics")
    async def metrics_page() -> Response:
        """Give the metrics."""
        return Response(metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @app.get("/live")
    async def live_figures() -> Response:
        """Give the figures that the page draws."""
        return JSONResponse(live.figures())

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        return refusal(request.scope, error)

    @app.exception_handler(HTTPException)
    async def not_routed(request: Request, error: HTTPException) -> Response:
        what = ApiError(
            error.status_code,
            f"{request.method} {request.url.path[:100]}: {error.detail}.",
            code={404: "not_found", 405: "method_not_allowed"}.get(error.status_code),
            headers=error.headers,
        )
        return refusal(request.scope, what)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:  # noqa: ARG001
        return refusal(request.scope, _UNEXPECTED)

    app.add_middleware(
        KeyCheck,
        keys=settings.api_keys,
        secrets=settings.secrets,
        max_body_bytes=settings.max_body_bytes,
    )
    app.add_middleware(RequestLog, log_prompts=settings.log_prompts)
    return app
