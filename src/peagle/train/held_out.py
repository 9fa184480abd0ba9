"""How good a drafter is on text it has not seen: acceptance at every place of an answer at once."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from peagle.train.batch import Batch, make_batch
from peagle.train.features import Document, Features
from peagle.train.rollouts import Ints, Sampling, sample_rows

Predict = Callable[[Batch], tuple[torch.Tensor, torch.Tensor]]
"""For each supervised row the target id of its best token and the written token's probability."""


@dataclass(frozen=True, slots=True)
class Chains:
    """What a drafter makes of one document, from every place of its answer along what is written.

    Attributes:
        anchors: Slot that each place starts from, `[places]`.
        depths: Mask slots between, from 0: the place predicts token `anchor + depth + 2`,
            `[places]`.
        hits: Whether the best token is the one written, `[places]`.
        probabilities: Probability of the one written, `[places]`.
    """

    anchors: Ints
    depths: Ints
    hits: npt.NDArray[np.bool_]
    probabilities: npt.NDArray[np.float64]


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


def follow_chains(
    document: Document,
    features: Features,
    predict: Predict,
    *,
    depths: int,
    device: torch.device,
) -> Chains:
    """Run a drafter along a document, all depths of all places in one pass.

    Args:
        document: The document.
        features: Its features.
        predict: The drafter.
        depths: Draft tokens of a chain.
        device: Where the drafter is.
    """
    rows = sample_rows(
        document.prompt_tokens,
        len(document),
        Sampling(depths=depths, ratio=1.0),
        np.random.default_rng(0),
    )
    anchors, deep = rows.anchors[rows.supervised], rows.depths[rows.supervised]
    if not len(anchors):
        return Chains(anchors, deep, np.zeros(0, bool), np.zeros(0))
    batch = make_batch([document], [features], [rows], device)
    best, written = predict(batch)
    return Chains(
        anchors, deep, (best == batch.targets).cpu().numpy(), written.double().cpu().numpy()
    )


def measure(chains: Iterable[Chains], depths: int) -> HeldOut:
    """Measure acceptance over whole documents.

    A chain is accepted as far as each best token is the one written. Up to there the tokens before
    are those written, so one pass with the written tokens gives every chain's acceptance.

    Args:
        chains: Of each held-out document.
        depths: Draft tokens of a chain.
    """
    right, asked, reached = np.zeros(depths), np.zeros(depths), np.zeros(depths)
    places = 0
    for each in chains:
        alive = np.zeros(int(each.anchors.max(initial=0)) + 1, bool)
        first = each.anchors[each.depths == 0]
        alive[first] = True
        places += len(first)
        for depth in range(depths):
            here = each.depths == depth
            right[depth] += each.hits[here].sum()
            asked[depth] += here.sum()
            now = np.zeros_like(alive)
            now[each.anchors[here]] = each.hits[here]
            alive &= now
            reached[depth] += alive.sum()
    share = reached / max(places, 1)
    return HeldOut(
        acceptance_length=float(1 + share.sum()),
        top1=(right / np.maximum(asked, 1)).round(4).tolist(),
        reached=share.round(4).tolist(),
        tokens=places,
    )
