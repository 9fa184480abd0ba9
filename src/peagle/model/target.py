"""The target model, as the engine sees it: rows in; logits, features and a commit out.

`torch_target.py` and `native_target.py` are its two implementations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from peagle.model.config import DecoderConfig
from peagle.model.kv_cache import KVCache
from peagle.model.rows import SequenceRows
from peagle.quantization import Quantization


class UncommittedRows(Protocol):
    """The rows of a step, whose keys and values are not in the KV cache yet."""

    def commit(self, kept: Sequence[Sequence[int]]) -> None:
        """Store the keys and values of rows at the next positions of their sequences.

        Rows that are not named are forgotten. Called once a step.

        Args:
            kept: For each sequence, rows along one path from its committed end.
        """
        ...


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What the rows of one step gave.

    Attributes:
        logits: For each sequence float32 `[rows asked for, vocab]`.
        features: For each sequence the tapped residual streams `[rows, taps * hidden]`; empty if
            they were not asked for.
        step: The rows, to be committed.
        planning_s: Seconds that went into planning the passes, before the first of them.
    """

    logits: list[torch.Tensor]
    features: list[torch.Tensor]
    step: UncommittedRows
    planning_s: float = 0.0

    def commit(self, kept: Sequence[Sequence[int]]) -> None:
        """Keep the rows of one path for each sequence (`UncommittedRows.commit`)."""
        self.step.commit(kept)


class Target(Protocol):
    """A decoder whose rows are independent of one another.

    Attributes:
        config: The model's shape.
        dtype: What is computed in where weights are not quantised.
        device: Where.
        taps: Layers whose incoming residual stream is returned as features.
    """

    config: DecoderConfig
    dtype: torch.dtype
    device: torch.device
    taps: tuple[int, ...]

    @property
    def quantization(self) -> Quantization:
        """What the weights of its products are quantised to."""
        ...

    @property
    def precision(self) -> str:
        """What it is computed in, in a word."""
        ...

    @property
    def backend(self) -> str:
        """What computes it, in a word or two."""
        ...

    @property
    def row_independence(self) -> str:
        """How its rows come to be independent of one another, as a person reads it."""
        ...

    @property
    def embedding(self) -> torch.Tensor:
        """The table that tokens are looked up in, `[vocab, hidden]`."""
        ...

    @property
    def bytes_read_per_pass(self) -> int:
        """Memory of the weights that a pass reads."""
        ...

    @property
    def rows_per_block(self) -> int:
        """Most rows that one product takes: more cost about as much again."""
        ...

    @property
    def rows_per_pass(self) -> int:
        """Most rows one pass over the weights takes."""
        ...

    @property
    def kv_dtype(self) -> torch.dtype:
        """What keys and values are stored in."""
        ...

    def with_taps(self, taps: tuple[int, ...] | None) -> "Target":
        """Give the same model with other taps, EAGLE-3's if None; weights are shared."""
        ...

    def new_cache(self, budget: int) -> KVCache:
        """Make a KV cache of at most `budget` bytes."""
        ...

    def forward(
        self, cache: KVCache, rows: Sequence[SequenceRows], *, features: bool = False
    ) -> StepOutput:
        """Compute the rows of a step.

        Args:
            cache: Where the sequences' pages are.
            rows: Rows of each sequence; each must fit in its pages and in the context.
            features: Whether to return the tapped residual streams.

        Returns:
            Logits and features, row for row the same bits whatever else is in the step.
        """
        ...
