"""Attention over what rows see equals dense attention with the predicate as a mask."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from peagle.train.batch import Batch, make_batch
from peagle.train.features import Document, Features
from peagle.train.networks.rollout_attention import rollout_attention
from peagle.train.rollouts import DocumentRows, Sampling, sample_rows
from tests.model.random_models import CPU
from tests.train.predicate import visible

KV_HEADS, WIDTH = 2, 8
LENGTHS = ((4, 21), (1, 9), (6, 14))
"""Prompt and all tokens of each document."""


def sampled() -> list[DocumentRows]:
    sampling = Sampling(depths=5, ratio=0.7)
    return [
        sample_rows(prompt, tokens, sampling, np.random.default_rng(prompt))
        for prompt, tokens in LENGTHS
    ]


def batch_of(rows: list[DocumentRows]) -> Batch:
    documents = [Document(torch.arange(tokens), prompt) for prompt, tokens in LENGTHS]
    features = [
        Features(torch.zeros(each.slots, 3), torch.zeros(each.teachers, 3), torch.zeros(1))
        for each in documents
    ]
    return make_batch(documents, features, rows, CPU)


def mask_of(rows: list[DocumentRows]) -> torch.Tensor:
    return torch.block_diag(*(torch.from_numpy(visible(part)) for part in rows)).bool()


def dense(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    group = queries.shape[1] // KV_HEADS
    keys, values = (part.repeat_interleave(group, 1) for part in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries, keys) / WIDTH**0.5
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


def everything(batch: Batch) -> torch.Tensor:
    return torch.arange(batch.rows)


def supervised(batch: Batch) -> torch.Tensor:
    return batch.supervised


def deep(batch: Batch) -> torch.Tensor:
    return torch.nonzero(batch.row_depths == 2).squeeze(1)


def context(batch: Batch) -> torch.Tensor:
    return batch.context


def of_one_document(batch: Batch) -> torch.Tensor:
    """Rows of the last document alone: the others have slots, and nobody asks."""
    return torch.arange(batch.rows)[-12:]


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("who", [everything, supervised, deep, context, of_one_document])
def test_outputs_and_gradients_are_those_of_dense_attention(
    who: Callable[[Batch], torch.Tensor], group: int
) -> None:
    rows = sampled()
    batch = batch_of(rows)
    asking = who(batch)
    assert 0 < len(asking) <= batch.rows
    torch.manual_seed(0)
    queries = torch.randn(
        len(asking), group * KV_HEADS, WIDTH, dtype=torch.float64, requires_grad=True
    )
    keys, values = (
        torch.randn(batch.rows, KV_HEADS, WIDTH, dtype=torch.float64, requires_grad=True)
        for _ in range(2)
    )
    found = rollout_attention(
        queries, (keys[batch.context], values[batch.context]), (keys, values), batch.sight(asking)
    )
    expected = dense(queries, keys, values, mask_of(rows)[asking])
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    incoming = torch.randn_like(expected)
    ours = torch.autograd.grad(found, [queries, keys, values], incoming)
    theirs = torch.autograd.grad(expected, [queries, keys, values], incoming)
    for mine, reference in zip(ours, theirs, strict=True):
        assert reference.abs().max() > 0.01
        assert torch.allclose(mine, reference, rtol=0, atol=1e-12)


def test_what_lies_in_bfloat16_is_weighed_exactly() -> None:
    rows = sampled()
    batch = batch_of(rows)
    torch.manual_seed(1)
    low = [
        torch.randn(batch.rows, heads, WIDTH).bfloat16().requires_grad_()
        for heads in (4, KV_HEADS, KV_HEADS)
    ]
    queries, keys, values = low
    found = rollout_attention(
        queries,
        (keys[batch.context], values[batch.context]),
        (keys, values),
        batch.sight(everything(batch)),
    )
    high = [part.detach().double().requires_grad_() for part in low]
    expected = dense(*high, mask_of(rows))
    assert found.dtype == torch.bfloat16
    # Half of the last of 8 bits, at outputs below 4, and the rounding of the weights.
    assert (found.double() - expected).abs().max() < 0.03
    incoming = torch.randn_like(expected)
    ours = torch.autograd.grad(found, low, incoming.bfloat16())
    theirs = torch.autograd.grad(expected, high, incoming)
    for mine, reference in zip(ours, theirs, strict=True):
        assert (mine.double() - reference).norm() < 0.02 * reference.norm()
