"""The EAGLE-3 network: what a row gives is fed back with the draft token that it predicted."""

import torch

from peagle.draft.eagle3.config import Eagle3Config
from peagle.draft.network.trunk import DraftNetwork


class Eagle3Network(DraftNetwork):
    """A drafter network that is run once a level (arXiv 2503.01840).

    Real slots are read as in every drafter network. A draft token's row takes the hidden state that
    its parent's row gave, and stands at the next position.
    """

    config: Eagle3Config

    def fed_back(self, residual: torch.Tensor) -> torch.Tensor:
        """Hidden states for the rows behind `residual` `[rows, hidden]`, in the same shape."""
        return self.compute.final_norm(residual) if self.config.norm_output else residual
