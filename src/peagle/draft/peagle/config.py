"""What a P-EAGLE drafter is: the shape of its network and the target it was made for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from peagle.draft.network.config import NetworkConfig, wrong_value
from peagle.draft.network.tensors import (
    EMBEDDING,
    MARKOV_GATE,
    MARKOV_OUT,
    MARKOV_PREVIOUS,
    MASK_EMBEDDING,
    MASK_HIDDEN,
)
from peagle.spec import NetworkMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class PEagleConfig(NetworkConfig):
    """The shape of a P-EAGLE network (arXiv 2602.01469).

    Attributes:
        mask_token_id: Id that stands for a mask slot in exported checkpoints; an embedding of the
            network's own has the mask embedding in that row.
        markov_rank: Rank of the head that tells a mask slot the token drafted before it; 0 if the
            network has none.
    """

    method: ClassVar[NetworkMethod] = "peagle"

    mask_token_id: int
    markov_rank: int = 0

    def __post_init__(self) -> None:
        """Check that the shape is possible.

        Raises:
            CheckpointError: A number lies outside what the others allow.
        """
        NetworkConfig.__post_init__(self)
        vocab = self.decoder.vocab_size
        if not 0 <= self.mask_token_id < vocab:
            raise wrong_value("mask_token_id", self.mask_token_id, f"from 0 to {vocab - 1}")

    def mask_embedding(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Give the embedding of mask slots (`NetworkConfig.mask_embedding`)."""
        if self.own_embedding:
            return tensors[EMBEDDING][self.mask_token_id]
        return tensors[MASK_EMBEDDING]

    def method_shapes(self) -> dict[str, list[int]]:
        """Name the tensors of mask slots, with their shapes."""
        shapes = {MASK_HIDDEN: [1, 1, self.feature_size]}
        if not self.own_embedding:
            shapes[MASK_EMBEDDING] = [self.decoder.hidden_size]
        if self.markov_rank:
            hidden = self.decoder.hidden_size
            shapes |= {
                MARKOV_PREVIOUS: [self.markov_rank, hidden],
                MARKOV_GATE: [self.markov_rank, hidden],
                MARKOV_OUT: [self.draft_vocab_size, self.markov_rank],
            }
        return shapes
