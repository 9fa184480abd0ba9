"""Keys, and the addresses that need them."""

import asyncio

import httpx
import pytest

from peagle.errors import InvalidRequestError
from peagle.serve.app import build_app
from peagle.serve.metrics import EngineMetrics
from peagle.serve.server import listen
from peagle.serve.service import EngineService
from peagle.serve.settings import ServeSettings


def statuses(path: str, *headers: dict[str, str]) -> list[int]:
    """What a server that is still loading answers."""
    settings = ServeSettings(api_keys=("first", "second"))

    async def ask() -> list[int]:
        service = EngineService(lambda: None, max_queue=1, request_timeout_s=1)  # type: ignore[arg-type, return-value]
        app = build_app(service, EngineMetrics("m"), settings, ["m"])
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            return [(await http.get(path, headers=one)).status_code for one in headers]

    return asyncio.run(ask())


def test_a_key_is_needed_everywhere_but_for_health() -> None:
    wrong = {"Authorization": "Bearer wrong"}
    basic = {"Authorization": "Basic first"}
    right = {"Authorization": "Bearer second"}
    assert statuses("/v1/models", {}, wrong, basic, right) == [401, 401, 401, 503]
    assert statuses("/metrics", {}, wrong, basic, right) == [401, 401, 401, 200]
    assert statuses("/nowhere", {}, right) == [401, 404]
    assert statuses("/openapi.json", {}, right) == [401, 200]
    assert statuses("/health", {}) == [503]
    assert statuses("/ping", {}) == [503]


@pytest.mark.parametrize(
    "settings",
    [
        {"api_keys": ("",)},
        {"api_keys": ("two words",)},
        {"access_keys": ("AKIDTEST",)},
        {"access_keys": ("AKIDTEST:short",)},
        {"access_keys": ("A/B:" + "s" * 40,)},
    ],
    ids=str,
)
def test_keys_that_protect_nothing_are_refused(settings: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(ValueError, match="pattern"):
        ServeSettings(**settings)  # type: ignore[arg-type]


def test_other_machines_are_let_in_with_a_key_or_on_request_only() -> None:
    with pytest.raises(InvalidRequestError, match="--access-key ID:SECRET, or let everybody in"):
        listen(ServeSettings(host="0.0.0.0", port=0))
    signed = {"access_keys": ("AKIDTEST:" + "s" * 40,)}
    for settings in ({"api_keys": ("key",)}, signed, {"insecure": True}):
        listen(ServeSettings(host="0.0.0.0", port=0, **settings)).close()  # type: ignore[arg-type]


def test_a_port_that_is_taken_is_named() -> None:
    with listen(ServeSettings(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidRequestError, match=f"port {port}: Address already in use"):
            listen(ServeSettings(port=port))
