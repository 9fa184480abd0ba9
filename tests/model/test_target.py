"""What both implementations of a target promise alike."""

from collections.abc import Callable

import pytest
import torch

from peagle.model.rows import SequenceRows
from peagle.model.target import Target
from tests.model.random_models import random_target
from tests.model.readings import BUDGET, tokens_of
from tests.model.test_native_target import native_target


@pytest.mark.parametrize("make", [random_target, native_target])
def test_rows_asked_for_are_the_rows_returned(make: Callable[[], Target]) -> None:
    target = make()
    cache = target.new_cache(BUDGET)
    sequences = [cache.open(64) for _ in range(3)]
    tokens = tokens_of(9, seed=11)
    every = target.forward(cache, [SequenceRows(sequences[0], tokens)]).logits[0]
    output = target.forward(
        cache,
        [
            SequenceRows(sequences[0], tokens, logits="last"),
            SequenceRows(sequences[1], tokens, logits="none"),
            SequenceRows(sequences[2], tokens, logits="all"),
        ],
    )
    assert [tuple(logits.shape) for logits in output.logits] == [(1, 320), (0, 320), (9, 320)]
    assert torch.equal(output.logits[0][0], every[-1])
    assert torch.equal(output.logits[2], every)
