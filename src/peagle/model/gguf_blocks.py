"""GGUF's own 4-bit blocks as int4 weights, number for number."""

from typing import Final

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from peagle.model.quantized_weight import Int4Weight
from peagle.model.quantizing import GROUP, pack_nibbles

INT4_KINDS: Final = (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1)
_HALF: Final = GROUP // 2
_Q4_0_ZERO: Final = 8


def int4_blocks(packed: NDArray[np.uint8], kind: GGMLQuantizationType) -> Int4Weight:
    """Take the blocks of a tensor as they are.

    A block is a float16 scale, in Q4_1 a float16 minimum, and 16 bytes: the first 16 values in
    the low nibbles, the last 16 in the high ones (ggml-quants of the ggml project).

    Args:
        packed: `[out, bytes]`.
        kind: `Q4_0`, which stands for `scale * (nibble - 8)`, or `Q4_1`, for
            `scale * nibble + minimum`.
    """
    out = packed.shape[0]
    halves = 1 if kind is GGMLQuantizationType.Q4_0 else 2
    blocks = packed.reshape(out, -1, 2 * halves + _HALF)
    heads = np.ascontiguousarray(blocks[..., : 2 * halves]).view(np.float16).astype(np.float32)
    scales = heads[..., 0]
    # A power of two times a float16: exact.
    offsets = heads[..., 1] if halves == 2 else -_Q4_0_ZERO * scales
    numbers = torch.from_numpy(np.ascontiguousarray(blocks[..., 2 * halves :]))
    values = torch.cat([numbers & 15, numbers >> 4], -1).view(out, -1)
    return Int4Weight(
        pack_nibbles(values),
        torch.from_numpy(np.ascontiguousarray(scales)),
        torch.from_numpy(np.ascontiguousarray(offsets)),
    )
