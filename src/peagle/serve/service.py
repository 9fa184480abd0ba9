"""The engine as a service: one thread steps it, requests come from an event loop and stream back.

The thread alone touches the engine. Between two steps it drops what was cancelled, admits what
waits as far as there is room, and then hands out what the step wrote, all of it in one call into
the event loop. Prompts are read a pass at a time beside those who write (`Engine.step`), so a long
prompt delays nobody for longer than a pass.
"""

import asyncio
import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from typing import Final, Literal, Protocol

from peagle.engine.sequence import Sequence as EngineSequence
from peagle.errors import PeagleError
from peagle.llm import LLM, Generation, Piece
from peagle.serve.errors import ApiError, not_serving, queue_full, timed_out
from peagle.serve.fair_queue import FairQueue

State = Literal["loading", "ready", "draining", "failed"]

_log: Final = logging.getLogger("peagle.serve")
_REMEMBERED_DURATIONS: Final = 32
_LONGEST_RETRY_S: Final = 60


class Observer(Protocol):
    """Whoever counts what the service does; called by the engine's thread."""

    def stepped(self, llm: LLM, wrote: Sequence[EngineSequence], waiting: int) -> None:
        """Take note of a step, with the answers that wrote in it and the requests that wait."""
        ...

    def ended(self, stream: "AnswerStream", outcome: str) -> None:
        """Take note of a request's end: `stop`, `length`, `abort` or `error`."""
        ...


class AnswerStream:
    """A request on its way: what the engine writes comes out in the event loop.

    Attributes:
        generation: The request in the engine.
        client: Whose turn it takes in the queue.
        submitted_at: When it came, by `time.perf_counter`.
        admitted_at: When the engine took it; None while it waits.
        context: The context variables of whoever asked, for those who trace requests.
    """

    def __init__(self, generation: Generation, client: str, timeout_s: float) -> None:
        self.generation = generation
        self.client = client
        self.submitted_at = time.perf_counter()
        self.admitted_at: float | None = None
        self.context = contextvars.copy_context()
        self._timeout_s = timeout_s
        self._deadline = asyncio.get_running_loop().time() + timeout_s
        self._news: asyncio.Queue[list[Piece] | ApiError | None] = asyncio.Queue()

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """Give what each step wrote; ends when all answers have.

        Raises:
            ApiError: The request cannot go on, or took too long.
        """
        while True:
            try:
                async with asyncio.timeout_at(self._deadline):
                    news = await self._news.get()
            except TimeoutError:
                raise timed_out(self._timeout_s) from None
            if news is None:
                return
            if isinstance(news, ApiError):
                raise news
            yield news

    def hand_over(self, news: list[Piece] | ApiError | None) -> None:
        """Pass on what a step wrote; None is the end. Called in the event loop."""
        self._news.put_nowait(news)


