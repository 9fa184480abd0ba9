"""What a key has asked before is not read again for it, and is for every other key."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from peagle import LLM
from peagle.cli.main import main
from peagle.cli.options import ModelOptions
from peagle.engine.engine import Engine
from peagle.serve.settings import ServeSettings
from tests.conftest import FREE
from tests.serve.conftest import Served

MESSAGES = [
    {
        "role": "system",
        "content": "You are the guide of a museum of clocks, and very patient. " * 12,
    },
    {"role": "user", "content": "Which clock is slow?"},
]


@pytest.fixture
def served(smollm2: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server with two keys and an engine that has seen nothing."""
    engine = Engine(smollm2.target, smollm2.target.new_cache(1 << 27))
    engine.costs = FREE
    monkeypatch.setattr(smollm2, "engine", engine)
    with Served(smollm2, ServeSettings(port=0, api_keys=("first", "second"))) as server:
        yield server


def asked(http: httpx.Client, key: str, **told: Any) -> dict[str, Any]:
    body = {"messages": MESSAGES, "max_tokens": 8, "temperature": 0, **told}
    answer = http.post(
        "/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}
    )
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def test_two_keys_share_nothing_and_usage_and_metrics_say_what_was_reused(served: Served) -> None:
    with served.http as http:
        answers = [asked(http, key) for key in ("first", "second", "first", "second")]
        metrics = http.get("/metrics", headers={"Authorization": "Bearer first"}).text
    texts = {answer["choices"][0]["message"]["content"] for answer in answers}
    assert len(texts) == 1
    usages = [answer["usage"] for answer in answers]
    prompt = usages[0]["prompt_tokens"]
    whole = (prompt - 1) // 64 * 64
    assert whole >= 128
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached == [0, 0, whole, whole]
    counters = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if "prefix_cache" in line)
    labels = f'{{engine="0",model_name="{served.llm.name}"}}'
    assert float(counters[f"vllm:prefix_cache_queries_total{labels}"]) == 4 * prompt
    assert float(counters[f"vllm:prefix_cache_hits_total{labels}"]) == 2 * whole


def test_many_answers_to_one_prompt_count_it_once(served: Served) -> None:
    with served.http as http:
        asked(http, "first")
        usage = asked(http, "first", n=3, temperature=1.0, seed=2)["usage"]
    assert usage["prompt_tokens_details"] == {
        "cached_tokens": (usage["prompt_tokens"] - 1) // 64 * 64
    }


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ((), True),
        (("--no-prefix-caching",), False),
        (("--config", "serve.yaml"), False),
    ],
)
def test_a_flag_and_a_key_of_the_file_turn_it_off(
    options: tuple[str, ...], *, wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    def load(self: ModelOptions, *, prefix_caching: bool, **_: object) -> None:
        told.append(prefix_caching)

    (tmp_path / "serve.yaml").write_text("no_prefix_caching: true\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ModelOptions, "load", load)
    monkeypatch.setattr("peagle.serve.server.run", lambda load, *_: load())
    monkeypatch.setattr("peagle.serve.request_log.set_up_logging", lambda **_: None)
    monkeypatch.setattr("sys.argv", ["peagle", "serve", *options])
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    assert told == [wanted]
