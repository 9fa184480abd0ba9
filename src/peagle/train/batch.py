"""A batch: sampled rows of some documents, with all that the network and the loss read."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from peagle.train.features import Document, Features
from peagle.train.networks.trunk import DocumentMask
from peagle.train.rollouts import DocumentRows, Ints


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of documents, one document behind the other.

    Attributes:
        rows: Rows in all.
        positions: Rotary position of each row, `anchor + depth`, `[rows]`.
        row_depths: Depth of each row, `[rows]`.
        row_tokens: The token before the one that each row predicts, `[rows]`.
        parents: The row one depth before, `[rows]`; of rows of depth 0 themselves.
        context: Rows of depth 0, `[context]`.
        tokens: Their tokens, `x[anchor + 1]`, `[context]`.
        features: Their features, `[context, taps * hidden]`.
        supervised: Rows with a loss, `[supervised]`.
        depths: Their depths, `[supervised]`.
        masks: Which of the supervised rows are mask slots, `[masks]`.
        previous: The token before the one that each of these predicts, `[masks]`.
        targets: The token that each supervised row predicts, `[supervised]`.
        teacher: Normed last hidden states of the target, `[positions, hidden]`.
        log_normalizer: `[positions]`.
        teacher_positions: Which of them each supervised row predicts, `[supervised]`.
        whole: What each document's rows see, all rows asking.
        asking: The same with the supervised rows asking.
    """

    rows: int
    positions: torch.Tensor
    row_depths: torch.Tensor
    row_tokens: torch.Tensor
    parents: torch.Tensor
    context: torch.Tensor
    tokens: torch.Tensor
    features: torch.Tensor
    supervised: torch.Tensor
    depths: torch.Tensor
    masks: torch.Tensor
    previous: torch.Tensor
    targets: torch.Tensor
    teacher: torch.Tensor
    log_normalizer: torch.Tensor
    teacher_positions: torch.Tensor
    whole: list[DocumentMask]
    asking: list[DocumentMask]


def make_batch(
    documents: Sequence[Document],
    features: Sequence[Features],
    rows: Sequence[DocumentRows],
    device: torch.device,
) -> Batch:
    """Put the rows of documents together.

    Args:
        documents: The documents.
        features: What the target says about each.
        rows: Sampled rows of each.
        device: Where the network is.
    """
    positions, row_depths, row_tokens, parents = [], [], [], []
    context, tokens, tapped = [], [], []
    supervised, depths, previous, targets, teachers = [], [], [], [], []
    whole, asking = [], []
    first = first_teacher = 0
    for document, known, part in zip(documents, features, rows, strict=True):
        anchors, deep = torch.from_numpy(part.anchors), torch.from_numpy(part.depths)
        wanted = torch.from_numpy(np.flatnonzero(part.supervised))
        visible = torch.from_numpy(part.visible())
        slots = anchors[: part.context]
        positions.append(anchors + deep)
        row_depths.append(deep)
        row_tokens.append(document.tokens[anchors + deep + 1])
        parents.append(first + torch.from_numpy(_parents(part)))
        context.append(first + torch.arange(part.context))
        tokens.append(document.tokens[slots + 1])
        tapped.append(known.taps[slots])
        supervised.append(first + wanted)
        depths.append(deep[wanted])
        at = anchors[wanted] + deep[wanted]
        previous.append(document.tokens[at + 1])
        targets.append(document.tokens[at + 2])
        # The teacher of position t is kept from t = P on.
        teachers.append(first_teacher + at + 1 - document.prompt_tokens)
        whole.append(DocumentMask(visible.to(device)))
        asking.append(DocumentMask(visible.to(device), wanted.to(device)))
        first += len(anchors)
        first_teacher += len(known.teacher)

    def joined(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(parts).to(device)

    all_depths = joined(depths)
    masks = torch.nonzero(all_depths > 0).squeeze(1)
    return Batch(
        rows=first,
        positions=joined(positions),
        row_depths=joined(row_depths),
        row_tokens=joined(row_tokens),
        parents=joined(parents),
        context=joined(context),
        tokens=joined(tokens),
        features=joined(tapped),
        supervised=joined(supervised),
        depths=all_depths,
        masks=masks,
        previous=joined(previous)[masks],
        targets=joined(targets),
        teacher=joined([known.teacher for known in features]),
        log_normalizer=joined([known.log_normalizer for known in features]),
        teacher_positions=joined(teachers),
        whole=whole,
        asking=asking,
    )


def _parents(rows: DocumentRows) -> Ints:
    """Find the row `(a, d - 1)` of each row `(a, d)`; rows of depth 0 are their own."""
    width = int(rows.anchors.max()) + 1
    names = rows.depths * width + rows.anchors
    order = np.argsort(names)
    wanted = np.maximum(rows.depths - 1, 0) * width + rows.anchors
    return order[np.searchsorted(names, wanted, sorter=order)]
