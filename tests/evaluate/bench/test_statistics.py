import pytest

from peagle.evaluate.bench.statistics import percentiles, stream_ratio, total_ratio
from tests.evaluate.bench.timings import VARIED, answer


def test_percentiles() -> None:
    assert percentiles([float(n) for n in range(1, 102)]) == {"p50": 51, "p90": 91, "p99": 100}
    assert percentiles([]) is None


def test_total_ratio_is_the_median_within_repetitions() -> None:
    # The machine became twice as slow in the last repetition, for both.
    found = total_ratio([30, 33, 15], [10, 10, 5])
    assert found.value == pytest.approx(3.0)
    assert (found.low, found.high) == pytest.approx((3.0, 3.3))


def test_a_single_repetition_has_no_width() -> None:
    found = total_ratio([30], [10])
    assert (found.value, found.low, found.high) == (3.0, 3.0, 3.0)


def test_stream_ratio_of_a_constant_speed_up_is_sure() -> None:
    fast = [[answer("a", VARIED, 0.1), answer("b", VARIED * 2, 0.1)]] * 2
    slow = [[answer("b", VARIED * 2, 0.2), answer("a", VARIED, 0.2)]] * 2
    found = stream_ratio(fast, slow)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_stream_ratio_spreads_over_prompts() -> None:
    fast = [[answer("a", VARIED, 0.1), answer("b", VARIED, 0.2)]]
    slow = [[answer("a", VARIED, 0.4), answer("b", VARIED, 0.2)]]
    found = stream_ratio(fast, slow)
    assert found is not None
    # 8 tokens in 1.2 s against 8 in 2.4 s; a prompt alone gives 4 or 1.
    assert found.value == pytest.approx(2.0)
    assert (found.low, found.high) == pytest.approx((1.0, 4.0))


def test_stream_ratio_without_answers() -> None:
    assert stream_ratio([], []) is None
    assert stream_ratio([[]], [[]]) is None
