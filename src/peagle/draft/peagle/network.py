"""The P-EAGLE network: one pass over new slots and mask slots gives all depths at once.

A round is one chain of rows `[new slots | mask slots]`: mask slots take the mask embedding and
`fc(mask_hidden)`, so every row sees all slots and the mask slots before it under plain causal
attention (arXiv 2602.01469). Only real slots are kept in the KV cache; the next round writes its
own over the mask slots' positions.
"""

from collections.abc import Mapping, Sequence

import torch

from peagle.draft.network.tensors import MASK_EMBEDDING, MASK_HIDDEN
from peagle.draft.network.trunk import DraftNetwork, SlotOutput, SlotRows
from peagle.draft.peagle.config import PEagleConfig
from peagle.draft.peagle.markov import MarkovHead
from peagle.model.kv_cache import KVCache
from peagle.model.rows import SequenceRows


class PEagleNetwork(DraftNetwork):
    """A drafter network with mask slots; the arguments are those of every drafter network.

    Attributes:
        markov: What tells a mask slot the token drafted before it, if the network has that.
    """

    config: PEagleConfig

    def __init__(
        self,
        config: PEagleConfig,
        tensors: Mapping[str, torch.Tensor],
        *,
        embedding: torch.Tensor,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(config, tensors, embedding=embedding, dtype=dtype, device=device)
        self._mask_embedding = (
            self._embedding[config.mask_token_id]
            if config.own_embedding
            else tensors[MASK_EMBEDDING].to(device=device, dtype=dtype)
        )
        mask_hidden = tensors[MASK_HIDDEN].to(device=device, dtype=dtype)
        with torch.inference_mode():
            self._mask_hidden = self.fused(mask_hidden.view(1, -1))[0]
        self.markov = (
            MarkovHead(tensors, embedding, config.decoder.rms_norm_eps, device)
            if config.markov_rank
            else None
        )

    @torch.inference_mode()
    def forward(
        self, cache: KVCache, slots: Sequence[SlotRows], masks: Sequence[int]
    ) -> SlotOutput:
        """Compute new slots and mask slots, row for row the same whatever else is in the pass.

        Args:
            cache: Where the sequences' pages are.
            slots: Slots of each sequence; each must fit in its pages and in the context.
            masks: How many mask slots stand behind those of each sequence.
        """
        # One behind the vocabulary: a text may hold the mask token, and then means its own row.
        mask = self.config.decoder.vocab_size
        rows = [
            SequenceRows(part.cache, [*part.tokens, *[mask] * count])
            for part, count in zip(slots, masks, strict=True)
        ]
        residual, step = self.run(cache, rows, self._entering(slots, masks))
        return SlotOutput(residual, slots, step)

    def embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embed `tokens` `[rows]`, mask slots among them, giving `[rows, hidden]`."""
        last = self.config.decoder.vocab_size - 1
        rows = super().embedded(tokens.clamp(max=last))
        return torch.where((tokens > last).unsqueeze(1), self._mask_embedding, rows)

    def _entering(self, slots: Sequence[SlotRows], masks: Sequence[int]) -> torch.Tensor:
        """Hidden states of all slots, `[rows, hidden]`: fused features, or those of a mask."""
        fused = self.fused(torch.cat([part.features.to(self.dtype) for part in slots]))
        pieces = []
        for own, count in zip(
            torch.split(fused, [len(part.tokens) for part in slots]), masks, strict=True
        ):
            pieces += [own, self._mask_hidden.expand(count, -1)]
        return torch.cat(pieces)
