"""Attention of sampled rows: each sees its document's real slots up to its anchor, and its chain.

What a row sees is small beside what lies in a batch, so nothing else is multiplied: a product of
each document's asking rows with its real slots, and one number for each pair of a row and a member
of its chain. (FlexAttention has no backward pass on a CPU, and one mask over all rows of a document
costs about four times as much.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812


@dataclass(frozen=True, slots=True)
class Sight:
    """What asking rows see, documents one behind the other.

    Attributes:
        asking: Asking rows of each document.
        context: Real slots of each document.
        anchors: Anchor of each asking row: its document's slots up to there are seen, `[asking]`.
        pair_rows: Asking row of each pair, `[pairs]`.
        pair_members: Which key it sees there, a row of the batch, `[pairs]`.
        pair_depths: Depth of that key, from 1, `[pairs]`.
        depths: Largest depth there may be.
    """

    asking: Sequence[int]
    context: Sequence[int]
    anchors: torch.Tensor
    pair_rows: torch.Tensor
    pair_members: torch.Tensor
    pair_depths: torch.Tensor
    depths: int


def rollout_attention(
    queries: torch.Tensor,
    context: tuple[torch.Tensor, torch.Tensor],
    members: tuple[torch.Tensor, torch.Tensor],
    sight: Sight,
) -> torch.Tensor:
    """Attend to real slots and to the own chain, in one softmax.

    Args:
        queries: Rotated, of all asking rows, `[asking, heads, head_dim]`.
        context: Rotated keys and values of all real slots, `[slots, kv_heads, head_dim]` each.
        members: The same of what pairs name, `[rows, kv_heads, head_dim]` each.
        sight: What is seen.

    Returns:
        `[asking, heads, head_dim]`.
    """
    attended: torch.Tensor = _RolloutAttention.apply(  # type: ignore[no-untyped-call]
        queries, *context, *members, sight
    )
    return attended


class _RolloutAttention(torch.autograd.Function):
    """Per document: scores `[kv_heads, asking, group, slots + depths]`, the chain's at the end."""

    @staticmethod
    def forward(  # noqa: PLR0917  (autograd hands over positions)
        ctx: Any,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        member_keys: torch.Tensor,
        member_values: torch.Tensor,
        sight: Sight,
    ) -> torch.Tensor:
        kind = queries.dtype
        exact = torch.promote_types(kind, torch.float32)
        asking, heads, width = queries.shape
        kv_heads = keys.shape[1]
        group = heads // kv_heads
        with torch.autocast(queries.device.type, enabled=False):
            scaled = queries * width**-0.5
            grouped = scaled.view(asking, kv_heads, group, width)
            paired = grouped[sight.pair_rows]
            pair_scores = torch.einsum(
                "phgd,phd->phg", paired.to(exact), member_keys[sight.pair_members].to(exact)
            )
            saved, pieces = [], []
            for document in _documents(sight):
                own, pairs = document.own, document.pairs
                q = _by_kv_head(grouped[own])
                k, v = (
                    F.pad(part[document.slots].transpose(0, 1), (0, 0, 0, sight.depths))
                    for part in (keys, values)
                )
                scores = _exactly(q, k.transpose(1, 2))
                scores = scores.view(kv_heads, own.stop - own.start, group, k.shape[1])
                scores.masked_fill_(document.hidden[None, :, None, :], -torch.inf)
                scores[:, document.rows, :, document.columns] = pair_scores[pairs]
                weights = scores.softmax(-1)
                low = weights.to(kind).flatten(1, 2)
                pieces.append(_by_row(torch.bmm(low, v), group))
                saved.append(weights)
            attended = torch.cat(pieces)
            pair_weights = torch.cat([
                weights[:, document.rows, :, document.columns]
                for weights, document in zip(saved, _documents(sight), strict=True)
            ])  # fmt: skip
            added = pair_weights.to(kind).unsqueeze(-1) * member_values[
                sight.pair_members
            ].unsqueeze(2)
            attended.index_add_(0, sight.pair_rows, added)
        ctx.sight = sight
        ctx.save_for_backward(
            scaled, keys, values, member_keys, member_values, attended, pair_weights, *saved
        )
        return attended.view(asking, heads, width)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        scaled, keys, values, member_keys, member_values, _, pair_weights, *saved = (
            ctx.saved_tensors
        )
        sight: Sight = ctx.sight
        kind = scaled.dtype
        exact = torch.promote_types(kind, torch.float32)
        asking, heads, width = scaled.shape
        kv_heads = keys.shape[1]
        group = heads // kv_heads
        grouped = scaled.view(asking, kv_heads, group, width)
        incoming = gradient.view(asking, kv_heads, group, width)
        pair_incoming = incoming[sight.pair_rows]
        pair_values = member_values[sight.pair_members].to(exact)
        pair_gradients = torch.einsum("phgd,phd->phg", pair_incoming.to(exact), pair_values)
        query_gradient = torch.empty_like(grouped)
        key_gradient, value_gradient = torch.empty_like(keys), torch.empty_like(values)
        pair_score_gradients = torch.empty_like(pair_gradients)
        for document, weights in zip(_documents(sight), saved, strict=True):
            own, pairs, slots = document.own, document.pairs, document.slots
            count = slots.stop - slots.start
            q, dout = _by_kv_head(grouped[own]), _by_kv_head(incoming[own])
            k = keys[slots].transpose(0, 1)
            v = F.pad(values[slots].transpose(0, 1), (0, 0, 0, sight.depths))
            dweights = _exactly(dout, v.transpose(1, 2)).view(weights.shape)
            dweights[:, document.rows, :, document.columns] = pair_gradients[pairs]
            dscores = torch._softmax_backward_data(dweights, weights, -1, exact)
            pair_score_gradients[pairs] = dscores[:, document.rows, :, document.columns]
            low = dscores.flatten(1, 2)[..., :count].to(kind)
            query_gradient[own] = _by_row(torch.bmm(low, k), group)
            key_gradient[slots] = torch.bmm(low.transpose(1, 2), q).transpose(0, 1)
            low = weights.flatten(1, 2)[..., :count].to(kind)
            value_gradient[slots] = torch.bmm(low.transpose(1, 2), dout).transpose(0, 1)
        low = pair_score_gradients.to(kind).unsqueeze(-1)
        query_gradient.index_add_(
            0, sight.pair_rows, low * member_keys[sight.pair_members].unsqueeze(2)
        )
        member_key_gradient = torch.zeros_like(member_keys).index_add_(
            0, sight.pair_members, (low * grouped[sight.pair_rows]).sum(2)
        )
        member_value_gradient = torch.zeros_like(member_values).index_add_(
            0, sight.pair_members, (pair_weights.to(kind).unsqueeze(-1) * pair_incoming).sum(2)
        )
        return (
            (query_gradient * width**-0.5).view(asking, heads, width),
            key_gradient,
            value_gradient,
            member_key_gradient,
            member_value_gradient,
            None,
        )


