"""The P-EAGLE network: one pass over new slots and mask slots gives all depths at once.

A round is one chain of rows `[new slots | mask slots]`: mask slots take the mask embedding and
`fc(mask_hidden)`, so every row sees all slots and the mask slots before it under plain causal
attention (arXiv 2602.01469). Only real slots are kept in the KV cache; the next round writes its
own over the mask slots' positions.
"""

from collections.abc import Mapping, Sequence

import torch

from peagle.draft.network.compute import NetworkCompute, NetworkOutput
from peagle.draft.network.native_compute import NativeCompute
from peagle.draft.network.tensors import MASK_HIDDEN
from peagle.draft.network.trunk import DraftNetwork, SlotRows, joined_features
from peagle.draft.peagle.config import PEagleConfig
from peagle.draft.peagle.markov import MarkovHead, TorchMarkovHead
from peagle.draft.peagle.native_markov import RANK_MULTIPLE, NativeMarkovHead
from peagle.model.kv_cache import KVCache
from peagle.model.rows import SequenceRows, rows_of_each
from peagle.spec import MAX_DEPTH


class PEagleNetwork(DraftNetwork):
    """A drafter network with mask slots.

    Args:
        config: The network's shape.
        tensors: Its weights by name, checked (`tensors.check_tensors`).
        compute: Its arithmetic, made of the same weights.
        embedding: The target's `[vocab, hidden]`, which the Markov head reads.

    Attributes:
        markov: What tells a mask slot the token drafted before it, if the network has that.
    """

    config: PEagleConfig

    def __init__(
        self,
        config: PEagleConfig,
        tensors: Mapping[str, torch.Tensor],
        compute: NetworkCompute,
        *,
        embedding: torch.Tensor,
    ) -> None:
        super().__init__(config, tensors, compute)
        mask_hidden = compute.fused(tensors[MASK_HIDDEN].view(1, -1))
        self._mask_hidden = mask_hidden.expand(MAX_DEPTH, -1).contiguous()
        self.markov = _markov_head(config, tensors, compute, embedding)

    def forward(
        self,
        cache: KVCache,
        slots: Sequence[SlotRows],
        masks: Sequence[int],
        predicting: Sequence[int],
    ) -> NetworkOutput:
        """Compute new slots and mask slots, row for row the same whatever else is in the pass.

        Args:
            cache: Where the sequences' pages are.
            slots: Slots of each sequence; each must fit in its pages and in the context.
            masks: How many mask slots stand behind those of each sequence.
            predicting: Rows at the end of each sequence whose logits are wanted.
        """
        # One behind the vocabulary: a text may hold the mask token, and then means its own row.
        mask = self.config.decoder.vocab_size
        rows = [
            SequenceRows(part.cache, [*part.tokens, *[mask] * count])
            for part, count in zip(slots, masks, strict=True)
        ]
        return self.compute.run(cache, rows, self._entering(slots, masks), predicting)

    def _entering(self, slots: Sequence[SlotRows], masks: Sequence[int]) -> torch.Tensor:
        """Hidden states of all slots, `[rows, hidden]`: fused features, or those of a mask."""
        fused = self.compute.fused(joined_features(slots))
        pieces = []
        for own, count in zip(
            rows_of_each(fused, [len(part.tokens) for part in slots]), masks, strict=True
        ):
            pieces += [own, self._mask_hidden[:count]]
        return torch.cat(pieces)


def _markov_head(
    config: PEagleConfig,
    tensors: Mapping[str, torch.Tensor],
    compute: NetworkCompute,
    embedding: torch.Tensor,
) -> MarkovHead | None:
    rank, eps = config.markov_rank, config.decoder.rms_norm_eps
    if not rank:
        return None
    if isinstance(compute, NativeCompute) and rank % RANK_MULTIPLE == 0:
        return NativeMarkovHead(tensors, embedding, eps, compute.instructions)
    return TorchMarkovHead(tensors, embedding, eps, compute)
