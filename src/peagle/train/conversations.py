"""Conversations on disk: prompts with what the target answered, one JSON object a line.

A line has `prompt_token_ids`, `response_token_ids` and, if wanted, `category`; other keys are left
alone. The file may be compressed with gzip. Beside a file made by `peagle synth` lies a sidecar,
`FILE.meta.json`, which says whose token ids these are.
"""

import gzip
import hashlib
import json
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from peagle.errors import CheckpointError

DEFAULT_CATEGORY: Final = "all"

ReadingReport = Callable[[int, int], None]
"""Called now and then with the bytes of the file that were read, and its size."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_LINES_BETWEEN_REPORTS: Final = 500
_SHOWN_CHARACTERS: Final = 60
_MAKE_ANEW: Final = "Make the file anew with `peagle synth`, or take the line out."


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt and what the target answered, both as token ids of the target's tokenizer.

    Attributes:
        prompt: What the model read, its chat template included.
        response: What it wrote, the token that ended it included.
        category: What kind of task it is.
    """

    prompt: Sequence[int]
    response: Sequence[int]
    category: str = DEFAULT_CATEGORY

    def as_line(self) -> str:
        """Give the line of a file that `read_conversations` reads back."""
        fields = {
            "category": self.category,
            "prompt_token_ids": list(self.prompt),
            "response_token_ids": list(self.response),
        }
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n"


class Progress(BaseModel):
    """How far the run that writes a file has come.

    Attributes:
        lines: Lines of the file that are whole and counted.
        scenario: Number of the scenario that comes next, or of the one that was not finished.
        records: Conversations of that scenario which were already written or dropped.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    lines: int = Field(default=0, ge=0)
    scenario: int = Field(default=0, ge=0)
    records: int = Field(default=0, ge=0)


class Sidecar(BaseModel):
    """What `FILE.meta.json` says about a file of conversations.

    Attributes:
        format: Layout of the file.
        model: The target, as the user named it.
        tokenizer_fingerprint: Which tokenizer's ids these are.
        settings: How the conversations were made.
        progress: How far the run that made them came.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["peagle-conversations-1"] = "peagle-conversations-1"
    model: str
    tokenizer_fingerprint: str
    settings: dict[str, Any]
    progress: Progress = Progress()

    @staticmethod
    def path_of(file: Path) -> Path:
        """Where the sidecar of a file lies."""
        return file.with_name(file.name + ".meta.json")

    @classmethod
    def beside(cls, file: Path) -> "Sidecar | None":
        """Read the sidecar of a file, if it has one.

        Raises:
            CheckpointError: There is one, but it cannot be read.
        """
        path = cls.path_of(file)
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise CheckpointError(
                f"{path} is damaged: {why}.",
                remedy="Remove it if you know that the token ids are this model's, or make both "
                "files anew with `peagle synth`.",
                field="data",
            ) from None

    def require_tokenizer(self, fingerprint: str, file: Path) -> None:
        """Refuse a file of another tokenizer.

        Raises:
            CheckpointError: Its token ids mean other text.
        """
        if self.tokenizer_fingerprint != fingerprint:
            raise CheckpointError(
                f"{file} was made by {self.model} with tokenizer "
                f"{self.tokenizer_fingerprint[:12]}…, this model has {fingerprint[:12]}….",
                remedy="Give the model that the file was made with, or make a file for this model "
                "with `peagle synth`.",
                field="data",
            )


@dataclass(frozen=True, slots=True)
class ConversationFile:
    """A file of conversations, read and checked.

    Attributes:
        path: The file.
        sha256: Of its bytes as they lie on disk.
        conversations: In the order of the lines; token ids take four bytes each.
    """

    path: Path
    sha256: str
    conversations: list[Conversation]


