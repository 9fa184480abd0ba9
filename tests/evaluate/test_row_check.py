"""The check behind `peagle doctor` finds rows that depend on others."""

import pytest

from peagle.evaluate import row_check
from peagle.evaluate.row_check import check_rows
from peagle.model.invariance import RowLadder
from peagle.quantization import Quantization
from tests.model.random_models import random_target


def test_an_independent_target_passes() -> None:
    target = random_target()
    check = check_rows(target)
    assert check.differing == 0
    assert check.largest_pass == target.rows_per_pass
    # Every row of the first block and the last row of the three others, for a path of 5.
    assert check.compared == 4 * 5 * (target.rows_per_block + 3)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_rows_of_quantised_targets_are_independent(
    quantization: Quantization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_check, "_PREFIXES", (40, 130))
    target = random_target(quantization=quantization)
    assert (target.quantization, target.rows_per_block) == (quantization, 64)
    check = check_rows(target)
    assert check.differing == 0
    assert check.compared == 2 * 5 * (64 + 3)


def test_row_counts_that_disagree_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_check, "_PREFIXES", (40,))
    target = random_target()
    exact = type(target.weights.head).__call__

    def dependent(self, rows):
        return exact(self, rows) * (1 + 1e-6 * (rows.shape[0] > 16))

    monkeypatch.setattr(type(target.weights.head), "__call__", dependent)
    monkeypatch.setattr(target.planner, "ladder", RowLadder((16, 32)))
    assert check_rows(target).differing > 0