@dataclass(frozen=True, slots=True)
class _Document:
    """Where one document's part lies.

    Attributes:
        own: Its asking rows.
        slots: Its real slots.
        pairs: Its pairs.
        rows: Their rows, among its own.
        columns: Their columns of the scores.
        hidden: Which columns its asking rows do not see, `[asking, slots + depths]`.
    """

    own: slice
    slots: slice
    pairs: slice
    rows: torch.Tensor
    columns: torch.Tensor
    hidden: torch.Tensor


def _documents(sight: Sight) -> list[_Document]:
    documents = []
    first = first_slot = first_pair = 0
    ends = torch.searchsorted(
        sight.pair_rows, torch.tensor(sight.asking, device=sight.pair_rows.device).cumsum(0)
    ).tolist()
    for asking, context, pair_end in zip(sight.asking, sight.context, ends, strict=True):
        own, pairs = slice(first, first + asking), slice(first_pair, pair_end)
        columns = torch.arange(context + sight.depths, device=sight.anchors.device)
        documents.append(
            _Document(
                own,
                slice(first_slot, first_slot + context),
                pairs,
                sight.pair_rows[pairs] - first,
                context + sight.pair_depths[pairs] - 1,
                columns > sight.anchors[own, None],
            )
        )
        first, first_slot, first_pair = own.stop, first_slot + context, pair_end
    return documents


def _exactly(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply batches of matrices, giving at least float32."""
    if left.dtype != torch.bfloat16:
        return torch.bmm(left, right)
    # What was bfloat16 loses nothing where a CPU multiplies as bfloat16 and sums as float32.
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        return torch.bmm(left.float(), right.float())
    finally:
        matmul.fp32_precision = before


def _by_kv_head(rows: torch.Tensor) -> torch.Tensor:
    """`[rows, kv_heads, group, width]` to `[kv_heads, rows * group, width]`."""
    count, kv_heads, group, width = rows.shape
    return rows.permute(1, 0, 2, 3).reshape(kv_heads, count * group, width)


def _by_row(heads: torch.Tensor, group: int) -> torch.Tensor:
    """`[kv_heads, rows * group, width]` to `[rows, kv_heads, group, width]`."""
    kv_heads, rows, width = heads.shape
    return heads.view(kv_heads, rows // group, group, width).permute(1, 0, 2, 3)
