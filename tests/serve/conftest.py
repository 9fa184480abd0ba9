"""A real server on a free port, in this process, so that tests can look at its engine."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import openai
import pytest
import uvicorn

from peagle import LLM
from peagle.serve.app import build_app
from peagle.serve.metrics import EngineMetrics
from peagle.serve.server import listen
from peagle.serve.service import EngineService
from peagle.serve.settings import ServeSettings


@dataclass
class Served:
    """A server on its own thread.

    Attributes:
        llm: The model; ask it itself only while no request is under way.
    """

    llm: LLM
    settings: ServeSettings
    url: str = ""
    service: EngineService = field(init=False)

    def __post_init__(self) -> None:
        metrics = EngineMetrics(self.llm.name)
        self.service = EngineService(
            lambda: self.llm,
            max_queue=self.settings.max_queue,
            request_timeout_s=self.settings.request_timeout,
            observer=metrics,
        )
        app = build_app(self.service, metrics, self.settings, [self.llm.name, "small"])
        self._server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=2)
        )
        self._socket = listen(self.settings)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        self.service.start()
        await self._server.serve(sockets=[self._socket])

    def __enter__(self) -> "Served":
        self._thread.start()
        self.service.loaded.result(timeout=30)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=20)
        self.service.stop()
        self._socket.close()

    @property
    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    @property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60)


@pytest.fixture(scope="module")
def served(smollm2: LLM) -> Iterator[Served]:
    with Served(smollm2, ServeSettings(port=0)) as server:
        yield server
