import torch

from peagle.model.invariance import RowLadder, agreeing_ladder, cancelling_operands
from peagle.model.linear import Linear, product_ladder
from peagle.model.page_products import page_ladder
from tests.model.random_models import CPU, GROUPED


def test_a_ladder_pads_to_its_next_count() -> None:
    ladder = RowLadder((4, 16, 32))
    assert [ladder.padded(rows) for rows in (1, 4, 5, 16, 17, 32)] == [4, 4, 16, 16, 32, 32]
    assert ladder.largest == 32


def test_more_rows_than_the_largest_count_are_full_blocks_and_a_padded_rest() -> None:
    ladder = RowLadder((4, 16, 32))
    assert [ladder.padded(rows) for rows in (33, 36, 64, 65, 90, 128)] == [36, 36, 64, 68, 96, 128]


def test_a_product_of_many_rows_runs_in_blocks() -> None:
    linear = Linear(torch.randn(8, 16))
    linear.most_rows = 32
    rows = torch.randn(77, 16)
    blocks = [linear(rows[:32]), linear(rows[32:64]), linear(rows[64:])]
    assert torch.equal(linear(rows), torch.cat(blocks))


def test_cancelling_operands_sum_to_zero_but_for_rounding() -> None:
    rows, weights = cancelling_operands(3, 64, 700, torch.float32, CPU)
    assert rows.shape == (3, 64)
    assert weights.shape == (700, 64)
    product = rows.double() @ weights.double().T
    assert product.abs().max() < 1e-12
    assert rows.abs().max() > 1


def test_the_largest_group_of_agreeing_counts_wins() -> None:
    kernels = {1: 0.0, 2: 1.0, 4: 1.0, 8: 2.0, 16: 2.0, 32: 2.0, 64: 3.0}
    ladder = agreeing_ladder([lambda count: torch.full((count, 2), kernels[count])])
    assert ladder.counts == (8, 16, 32)


def test_of_equal_groups_the_one_with_more_rows_wins() -> None:
    kernels = {1: 0.0, 2: 0.0, 4: 1.0, 8: 1.0}
    ladder = agreeing_ladder([lambda count: torch.full((count, 2), kernels[count])], (1, 2, 4, 8))
    assert ladder.counts == (4, 8)


def test_every_product_has_to_agree() -> None:
    first = {1: 0.0, 2: 0.0, 4: 0.0}
    second = {1: 0.0, 2: 1.0, 4: 1.0}
    ladder = agreeing_ladder(
        [
            lambda count: torch.full((count, 2), first[count]),
            lambda count: torch.full((count, 2), second[count]),
        ],
        (1, 2, 4),
    )
    assert ladder.counts == (2, 4)


def test_a_count_whose_result_depends_on_the_place_of_a_row_is_left_out() -> None:
    def product(count: int) -> torch.Tensor:
        result = torch.zeros(count, 2)
        if count == 4:
            result[3] = 1
        return result

    assert agreeing_ladder([product], (1, 2, 4, 8)).counts == (1, 2, 8)


def test_this_machine_has_row_counts_that_agree() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        ladder = product_ladder([(960, 576), (576, 1536)], dtype, CPU)
        assert ladder.largest >= 16
    # Multiples of the three query heads that share a key.
    assert all(count % 3 == 0 for count in page_ladder(GROUPED, CPU).counts)
