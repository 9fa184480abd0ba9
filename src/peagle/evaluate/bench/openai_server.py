"""A server with the OpenAI protocol, asked over HTTP with streamed answers."""

import http.client
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from peagle.errors import InvalidRequestError, PeerError
from peagle.evaluate.bench.answer import Answer, BenchPrompt
from peagle.evaluate.bench.service import Batch, Started

_SECONDS_TO_CONNECT: Final = 10.0
_SECONDS_OF_SILENCE: Final = 600.0
_SECONDS_BETWEEN_LOOKS: Final = 0.1


class OpenAIServer:
    """Answers through `/v1/chat/completions`.

    Servers send text, not token ids: ids are those of the target's tokenizer for that text, and the
    number of tokens is what the server says it is, or else the number of those ids.

    Args:
        url: Such as `http://localhost:8000/v1`; `/v1` may be left out. The key, if one is needed,
            is taken from the variable `OPENAI_API_KEY`.
        encode: Turns text into tokens of the target.
        model: What the server calls the model; None takes the first that it lists.
    """

    def __init__(
        self, url: str, encode: Callable[[str], list[int]], *, model: str | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequestError(
                f"--url {url} is not the address of a server.",
                remedy="Write it like http://localhost:8000/v1.",
                field="url",
            )
        self._url = url
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        path = parts.path.rstrip("/")
        self._path = path if path.endswith("/v1") else f"{path}/v1"
        self._encode = encode
        self._model = model
        key = os.environ.get("OPENAI_API_KEY")
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def start(self) -> Started:
        """See that the server is there and what it serves.

        Raises:
            PeerError: It cannot be reached, or has no such model.
        """
        connection = self._connect(_SECONDS_TO_CONNECT)
        try:
            connection.request("GET", f"{self._path}/models", headers=self._headers)
            response = connection.getresponse()
            body = response.read()
            if response.status != http.client.OK:
                raise self._failure(f"it answered {response.status} to {self._path}/models")
            names = [one["id"] for one in json.loads(body)["data"]]
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(f"it cannot be reached ({error})") from None
        except (ValueError, KeyError, TypeError):
            raise self._failure(f"{self._path}/models does not list models") from None
        finally:
            connection.close()
        if not names or (self._model is not None and self._model not in names):
            raise self._failure(f"it serves {', '.join(names) or 'no model'}, not {self._model}")
        self._model = self._model or names[0]
        return Started(None, {"url": self._url, "model": self._model}, None)

    def answer(
        self,
        prompts: Sequence[BenchPrompt],
        concurrency: int,
        request: Mapping[str, Any],  # noqa: ARG002  (a server has one way of answering)
        on_answer: Callable[[], None],
    ) -> Batch:
        """Answer prompts.

        Raises:
            PeerError: The server failed.
        """
        waiting: queue.SimpleQueue[BenchPrompt] = queue.SimpleQueue()
        for prompt in prompts:
            waiting.put(prompt)
        ended: queue.SimpleQueue[Answer | Exception] = queue.SimpleQueue()
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                try:
                    prompt = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    ended.put(self._ask(prompt))
                except Exception as error:
                    ended.put(error)

        for _ in range(concurrency):
            # Daemons, so that Ctrl-C need not wait for answers.
            threading.Thread(target=work, daemon=True).start()
        answers: dict[str, Answer] = {}
        try:
            while len(answers) < len(prompts):
                # With a limit, so that Ctrl-C is heard.
                try:
                    one = ended.get(timeout=_SECONDS_BETWEEN_LOOKS)
                except queue.Empty:
                    continue
                if isinstance(one, Exception):
                    raise one
                answers[one.id] = one
                on_answer()
        finally:
            stop.set()
        return Batch([answers[prompt.id] for prompt in prompts], None)

    def held_bytes(self) -> int:
        """Nothing on this machine that is known."""
        return 0

    def pause(self) -> None:
        """Do nothing: a server without requests is at rest."""

    def resume(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing: the server is not ours."""

    def _ask(self, prompt: BenchPrompt) -> Answer:
        body = json.dumps({
            "model": self._model,
            "messages": list(prompt.messages),
            "max_tokens": prompt.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        })  # fmt: skip
        pieces: list[tuple[float, str]] = []
        counted: int | None = None
        connection = self._connect(_SECONDS_OF_SILENCE)
        try:
            sent = time.perf_counter()
            connection.request("POST", f"{self._path}/chat/completions", body, self._headers)
            response = connection.getresponse()
            if response.status != http.client.OK:
                problem = response.read(300).decode("utf-8", "replace")
                raise self._failure(f"it answered {response.status} to {prompt.id}: {problem}")
            for event in _events(response):
                usage = event.get("usage")
                if usage:
                    counted = usage["completion_tokens"]
                for choice in event.get("choices", []):
                    text = choice.get("delta", {}).get("content")
                    if text:
                        pieces.append((time.perf_counter(), text))
        except (OSError, http.client.HTTPException, ValueError, AttributeError, KeyError) as error:
            raise self._failure(f"its answer to {prompt.id} broke off ({error})") from None
        finally:
            connection.close()
        if not pieces:
            raise self._failure(f"its answer to {prompt.id} is empty")
        token_ids = self._encode("".join(text for _, text in pieces))
        return Answer(
            id=prompt.id,
            category=prompt.category,
            token_ids=token_ids,
            sent=sent,
            arrivals=_arrivals(pieces, self._encode, counted or len(token_ids)),
            passes=None,
        )

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=seconds)

    def _failure(self, what: str) -> PeerError:
        return PeerError(
            f"The server {self._url} failed: {what.rstrip('.')}.",
            remedy="Start it, or correct --url and --url-model.",
            field="url",
        )


def _events(response: http.client.HTTPResponse) -> Iterator[Mapping[str, Any]]:
    """Read server-sent events to the one that ends them."""
    while line := response.readline():
        if line.startswith(b"data:"):
            data = line[len(b"data:") :].strip()
            if data == b"[DONE]":
                return
            yield json.loads(data)


def _arrivals(
    pieces: Sequence[tuple[float, str]], encode: Callable[[str], list[int]], total: int
) -> list[tuple[float, int]]:
    """Say how many tokens came with each piece of text; together they are `total`."""
    arrivals: list[tuple[float, int]] = []
    text, before = "", 0
    for place, (at, piece) in enumerate(pieces):
        text += piece
        now = total if place == len(pieces) - 1 else min(total, len(encode(text)))
        # The first piece and the last one count, whatever the tokenizer makes of them.
        if now > before:
            arrivals.append((at, now - before))
            before = now
    return arrivals
