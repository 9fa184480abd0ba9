"""The page at `/`: files that any browser may fetch; whatever it asks for carries the key."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from starlette.responses import Response

_FOLDER: Final = Path(__file__).parent / "files"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FILES: Final = {
    "/" if file.name == "index.html" else f"/page/{file.name}": file
    for file in sorted(_FOLDER.iterdir())
    if file.suffix in _TYPES
}
_HEADERS: Final = {
    # Nothing but this server's own files runs, and nothing is sent anywhere else.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

PAGE_PATHS: Final = frozenset(_FILES)
"""Where the page's files are."""


def add_page(app: FastAPI) -> None:
    """Serve the page."""
    for path, file in _FILES.items():
        app.add_api_route(path, _sender(file), methods=["GET"], include_in_schema=False)


def _sender(file: Path) -> Callable[[], Coroutine[Any, Any, Response]]:
    content, kind = file.read_bytes(), _TYPES[file.suffix]

    async def send() -> Response:
        return Response(content, headers={**_HEADERS, "Content-Type": kind})

    return send
