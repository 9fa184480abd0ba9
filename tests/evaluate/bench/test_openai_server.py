"""The HTTP client against a small real server that streams as OpenAI's does."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from peagle.errors import InvalidRequestError, PeerError
from peagle.evaluate.bench.answer import BenchPrompt
from peagle.evaluate.bench.openai_server import OpenAIServer

PROMPTS = [
    BenchPrompt(name, "qa", [{"role": "user", "content": name}], [1], 8) for name in ("a", "b", "c")
]


class _Handler(BaseHTTPRequestHandler):
    asked: ClassVar[list[dict[str, Any]]] = []
    usage: ClassVar[dict[str, int] | None] = {"completion_tokens": 5}
    broken = False

    def log_message(self, *_: Any) -> None:
        """Stay quiet."""

    def do_GET(self) -> None:
        self._reply(200, json.dumps({"data": [{"id": "first"}, {"id": "second"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append(body)
        if self.broken:
            self._reply(500, "out of order")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for text in ("", "one ", "two three ", "four"):
            self._event({"choices": [{"delta": {"content": text}}]})
        if self.usage:
            self._event({"choices": [], "usage": self.usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event: dict[str, Any]) -> None:
        self.wfile.write(b": a comment\n" + f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()

    def _reply(self, status: int, body: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())


@pytest.fixture
def server() -> Iterator[tuple[str, type[_Handler]]]:
    class Fresh(_Handler):
        asked: ClassVar[list[dict[str, Any]]] = []

    running = ThreadingHTTPServer(("127.0.0.1", 0), Fresh)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}", Fresh
    running.shutdown()
    running.server_close()
    thread.join()


def words(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def test_streams_are_timed_and_counted(server: tuple[str, type[_Handler]]) -> None:
    url, handler = server
    service = OpenAIServer(url, words)
    assert service.start().about == {"url": url, "model": "first"}
    told: list[None] = []
    batch = service.answer(PROMPTS, 2, {}, lambda: told.append(None))
    assert len(told) == 3
    assert [one.id for one in batch.answers] == ["a", "b", "c"]
    one = batch.answers[0]
    assert one.token_ids == [3, 3, 5, 4]
    # The server counts one more than the tokenizer: the token that ended the answer.
    assert [count for _, count in one.arrivals] == [1, 2, 2]
    assert one.sent < one.arrivals[0][0] <= one.arrivals[-1][0]
    assert one.passes is None
    body = next(body for body in handler.asked if body["messages"][0]["content"] == "a")
    assert (body["temperature"], body["max_tokens"], body["stream"]) == (0, 8, True)


def test_without_usage_the_tokenizer_counts(server: tuple[str, type[_Handler]]) -> None:
    url, handler = server
    handler.usage = None
    service = OpenAIServer(f"{url}/v1/", words, model="second")
    service.start()
    assert service.answer(PROMPTS[:1], 1, {}, lambda: None).answers[0].tokens == 4


def test_errors_of_a_server(server: tuple[str, type[_Handler]]) -> None:
    url, handler = server
    with pytest.raises(PeerError, match="it serves first, second, not third"):
        OpenAIServer(url, words, model="third").start()
    handler.do_GET = lambda self: self._reply(200, "hello")  # type: ignore[method-assign]
    with pytest.raises(PeerError, match="does not list models"):
        OpenAIServer(url, words).start()
    handler.broken = True
    with pytest.raises(PeerError, match="it answered 500 to a: out of order"):
        OpenAIServer(url, words, model="first").answer(PROMPTS[:1], 1, {}, lambda: None)


def test_no_server() -> None:
    with pytest.raises(PeerError, match="cannot be reached"):
        # Nothing listens on the port that no program may use.
        OpenAIServer("http://127.0.0.1:1/v1", words).start()
    for url in ("localhost:8000", "ftp://host", "http://"):
        with pytest.raises(InvalidRequestError, match="not the address of a server"):
            OpenAIServer(url, words)
