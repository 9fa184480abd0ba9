import math

import pytest
import torch

from peagle.engine.logprobs import token_logprobs


def test_logprobs_are_the_log_softmax_of_the_row() -> None:
    row = torch.randn(4000, generator=torch.Generator().manual_seed(1)) * 5
    expected = torch.log_softmax(row.double(), 0)
    found = token_logprobs(row, 17, 20)
    assert found.logprob == pytest.approx(expected[17].item(), abs=1e-12)
    assert [i for i, _ in found.top] == row.topk(20).indices.tolist()
    assert [lp for _, lp in found.top] == pytest.approx(expected.topk(20).values.tolist())


def test_a_row_of_known_probabilities() -> None:
    row = torch.tensor([0.5, 0.125, 0.25, 0.125]).log()
    found = token_logprobs(row, 3, 2)
    assert found.token_id == 3
    assert found.logprob == pytest.approx(math.log(0.125))
    assert [i for i, _ in found.top] == [0, 2]
    assert dict(found.top)[2] == pytest.approx(math.log(0.25))


def test_equal_tokens_are_ranked_by_id() -> None:
    row = torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0, 2.0])
    assert [token_logprobs(row, i, 0).rank for i in range(6)] == [6, 1, 3, 2, 4, 5]
    assert [i for i, _ in token_logprobs(row, 0, 4).top] == [1, 3, 2, 4]


def test_the_token_is_described_though_it_is_not_among_the_top() -> None:
    row = torch.tensor([1.0, 2.0, 3.0])
    found = token_logprobs(row, 0, 1)
    assert found.rank == 3
    assert [i for i, _ in found.top] == [2]
    assert token_logprobs(row, 0, 0).top == []


def test_more_than_the_vocabulary_gives_all_of_it() -> None:
    found = token_logprobs(torch.tensor([0.0, 1.0]), 0, 20)
    assert [i for i, _ in found.top] == [1, 0]
    assert math.fsum(math.exp(lp) for _, lp in found.top) == pytest.approx(1)


def test_large_logits_do_not_overflow() -> None:
    found = token_logprobs(torch.tensor([3e38, -3e38]), 0, 1)
    assert found.logprob == 0
