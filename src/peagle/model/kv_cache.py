"""Keys and values of committed tokens, in pages of 64 positions under a memory budget."""

import heapq
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch

from peagle.errors import OutOfMemoryBudgetError
from peagle.model.config import DecoderConfig
from peagle.model.prefix_index import CachedPage, PrefixIndex

PAGE_POSITIONS: Final = 64


@dataclass(slots=True, eq=False)
class SequenceCache:
    """The pages of one sequence and how much of them is committed.

    Attributes:
        reserved: Pages it may come to hold.
        pages: Pages of the pool it holds; page `k` of them has positions `64 k` to `64 k + 63`.
        shared: The first of these pages, which other sequences may hold, too; all are full.
        length: Committed positions; the next row stands at this position.
    """

    reserved: int
    pages: list[int] = field(default_factory=list)
    shared: list[CachedPage] = field(default_factory=list)
    length: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a sequence to come back to.

    Attributes:
        length: Committed positions.
        begun: What the page that they end in holds, `[layers, 2, kv_heads, 64, head_dim]`; None if
            they end with a page.
    """

    length: int
    begun: torch.Tensor | None


class KVCache:
    """A pool of pages `[layers, 2, pages, kv_heads, 64, head_dim]`, keys first, then values.

    What lies in a page is the backend's matter. The native step stores keys transposed, and may
    turn a page that is full to bfloat16, in which it takes the first half of its room
    (`docs/native-step.md`): nobody else reads its pool.

    Full pages whose text was told (`share`) serve every sequence that begins with it (`adopt`), and
    outlast those that wrote them: a closed sequence's stay until others need their room. They are
    no less free for that, so what is kept never makes anybody wait.

    Args:
        config: The model whose keys and values are kept.
        budget: Most bytes the pool may take.
        most_pages: Most pages it has; None for as many as the budget holds.
        dtype: What keys and values are stored in.
        device: Where.

    Raises:
        OutOfMemoryBudgetError: Not even one page fits in the budget.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        budget: int,
        most_pages: int | None = None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.bytes_per_page = page_bytes(config, dtype)
        affordable = budget // self.bytes_per_page
        self.total_pages = affordable if most_pages is None else min(affordable, most_pages)
        if self.total_pages < 1:
            enough = self.bytes_for(config.context_length)
            raise OutOfMemoryBudgetError(
                f"kv_cache_bytes is {budget:,}, but one page of {PAGE_POSITIONS} positions takes "
                f"{self.bytes_per_page:,} bytes.",
                remedy=f"Set kv_cache_bytes to {enough:,} for the whole context of "
                f"{config.context_length:,} tokens, or to some pages for a part of it.",
                field="kv_cache_bytes",
            )
        self.pool = _zeros(
            (config.num_layers, 2, self.total_pages, config.num_kv_heads, PAGE_POSITIONS,
             config.head_dim),
            dtype,
            device,
        )  # fmt: skip
        self._free = list(range(self.total_pages))
        self._index = PrefixIndex()
        # Pages that sequences have reserved and do not share.
        self._reserved = 0

    @property
    def free_pages(self) -> int:
        """Pages that no sequence has reserved; those kept for their text are among them."""
        return self.total_pages - self._reserved - self._index.in_use

    @property
    def kept_pages(self) -> int:
        """Free pages that are kept for their text."""
        return self._index.idle

    @property
    def used_bytes(self) -> int:
        """Memory of the pages that sequences have reserved."""
        return (self.total_pages - self.free_pages) * self.bytes_per_page

    @property
    def total_positions(self) -> int:
        """Positions that fit in the whole pool."""
        return self.total_pages * PAGE_POSITIONS

    def bytes_for(self, positions: int) -> int:
        """Memory of the pages for a sequence of so many positions."""
        return pages_for(positions) * self.bytes_per_page

    def fits(self, positions: int) -> bool:
        """Whether a sequence of so many positions can be opened now."""
        return pages_for(positions) <= self.free_pages

    def open(self, positions: int) -> SequenceCache:
        """Reserve pages for a sequence of so many positions, which must fit."""
        count = pages_for(positions)
        if count > self.free_pages:
            raise ValueError(f"{count} pages asked for, {self.free_pages} free")
        self._reserved += count
        return SequenceCache(count)

    def take_pages(self, sequence: SequenceCache, positions: int) -> None:
        """Give a sequence the pages for so many positions, of those it has reserved.

        Pages are handed out late and lowest first, so that those in use lie close together and a
        pass can read them in place. Pages kept for their text are taken when no other is left.
        """
        count = pages_for(positions)
        if count > sequence.reserved:
            raise ValueError(f"{count} pages needed, {sequence.reserved} reserved")
        while len(sequence.pages) < count:
            page = heapq.heappop(self._free) if self._free else self._index.evict()
            sequence.pages.append(page)

    def find(self, keys: Iterable[Hashable]) -> list[CachedPage]:
        """Find the pages of a text from its beginning on, as far as they are here.

        Args:
            keys: What fills each page of the text (`prefix_index.page_key`).
        """
        return self._index.match(keys)

    def adopt(self, sequence: SequenceCache, pages: Sequence[CachedPage]) -> None:
        """Begin a sequence, for which room is reserved, with pages that were just found."""
        if sequence.pages or len(pages) > sequence.reserved:
            raise ValueError(f"{len(pages)} pages for a sequence of {sequence.reserved} that began")
        self._index.hold(pages)
        self._reserved -= len(pages)
        sequence.shared = list(pages)
        sequence.pages = [one.page for one in pages]
        sequence.length = PAGE_POSITIONS * len(pages)

    def share(self, sequence: SequenceCache, key: Hashable) -> None:
        """Say what fills a sequence's first page that is not shared, which must be full.

        Where another sequence has computed the same, that page takes its place: it holds the same
        bits, since rows are independent of one another.
        """
        number = len(sequence.shared)
        if sequence.length < PAGE_POSITIONS * (number + 1):
            raise ValueError(f"page {number} of a sequence of {sequence.length} is not full")
        own = sequence.pages[number]
        kept = self._index.add(sequence.shared[-1] if number else None, key, own)
        if kept.page != own:
            heapq.heappush(self._free, own)
            sequence.pages[number] = kept.page
        sequence.shared.append(kept)
        self._reserved -= 1

    def mark(self, sequence: SequenceCache) -> Mark:
        """Note where a sequence stands, to commit other tokens from there on later."""
        page, place = divmod(sequence.length, PAGE_POSITIONS)
        begun = self.pool[:, :, sequence.pages[page]].clone() if place else None
        return Mark(sequence.length, begun)

    def rewind(self, sequence: SequenceCache, mark: Mark) -> None:
        """Forget the positions behind a mark.

        The page that the mark lies in gets back what it held: it may have been turned to another
        form when it was filled.
        """
        if mark.begun is not None:
            self.pool[:, :, sequence.pages[mark.length // PAGE_POSITIONS]] = mark.begun
        sequence.length = mark.length

    def close(self, sequence: SequenceCache) -> None:
        """Give a sequence's pages back; those whose text is known are kept while there is room."""
        for page in sequence.pages[len(sequence.shared) :]:
            heapq.heappush(self._free, page)
        self._index.release(sequence.shared)
        self._reserved -= sequence.reserved - len(sequence.shared)
        sequence.reserved = 0
        sequence.pages = []
        sequence.shared = []
        sequence.length = 0


def pages_for(positions: int) -> int:
    """Pages that hold so many positions."""
    return -(-positions // PAGE_POSITIONS)


def page_bytes(config: DecoderConfig, dtype: torch.dtype) -> int:
    """Bytes of one page over all layers."""
    values = 2 * config.num_layers * config.num_kv_heads * config.head_dim * PAGE_POSITIONS
    return values * dtype.itemsize


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Make a tensor of zeros; zeros, because 0 * NaN from a stale page would spoil a masked sum.

    On a CPU the system hands out zeroed pages of memory when they are first touched, if it is
    asked through NumPy; `torch.zeros` touches all of them at once, which would make loading wait
    for gigabytes that may never be used.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    untouched = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(untouched).view(dtype).view(shape)
