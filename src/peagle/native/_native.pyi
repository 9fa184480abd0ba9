"""What the native CPU step offers (module.cpp); arrays are NumPy's, contiguous."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from peagle.draft.distributions import LevelDistributions

def instruction_sets() -> list[str]: ...
def pack_int8(values: NDArray[np.int8], scales: NDArray[np.float32]) -> PackedWeight: ...
def pack_int4(
    nibbles: NDArray[np.uint8], scales: NDArray[np.float32], offsets: NDArray[np.float32]
) -> PackedWeight: ...
def pack_bfloat16(values: NDArray[np.uint16]) -> PackedWeight: ...
def multiply(
    weight: PackedWeight,
    rows: NDArray[np.float32],
    out: NDArray[np.float32],
    threads: ThreadPool,
    instructions: str,
) -> None: ...
def silu_times(
    gate: NDArray[np.float32], up: NDArray[np.float32], out: NDArray[np.float32], instructions: str
) -> None: ...
def read_through(words: NDArray[np.uint64], threads: ThreadPool) -> int: ...

@final
class PackedWeight:
    @property
    def bytes(self) -> int: ...

@final
class ThreadPool:
    def __init__(self, threads: int) -> None: ...
    @property
    def size(self) -> int: ...

@final
class Step: ...

@final
class Decoder:
    def __init__(
        self,
        *,
        intermediate: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        eps: float,
        window: int,
        embedding: NDArray[np.uint16],
        layers: Sequence[
            tuple[
                NDArray[np.float32],
                PackedWeight,
                PackedWeight,
                NDArray[np.float32],
                PackedWeight,
                PackedWeight,
            ]
        ],
        norm: NDArray[np.float32],
        head: PackedWeight,
        turns: NDArray[np.float32],
        threads: ThreadPool,
        instructions: str,
        hidden_norm: NDArray[np.float32] | None = None,
        mask_embedding: NDArray[np.uint16] | None = None,
        norm_before_residual: bool = False,
    ) -> None: ...
    def run(
        self,
        pool: NDArray[np.float32],
        tokens: NDArray[np.int32],
        parents: NDArray[np.int32],
        parts: NDArray[np.int32],
        pages: NDArray[np.int32],
        taps: NDArray[np.int32],
        logits: NDArray[np.float32],
        features: NDArray[np.float32],
        entering: NDArray[np.float32] | None = None,
        residual: NDArray[np.float32] | None = None,
    ) -> Step: ...
    def commit(
        self,
        step: Step,
        pool: NDArray[np.float32],
        rows: NDArray[np.int32],
        pages: NDArray[np.int32],
        places: NDArray[np.int32],
    ) -> None: ...
    def take_seconds(self) -> tuple[float, float, float]: ...
    @property
    def instructions(self) -> str: ...

class Fusion:
    def __init__(
        self,
        *,
        weight: PackedWeight,
        norms: NDArray[np.float32],
        eps: float,
        threads: ThreadPool,
        instructions: str,
    ) -> None: ...
    def run(self, features: NDArray[np.float32], out: NDArray[np.float32]) -> None: ...

class MarkovHead:
    def __init__(
        self,
        *,
        embedding: NDArray[np.uint16],
        previous: PackedWeight,
        gate: PackedWeight,
        out: NDArray[np.uint16],
        target_ids: NDArray[np.int32],
        norm: NDArray[np.float32],
        eps: float,
        scored: int,
        top: int,
        instructions: str,
    ) -> None: ...

class Branches:
    def __init__(
        self, head: MarkovHead, logits: NDArray[np.float32], residual: NDArray[np.float32]
    ) -> None: ...
    @property
    def levels(self) -> int: ...
    def after(self, level: int, token: int) -> tuple[list[int], list[float]]: ...

def most_probable(
    logits: NDArray[np.float32], target_ids: NDArray[np.int32], count: int
) -> list[tuple[list[int], list[float]]]: ...

@final
class Corpus:
    def __init__(
        self,
        *,
        tokens: NDArray[Any],
        positions: NDArray[Any],
        first_token_bounds: NDArray[Any],
        frequent_ranges: NDArray[Any],
        frequent_order_bounds: NDArray[Any],
        successor_bounds: NDArray[Any],
        successors: NDArray[Any],
        successor_probabilities: NDArray[Any],
        shares: Sequence[float],
    ) -> None: ...

@final
class MixturePrior:
    def __init__(
        self,
        *,
        lookup_evidence: Sequence[float],
        corpus_evidence: Sequence[float],
        match_bounds: Sequence[int],
        network_weights: Sequence[Sequence[Sequence[float]]],
        trust_observations: float,
    ) -> None: ...

@final
class TextSources:
    def __init__(
        self,
        token_ids: Sequence[int],
        *,
        prior: MixturePrior,
        lookup: bool,
        corpus: Corpus | None,
    ) -> None: ...
    def extend(self, token_ids: Sequence[int]) -> None: ...
    def observe(
        self, parents: Sequence[int], probabilities: Sequence[float], accepted: Sequence[int]
    ) -> None: ...
    @property
    def repeats(self) -> bool: ...
    @property
    def longest_match(self) -> int: ...
    @property
    def trust(self) -> float: ...

@final
class GrowingTree:
    def __init__(
        self,
        sources: TextSources,
        network: LevelDistributions | Branches | None,
        *,
        max_nodes: int,
        max_roots: int,
        max_depth: int,
    ) -> None: ...
    def grow(self) -> None: ...
    def first(
        self, count: int
    ) -> tuple[list[int], list[int], list[float], list[int], list[int]]: ...
    @property
    def taken(self) -> int: ...

def allocate(
    trees: Sequence[GrowingTree],
    odds: Sequence[float],
    seconds: Sequence[float],
    certain: float,
    rate: float,
) -> tuple[list[int], float]: ...
