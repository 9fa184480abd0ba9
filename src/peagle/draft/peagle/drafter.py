"""The P-EAGLE drafter of an engine: all levels of all sequences from one pass."""

from collections.abc import Sequence

from peagle.draft.distributions import LevelDistributions, NetworkDistributions
from peagle.draft.network.drafter import Drafter, DraftLimits
from peagle.draft.network.state import DrafterState
from peagle.draft.network.trunk import SlotRows, keep_slots
from peagle.draft.peagle.markov import TOP_TOKENS
from peagle.draft.peagle.network import PEagleNetwork


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
        network = self.network
        if network.markov is None:
            return [
                NetworkDistributions(network.compute.most_probable(own, TOP_TOKENS))
                for own in output.logits
            ]
        return network.markov.branches(output)
