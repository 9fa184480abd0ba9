"""Rows: what a target pass computes. A prompt chunk, a decode token and a tree are all rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from peagle.model.kv_cache import PAGE_POSITIONS, SequenceCache

Wanted = Literal["all", "last", "none"]


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """The rows of one sequence in one step.

    Attributes:
        cache: The sequence, whose committed positions every row sees.
        tokens: Token of each row.
        parents: Row that each row follows, `-1` for the last committed position; parents come
            before their children. None is a chain: each row follows the one before.
        logits: Rows whose logits are returned.
    """

    cache: SequenceCache
    tokens: Sequence[int]
    parents: Sequence[int] | None = None
    logits: Wanted = "all"

    @property
    def asked(self) -> int:
        """Number of rows, at the end, whose logits are returned."""
        return {"all": len(self.tokens), "last": 1, "none": 0}[self.logits]

    @property
    def reach(self) -> int:
        """Number of positions behind the committed ones that the rows stand at."""
        return len(self.tokens) if self.parents is None else max(self.depths()) + 1

    def path(self, row: int) -> list[int]:
        """Rows from the committed end to `row`, itself included."""
        if self.parents is None:
            return list(range(row + 1))
        path = []
        while row >= 0:
            path.append(row)
            row = self.parents[row]
        path.reverse()
        return path

    def depths(self) -> list[int]:
        """How far each row lies behind the first free position."""
        if self.parents is None:
            return list(range(len(self.tokens)))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths

    def lanes(self, first: int, last: int) -> list[tuple[list[int], list[int]]]:
        """Split rows `first` to `last - 1` into root-to-leaf lanes.

        A lane holds its keys exactly as plain decoding would store them: one per position.
        Keys behind a row on its own lane are masked, just as the padding of plain decoding is.

        Returns:
            For each lane its path (rows from the committed end to the leaf, which may begin before
            `first`) and the rows that are computed on it; each row stands on one lane.
        """
        if self.parents is None:
            return [(list(range(last)), list(range(first, last)))]
        inner = {self.parents[row] for row in range(first, last)}
        lanes, placed = [], set[int]()
        for leaf in range(first, last):
            if leaf in inner:
                continue
            path = self.path(leaf)
            own = [row for row in path if row >= first and row not in placed]
            placed.update(own)
            lanes.append((path, own))
        return lanes


def rows_of_each(rows: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
    """Cut `[rows, width]` into the rows of each sequence, which follow one another."""
    # To cut costs microseconds, which a single sequence need not spend.
    return [rows] if len(counts) == 1 else list(torch.split(rows, list(counts)))


def placed(
    rows: Sequence[SequenceRows], kept: Sequence[Sequence[int]]
) -> tuple[list[int], list[int], list[int]]:
    """Commit rows to the next positions of their sequences, whose lengths grow.

    Args:
        rows: The rows of a step.
        kept: For each sequence, rows along one path from its committed end.

    Returns:
        The committed rows among all of the step, and for each its page of the pool and its place
        in that page.
    """
    committed: list[int] = []
    pages: list[int] = []
    places: list[int] = []
    offset = 0
    for part, path in zip(rows, kept, strict=True):
        cache = part.cache
        for row in path:
            page, place = divmod(cache.length, PAGE_POSITIONS)
            committed.append(offset + row)
            pages.append(cache.pages[page])
            places.append(place)
            cache.length += 1
        offset += len(part.tokens)
    return committed, pages, places
