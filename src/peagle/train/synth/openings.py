"""How messages begin that a model is to write as a user, by kind of task."""

import hashlib
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Self

OPEN: Final = "open"
"""The category of messages that the model begins as it likes."""

_FILE: Final = Path(__file__).parent / "openings.toml"
_GOES_ON: Final = "…"
_DOCUMENT: Final = "{document}"


@dataclass(frozen=True, slots=True)
class Opening:
    """The beginning of a user's message, or all of it.

    Attributes:
        text: What it says; `{document}` stands for a document.
        goes_on: The model writes on from there.
    """

    text: str
    goes_on: bool

    @classmethod
    def of(cls, entry: str) -> Self:
        """Read an entry of the list, where an ellipsis at the end means that it goes on."""
        return cls(entry.removesuffix(_GOES_ON), entry.endswith(_GOES_ON))

    def about(self, document: str) -> "Opening":
        """Put a document in its place."""
        return Opening(self.text.replace(_DOCUMENT, document), self.goes_on)


@dataclass(frozen=True, slots=True)
class Openings:
    """All openings.

    Attributes:
        documents: Of requests for a document that later messages are about.
        by_category: Of messages that stand alone; the category `open` has an empty one.
        about_document: Of messages about a document, for the categories that have such.
        sha256: Of the list, so that a run that goes on can tell whether it changed.
    """

    documents: tuple[Opening, ...]
    by_category: dict[str, tuple[Opening, ...]]
    about_document: dict[str, tuple[Opening, ...]]
    sha256: str

    @property
    def categories(self) -> tuple[str, ...]:
        """Names of the categories, in the order in which they take turns."""
        return tuple(self.by_category)


@cache
def shipped_openings() -> Openings:
    """Read the list that comes with the package."""
    content = _FILE.read_bytes()
    entries = tomllib.loads(content.decode())
    return Openings(
        documents=_read(entries["documents"]),
        by_category={
            OPEN: (Opening("", goes_on=True),),
            **{name: _read(some) for name, some in entries["openings"].items()},
        },
        about_document={name: _read(some) for name, some in entries["about_document"].items()},
        sha256=hashlib.sha256(content).hexdigest(),
    )


def _read(entries: list[str]) -> tuple[Opening, ...]:
    return tuple(Opening.of(entry) for entry in entries)
