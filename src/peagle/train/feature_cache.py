"""Features of documents on disk, so that the target reads each of them once."""

import hashlib
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from rich.filesize import decimal

from peagle.errors import CheckpointError
from peagle.model.config import DecoderConfig
from peagle.train.features import Document, FeatureReader, Features

# Tokens that go through the target together: enough to multiply fast, little enough to stay in
# the caches.
_AT_ONCE: Final = 2048


class FeatureSource(Protocol):
    """Where the trainer gets the features of documents from.

    Attributes:
        seconds: Time that the target has taken to read them so far.
    """

    seconds: float

    def read(self, indices: Sequence[int]) -> list[Features]:
        """Give the features of documents by their number."""
        ...


class FeaturesOnTheFly:
    """Reads documents with the target whenever they are asked for."""

    def __init__(self, documents: Sequence[Document], reader: FeatureReader) -> None:
        self.seconds = 0.0
        self._documents = documents
        self._reader = reader

    def read(self, indices: Sequence[int]) -> list[Features]:
        """Give the features of documents by their number."""
        began = time.perf_counter()
        read = self._reader.read([self._documents[index] for index in indices])
        self.seconds += time.perf_counter() - began
        return read


class FeatureCache:
    """Features in flat files that are mapped into memory, read with the target at first use.

    Args:
        folder: Where the files are; what is there already is used if it belongs to the same
            documents and target.
        documents: All documents.
        reader: Reads what is not there yet.
        key: What the target is (weights, taps), so that another one's features are not mistaken
            for its own.
        config: The target's shape.
        taps: Layers whose entering residual stream is kept.

    Attributes:
        read_tokens: Tokens that the target has read so far.
        seconds: Time that it took.

    Raises:
        CheckpointError: The disk has too little space, or the files cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        documents: Sequence[Document],
        reader: FeatureReader,
        *,
        key: str,
        config: DecoderConfig,
        taps: Sequence[int],
    ) -> None:
        self.read_tokens = 0
        self.seconds = 0.0
        self._documents = documents
        self._reader = reader
        self._folder = folder
        hidden = config.hidden_size
        self._slots = np.cumsum([0, *(document.slots for document in documents)])
        self._teachers = np.cumsum([0, *(document.teachers for document in documents)])
        digest = hashlib.blake2b(f"{key} {list(taps)}".encode(), digest_size=12)
        for document in documents:
            digest.update(document.prompt_tokens.to_bytes(4, "little"))
            digest.update(document.tokens.numpy().astype("<u4").tobytes())
        shapes: dict[str, tuple[tuple[int, int], type[np.generic]]] = {
            "known": ((len(documents), 1), np.uint8),
            "taps": ((int(self._slots[-1]), len(taps) * hidden), np.uint16),
            "teacher": ((int(self._teachers[-1]), hidden), np.uint16),
            "normalizer": ((int(self._teachers[-1]), 1), np.float32),
        }
        try:
            _prepare(folder, shapes, digest.hexdigest())
            self._files = {
                name: np.memmap(folder / f"{name}.bin", kind, "r", shape=shape)
                for name, (shape, kind) in shapes.items()
            }
        except OSError as error:
            raise _unwritable(folder, error) from None

    @property
    def known(self) -> int:
        """Documents whose features are there."""
        return int(self._files["known"].sum())

    def read(self, indices: Sequence[int]) -> list[Features]:
        """Give the features of documents by their number."""
        missing = [index for index in indices if not self._files["known"][index, 0]]
        while missing:
            some: list[int] = []
            tokens = 0
            while missing and (not some or tokens + len(self._documents[missing[0]]) <= _AT_ONCE):
                some.append(missing.pop(0))
                tokens += len(self._documents[some[-1]])
            began = time.perf_counter()
            self._write(some, self._reader.read([self._documents[index] for index in some]))
            self.seconds += time.perf_counter() - began
            self.read_tokens += tokens
        read = []
        for index in indices:
            slots, teachers = self._places(index)
            read.append(
                Features(
                    _bfloat16(self._files["taps"][slots]),
                    _bfloat16(self._files["teacher"][teachers]),
                    torch.from_numpy(self._files["normalizer"][teachers, 0].copy()),
                )
            )
        return read

    def _write(self, indices: Sequence[int], features: Sequence[Features]) -> None:
        try:
            for index, found in zip(indices, features, strict=True):
                slots, teachers = self._places(index)
                self._put("taps", slots.start, _bits(found.taps))
                self._put("teacher", teachers.start, _bits(found.teacher))
                self._put("normalizer", teachers.start, found.log_normalizer.cpu().numpy())
                # Last: whatever is interrupted before is read again.
                self._put("known", index, np.ones(1, np.uint8))
        except OSError as error:
            raise _unwritable(self._folder, error) from None

    def _put(self, name: str, row: int, content: npt.NDArray[Any]) -> None:
        """Write rows of a file, not through the mapping: there a full disk ends the process."""
        mapped = self._files[name]
        left = memoryview(content.tobytes())
        with (self._folder / f"{name}.bin").open("r+b", buffering=0) as file:
            file.seek(row * mapped.shape[1] * mapped.itemsize)
            while left:
                left = left[file.write(left) :]

    def _places(self, index: int) -> tuple[slice, slice]:
        """Where a document's slots and teachers lie in the files."""
        return (
            slice(self._slots[index], self._slots[index + 1]),
            slice(self._teachers[index], self._teachers[index + 1]),
        )


def _prepare(
    folder: Path, shapes: Mapping[str, tuple[tuple[int, int], type[np.generic]]], owner: str
) -> None:
    """Make the files, unless they are there already; the first one says what the others hold.

    Raises:
        CheckpointError: The disk has too little space.
        OSError: They cannot be made.
    """
    sizes = {
        folder / f"{name}.bin": rows * width * np.dtype(kind).itemsize
        for name, ((rows, width), kind) in shapes.items()
    }
    belongs = folder / "belongs-to.txt"
    folder.mkdir(parents=True, exist_ok=True)
    if (
        belongs.exists()
        and belongs.read_text("utf-8") == owner
        and all(path.exists() and path.stat().st_size == size for path, size in sizes.items())
    ):
        return
    for path in sizes:
        path.unlink(missing_ok=True)
    needed, free = sum(sizes.values()), shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            f"Caching the target's features needs {decimal(needed)} in {folder}, where "
            f"{decimal(free)} is free.",
            remedy="Free some, give an --output on a larger disk, or add --no-cache-features.",
            field="output",
        )
    belongs.write_text(owner, "utf-8")
    for path, size in sizes.items():
        with path.open("wb") as file:
            file.truncate(size)


def _unwritable(folder: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"The features cannot be cached in {folder} ({error.strerror or error}).",
        remedy="Free some space and go on with --resume, or add --no-cache-features.",
        field="output",
    )


def _bits(values: torch.Tensor) -> npt.NDArray[np.uint16]:
    return values.cpu().contiguous().view(torch.int16).numpy().view(np.uint16)


def _bfloat16(bits: npt.NDArray[np.uint16]) -> torch.Tensor:
    return torch.from_numpy(np.array(bits).view(np.int16)).view(torch.bfloat16)
