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