class EngineService:
    """Owns the engine's thread.

    Args:
        load: Loads the model; runs in the engine's thread.
        max_queue: Most requests that wait.
        request_timeout_s: Longest time of a request, in the queue and after.
        observer: Counts what happens, if anybody wants to know.

    Attributes:
        state: `loading`, `ready`, `draining` or `failed`.
        observers: Who counts what happens; others may join before the service starts.
        loaded: Done once the model is loaded, with what went wrong if it cannot be.
    """

    def __init__(
        self,
        load: Callable[[], LLM],
        *,
        max_queue: int,
        request_timeout_s: float,
        observer: Observer | None = None,
    ) -> None:
        self.state: State = "loading"
        self.loaded: Future[LLM] = Future()
        self.observers = [] if observer is None else [observer]
        self._load = load
        self._max_queue = max_queue
        self._timeout_s = request_timeout_s
        self._changed = threading.Condition()
        self._queue: FairQueue[AnswerStream] = FairQueue()
        self._live: dict[EngineSequence, AnswerStream] = {}
        self._cancelled: list[AnswerStream] = []
        self._stopping = False
        self._open: set[AnswerStream] = set()
        self._durations: deque[float] = deque(maxlen=_REMEMBERED_DURATIONS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="peagle-engine", daemon=True)

    @property
    def llm(self) -> LLM:
        """The model.

        Raises:
            ApiError: It is not loaded yet, could not be, or the server shuts down.
        """
        if self.state != "ready":
            raise not_serving(self.state)
        return self.loaded.result()

    @property
    def open_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    def start(self) -> None:
        """Load the model and be ready; call it in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, generation: Generation, client: str) -> AnswerStream:
        """Queue a request; call it in the event loop.

        Args:
            generation: What `LLM.prepare` made.
            client: Who asks; clients take turns.

        Raises:
            ApiError: The server is not ready, or its queue is full.
        """
        stream = AnswerStream(generation, client, self._timeout_s)
        with self._changed:
            llm = self.llm
            waiting = len(self._queue)
            free = max(0, llm.engine.max_concurrent - len(self._live))
            if waiting >= self._max_queue + free:
                raise queue_full(waiting, self._retry_after_s(llm, waiting))
            self._queue.put(client, stream)
            self._open.add(stream)
            self._changed.notify()
        return stream

    def cancel(self, stream: AnswerStream) -> None:
        """Drop a request that nobody waits for any more; one that has ended stays as it is."""
        if stream not in self._open:
            return
        self._open.discard(stream)
        with self._changed:
            if self._queue.remove(stream.client, stream):
                self._observe_end(stream, "abort")
            else:
                self._cancelled.append(stream)
                self._changed.notify()

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, and wait for those that are open; after the grace time end them.

        Args:
            grace_s: Longest wait.
        """
        if self.state != "failed":
            self.state = "draining"
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        while self._open and loop.time() < until:
            await asyncio.sleep(0.02)
        for stream in list(self._open):
            self.cancel(stream)
            stream.hand_over(not_serving("draining"))

    def stop(self) -> None:
        """End the engine's thread after the step it is in."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _retry_after_s(self, llm: LLM, waiting: int) -> int:
        durations = self._durations
        usual = sum(durations) / len(durations) if durations else 1.0
        turns = (waiting + 1) / llm.engine.max_concurrent
        return max(1, min(_LONGEST_RETRY_S, round(usual * turns)))

    def _run(self) -> None:
        try:
            llm = self._load()
        except BaseException as error:  # whoever waits for the model is told
            self.state = "failed"
            self.loaded.set_exception(error)
            return
        if self.state == "loading":
            self.state = "ready"
        self.loaded.set_result(llm)
        try:
            while self._turn(llm):
                pass
        except Exception:
            _log.exception("The engine has failed.")
            with self._changed:
                self.state = "failed"
                streams = [*dict.fromkeys(self._live.values()), *self._queue.clear()]
                self._live.clear()
            failure = ApiError(
                500,
                "The engine has failed while it worked on this request. Restart the server; "
                "its log says why.",
                kind="server_error",
                code="engine_failed",
            )
            for stream in streams:
                self._observe_end(stream, "error")
            self._hand_over([(stream, failure) for stream in streams])

    def _turn(self, llm: LLM) -> bool:
        """Wait for something to do and do one step of it; False once the service stops."""
        with self._changed:
            while not (self._stopping or self._cancelled or self._queue or self._live):
                self._changed.wait()
            if self._stopping:
                return False
            cancelled, self._cancelled = self._cancelled, []
        for stream in cancelled:
            if self._forget(stream):
                llm.abort(stream.generation.sequences)
                self._observe_end(stream, "abort")
        refused = self._admit(llm)
        wrote = llm.step()
        for observer in self.observers:
            observer.stepped(llm, wrote, len(self._queue))
        self._hand_over(refused + self._news(wrote))
        return True

    def _admit(self, llm: LLM) -> list[tuple[AnswerStream, ApiError]]:
        """Give the engine what waits, while it has room and waits for no memory."""
        refused = []
        engine = llm.engine
        blocked = bool(engine.waiting)
        while not blocked and len(engine.running) + len(engine.waiting) < engine.max_concurrent:
            with self._changed:
                if not self._queue:
                    break
                stream = self._queue.take()
                for sequence in stream.generation.sequences:
                    self._live[sequence] = stream
            stream.admitted_at = time.perf_counter()
            try:
                llm.queue(stream.generation)
            except PeagleError as error:
                llm.abort(stream.generation.sequences)
                self._forget(stream)
                self._observe_end(stream, "error")
                refused.append((stream, ApiError.of(error)))
        return refused

    def _news(
        self, wrote: Sequence[EngineSequence]
    ) -> list[tuple[AnswerStream, list[Piece] | ApiError | None]]:
        news: list[tuple[AnswerStream, list[Piece] | ApiError | None]] = []
        for stream in dict.fromkeys(self._live[sequence] for sequence in wrote):
            generation = stream.generation
            pieces = generation.news()
            if pieces:
                news.append((stream, pieces))
            error = next((one.error for one in generation.sequences if one.error), None)
            if error is not None:
                generation.drop()
                news.append((stream, ApiError.of(error)))
            elif generation.finished:
                news.append((stream, None))
            else:
                continue
            self._forget(stream)
            self._durations.append(time.perf_counter() - stream.submitted_at)
            reason = generation.sequences[0].stops.finish_reason
            self._observe_end(stream, reason if error is None and reason else "error")
        return news

    def _forget(self, stream: AnswerStream) -> bool:
        """Hold a request's answers no longer; says whether they were held."""
        with self._changed:
            held = [self._live.pop(one, None) for one in stream.generation.sequences]
        return any(held)

    def _observe_end(self, stream: AnswerStream, outcome: str) -> None:
        for observer in self.observers:
            observer.ended(stream, outcome)

    def _hand_over(
        self, news: Sequence[tuple[AnswerStream, list[Piece] | ApiError | None]]
    ) -> None:
        if not news or self._loop is None or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._deliver, news)

    def _deliver(self, news: Sequence[tuple[AnswerStream, list[Piece] | ApiError | None]]) -> None:
        for stream, one in news:
            stream.hand_over(one)
            if not isinstance(one, list):
                self._open.discard(stream)
