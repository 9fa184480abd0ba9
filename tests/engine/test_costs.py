import pytest
from pydantic import ValidationError

from peagle.engine.costs import BASE_CONTEXT, CostCurve, StepCosts

CURVE = CostCurve(rows=(1, 8, 9, 16), seconds=(1.0, 1.0, 2.0, 2.7))


def test_between_measured_counts_the_curve_is_straight() -> None:
    assert [CURVE.at(rows) for rows in (0, 1, 5, 8, 9, 16)] == [0.0, 1.0, 1.0, 1.0, 2.0, 2.7]
    assert CURVE.at(12) == pytest.approx(2.3)


def test_more_rows_than_a_pass_takes_begin_another() -> None:
    assert CURVE.at(17) == pytest.approx(2.7 + 1.0)
    assert CURVE.at(32) == pytest.approx(2 * 2.7)
    assert CURVE.at(41) == pytest.approx(2 * 2.7 + 2.0)


def test_medians_withstand_outliers_and_more_rows_are_never_cheaper() -> None:
    curve = CostCurve.measured({
        1: [1.0, 9.0, 1.2],
        4: [3.0, 3.0, 0.1],
        8: [2.0, 2.0, 2.0],
        16: [1.0, 1.0, 1.0],
        32: [5.0],
    })  # fmt: skip
    assert curve.rows == (1, 4, 8, 16, 32)
    assert curve.seconds == (1.2, 2.0, 2.0, 2.0, 5.0)


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        ((1, 2), (1.0,)),
        ((2, 4), (1.0, 2.0)),
        ((1, 1), (1.0, 2.0)),
        ((1, 2), (2.0, 1.0)),
        ((1, 2), (0.0, 0.0)),
        ((), ()),
        ((1,), (float("nan"),)),
    ],
)
def test_what_is_no_curve_is_refused(rows: tuple[int, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(ValidationError):
        CostCurve(rows=rows, seconds=seconds)


def test_a_step_counts_sequences_contexts_and_the_text_sources() -> None:
    costs = StepCosts(
        target=CURVE, per_sequence=0.1, per_key=0.001, per_row_key=0.0001, per_text_node=0.01
    )
    near, far = BASE_CONTEXT - 100, BASE_CONTEXT + 1000
    assert costs.step([(near, 1)], 8) == pytest.approx(
        [1.0 + 0.01 * nodes for nodes in range(8)] + [2.0 + 0.08]
    )
    # Two sequences, one of them far along: 3 rows there, and draft tokens behind the mean of both.
    step = costs.step([(near, 1), (far, 3)], 1)
    assert step[0] == pytest.approx(1.0 + 0.1 + 1000 * (0.001 + 3 * 0.0001))
    assert step[1] - step[0] == pytest.approx(0.01 + 500 * 0.0001)
    assert costs.step([], 0) == [0.0]
