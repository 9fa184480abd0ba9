"""What computes a drafter network: rows with hidden states in; logits and a commit out.

`torch_compute.py` and `native_compute.py` are its two implementations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from peagle.draft.distributions import Children
from peagle.model.kv_cache import KVCache
from peagle.model.rows import SequenceRows
from peagle.model.target import UncommittedRows


@dataclass(frozen=True, slots=True)
class NetworkOutput:
    """What some rows gave.

    Attributes:
        logits: For each sequence those of its predicting rows, float32 `[rows, draft vocab]`.
        residual: And their residual stream behind the last layer, `[rows, hidden]`.
        step: All rows, to be committed.
    """

    logits: list[torch.Tensor]
    residual: list[torch.Tensor]
    step: UncommittedRows


class NetworkCompute(Protocol):
    """The arithmetic of a drafter network, whose rows are independent of one another.

    Attributes:
        device: Where it computes.
    """

    device: torch.device

    @property
    def rows_per_pass(self) -> int:
        """Most rows one pass over the weights takes."""
        ...

    def new_cache(self, budget: int, most_pages: int | None = None) -> KVCache:
        """Make a KV cache of at most `budget` bytes, and of at most so many pages."""
        ...

    def fused(self, features: torch.Tensor) -> torch.Tensor:
        """Fuse `features` `[rows, taps * target hidden]` to hidden states `[rows, hidden]`."""
        ...

    def run(
        self,
        cache: KVCache,
        rows: Sequence[SequenceRows],
        entering: torch.Tensor,
        predicting: Sequence[int],
    ) -> NetworkOutput:
        """Run rows through the network, row for row the same whatever else is in the step.

        Args:
            cache: Where the sequences' pages are.
            rows: Rows of each sequence; each must fit in its pages and in the context. The token
                behind the vocabulary is the mask token of a network that has one.
            entering: Hidden state that each row takes, `[rows, hidden]`.
            predicting: Rows at the end of each sequence whose logits are wanted.
        """
        ...

    def most_probable(self, logits: torch.Tensor, count: int) -> list[Children]:
        """Give the `count` most probable tokens of each row of `logits` `[rows, draft vocab]`."""
        ...

    def final_norm(self, residual: torch.Tensor) -> torch.Tensor:
        """Norm what leaves the last layer, `[rows, hidden]`."""
        ...