def read_conversations(
    path: Path,
    *,
    vocab_size: int,
    tokenizer_fingerprint: str,
    progress: ReadingReport | None = None,
) -> ConversationFile:
    """Read a file of conversations of one target.

    Args:
        path: JSON Lines, plain or compressed with gzip (told by its first bytes).
        vocab_size: Every token id must lie below it.
        tokenizer_fingerprint: The target's (`Tokenizer.fingerprint`); compared with the sidecar's
            where there is one.
        progress: Told how far reading is.

    Raises:
        CheckpointError: The file is missing, empty, cut off, made with another tokenizer, or has
            a line that is no conversation; the message names the line.
    """
    sidecar = Sidecar.beside(path)
    if sidecar is not None:
        sidecar.require_tokenizer(tokenizer_fingerprint, path)
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            conversations = [
                _conversation(line, f"{path}, line {number}", vocab_size)
                for number, line in _lines(file, path, progress)
            ]
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror or error}).",
            remedy="Give a file that `peagle synth` wrote.",
            field="data",
        ) from None
    if not conversations:
        raise CheckpointError(
            f"{path} holds no conversations.",
            remedy="Fill it with `peagle synth`, or give another file.",
            field="data",
        )
    return ConversationFile(path, sha256, conversations)


def is_gzip(first_bytes: bytes) -> bool:
    """Tell a compressed file by how it begins."""
    return first_bytes.startswith(_GZIP_MAGIC)


def _lines(
    file: BinaryIO, path: Path, progress: ReadingReport | None
) -> Iterator[tuple[int, bytes]]:
    """Give the lines that are not blank, with their numbers from 1."""
    compressed = is_gzip(file.read(len(_GZIP_MAGIC)))
    file.seek(0)
    size = path.stat().st_size
    number = 0
    try:
        for number, line in enumerate(gzip.GzipFile(fileobj=file) if compressed else file, 1):
            if progress is not None and number % _LINES_BETWEEN_REPORTS == 0:
                progress(file.tell() if compressed else min(size, file.tell()), size)
            if line.strip():
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        what = "is cut off" if isinstance(error, EOFError) else f"is damaged ({error})"
        raise CheckpointError(
            f"{path} {what}: its compressed data cannot be read beyond line {number}.",
            remedy="Copy or download it again. If `peagle synth` was killed while it wrote the "
            "file, run the same command again: it goes on with what is there.",
            field="data",
        ) from None
    if progress is not None:
        progress(size, size)


def _conversation(line: bytes, where: str, vocab_size: int) -> Conversation:
    try:
        fields = json.loads(line)
    except ValueError as error:
        if not line.endswith(b"\n"):
            raise CheckpointError(
                f"{where}: the file ends in the middle of this line.",
                remedy="If `peagle synth` was killed while it wrote the file, run the same "
                "command again: it goes on with what is there. Otherwise take the line out.",
                field="data",
            ) from None
        raise _wrong(where, f"it is not valid JSON ({error})") from None
    if not isinstance(fields, dict):
        raise _wrong(where, "it is not a JSON object")
    category = fields.get("category", DEFAULT_CATEGORY)
    if not isinstance(category, str):
        raise _wrong(where, f"category is {_shown(category)}, not a string")
    return Conversation(
        prompt=_token_ids(fields, "prompt_token_ids", where, vocab_size),
        response=_token_ids(fields, "response_token_ids", where, vocab_size),
        category=category,
    )


def _token_ids(fields: dict[str, Any], key: str, where: str, vocab_size: int) -> Sequence[int]:
    ids = fields.get(key)
    what = key.partition("_")[0]
    if not ids and (ids is None or isinstance(ids, list)):
        raise _wrong(where, f"it has no {what} ({key} is {'missing' if ids is None else 'empty'})")
    if not isinstance(ids, list):
        raise _wrong(where, f"{key} is {_shown(ids)}, not a list of token ids")
    for token in ids:
        if type(token) is not int:
            raise _wrong(where, f"{key} holds {_shown(token)}, which is no token id")
        if not 0 <= token < vocab_size:
            raise CheckpointError(
                f"{where}: {key} holds {token}, but this model's vocabulary has {vocab_size} "
                "tokens.",
                remedy="The file belongs to another model: give that one, or make a file for this "
                "one with `peagle synth`.",
                field="data",
            )
    return array("I", ids)


def _wrong(where: str, problem: str) -> CheckpointError:
    return CheckpointError(f"{where}: {problem}.", remedy=_MAKE_ANEW, field="data")


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
