"""The P-EAGLE drafter of an engine: all levels of all sequences from one pass."""

from collections.abc import Sequence
from typing import Final

import torch

from peagle.draft.distributions import LevelDistributions, NetworkDistributions
from peagle.draft.network.drafter import Drafter, DraftLimits
from peagle.draft.network.state import DrafterState
from peagle.draft.network.trunk import SlotRows, keep_slots
from peagle.draft.peagle.markov import BranchDistributions
from peagle.draft.peagle.network import PEagleNetwork

# Lower ranks are too improbable for a tree of some dozen nodes.
TOP_TOKENS: Final = 32


class PEagleDrafter(Drafter):
    """Proposes draft tokens for all sequences of an engine, with a P-EAGLE network."""

    network: PEagleNetwork

    def pass_rows(self, waiting: Sequence[int], limits: Sequence[DraftLimits]) -> list[int]:
        """Rows of the only pass: all new slots and a mask slot for each further level."""
        return [sum(waiting) + sum(limit.depth - 1 for limit in limits)]

    def _predict(
        self,
        states: Sequence[DrafterState],
        slots: Sequence[SlotRows],
        limits: Sequence[DraftLimits],
    ) -> Sequence[LevelDistributions]:
        depths = [limit.depth for limit in limits]
        # The last new slot predicts the first draft token, each mask slot one more.
        output = self.network.forward(
            self.cache, slots, masks=[depth - 1 for depth in depths], predicting=depths
        )
        keep_slots(output, slots)
        for state in states:
            state.passes += 1
        markov = self.network.markov
        if markov is None:
            return [self._distributions(own) for own in output.logits]
        normed = self.network.compute.final_norm(torch.cat(output.residual))
        gates = torch.split(markov.gates(normed), depths)
        return [
            BranchDistributions(own, gate, markov, self.network.target_ids, TOP_TOKENS)
            for own, gate in zip(output.logits, gates, strict=True)
        ]

    def _distributions(self, logits: torch.Tensor) -> NetworkDistributions:
        """Give the most probable tokens of `logits` `[depths, draft vocab]`, by target id."""
        best, ids = logits.topk(min(TOP_TOKENS, logits.shape[1]))
        probabilities = (best - logits.logsumexp(-1, keepdim=True)).exp()
        return NetworkDistributions(
            self.network.target_ids[ids].cpu().numpy(), probabilities.cpu().numpy()
        )
