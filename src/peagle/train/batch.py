"""A batch: sampled rows of some documents, with all that the network and the loss read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from peagle.train.features import Document, Features
from peagle.train.networks.rollout_attention import Sight
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
        sight: Tells what some rows see; takes their numbers, ascending, `[asking]`.
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
    sight: Callable[[torch.Tensor], Sight]


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
    all_anchors, slot_counts, lengths = [], [], []
    first = first_teacher = 0
    for document, known, part in zip(documents, features, rows, strict=True):
        anchors, deep = torch.from_numpy(part.anchors), torch.from_numpy(part.depths)
        wanted = torch.from_numpy(np.flatnonzero(part.supervised))
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
        all_anchors.append(anchors)
        slot_counts.append(part.context)
        lengths.append(len(anchors))
        first += len(anchors)
        first_teacher += len(known.teacher)

    def joined(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(parts).to(device)

    all_depths = joined(depths)
    masks = torch.nonzero(all_depths > 0).squeeze(1)
    everything = _Rows(
        joined(row_depths), joined(all_anchors), joined(parents), slot_counts, lengths
    )
    return Batch(
        rows=first,
        positions=joined(positions),
        row_depths=everything.depths,
        row_tokens=joined(row_tokens),
        parents=everything.parents,
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
        sight=everything.sight,
    )


def _parents(rows: DocumentRows) -> Ints:
    """Find the row `(a, d - 1)` of each row `(a, d)`; rows of depth 0 are their own."""
    width = int(rows.anchors.max()) + 1
    names = rows.depths * width + rows.anchors
    order = np.argsort(names)
    wanted = np.maximum(rows.depths - 1, 0) * width + rows.anchors
    return order[np.searchsorted(names, wanted, sorter=order)]


@dataclass(frozen=True, slots=True)
class _Rows:
    """All rows of a batch, as far as they decide what is seen.

    Attributes:
        depths: `[rows]`.
        anchors: `[rows]`.
        parents: The row one depth before, `[rows]`.
        slots: Rows of depth 0 of each document.
        lengths: Rows of each document.
    """

    depths: torch.Tensor
    anchors: torch.Tensor
    parents: torch.Tensor
    slots: list[int]
    lengths: list[int]

    def sight(self, asking: torch.Tensor) -> Sight:
        """Tell what rows `asking` `[asking]`, ascending, see."""
        ends = torch.tensor(self.lengths, device=asking.device).cumsum(0)
        counts = torch.searchsorted(asking, ends).tolist()
        pair_rows, members = [], []
        rows, chain = torch.arange(len(asking), device=asking.device), asking
        while True:
            deep = self.depths[chain] > 0
            rows, chain = rows[deep], chain[deep]
            if not len(rows):
                break
            pair_rows.append(rows)
            members.append(chain)
            chain = self.parents[chain]
        every_row = torch.cat([rows, *pair_rows])
        order = every_row.argsort(stable=True)
        every_member = torch.cat([chain, *members])[order]
        return Sight(
            asking=np.diff([0, *counts]).tolist(),
            context=self.slots,
            anchors=self.anchors[asking],
            pair_rows=every_row[order],
            pair_members=every_member,
            pair_depths=self.depths[every_member],
            depths=int(self.depths.max()),
        )
