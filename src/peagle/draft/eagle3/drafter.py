"""The EAGLE-3 drafter of an engine: one pass a level, over all sequences that still ask.

A level's rows must see the rows of former levels on their own path, which are never committed. All
rows of the tree so far go into each pass again, as one ordinary step over tree rows, and being the
same rows they give the same bits. A pass mostly costs its number of small operations: measured on
2 cores with one layer of SmolLM2-135M's shape, bfloat16 and 320 slots, 1.8 ms for 4 rows, 2.8 ms
for 8 and 3.2 ms for all 24 rows of six levels. Keeping the rows' keys instead would save that
difference at most, and would scatter a sequence's rows over a step, in every plan of every model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from peagle.draft.distributions import LevelDistributions
from peagle.draft.eagle3.expansion import Expansion
from peagle.draft.eagle3.network import Eagle3Network
from peagle.draft.network.compute import NetworkOutput
from peagle.draft.network.drafter import Drafter, DraftLimits
from peagle.draft.network.state import DrafterState
from peagle.draft.network.trunk import SlotRows, keep_slots
from peagle.model.rows import SequenceRows


@dataclass(slots=True, eq=False)
class _Asking:
    """One sequence while its tree grows.

    Attributes:
        state: The sequence.
        tree: Its tree.
        entering: Hidden states that the rows of the tree take, `[rows, hidden]`.
    """

    state: DrafterState
    tree: Expansion
    entering: torch.Tensor

    def rows(self) -> SequenceRows:
        """All rows of the tree so far."""
        return SequenceRows(self.state.cache, self.tree.tokens, self.tree.parents)


class Eagle3Drafter(Drafter):
    """Proposes draft tokens for all sequences of an engine, with an EAGLE-3 network."""

    network: Eagle3Network

    def pass_rows(self, waiting: Sequence[int], limits: Sequence[DraftLimits]) -> list[int]:
        """Rows of the passes: all new slots, and then the tree's so far for each further level."""
        widths = [(limit.depth, min(limit.roots, limit.nodes)) for limit in limits]
        deepest = max((depth for depth, _ in widths), default=0)
        levels = range(1, deepest)
        further = [sum(width * n for depth, width in widths if depth > n) for n in levels]
        return [sum(waiting), *further]

    def _predict(
        self,
        states: Sequence[DrafterState],
        slots: Sequence[SlotRows],
        limits: Sequence[DraftLimits],
    ) -> Sequence[LevelDistributions]:
        network = self.network
        output = network.read(self.cache, slots, [1] * len(slots))
        keep_slots(output, slots)
        nothing = output.residual[0][:0]
        asking = [
            _Asking(state, Expansion(limit), nothing)
            for state, limit in zip(states, limits, strict=True)
        ]
        trees = [one.tree for one in asking]
        while True:
            asking = self._record(asking, output)
            if not asking:
                return trees
            entering = torch.cat([one.entering for one in asking])
            output = network.compute.run(
                self.cache,
                [one.rows() for one in asking],
                entering,
                [one.tree.newest for one in asking],
            )

    def _record(self, asking: Sequence[_Asking], output: NetworkOutput) -> list[_Asking]:
        """Note what the newest rows predict; return the sequences that ask for another level.

        Args:
            asking: Sequences.
            output: What the newest rows of each gave.
        """
        remaining = []
        for one, logits, residual in zip(asking, output.logits, output.residual, strict=True):
            one.state.passes += 1
            one.tree.record(self.network.compute.most_probable(logits, one.tree.width))
            if one.tree.newest:
                fed_back = self.network.fed_back(residual)[one.tree.asked_by]
                one.entering = torch.cat([one.entering, fed_back])
                remaining.append(one)
        return remaining
