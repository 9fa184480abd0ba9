"""Arrays side by side in one piece of memory, so that one copy moves all of them to a device."""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

# No type of number needs more, and kernels read aligned vectors.
_ALIGNMENT: Final = 64


class Packed:
    """Some arrays on a device.

    Attributes:
        whole: The bytes of all of them.
        parts: The arrays, as views of `whole`.
    """

    def __init__(self, whole: torch.Tensor, layout: Sequence[tuple[torch.dtype, torch.Size]]):
        self.whole = whole
        self._layout = layout
        self.parts: list[torch.Tensor] = []
        begin = 0
        for dtype, shape in layout:
            size = math.prod(shape) * dtype.itemsize
            self.parts.append(whole[begin : begin + size].view(dtype).view(shape))
            begin += _aligned(size)

    @classmethod
    def of(cls, arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> "Packed":
        """Pack arrays on a device."""
        whole = np.zeros(sum(_aligned(array.nbytes) for array in arrays), np.uint8)
        layout = []
        begin = 0
        for array in arrays:
            tensor = torch.from_numpy(np.ascontiguousarray(array))
            layout.append((tensor.dtype, tensor.shape))
            end = begin + array.nbytes
            whole[begin:end].view(tensor.numpy().dtype)[:] = tensor.numpy().reshape(-1)
            begin += _aligned(array.nbytes)
        return cls(torch.from_numpy(whole).to(device), layout)

    def twin(self) -> "Packed":
        """Copy the arrays to memory of their own."""
        return Packed(self.whole.clone(), self._layout)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
