"""How good a drafter is on text it has not seen: acceptance at every place of an answer at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from peagle.train.batch import Batch, make_batch
from peagle.train.feature_cache import FeatureSource
from peagle.train.features import Document
from peagle.train.rollouts import Sampling, sample_rows

Predict = Callable[[Batch], torch.Tensor]
"""Gives the target id of each supervised row's best token, `[supervised]`."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Acceptance of greedy chains, started at every place of the held-out answers.

    Attributes:
        acceptance_length: Tokens per target pass of a chain of all depths, bonus included.
        top1: At each depth, how often the best token is the one written, given that the tokens
            before it are.
        reached: At each depth, how often the chain is accepted so far.
        tokens: Places that chains started from.
    """

    acceptance_length: float
    top1: list[float]
    reached: list[float]
    tokens: int


def measure(
    documents: Sequence[Document],
    source: FeatureSource,
    indices: Sequence[int],
    predict: Predict,
    *,
    depths: int,
    device: torch.device,
) -> HeldOut:
    """Measure acceptance over whole documents.

    A chain is accepted as far as each best token is the one written. Up to there the tokens before
    are those written, so one pass with the written tokens gives every chain's acceptance.

    Args:
        documents: All documents.
        source: Their features.
        indices: The held-out ones.
        predict: The drafter.
        depths: Draft tokens of a chain.
        device: Where the drafter is.
    """
    everything = Sampling(depths=depths, ratio=1.0)
    right = np.zeros(depths)
    asked = np.zeros(depths)
    reached = np.zeros(depths)
    places = 0
    for index in indices:
        document = documents[index]
        rows = sample_rows(
            document.prompt_tokens, len(document), everything, np.random.default_rng(0)
        )
        if not rows.supervised.any():
            continue
        batch = make_batch([document], source.read([index]), [rows], device)
        hits = (predict(batch) == batch.targets).cpu().numpy()
        anchors = rows.anchors[rows.supervised]
        deep = batch.depths.cpu().numpy()
        alive = np.zeros(document.slots + 1, bool)
        first = anchors[deep == 0]
        alive[first] = True
        places += len(first)
        for depth in range(depths):
            here = deep == depth
            right[depth] += hits[here].sum()
            asked[depth] += here.sum()
            now = np.zeros_like(alive)
            now[anchors[here]] = hits[here]
            alive &= now
            reached[depth] += alive.sum()
    share = reached / max(places, 1)
    return HeldOut(
        acceptance_length=float(1 + share.sum()),
        top1=(right / np.maximum(asked, 1)).round(4).tolist(),
        reached=share.round(4).tolist(),
        tokens=places,
    )
