"""Arrays as the native library takes them."""

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def float32(tensor: torch.Tensor) -> "NDArray[np.float32]":
    """Give a tensor as float32, without a copy where it is already."""
    return tensor.float().contiguous().numpy()


def bfloat16(tensor: torch.Tensor) -> "NDArray[np.uint16]":
    """Give a tensor as the bits of bfloat16, which NumPy lacks; without a copy where it is that."""
    return tensor.to(torch.bfloat16).contiguous().view(torch.uint16).numpy()


def int32(numbers: "ArrayLike") -> "NDArray[np.int32]":
    """Copy numbers to int32."""
    return np.array(numbers, np.int32)
