"""The weights of a drafter network and what P-EAGLE and EAGLE-3 share.

Slot `i` takes token `x[i+1]` and feature `g[i]` and predicts `x[i+2]`. Layer 0 reads the embedded
token and the hidden state side by side, the layers behind it are plain decoder layers. Where hidden
states come from is the method's affair: `fc` fuses them from features of the target.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from peagle.draft.network.compute import NetworkCompute, NetworkOutput
from peagle.draft.network.config import NetworkConfig
from peagle.draft.network.tensors import DRAFT_TO_TARGET, target_ids
from peagle.model.kv_cache import KVCache, SequenceCache
from peagle.model.rows import SequenceRows


@dataclass(frozen=True, slots=True)
class SlotRows:
    """New slots of one sequence.

    Attributes:
        cache: The sequence's committed slots.
        tokens: Token of each new slot, the one behind the position of its feature.
        features: `[len(tokens), taps * target hidden]`.
    """

    cache: SequenceCache
    tokens: Sequence[int]
    features: torch.Tensor


class DraftNetwork:
    """A drafter network.

    Args:
        config: The network's shape.
        tensors: Its weights by name, checked (`tensors.check_tensors`).
        compute: Its arithmetic, made of the same weights.

    Attributes:
        config: As given.
        compute: As given.
        target_ids: Target id of each draft id, int64 `[draft vocab]`.
        parameters: Numbers that are the network's own, a shared embedding not among them.
    """

    def __init__(
        self,
        config: NetworkConfig,
        tensors: Mapping[str, torch.Tensor],
        compute: NetworkCompute,
    ) -> None:
        self.config = config
        self.compute = compute
        self.target_ids = target_ids(tensors[DRAFT_TO_TARGET].to(compute.device))
        self.parameters = sum(found.numel() for found in tensors.values()) - len(self.target_ids)

    def read(
        self, cache: KVCache, slots: Sequence[SlotRows], predicting: Sequence[int]
    ) -> NetworkOutput:
        """Compute new slots, row for row the same whatever else is in the step.

        Args:
            cache: Where the sequences' pages are.
            slots: Slots of each sequence; each must fit in its pages and in the context.
            predicting: Slots at the end of each sequence whose logits are wanted.
        """
        rows = [SequenceRows(part.cache, part.tokens) for part in slots]
        entering = self.compute.fused(joined_features(slots))
        return self.compute.run(cache, rows, entering, predicting)


def keep_slots(output: NetworkOutput, slots: Sequence[SlotRows]) -> None:
    """Keep new slots, the first rows of each sequence, in the KV cache; forget the rows behind."""
    output.step.commit([range(len(part.tokens)) for part in slots])


def joined_features(slots: Sequence[SlotRows]) -> torch.Tensor:
    """Give the features of all slots, one sequence behind the other."""
    return slots[0].features if len(slots) == 1 else torch.cat([part.features for part in slots])
