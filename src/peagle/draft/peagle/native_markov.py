"""The Markov head of a P-EAGLE network in the native step: a branch costs some microseconds."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from peagle import native
from peagle.draft.distributions import Children
from peagle.draft.network.compute import NetworkOutput
from peagle.draft.network.tensors import (
    DRAFT_TO_TARGET,
    MARKOV_GATE,
    MARKOV_OUT,
    MARKOV_PREVIOUS,
    target_ids,
)
from peagle.draft.peagle.markov import SCORED_TOKENS, TOP_TOKENS
from peagle.model.native_target import packed_weight
from peagle.native.arrays import bfloat16, float32, int32

RANK_MULTIPLE: Final = 16
"""The native step takes ranks in whole vectors of so many numbers."""


class NativeMarkovHead:
    """`markov.TorchMarkovHead` in the native step.

    Args:
        tensors: The network's weights by name, the rank a multiple of `RANK_MULTIPLE`.
        embedding: The target's, `[vocab, hidden]`.
        eps: Of the norms of the embedding and of a slot's output.
        instructions: One of `native.instruction_sets()`; the best of this processor if empty.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        embedding: torch.Tensor,
        eps: float,
        instructions: str = "",
    ) -> None:
        self._library = native.library
        self._head = self._library.MarkovHead(
            embedding=bfloat16(embedding),
            previous=packed_weight(tensors[MARKOV_PREVIOUS]),
            gate=packed_weight(tensors[MARKOV_GATE]),
            out=bfloat16(tensors[MARKOV_OUT]),
            target_ids=int32(target_ids(tensors[DRAFT_TO_TARGET]).numpy()),
            norm=float32(tensors["norm.weight"]),
            eps=eps,
            scored=SCORED_TOKENS,
            top=TOP_TOKENS,
            instructions=instructions,
        )

    def branches(self, output: NetworkOutput) -> list["NativeBranches"]:
        """Give the predictions of one pass for each sequence (`markov.MarkovHead.branches`)."""
        return [
            NativeBranches(self._library.Branches(self._head, logits.numpy(), residual.numpy()))
            for logits, residual in zip(output.logits, output.residual, strict=True)
        ]


class NativeBranches:
    """Predictions of one pass, each deeper one given the token drafted before.

    Args:
        found: The native library's `Branches`, which keeps what it has worked out.

    Attributes:
        found: As given; the native proposer asks it without a detour.
    """

    def __init__(self, found: Any) -> None:
        self.found = found

    @property
    def levels(self) -> int:
        """Number of levels predicted."""
        levels: int = self.found.levels
        return levels

    def children(self, depth: int, path: Sequence[int]) -> Children:
        """Predict the token at `depth` after the draft tokens of `path`."""
        told: Children = self.found.after(depth - 1, path[-1] if depth > 1 else 0)
        return told
