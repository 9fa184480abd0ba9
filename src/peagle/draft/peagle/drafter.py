"""The P-EAGLE drafter of an engine: all levels of all sequences from one pass."""

from collections.abc import Sequence
from typing import Final

import torch

from peagle.draft.distributions import LevelDistributions, NetworkDistributions
from peagle.draft.network.drafter import Drafter, DraftLimits
from peagle.draft.network.state import DrafterState
from peagle.draft.network.trunk import SlotRows
from peagle.draft.peagle.network import PEagleNetwork

# Lower ranks are too improbable for a tree of some dozen nodes.
TOP_TOKENS: Final = 32


class PEagleDrafter(Drafter):
    """Proposes draft tokens for all sequences of an engine, with a P-EAGLE network."""

    network: PEagleNetwork

    def _predict(
        self,
        states: Sequence[DrafterState],
        slots: Sequence[SlotRows],
        limits: Sequence[DraftLimits],
    ) -> Sequence[LevelDistributions]:
        depths = [limit.depth for limit in limits]
        output = self.network.forward(self.cache, slots, [depth - 1 for depth in depths])
        output.commit()
        for state in states:
            state.passes += 1
        # The last new slot predicts the first draft token, each mask slot one more.
        predicting = [
            residual[-depth:] for residual, depth in zip(output.residual, depths, strict=True)
        ]
        logits = torch.split(self.network.logits(torch.cat(predicting)), depths)
        return [self._distributions(own) for own in logits]

    def _distributions(self, logits: torch.Tensor) -> NetworkDistributions:
        """Give the most probable tokens of `logits` `[depths, draft vocab]`, by target id."""
        best, ids = logits.topk(min(TOP_TOKENS, logits.shape[1]))
        probabilities = (best - logits.logsumexp(-1, keepdim=True)).exp()
        return NetworkDistributions(
            self.network.target_ids[ids].cpu().numpy(), probabilities.cpu().numpy()
        )
