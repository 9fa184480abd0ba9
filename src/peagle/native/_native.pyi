"""What the native CPU step offers (module.cpp); arrays are NumPy's, contiguous."""

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

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
