"""A peer's side of the protocol: one JSON object a line, requests in and events out.

Requests: `{"do": "load", …settings}` and `{"do": "answer", "prompts": […], "concurrency": n, …}`;
the end of the input ends the process. Events: `loaded`, `answer` (one for each prompt, as it ends),
`done` and `error`. Times are seconds of this process's monotonic clock.
"""

import contextlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

Settings = dict[str, Any]
Prompt = dict[str, Any]
"""An `id`, the prompt's `token_ids`, and `max_tokens`."""


class Recorder:
    """Notes when prompts were sent and when their tokens came.

    Args:
        emit: Sends an event to the measuring client.
    """

    def __init__(self, emit: Callable[[Settings], None]) -> None:
        self._emit = emit
        self._running: dict[str, Settings] = {}

    def sent(self, prompt: Prompt, at: float | None = None) -> None:
        """Note that a prompt was sent, now or at a time that has passed."""
        self._running[prompt["id"]] = {
            "sent": time.perf_counter() if at is None else at,
            "token_ids": [],
            "arrivals": [],
        }

    def arrived(self, name: str, token_ids: Sequence[int], at: float | None = None) -> None:
        """Note tokens that came together."""
        if token_ids:
            one = self._running[name]
            one["token_ids"].extend(map(int, token_ids))
            one["arrivals"].append([time.perf_counter() if at is None else at, len(token_ids)])

    def finished(self, name: str, *, passes: int | None = None) -> None:
        """Send a complete answer.

        Args:
            name: The prompt's id.
            passes: Target passes that wrote the tokens after the first, where they were counted.
        """
        self._emit({"is": "answer", "id": name, "passes": passes, **self._running.pop(name)})


class Engine(Protocol):
    """What an adapter gives: a loaded model that answers."""

    def about(self) -> Settings:
        """Say which release of what runs."""
        ...

    def answer(
        self, prompts: list[Prompt], concurrency: int, request: Settings, record: Recorder
    ) -> None:
        """Answer greedily, with `concurrency` requests under way at any time."""
        ...


def serve(load: Callable[[Settings], Engine]) -> None:
    """Answer requests until there are no more.

    Args:
        load: Makes the engine from the settings of the `load` request.
    """
    # Libraries print where they like; the protocol keeps the true standard output to itself.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def emit(event: Settings) -> None:
        try:
            events.write(json.dumps(event, separators=(",", ":")) + "\n")
            events.flush()
        except BrokenPipeError:
            # The measuring client has gone.
            os._exit(1)

    engine: Engine | None = None
    for line in sys.stdin:
        request = json.loads(line)
        what = request.pop("do")
        try:
            if what == "load":
                engine = load(request)
                emit({"is": "loaded", "about": engine.about(), "peak_bytes": peak_bytes()})
                continue
            assert engine is not None
            restart_peak()
            began = time.perf_counter()
            engine.answer(
                request.pop("prompts"), request.pop("concurrency"), request, Recorder(emit)
            )
            seconds = time.perf_counter() - began
            emit({"is": "done", "seconds": seconds, "peak_bytes": peak_bytes()})
        except Exception as error:
            traceback.print_exc()
            emit({"is": "error", "problem": f"{type(error).__name__}: {error}"})
            break
    # Some libraries hang or crash while they tear down threads; nothing is left to do here.
    events.close()
    sys.stderr.flush()
    os._exit(0)


def closed_loop(
    prompts: list[Prompt],
    concurrency: int,
    record: Recorder,
    *,
    begin: Callable[[Prompt], None],
    step: Callable[[], list[tuple[str, Sequence[int], bool, int | None]]],
) -> None:
    """Keep `concurrency` requests under way in an engine that runs them together.

    Args:
        prompts: What is asked.
        concurrency: Requests under way.
        record: Where it is noted.
        begin: Hands a request to the engine.
        step: Advances the engine; for each request that moved: its id, its new tokens, whether it
            ended, and its target passes if they were counted.
    """
    waiting = iter(prompts)
    left, running = len(prompts), 0
    while left:
        while running < min(concurrency, left):
            prompt = next(waiting)
            record.sent(prompt)
            begin(prompt)
            running += 1
        for name, token_ids, ended, passes in step():
            record.arrived(name, token_ids)
            if ended:
                record.finished(name, passes=passes)
                running -= 1
                left -= 1


def one_after_another(
    prompts: list[Prompt],
    concurrency: int,
    record: Recorder,
    answer: Callable[[Prompt], Iterator[tuple[Sequence[int], int | None]]],
) -> None:
    """Keep `concurrency` requests under way before an engine that runs one at a time.

    Args:
        prompts: What is asked.
        concurrency: Requests under way; all but one of them wait.
        record: Where it is noted.
        answer: Gives the tokens of an answer as they come, with the target passes so far if they
            are counted.
    """
    for prompt in prompts[:concurrency]:
        record.sent(prompt)
    for place, prompt in enumerate(prompts):
        passes = None
        for token_ids, so_far in answer(prompt):
            record.arrived(prompt["id"], token_ids)
            passes = so_far
        record.finished(prompt["id"], passes=passes)
        # Whoever got the answer sends the next request.
        for following in prompts[place + concurrency : place + concurrency + 1]:
            record.sent(following)


def restart_peak() -> None:
    """Forget the peak memory so far, where the system can (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes() -> int:
    """Most memory that this process has held since `restart_peak`, or since its start."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    # Kilobytes, except on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
