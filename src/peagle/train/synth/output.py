"""The file that conversations go to: appended line by line, taken up where a run broke off.

The sidecar counts the lines. It is replaced as a whole after each of them, so that whatever lies
behind the last counted line was being written when a run was killed, and is written again.
"""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from peagle.errors import CheckpointError, InvalidRequestError
from peagle.train.conversations import (
    Conversation,
    Progress,
    Sidecar,
    is_gzip,
    read_conversations,
)
from peagle.train.exclusive import lock_output

_GZIP: Final = zlib.MAX_WBITS | 16
_ELSEWHERE: Final = "Write to another file, or remove this one and its .meta.json."


class ConversationWriter:
    """Appends conversations to a file that says of itself how it was made.

    Args:
        path: The file; compressed with gzip if its name ends with `.gz`.
        sidecar: Whose text it holds and how it is made. If the file is there, it must have been
            made in the same way, and is continued.
        vocab_size: Of the target.

    Attributes:
        path: As given.
        progress: How far the run has come; where the file is continued, what it had reached.
        notes: What was repaired, in words for the user.

    Raises:
        InvalidRequestError: The file was made in another way, is being written by another
            process, or cannot be written.
        CheckpointError: The file or its sidecar is damaged.
    """

    def __init__(self, path: Path, sidecar: Sidecar, vocab_size: int) -> None:
        self.path = path
        self.progress = Progress()
        self.notes: list[str] = []
        self._sidecar = sidecar
        self._vocab_size = vocab_size
        self._lock = lock_output(path)
        try:
            with self._disk_errors():
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.exists() or Sidecar.path_of(path).exists():
                    self._continue()
                else:
                    self.mark(self.progress)
                self._file = self._open()
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with self._disk_errors():
                self._file.close()
        finally:
            self._lock.release()

    def written_before(self) -> list[Conversation]:
        """Read what the file already holds."""
        if self.progress.lines == 0:
            return []
        return read_conversations(
            self.path,
            vocab_size=self._vocab_size,
            tokenizer_fingerprint=self._sidecar.tokenizer_fingerprint,
        ).conversations

    def write(self, conversation: Conversation, progress: Progress) -> None:
        """Append a conversation.

        Args:
            conversation: The conversation.
            progress: How far the run has then come, this line counted.
        """
        with self._disk_errors():
            self._file.write(conversation.as_line().encode())
            # Everything up to here can be read back, compressed or not, if nothing follows.
            self._file.flush()
        self.mark(progress)

    def mark(self, progress: Progress) -> None:
        """Note how far the run has come."""
        self.progress = progress
        sidecar = self._sidecar.model_copy(update={"progress": progress})
        place = Sidecar.path_of(self.path)
        unfinished = place.with_name(place.name + ".part")
        with self._disk_errors():
            unfinished.write_text(sidecar.model_dump_json(indent=1) + "\n", "utf-8")
            unfinished.replace(place)

    def _continue(self) -> None:
        """Take up a file, cut down to the lines that its sidecar counts."""
        before = Sidecar.beside(self.path)
        if before is None:
            raise InvalidRequestError(
                f"{self.path} exists, but {Sidecar.path_of(self.path).name}, which would say how "
                "it was made, does not.",
                remedy=_ELSEWHERE,
                field="output",
            )
        self._require_same(before)
        self.progress = before.progress
        content = self.path.read_bytes() if self.path.exists() else b""
        text, whole = _unpacked(content)
        lines = text.splitlines(keepends=True)
        complete = [line for line in lines if line.endswith(b"\n")]
        extra = len(complete) - self.progress.lines
        if extra < 0 or extra > 1:
            raise CheckpointError(
                f"{self.path} has {len(complete)} lines, but its sidecar counts "
                f"{self.progress.lines}: it was changed.",
                remedy=_ELSEWHERE,
                field="output",
            )
        if extra or len(lines) > len(complete) or not whole:
            kept = b"".join(complete[: self.progress.lines])
            if len(kept) < len(text):
                self.notes.append(
                    f"The last line of {self.path} was not finished when the run broke off; it "
                    "was dropped and is written again."
                )
            unfinished = self.path.with_name(self.path.name + ".part")
            unfinished.write_bytes(gzip.compress(kept, mtime=0) if is_gzip(content) else kept)
            unfinished.replace(self.path)

    def _require_same(self, before: Sidecar) -> None:
        mine = self._sidecar
        before.require_tokenizer(mine.tokenizer_fingerprint, self.path)
        told: dict[str, tuple[Any, Any]] = {"model": (before.model, mine.model)} | {
            name: (before.settings.get(name), mine.settings.get(name))
            for name in {**before.settings, **mine.settings}
        }
        different = {name: pair for name, pair in told.items() if pair[0] != pair[1]}
        if different:
            name, (then, now) = next(iter(different.items()))
            raise InvalidRequestError(
                f"{self.path} was made with {name} {_shown(then)}, not {_shown(now)}.",
                remedy="Repeat the command that made it, to go on with it. Or: " + _ELSEWHERE,
                field=name,
            )

    def _open(self) -> BinaryIO | gzip.GzipFile:
        if self.path.suffix != ".gz":
            return self.path.open("ab")
        # A member of its own for every run; together they are one file.
        return gzip.GzipFile(self.path, "ab", mtime=0)

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InvalidRequestError(
                f"{self.path} cannot be written ({error.strerror or error}).",
                remedy="Give a file in a folder that you may write to, on a disk with room; the "
                "same command goes on with what was written.",
                field="output",
            ) from None


def _unpacked(content: bytes) -> tuple[bytes, bool]:
    """Decompress as much as can be read; tell whether that is all, ended as it should be."""
    if not is_gzip(content):
        return content, True
    text = b""
    while content:
        member = zlib.decompressobj(_GZIP)
        try:
            text += member.decompress(content)
        except zlib.error:
            return text, False
        if not member.eof:
            return text, False
        content = member.unused_data
    return text, True


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
