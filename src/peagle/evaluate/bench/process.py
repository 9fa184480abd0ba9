"""A contender's process: started with its own Python, spoken to in JSON lines."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import psutil

from peagle.errors import PeerError
from peagle.evaluate.bench.answer import Answer, BenchPrompt
from peagle.evaluate.bench.service import Batch, Started

_ADAPTERS: Final = Path(__file__).parent
_SECONDS_TO_QUIT: Final = 5.0
_SECONDS_BETWEEN_LOOKS: Final = 0.001
_AT_REST: Final = {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE}
# At the end of the path, so that nothing of an environment is hidden by a name of ours.
_BOOTSTRAP: Final = (
    "import sys; sys.path.append({folder!r}); "
    "from importlib import import_module; import_module('peers.{module}').main()"
)


class ProcessService:
    """A peer, or our own engine, in a process of its own.

    While it is paused the system gives it no time, whatever its threads would like to do.

    Args:
        name: What messages call it.
        python: The environment's Python.
        module: The adapter in `peers`.
        settings: What the `load` request says.
        environment: Variables to set.
        log: Where its output goes that is not of the protocol.
    """

    def __init__(
        self,
        name: str,
        python: Path,
        module: str,
        settings: Mapping[str, Any],
        *,
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        self._name = name
        self._command = [str(python), "-c",
                         _BOOTSTRAP.format(folder=str(_ADAPTERS), module=module)]  # fmt: skip
        self._settings = settings
        self._environment = environment
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Started:
        """Start the process and load the model.

        Raises:
            PeerError: It cannot load it.
        """
        began = time.perf_counter()
        with self._log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(  # noqa: S603  (our own arguments)
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env={**os.environ, **self._environment},
                # Ctrl-C is for us; we end it in order.
                start_new_session=True,
            )
        event = self._ask({"do": "load", **self._settings})
        return Started(time.perf_counter() - began, event["about"], event["peak_bytes"])

    def answer(
        self,
        prompts: Sequence[BenchPrompt],
        concurrency: int,
        request: Mapping[str, Any],
        on_answer: Callable[[], None],
    ) -> Batch:
        """Answer prompts.

        Raises:
            PeerError: It failed, or left an answer out.
        """
        asked = {one.id: one for one in prompts}
        answers: dict[str, Answer] = {}

        def took(event: Mapping[str, Any]) -> None:
            prompt = asked[event["id"]]
            if not event["arrivals"]:
                raise self._failure(f"its answer to {prompt.id} is empty")
            answers[prompt.id] = Answer(
                id=prompt.id,
                category=prompt.category,
                token_ids=event["token_ids"],
                sent=event["sent"],
                arrivals=[(at, count) for at, count in event["arrivals"]],
                passes=event["passes"],
            )
            on_answer()

        lines = [
            {"id": one.id, "token_ids": list(one.token_ids), "max_tokens": one.max_tokens}
            for one in prompts
        ]
        done = self._ask(
            {"do": "answer", "prompts": lines, "concurrency": concurrency, **request}, took
        )
        missing = [name for name in asked if name not in answers]
        if missing:
            raise self._failure(f"it left out {missing[0]}")
        return Batch([answers[name] for name in asked], done["peak_bytes"])

    def held_bytes(self) -> int:
        """Memory that the process holds now."""
        return sum(one.memory_info().rss for one in self._tree())

    def pause(self) -> None:
        """Give it no time, and come back when none of it runs any more."""
        tree = self._tree()
        for one in tree:
            one.suspend()
        # The signal is only sent by then: a thread inside the system still has to come to it.
        while any(_is_going_on(one) for one in tree):
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def resume(self) -> None:
        """Give it time again."""
        for one in self._tree():
            one.resume()

    def stop(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            children = psutil.Process(process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            children = []
        for one in children:
            _quietly(one.kill)
        process.kill()
        process.wait(_SECONDS_TO_QUIT)
        for stream in (process.stdin, process.stdout):
            _close(stream)

    def _tree(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        try:
            own = psutil.Process(self._process.pid)
            return [own, *own.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _ask(
        self,
        request: Mapping[str, Any],
        took: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> Mapping[str, Any]:
        """Send a request and read events to the one that ends it."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._failure("it has ended") from None
        for line in process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                raise self._failure(f"it wrote {line.strip()[:80]!r}") from None
            if event["is"] == "error":
                raise self._failure(event["problem"])
            if event["is"] != "answer":
                found: Mapping[str, Any] = event
                return found
            took(event)
        raise self._failure(f"it ended with {process.wait(_SECONDS_TO_QUIT)}")

    def _failure(self, what: str) -> PeerError:
        return PeerError(
            f"{self._name} failed: {what.rstrip('.')}.",
            remedy=f"Its output is in {self._log}; put it right, or leave {self._name} out.",
            field="peers",
        )


def _is_going_on(process: psutil.Process) -> bool:
    try:
        return process.status() not in _AT_REST
    except psutil.NoSuchProcess:
        return False


def _quietly(act: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        act()


def _close(stream: IO[str]) -> None:
    with contextlib.suppress(BrokenPipeError):
        stream.close()
