"""Clients take turns."""

import pytest

from peagle.serve.fair_queue import FairQueue


def test_clients_take_turns_and_each_is_served_in_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for name in ("a1", "a2", "a3", "b1", "c1", "b2"):
        queue.put(name[0], name)
    assert len(queue) == 6
    assert [queue.take() for _ in range(6)] == ["a1", "b1", "c1", "a2", "b2", "a3"]
    with pytest.raises(IndexError):
        queue.take()


def test_a_client_that_comes_late_waits_for_one_turn_only() -> None:
    queue: FairQueue[int] = FairQueue()
    for item in range(100):
        queue.put("busy", item)
    assert queue.take() == 0
    queue.put("late", 1000)
    assert [queue.take(), queue.take()] == [1, 1000]


def test_what_is_taken_out_is_gone() -> None:
    queue: FairQueue[int] = FairQueue()
    queue.put("a", 1)
    queue.put("a", 2)
    assert queue.remove("a", 1)
    assert not queue.remove("a", 1)
    assert not queue.remove("b", 2)
    assert queue.take() == 2
    queue.put("a", 3)
    queue.put("b", 4)
    assert queue.clear() == [3, 4]
    assert len(queue) == 0
