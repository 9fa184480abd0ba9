"""The server's process: listen, load, serve, and end in good order."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Final

import uvicorn

from peagle.errors import InvalidRequestError
from peagle.llm import LLM
from peagle.serve.app import build_app
from peagle.serve.metrics import EngineMetrics
from peagle.serve.service import EngineService
from peagle.serve.settings import ServeSettings
from peagle.serve.tracing import configured_traces

_BACKLOG: Final = 2048
_SECONDS_TO_CLOSE: Final = 5
_SECONDS_TO_SEND: Final = 0.1


class Server(uvicorn.Server):
    """uvicorn that goes on answering while open requests end; a second signal ends it at once.

    Args:
        config: uvicorn's.
        drain: Called at the first signal to stop, in the event loop.
    """

    def __init__(self, config: uvicorn.Config, drain: Callable[[], None]) -> None:
        super().__init__(config)
        self._drain = drain
        self._asked = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Begin to drain, or end at once if that was begun before."""
        if self._asked:
            self.should_exit = True
            self.force_exit = sig == signal.SIGINT
            return
        self._asked = True
        self._drain()


def listen(settings: ServeSettings) -> socket.socket:
    """Take the address.

    Raises:
        InvalidRequestError: The address needs a key, is taken, or is none of this machine's.
    """
    open_to_all = not (settings.api_keys or settings.access_keys)
    if open_to_all and not (settings.on_loopback or settings.insecure):
        raise InvalidRequestError(
            f"--host {settings.host} lets other machines in, and no key is set.",
            remedy="Set one with --api-key KEY or --access-key ID:SECRET, or let everybody in with "
            "--insecure.",
            field="api_key",
        )
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((settings.host, settings.port))
        taken.listen(_BACKLOG)
    except OSError as error:
        taken.close()
        raise InvalidRequestError(
            f"Cannot listen at {settings.host}, port {settings.port}: {error.strerror or error}.",
            remedy="Choose another --port or --host, or stop what listens there.",
            field="port",
        ) from None
    return taken


def run(
    load: Callable[[], LLM],
    settings: ServeSettings,
    names: Iterable[str],
    on_ready: Callable[[LLM, str], None],
) -> None:
    """Serve until a signal says to stop.

    Args:
        load: Loads the model.
        settings: How the server is run.
        names: What clients may call the model; the first is its own name.
        on_ready: Called once the model is loaded, with the server's URL.

    Raises:
        PeagleError: The address cannot be used, the model cannot be loaded, or traces cannot be
            sent as the environment asks.
    """
    taken = listen(settings)
    with taken:
        asyncio.run(_serve(load, settings, list(names), taken, on_ready))


async def _serve(
    load: Callable[[], LLM],
    settings: ServeSettings,
    names: list[str],
    taken: socket.socket,
    on_ready: Callable[[LLM, str], None],
) -> None:
    traces = configured_traces(names[0], os.environ)
    metrics = EngineMetrics(names[0])
    service = EngineService(
        load,
        max_queue=settings.max_queue,
        request_timeout_s=settings.request_timeout,
        observer=metrics,
    )
    app = build_app(service, metrics, settings, names)
    if traces is not None:
        service.observers.append(traces)
        app.add_middleware(traces.context)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_SECONDS_TO_CLOSE,
    )
    loop = asyncio.get_running_loop()
    draining: set[asyncio.Task[None]] = set()

    async def drain() -> None:
        await service.drain(settings.drain_timeout)
        # What was written last is sent before connections are closed.
        await asyncio.sleep(_SECONDS_TO_SEND)
        server.should_exit = True

    def begin_to_drain() -> None:
        loop.call_soon_threadsafe(lambda: draining.add(loop.create_task(drain())))

    server = Server(config, begin_to_drain)
    service.start()
    serving = asyncio.create_task(server.serve(sockets=[taken]))
    loading = asyncio.wrap_future(service.loaded)
    either: set[asyncio.Future[Any]] = {serving, loading}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if loading.done() and not loading.cancelled():
            failed = loading.exception()
            if failed is not None:
                server.should_exit = True
                await serving
                raise failed
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            on_ready(loading.result(), f"http://{host}:{taken.getsockname()[1]}")
        await serving
    finally:
        service.stop()
        if traces is not None:
            traces.close()
