"""Features of all documents on disk, so that the target reads each of them once."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from peagle.catalog.cache import require_space
from peagle.errors import CheckpointError
from peagle.model.config import DecoderConfig
from peagle.train.features import Document, FeatureReader, Features

# Tokens that go through the target together: enough to multiply fast, little enough to stay in
# the caches.
_TOKENS_AT_ONCE: Final = 2048


class FeatureSource(Protocol):
    """Where the trainer gets the features of documents from."""

    def read(self, indices: Sequence[int]) -> list[Features]:
        """Give the features of documents by their number."""
        ...


class FeaturesOnTheFly:
    """Reads documents with the target whenever they are asked for."""

    def __init__(self, documents: Sequence[Document], reader: FeatureReader) -> None:
        self._documents = documents
        self._reader = reader

    def read(self, indices: Sequence[int]) -> list[Features]:
        """Give the features of documents by their number."""
        return self._reader.read([self._documents[index] for index in indices])


class FeatureCache:
    """Features in three flat files, filled once and then mapped into memory.

    Args:
        folder: Where the files are; what is there already is used if it belongs to the same
            documents and target.
        documents: All documents.
        key: What the target is (weights, taps), so that another one's features are not mistaken
            for its own.
        config: The target's shape.
        taps: Layers whose entering residual stream is kept.

    Raises:
        DownloadError: The disk has too little space.
        CheckpointError: The files cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        documents: Sequence[Document],
        *,
        key: str,
        config: DecoderConfig,
        taps: Sequence[int],
    ) -> None:
        self._documents = documents
        hidden = config.hidden_size
        self._slots = np.cumsum([0, *(document.slots for document in documents)])
        self._teachers = np.cumsum([0, *(document.teachers for document in documents)])
        digest = hashlib.blake2b(f"{key} {list(taps)}".encode(), digest_size=12)
        for document in documents:
            digest.update(document.prompt_tokens.to_bytes(4, "little"))
            digest.update(document.tokens.numpy().astype("<u4").tobytes())
        self._key = digest.hexdigest()
        self._state = folder / "features.json"
        shapes = {
            "taps": (int(self._slots[-1]), len(taps) * hidden, np.uint16),
            "teacher": (int(self._teachers[-1]), hidden, np.uint16),
            "normalizer": (int(self._teachers[-1]), 1, np.float32),
        }
        self.bytes = sum(
            rows * width * np.dtype(kind).itemsize for rows, width, kind in shapes.values()
        )
        folder.mkdir(parents=True, exist_ok=True)
        self.done = self._read_state()
        if not self.done:
            require_space(folder, self.bytes, "Caching the target's features")
        try:
            self._files = {
                name: _mapped(folder / f"{name}.bin", (rows, width), kind)
                for name, (rows, width, kind) in shapes.items()
            }
        except OSError as error:
            raise CheckpointError(
                f"The features cannot be cached in {folder} ({error.strerror or error}).",
                remedy="Give another folder with --output, or --no-cache-features.",
                field="output",
            ) from None

    def fill(self, reader: FeatureReader, progress: Callable[[int], None]) -> None:
        """Read the documents that are not cached yet.

        Args:
            reader: The target.
            progress: Told of tokens as they are read.
        """
        while self.done < len(self._documents):
            first, tokens = self.done, 0
            while self.done < len(self._documents) and (
                tokens + len(self._documents[self.done]) <= _TOKENS_AT_ONCE or self.done == first
            ):
                tokens += len(self._documents[self.done])
                self.done += 1
            read = reader.read(self._documents[first : self.done])
            slots = slice(self._slots[first], self._slots[self.done])
            teachers = slice(self._teachers[first], self._teachers[self.done])
            self._files["taps"][slots] = _bits(torch.cat([one.taps for one in read]))
            self._files["teacher"][teachers] = _bits(torch.cat([one.teacher for one in read]))
            self._files["normalizer"][teachers, 0] = (
                torch.cat([one.log_normalizer for one in read]).cpu().numpy()
            )
            if first // 64 != self.done // 64 or self.done == len(self._documents):
                self._write_state()
            progress(tokens)

    def read(self, indices: Sequence[int]) -> list[Features]:
        """Give the features of documents by their number."""
        read = []
        for index in indices:
            slots = slice(self._slots[index], self._slots[index + 1])
            teachers = slice(self._teachers[index], self._teachers[index + 1])
            read.append(
                Features(
                    _bfloat16(self._files["taps"][slots]),
                    _bfloat16(self._files["teacher"][teachers]),
                    torch.from_numpy(self._files["normalizer"][teachers, 0].copy()),
                )
            )
        return read

    def _read_state(self) -> int:
        try:
            state = json.loads(self._state.read_text("utf-8"))
        except (OSError, ValueError):
            return 0
        return int(state["documents"]) if state.get("key") == self._key else 0

    def _write_state(self) -> None:
        for file in self._files.values():
            assert isinstance(file, np.memmap)
            file.flush()
        unfinished = self._state.with_suffix(".part")
        unfinished.write_text(json.dumps({"key": self._key, "documents": self.done}), "utf-8")
        unfinished.replace(self._state)


def _mapped(path: Path, shape: tuple[int, int], kind: npt.DTypeLike) -> npt.NDArray[Any]:
    size = max(shape[0] * shape[1], 1) * np.dtype(kind).itemsize
    if not path.exists() or path.stat().st_size != size:
        with path.open("wb") as file:
            file.truncate(size)
    return np.memmap(path, dtype=kind, mode="r+", shape=shape)


def _bits(values: torch.Tensor) -> npt.NDArray[np.uint16]:
    return values.cpu().contiguous().view(torch.int16).numpy().view(np.uint16)


def _bfloat16(bits: npt.NDArray[np.uint16]) -> torch.Tensor:
    return torch.from_numpy(np.array(bits).view(np.int16)).view(torch.bfloat16)
