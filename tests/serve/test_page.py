"""The page's files: open to all, from this server alone, and never text as HTML."""

import re
from collections.abc import Iterator

import httpx
import pytest

from peagle import LLM
from peagle.serve.page import PAGE_PATHS
from peagle.serve.settings import ServeSettings
from tests.serve.conftest import Served


@pytest.fixture(scope="module")
def locked(smollm2: LLM) -> Iterator[Served]:
    with Served(smollm2, ServeSettings(port=0, api_keys=("the-key",))) as server:
        yield server


def test_the_page_is_open_and_what_it_calls_is_not(locked: Served) -> None:
    for path in PAGE_PATHS:
        assert locked.http.get(path).status_code == 200
    for path in ("/live", "/metrics", "/v1/models", "/page/", "/page/none.js", "/page/../app.py"):
        assert locked.http.get(path).status_code == 401
    assert locked.http.post("/").status_code == 401


def test_nothing_but_the_servers_own_files_may_run(locked: Served) -> None:
    for path in PAGE_PATHS:
        headers = locked.http.get(path).headers
        policy = dict(part.strip().split(" ", 1) for part in
                      headers["content-security-policy"].split(";"))  # fmt: skip
        assert policy["default-src"] == "'none'"
        assert {policy[one] for one in ("script-src", "style-src", "connect-src")} == {"'self'"}
        assert headers["x-content-type-options"] == "nosniff"
    assert locked.http.get("/").headers["content-type"] == "text/html; charset=utf-8"
    assert locked.http.get("/page/main.js").headers["content-type"].startswith("text/javascript")


def test_files_name_no_other_host_hold_no_inline_code_and_write_no_html(locked: Served) -> None:
    files = {path: locked.http.get(path).text for path in PAGE_PATHS}
    html = files["/"]
    assert re.findall(r"<script(?![^>]* src=)", html) == []
    assert re.findall(r"\s(?:on\w+|style)=", html) == []
    for path, text in files.items():
        addresses = set(re.findall(r"https?://[^\s\"']+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path
        assert re.findall(r"(?:inner|outer|Adjacent)HTML|document\.write|eval\(", text) == []
    told = re.findall(r"(?:href|src)=\"(/[^\"]*)\"", html)
    told += [f"/page/{name}" for text in files.values()
             for name in re.findall(r"from \"\./([^\"]+)\"", text)]  # fmt: skip
    assert set(told) | {"/"} == set(PAGE_PATHS)


def test_live_figures_are_what_happened(locked: Served) -> None:
    http = httpx.Client(
        base_url=locked.url, headers={"Authorization": "Bearer the-key"}, timeout=60
    )
    body = {"messages": [{"role": "user", "content": "Count to twenty."}], "max_tokens": 40,
            "temperature": 0, "ignore_eos": True, "return_speculation": True}  # fmt: skip
    answer = http.post("/v1/chat/completions", json=body).json()
    told = http.get("/live").json()
    speculation = answer["speculation"]
    assert told["acceptance_length"] == pytest.approx(speculation["acceptance_length"])
    assert told["tokens_per_s"] == pytest.approx(40 / 3)
    assert told["acceptance_by_depth"][0] > 0.2
    assert told["acceptance_by_depth"] == sorted(told["acceptance_by_depth"], reverse=True)
    assert 0 < told["inter_token_s"]["p50"] <= told["inter_token_s"]["p99"] < 5
    assert 0 < told["ttft_s"]["p50"] == told["ttft_s"]["p99"] < 30
    assert told["requests"] == {"running": 0, "waiting": 0}
    memory = told["memory"]
    assert memory["kv_used_bytes"] == 0
    assert memory["kv_total_bytes"] == locked.llm.engine.kv_cache.pool.nbytes
    assert memory["process_bytes"] > locked.llm.weight_bytes
