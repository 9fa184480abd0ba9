"""Read a decoder from a GGUF file: its configuration, and its weights dequantised."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from peagle.catalog.gguf_header import read_gguf_header
from peagle.errors import UnsupportedError
from peagle.model.config import DecoderConfig
from peagle.model.families.phi3 import fused_parts
from peagle.model.folder_checkpoint import require_shape
from peagle.model.gguf_config import GGUFConfig
from peagle.model.gguf_names import weights_of
from peagle.model.gguf_weights import GGUFWeight, read_packed, read_values, require_readable


class GGUFCheckpoint:
    """An open GGUF file.

    Args:
        path: The file.

    Attributes:
        path: As given.
        header: Its metadata, and where its tensors lie.
        hugging_face_config: What its `config.json` would say.

    Raises:
        ModelNotFoundError: There is no such file.
        CheckpointError: The file is truncated, corrupt or incomplete.
        UnsupportedError: Its architecture, rope scaling or quantisation is not one we read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = read_gguf_header(path)
        read = GGUFConfig(
            path, self.header, lambda stored: read_values(path, GGUFWeight.whole(stored))
        )
        self._architecture = read.architecture()
        require_readable(path, self.header.tensors)
        self.hugging_face_config = read.hugging_face()
        self.config = DecoderConfig.from_hugging_face(self.hugging_face_config)

    def tensors(self, dtype: torch.dtype = torch.float32) -> Iterator[tuple[str, torch.Tensor]]:
        """Give every weight by its Hugging Face name, in Hugging Face's row order.

        Args:
            dtype: What the float32 values are rounded to.

        Raises:
            UnsupportedError: As in `stored`.
        """
        for name, weight in self.stored():
            yield name, read_values(self.path, weight, dtype)

    def stored(self) -> Iterator[tuple[str, GGUFWeight]]:
        """Give every weight's Hugging Face name and where it lies.

        Raises:
            UnsupportedError: The architecture has no such tensor.
        """
        heads, kv_heads = (
            self.hugging_face_config[f"num_{kind}_heads"] for kind in ("attention", "key_value")
        )
        for stored in self.header.tensors:
            found = weights_of(stored, self._architecture, heads, kv_heads)
            if found is None:
                raise UnsupportedError(
                    f"{self.path} holds the tensor {stored.name!r}, which the architecture "
                    f"{self._architecture!r} does not have here.",
                    remedy="Use a GGUF file of the plain model, without parts for other purposes.",
                    field=stored.name,
                )
            yield from found

    def common(self) -> Iterator[tuple[str, GGUFWeight]]:
        """Give every weight by the name that all families share, nothing fused.

        Rows are in Hugging Face's order; what a family adds to its norms is added.

        Raises:
            UnsupportedError: As in `stored`.
        """
        config = self.config
        for name, stored in self.stored():
            weight = replace(stored, added=0.0)
            parts = fused_parts(name, config)
            if not parts:
                yield name, weight
                continue
            require_shape(name, weight.shape, (sum(parts.values()), config.hidden_size))
            yield from zip(parts, weight.cut([*parts.values()]), strict=True)

    def packed(self, weight: GGUFWeight) -> NDArray[np.uint8]:
        """Read a weight as it is packed, `[rows, bytes]`, in Hugging Face's row order."""
        return read_packed(self.path, weight)

    def values(self, weight: GGUFWeight) -> torch.Tensor:
        """Read a weight, float32, in Hugging Face's row order."""
        return read_values(self.path, weight)
