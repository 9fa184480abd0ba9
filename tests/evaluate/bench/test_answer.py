import pytest

from peagle.evaluate.bench.answer import Cell, stream_speed
from tests.evaluate.bench.timings import VARIED, answer, cell


def test_latencies_of_an_answer() -> None:
    one = answer("a", [1, 2, 3, 4, 5, 6], 0.5, sent=10.0, together=2)
    # One token, then two, two and one.
    assert [count for _, count in one.arrivals] == [1, 2, 2, 1]
    assert one.tokens == 6
    assert one.ttft_s == pytest.approx(0.5)
    assert one.end_to_end_s == pytest.approx(2.0)
    assert one.gaps_s == pytest.approx([0.5, 0.5, 0.5])
    assert one.token_latencies_s == pytest.approx([0.25, 0.25, 0.25, 0.25, 0.5])


def test_speed_of_all_and_of_one_stream() -> None:
    both = [answer("a", VARIED, 0.5, sent=3.0), answer("b", VARIED, 0.5, sent=3.0)]
    together = Cell("x", 2, 0, both, None)
    assert together.seconds == pytest.approx(2.0)
    assert together.tokens_per_s == pytest.approx(4.0)
    assert stream_speed(both) == pytest.approx(2.0)
    assert stream_speed([]) is None


def test_a_line_of_answers_counts_from_the_first_request() -> None:
    line = cell("x", 1, 0.25, concurrency=4).as_object()
    assert (line["contender"], line["concurrency"], line["repetition"]) == ("x", 4, 1)
    first = line["answers"][0]
    assert first["sent"] == 0
    assert first["arrivals"] == [[0.25, 1], [0.5, 1], [0.75, 1], [1.0, 1]]
    assert first["token_ids"] == VARIED
