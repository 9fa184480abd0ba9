"""The peer's side: which requests are under way when, and what is told of them."""

from collections.abc import Iterator
from typing import Any

import pytest

from peagle.evaluate.bench.peers.loop import Recorder, closed_loop, one_after_another, peak_bytes

PROMPTS = [{"id": name, "token_ids": [1], "max_tokens": 2} for name in "abcd"]


def test_as_many_requests_as_wanted_are_under_way() -> None:
    events: list[dict[str, Any]] = []
    running: dict[str, int] = {}
    seen = []

    def step() -> list[tuple[str, list[int], bool, int | None]]:
        seen.append(sorted(running))
        moved = []
        for name in list(running):
            running[name] += 1
            ended = running[name] == (1 if name == "a" else 2)
            moved.append((name, [running[name]], ended, running[name] - 1))
            if ended:
                del running[name]
        return moved

    closed_loop(PROMPTS, 2, Recorder(events.append),
                begin=lambda prompt: running.update({prompt["id"]: 0}), step=step)  # fmt: skip
    assert seen == [["a", "b"], ["b", "c"], ["c", "d"], ["d"]]
    assert [event["id"] for event in events] == ["a", "b", "c", "d"]
    assert events[1]["token_ids"] == [1, 2]
    assert [count for _, count in events[1]["arrivals"]] == [1, 1]
    assert [event["passes"] for event in events] == [0, 1, 1, 1]
    assert all(event["sent"] <= event["arrivals"][0][0] for event in events)


def test_one_at_a_time_lets_the_others_wait() -> None:
    events: list[dict[str, Any]] = []

    def answer(prompt: dict[str, Any]) -> Iterator[tuple[list[int], int]]:
        yield [5], 0
        yield [6, 7], 1

    one_after_another(PROMPTS, 3, Recorder(events.append), answer)
    assert [event["token_ids"] for event in events] == [[5, 6, 7]] * 4
    # The fourth request is sent when the first answer is complete, before the second begins.
    assert events[0]["arrivals"][-1][0] <= events[3]["sent"] <= events[1]["arrivals"][0][0]
    assert events[2]["sent"] <= events[0]["arrivals"][0][0]


def test_peak_memory_is_known() -> None:
    assert peak_bytes() > 1_000_000


def test_more_streams_than_prompts() -> None:
    events: list[dict[str, Any]] = []
    one_after_another(PROMPTS[:1], 4, Recorder(events.append), lambda _: iter([([1], None)]))
    assert [event["passes"] for event in events] == [None]
    assert events[0]["arrivals"][0][0] == pytest.approx(events[0]["sent"], abs=10)
