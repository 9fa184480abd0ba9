import pytest

from peagle.evaluate.acceptance import conditional


def test_conditional_shares_multiply_to_cumulative_ones() -> None:
    assert conditional([0.8, 0.4, 0.1]) == pytest.approx([0.8, 0.5, 0.25])
    assert conditional([]) == []
