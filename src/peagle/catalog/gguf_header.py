"""Read the header of a GGUF file: its metadata, and where its tensors lie.

The `gguf` package's reader makes an array object for every token and merge, which takes seconds
for a usual vocabulary; this walk over the same bytes takes a tenth of one, so that it can precede
each start. Format: the GGUF specification, versions 2 and 3, of the ggml project.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGUF_MAGIC,
    GGMLQuantizationType,
    GGUFValueType,
)

from peagle.errors import CheckpointError, ModelNotFoundError, UnsupportedError

_SCALARS: Final[Mapping[GGUFValueType, str]] = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
_MAGIC: Final = struct.pack("<I", GGUF_MAGIC)
_TENSOR_KINDS: Final = frozenset(kind.value for kind in GGML_QUANT_SIZES)
_MAX_DIMENSIONS: Final = 4
_VERSIONS: Final = (2, 3)
_FETCH_AGAIN: Final = "Fetch or convert the file again."


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where a tensor lies in its file.

    Attributes:
        name: Its name.
        kind: How its values are packed.
        shape: `[rows, columns]`, as NumPy counts; the file names columns first.
        start: Its first byte, from the start of the file.
        size: Its bytes.
    """

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What stands before the weights in a GGUF file.

    Attributes:
        metadata: Its key-value pairs, arrays as lists.
        tensors: Its tensors, in the order of the file.
    """

    metadata: Mapping[str, Any]
    tensors: tuple[GGUFTensor, ...]


def check_gguf(file: Path, shown: str | None = None) -> None:
    """Check that `file` is a GGUF file with the whole weights of a model.

    Args:
        file: The file.
        shown: What to call it in an error; its path if None.

    Raises:
        ModelNotFoundError: There is no such file.
        CheckpointError: It is something else, damaged, cut off, or has no weights.
        UnsupportedError: It is of another version, one part of several, or something beside a
            language model: its eyes, an adapter.
    """
    name = shown or str(file)
    header = read_gguf_header(file, shown)
    refuse_other_purpose(name, header.metadata)
    parts = header.metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise UnsupportedError(
            f"{name} is one of {parts} parts of a model.",
            remedy="Join them first: llama-gguf-split --merge FIRST_PART WHOLE.gguf.",
            field="model",
        )
    if not header.tensors:
        raise CheckpointError(
            f"{name} holds no weights.",
            remedy="Choose a GGUF file of a whole model, not one of a vocabulary alone.",
            field="model",
        )


def refuse_other_purpose(name: str, metadata: Mapping[str, Any]) -> None:
    """Refuse a file that is something beside a language model.

    Args:
        name: The file, as errors call it.
        metadata: Its metadata.

    Raises:
        UnsupportedError: It is a vision part or an adapter.
    """
    kind = metadata.get("general.type", "model")
    if kind == "mmproj" or metadata.get("general.architecture") == "clip":
        what = "the vision part of a model (mmproj)"
    elif kind == "adapter":
        what = "an adapter (LoRA)"
    else:
        return
    raise UnsupportedError(
        f"{name} is {what}, not a language model.",
        remedy="Give the GGUF file of the language model; images and adapters are not supported.",
        field="model",
    )


def read_gguf_header(file: Path, shown: str | None = None) -> GGUFHeader:
    """Read a GGUF file's header, and check that the file is no shorter than it says.

    Args:
        file: The file.
        shown: What to call it in an error; its path if None.

    Raises:
        ModelNotFoundError: There is no such file.
        CheckpointError: It is something else, damaged, or cut off.
        UnsupportedError: It is of another version, or its tensors are of an unknown kind.
    """
    name = shown or str(file)
    try:
        size = file.stat().st_size
        with file.open("rb") as content:
            begins_with = content.read(len(_MAGIC))
            if begins_with != _MAGIC:
                raise CheckpointError(
                    f"{name} is not a GGUF file: it begins with {begins_with!r}.",
                    remedy="Only safetensors and GGUF are read: give a file that begins with GGUF.",
                    field="model",
                )
            with mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as data:
                header = _Walk(data, name).header()
    except FileNotFoundError:
        raise ModelNotFoundError(
            f"There is no file {name}.",
            remedy="Check the path, or see `peagle models` for models by name.",
            field="model",
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"{name} cannot be read ({error.strerror}).",
            remedy="Check that it is a file, and that you may read it.",
            field="model",
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"{name} has a damaged or cut off header: {error} ({size} bytes in all).",
            remedy=_FETCH_AGAIN,
            field="model",
        ) from error
    needed = max((tensor.start + tensor.size for tensor in header.tensors), default=0)
    if needed > size:
        raise CheckpointError(
            f"{name} is cut off: its header describes {needed} bytes, the file has {size}.",
            remedy=_FETCH_AGAIN,
            field="model",
        )
    return header


class _Walk:
    """One walk through a header; what cannot be right in it raises `ValueError`."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self._data = data
        self._name = name
        self._at = len(_MAGIC)

    def header(self) -> GGUFHeader:
        version = self._number("I")
        if version not in _VERSIONS:
            raise UnsupportedError(
                f"{self._name} is GGUF of version {version}.",
                remedy="Versions 2 and 3 in little-endian order are read: convert it anew.",
                field="model",
            )
        tensors, pairs = self._number("Q"), self._number("Q")
        metadata = {}
        for _ in range(pairs):
            (key,) = self._strings(1)
            metadata[key] = self._value(GGUFValueType(self._number("I")))
        described = [self._tensor() for _ in range(tensors)]
        if len({name for name, *_ in described}) < tensors:
            raise ValueError("two tensors have one name")
        alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"an alignment of {alignment!r}")
        first = -(-self._at // alignment) * alignment
        return GGUFHeader(
            metadata,
            tuple(
                GGUFTensor(name, kind, shape, first + offset, size)
                for name, kind, shape, offset, size in described
            ),
        )

    def _tensor(self) -> tuple[str, GGMLQuantizationType, tuple[int, ...], int, int]:
        """Read a tensor's name, kind, shape, bytes after the first tensor's start, and size."""
        (name,) = self._strings(1)
        dimensions = self._number("I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"{name!r} has {dimensions} dimensions")
        columns_first = [self._number("Q") for _ in range(dimensions)]
        kind, offset = self._number("I"), self._number("Q")
        if kind not in _TENSOR_KINDS:
            raise UnsupportedError(
                f"{self._name} holds the tensor {name!r} of the unknown type {kind}.",
                remedy="Convert the model to a current type, such as BF16, Q8_0 or Q4_1.",
                field="model",
            )
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        if columns_first[0] % block:
            raise ValueError(f"{name!r} has {columns_first[0]} columns in blocks of {block}")
        size = math.prod(columns_first) // block * block_bytes
        return name, GGMLQuantizationType(kind), tuple(reversed(columns_first)), offset, size

    def _value(self, kind: GGUFValueType) -> Any:
        if kind is GGUFValueType.STRING:
            return self._strings(1)[0]
        if kind is not GGUFValueType.ARRAY:
            return self._number(_SCALARS[kind])
        element, count = GGUFValueType(self._number("I")), self._number("Q")
        if element is GGUFValueType.ARRAY:
            raise ValueError("an array of arrays")
        return (
            self._strings(count)
            if element is GGUFValueType.STRING
            else list(self._numbers(_SCALARS[element], count))
        )

    def _strings(self, count: int) -> list[str]:
        data, end, at, texts = self._data, len(self._data), self._at, []
        length_at = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at + 8 > end:
                raise ValueError("it ends too early")
            (length,) = length_at(data, at)
            at += 8 + length
            if at > end:
                raise ValueError("it ends too early")
            texts.append(data[at - length : at].decode())
        self._at = at
        return texts

    def _number(self, code: str) -> Any:
        (value,) = self._numbers(code, 1)
        return value

    def _numbers(self, code: str, count: int) -> tuple[Any, ...]:
        end = self._at + count * struct.calcsize("<" + code)
        if end > len(self._data):
            raise ValueError("it ends too early")
        values = struct.unpack_from(f"<{count}{code}", self._data, self._at)
        self._at = end
        return values
