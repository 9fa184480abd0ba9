"""The hub's client runs for real, against a small hub on this machine."""

import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save

from peagle.catalog.hub import cached_folder, fetch_from_hub
from peagle.catalog.source import HubModel
from peagle.errors import CheckpointError, DownloadError

COMMIT = "0123456789" * 4
WEIGHTS = save({"a": np.ones((4, 8), np.float32)})
MODEL = HubModel("org/model")
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "pytorch_model.bin": b"\x80\x04.",
    "original/model.safetensors": WEIGHTS,
    "README.md": b"hello",
}


class Hub:
    def __init__(self) -> None:
        self.models: dict[str, dict[str, bytes]] = {"org/model": dict(FILES)}
        self.requests: list[str] = []
        self.refusal: dict[str, str] | None = None
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self, send_body=True)

            def do_HEAD(self) -> None:
                hub.answer(self, send_body=False)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, request: BaseHTTPRequestHandler, *, send_body: bool) -> None:
        path = urlsplit(request.path).path
        self.requests.append(f"{request.command} {path}")
        parts = path.strip("/").split("/")
        is_api = parts[0] == "api"
        name = "/".join(parts[2:4] if is_api else parts[:2])
        headers = dict(self.refusal or {})
        files = self.models.get(name)
        if self.refusal is not None or files is None:
            headers.setdefault("X-Error-Code", "RepoNotFound")
            return self._send(request, 401, b"{}", headers, send_body=send_body)
        if is_api and "revision" in parts and parts[-1] not in ("main", COMMIT):
            headers["X-Error-Code"] = "RevisionNotFound"
            return self._send(request, 404, b"{}", headers, send_body=send_body)
        if is_api and "tree" in parts:
            listing = [
                {"type": "file", "path": path, "size": len(content), "oid": oid(content)}
                for path, content in files.items()
            ]
            return self._send(request, 200, json.dumps(listing).encode(), {}, send_body=send_body)
        if is_api:
            siblings = [
                {"rfilename": path, "size": len(content), "blobId": oid(content)}
                for path, content in files.items()
            ]
            about = {"id": name, "sha": COMMIT, "siblings": siblings}
            return self._send(request, 200, json.dumps(about).encode(), {}, send_body=send_body)
        content = files["/".join(parts[4:])]
        headers = {"ETag": f'"{oid(content)}"', "X-Repo-Commit": COMMIT}
        return self._send(request, 200, content, headers, send_body=send_body)

    @staticmethod
    def _send(
        request: BaseHTTPRequestHandler,
        status: int,
        body: bytes,
        headers: dict[str, str],
        *,
        send_body: bool,
    ) -> None:
        request.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        if send_body:
            request.wfile.write(body)


def oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def point_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    served = Hub()
    point_at(served.url, monkeypatch)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield served
    served.close()


@pytest.fixture
def unplug(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Point the client at port 9 of this machine (discard), which has no server."""
    return lambda: point_at("http://127.0.0.1:9", monkeypatch)


def fetch(source: HubModel = MODEL) -> Path:
    return fetch_from_hub(source, what="model")


def test_weights_and_tokenizer_are_fetched_and_neither_pickles_nor_second_copies(hub: Hub) -> None:
    folder = fetch()
    assert sorted(path.name for path in folder.rglob("*")) == [
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_second_fetch_asks_nobody(hub: Hub) -> None:
    assert cached_folder(MODEL) is None
    folder = fetch()
    hub.requests.clear()
    assert fetch() == folder
    assert cached_folder(MODEL) == folder
    assert hub.requests == []


def test_folder_with_a_lost_file_is_fetched_again(hub: Hub) -> None:
    folder = fetch()
    (folder / "model.safetensors").unlink()
    assert cached_folder(MODEL) is None
    assert (fetch() / "model.safetensors").read_bytes() == WEIGHTS


def test_cut_off_weights_are_refused_and_not_taken_for_whole(hub: Hub) -> None:
    hub.models["org/model"]["model.safetensors"] = WEIGHTS[:-1]
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing, damaged or cut off"):
        fetch()
    assert cached_folder(MODEL) is None


def test_what_another_tool_fetched_is_used_without_the_hub(
    hub: Hub, cache_folder: Path, unplug: Callable[[], None]
) -> None:
    fetched = huggingface_hub.snapshot_download("org/model")
    unplug()
    assert fetch() == Path(fetched)


def test_unreachable_hub_names_the_model_and_the_way_out(
    hub: Hub, unplug: Callable[[], None]
) -> None:
    unplug()
    with pytest.raises(DownloadError, match="hf:org/model cannot be fetched") as caught:
        fetch()
    assert "\n" not in str(caught.value)
    assert "path of a model on this machine" in caught.value.remedy


def test_unknown_repository_is_named(hub: Hub) -> None:
    with pytest.raises(DownloadError, match="The hub has no hf:org/other, or it is private"):
        fetch(HubModel("org/other"))


def test_gated_repository_says_to_accept_its_terms(hub: Hub) -> None:
    hub.refusal = {"X-Error-Code": "GatedRepo"}
    with pytest.raises(DownloadError, match="is gated") as caught:
        fetch()
    assert "Accept its terms" in caught.value.remedy


def test_unknown_revision_is_named(hub: Hub) -> None:
    with pytest.raises(DownloadError, match="no revision v9 of hf:org/model"):
        fetch(HubModel("org/model", "v9"))


def test_pickled_weights_are_refused_before_anything_is_fetched(hub: Hub) -> None:
    hub.models["org/model"] = {"config.json": b"{}", "pytorch_model.bin": b"\x80\x04."}
    with pytest.raises(CheckpointError, match=r"only pickled weights \(pytorch_model\.bin\)"):
        fetch()
    assert not any("/resolve/" in request for request in hub.requests)


def test_repository_without_weights_is_refused(hub: Hub) -> None:
    hub.models["org/model"] = {"config.json": b"{}", "model.gguf": b"GGUF"}
    with pytest.raises(CheckpointError, match="holds no safetensors") as caught:
        fetch()
    assert "GGUF" in caught.value.remedy


def test_download_that_cannot_fit_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(DownloadError, match="10 bytes is free"):
        fetch()
    assert not any("/resolve/" in request for request in hub.requests)
