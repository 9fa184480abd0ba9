"""A quick look at a GGUF file: is it one, and is it all there?

The `gguf` package's reader takes seconds on a large vocabulary, too long for a look before each
start. Only what tells where the tensors end is read here. Format: the GGUF specification, version
3, of the ggml project.
"""

import math
import mmap
import struct
from pathlib import Path
from typing import Final

from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGUF_MAGIC,
    GGMLQuantizationType,
    GGUFValueType,
)

from peagle.errors import CheckpointError, UnsupportedError

_SCALARS: Final = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<?",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
}
_MAGIC: Final = struct.pack("<I", GGUF_MAGIC)
_TENSOR_TYPES: Final = frozenset(kind.value for kind in GGML_QUANT_SIZES)
_MAX_DIMENSIONS: Final = 4
_VERSIONS: Final = (2, 3)
_FETCH_AGAIN: Final = "Fetch or convert the file again."


def check_gguf(file: Path, shown: str | None = None) -> None:
    """Check that `file` is a GGUF file and not shorter than its header says.

    Args:
        file: The file.
        shown: What to call it in an error; its path if None.

    Raises:
        CheckpointError: It is something else, damaged, or cut off.
        UnsupportedError: It is of another version, or one part of several.
    """
    name = shown or str(file)
    size = file.stat().st_size
    with file.open("rb") as content:
        start = content.read(len(_MAGIC))
        if start != _MAGIC:
            raise CheckpointError(
                f"{name} is not a GGUF file: it begins with {start!r}.",
                remedy="Only safetensors and GGUF are read: give a file that begins with GGUF.",
                field="model",
            )
        with mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                needed = _Header(data, name).end_of_tensors()
            except (struct.error, ValueError, OverflowError) as error:
                raise CheckpointError(
                    f"{name} has a damaged or cut off header ({size} bytes in all).",
                    remedy=_FETCH_AGAIN,
                    field="model",
                ) from error
    if needed > size:
        raise CheckpointError(
            f"{name} is cut off: its header describes {needed} bytes, the file has {size}.",
            remedy=_FETCH_AGAIN,
            field="model",
        )


class _Header:
    """Walks through a header; reading past the end raises `struct.error`."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self._data = data
        self._name = name
        self._at = len(_MAGIC)

    def end_of_tensors(self) -> int:
        """Where the last tensor ends, in bytes from the start of the file."""
        version = self._take("<I")
        if version not in _VERSIONS:
            raise UnsupportedError(
                f"{self._name} is GGUF of version {version}.",
                remedy="Versions 2 and 3 in little-endian order are read: convert it anew.",
                field="model",
            )
        tensors, pairs = self._take("<Q"), self._take("<Q")
        settings: dict[bytes, int | None] = {}
        for _ in range(pairs):
            key = self._string()
            settings[key] = self._value(GGUFValueType(self._take("<I")))
        self._refuse_part_of_several(settings)
        if tensors == 0:
            raise CheckpointError(
                f"{self._name} holds no weights.",
                remedy="Choose a GGUF file of a whole model, not one of a vocabulary alone.",
                field="model",
            )
        end = max(self._tensor() for _ in range(tensors))
        alignment = settings.get(b"general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"alignment {alignment}")
        return -(-self._at // alignment) * alignment + end

    def _refuse_part_of_several(self, settings: dict[bytes, int | None]) -> None:
        parts = settings.get(b"split.count") or 1
        if parts > 1:
            raise UnsupportedError(
                f"{self._name} is one of {parts} parts of a model.",
                remedy="Join them first: llama-gguf-split --merge FIRST_PART WHOLE.gguf.",
                field="model",
            )

    def _tensor(self) -> int:
        """Pass one tensor's description; return where its data ends after the header."""
        self._string()
        dimensions = self._take("<I")
        if dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"{dimensions} dimensions")
        shape = [self._take("<Q") for _ in range(dimensions)]
        kind, offset = self._take("<I"), self._take("<Q")
        if kind not in _TENSOR_TYPES:
            raise UnsupportedError(
                f"{self._name} holds tensors of the unknown type {kind}.",
                remedy="Convert the model to a current type, such as BF16, Q8_0 or Q4_1.",
                field="model",
            )
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        return int(offset + math.prod(shape) // block * block_bytes)

    def _value(self, kind: GGUFValueType) -> int | None:
        """Pass one value; return it if it is a number (the ones wanted are whole)."""
        if kind is GGUFValueType.STRING:
            self._string()
            return None
        if kind is not GGUFValueType.ARRAY:
            return self._take(_SCALARS[kind])
        element, length = GGUFValueType(self._take("<I")), self._take("<Q")
        if element is GGUFValueType.ARRAY:
            raise ValueError("an array of arrays")
        if element is GGUFValueType.STRING:
            for _ in range(length):
                self._string()
        else:
            self._skip(length * struct.calcsize(_SCALARS[element]))
        return None

    def _string(self) -> bytes:
        length = self._take("<Q")
        start = self._at
        self._skip(length)
        return self._data[start : self._at]

    def _take(self, layout: str) -> int:
        value: int
        (value,) = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return value

    def _skip(self, length: int) -> None:
        self._at += length
        if self._at > len(self._data):
            raise struct.error("past the end")
