"""Attention of tree rows over paged keys, with sums in an order that nothing can change.

A row attends to its keys gathered in order of absolute position, exactly as plain decoding stores
them. Keys are taken in pages of 64 positions:

* pages full of committed keys are shared by all rows of a sequence, and read where they lie;
* the pages behind them are gathered once for each root-to-leaf lane of the tree, with the lane's
  own uncommitted keys patched in at their positions. Siblings are never among them.

Each page gives a row a partial result: largest score, sum of exponentials, weighted sum of values.
Partial results are merged by adding neighbours pairwise, by page number. A page that a row does
not see adds exactly zero, so neither the number of pages in the pass nor the other rows change a
bit. Worked example: 130 committed keys, a tree `0 -> {1 -> 2, 3}`. Rows 0 to 3 share pages 0 and 1
(positions 0 to 127). Page 2 is gathered twice: for lane `0, 1, 2` (positions 128 and 129 committed,
130 to 132 patched; rows 0, 1, 2 stand on it) and for lane `0, 3` (130 and 131 patched; row 3).

On a GPU kernels change with the number of jobs, too, and a graph is of one shape only. There jobs
are padded to counts of a small set, which were measured to agree, and no page is read in place.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from peagle.model.config import DecoderConfig
from peagle.model.invariance import RowLadder
from peagle.model.kv_cache import PAGE_POSITIONS
from peagle.model.packed import Packed
from peagle.model.rows import SequenceRows

# Finite, so that a page without any visible key gives no NaN.
MASKED: Final = -1e30
# Most rows that share the tail of a lane, as a rule: branches of a candidate tree are short.
NARROW_ROWS: Final = 4
# Pages between those that a product reads are computed for nothing; beyond this share of all pages
# copying the wanted ones together is cheaper (a copy moves every key three times, not once).
MOST_IDLE_PAGES: Final = 0.5
# Among the numbers of a block's splits, those whose pages are to be patched.
_PATCHED: Final = -1
# In shapes from a small set, patches are padded to so many times a power of four.
_FEWEST_PATCHES: Final = 16
# exp of this is the smallest that is still a normal number: MKL's exp was measured four to fifteen
# times slower on arrays with masked scores in them. (torch's exp2 is as fast as one could wish, but
# gives an element other bits at the end of an array than inside.)
LEAST_EXPONENT: Final = -87.0


@dataclass(frozen=True, slots=True)
class PassPart:
    """The rows `first` to `last - 1` of one sequence, computed in one pass.

    Attributes:
        rows: All rows of the sequence in this step.
        first: First of them in this pass.
        last: One behind the last of them.
        pass_offset: Where `first` stands among the rows of the pass.
        step_offset: Where row 0 stands among the rows of the step.
    """

    rows: SequenceRows
    first: int
    last: int
    pass_offset: int
    step_offset: int


@dataclass(frozen=True, slots=True)
class _Block:
    """Some pages, each read by the same rows: `pages x rows` jobs."""

    pool_pages: list[int]
    page_numbers: list[int]
    rows: list[int]
    patches: list[tuple[int, int, int]]  # page of the block, offset in it, row of the step


@dataclass(frozen=True, slots=True)
class _Jobs:
    """Jobs with equally many rows each, before they are laid out for attention.

    Attributes:
        rows: Rows of each, `[jobs, width]`, -1 where it has fewer.
        pages: Pool page of each, `[jobs]`.
        numbers: Its page number in the sequence, `[jobs]`.
        patches: Job, place in its page and row of the step of each patch, `[patches, 3]`.
    """

    rows: npt.NDArray[np.int64]
    pages: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    patches: npt.NDArray[np.int64]

    @classmethod
    def of(cls, width: int, blocks: Sequence[_Block]) -> "_Jobs":
        """Line up the pages of blocks."""
        pages = np.array([page for block in blocks for page in block.pool_pages], np.int64)
        numbers = np.array([number for block in blocks for number in block.page_numbers], np.int64)
        rows = np.full((len(pages), width), -1)
        patches: list[tuple[int, int, int]] = []
        job = 0
        for block in blocks:
            rows[job : job + len(block.pool_pages), : len(block.rows)] = block.rows
            patches.extend((job + page, offset, row) for page, offset, row in block.patches)
            job += len(block.pool_pages)
        return cls(rows, pages, numbers, np.array(patches, np.int64).reshape(-1, 3))

    def in_lots(self, counts: RowLadder) -> "list[_Jobs]":
        """Cut them into lots of verified counts, as equal in shape as can be.

        Padding jobs have no rows; a padding patch repeats a true one.
        """
        most, jobs = counts.largest, len(self.pages)
        padded = counts.padded(jobs) if jobs <= most else most * doubled(-(-jobs // most))
        missing = padded - jobs
        rows = np.pad(self.rows, ((0, missing), (0, 0)), constant_values=-1)
        pages, numbers = np.pad(self.pages, (0, missing)), np.pad(self.numbers, (0, missing))
        lot = self.patches[:, 0] // most
        each = _patch_count(int(np.bincount(lot).max())) if len(lot) else 0
        lots = []
        for first in range(0, padded, most):
            own = self.patches[lot == first // most] - [first, 0, 0]
            if len(own):
                own = np.concatenate([own, own[:1].repeat(each - len(own), 0)])
            some = slice(first, first + most)
            lots.append(_Jobs(rows[some], pages[some], numbers[some], own))
        return lots

    def in_place(self) -> "tuple[_Jobs, slice] | None":
        """Spread them over a run of pages read where it lies; None where pages are too far apart.

        Jobs of the pages between have no rows.
        """
        if len(self.patches) or not _reads_in_place(self.pages):
            return None
        first, last = int(self.pages.min()), int(self.pages.max()) + 1
        rows = np.full((last - first, self.rows.shape[1]), -1)
        rows[self.pages - first] = self.rows
        numbers = np.zeros(last - first, np.int64)
        numbers[self.pages - first] = self.numbers
        return _Jobs(rows, np.arange(first, last), numbers, self.patches), slice(first, last)


@dataclass(frozen=True, slots=True)
class _JobGroup:
    """Jobs with equally many rows each: `jobs` pages, `width` rows on each.

    Attributes:
        pages: Pool pages, `[jobs]`, or a run of them that is read in place.
        queries: Which query each job row takes, `[jobs * kv_heads * width]`.
        seen: For each window one where a key is seen, zero elsewhere, `[jobs, 1, width, 1, 64]`.
        bias: For each window zero where a key is seen, `MASKED` elsewhere, of the same shape.
        results: Where each job row's partial result goes, `[jobs * kv_heads * width]`.
        patch_from: Rows of the step's uncommitted keys and values, `[patches]`.
        patch_to: Places in the gathered pages, `[patches]`.
    """

    jobs: int
    width: int
    pages: torch.Tensor | slice
    queries: torch.Tensor
    seen: list[torch.Tensor]
    bias: list[torch.Tensor]
    results: torch.Tensor
    patch_from: torch.Tensor
    patch_to: torch.Tensor


class AttentionPlan:
    """Which keys each row of a pass reads, worked out once and used by every layer.

    Args:
        parts: The sequences in the pass.
        padded_rows: Rows of the pass with its padding.
        step_rows: Rows of the step's uncommitted keys and values.
        step_offset: Where the pass begins among them.
        config: The decoder's shape.
        windows: Positions a row sees, itself included, for each kind of layer; None sees all.
        ladder: Agreeing query counts of the products with a page, multiples of
            `config.queries_per_kv_head`.
        device: Where attention runs.
        job_counts: Agreeing counts of jobs, where kernels depend on them; shapes are then from a
            small set.
    """

    def __init__(
        self,
        parts: Sequence[PassPart],
        *,
        padded_rows: int,
        step_rows: int,
        step_offset: int,
        config: DecoderConfig,
        windows: Sequence[int | None],
        ladder: RowLadder,
        device: torch.device,
        job_counts: RowLadder | None = None,
    ) -> None:
        self._rows = padded_rows
        self._step_rows = step_rows
        self._shared = shared = config.queries_per_kv_head
        self._kv_heads = kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self._windows = windows
        self._device = device
        positions = np.zeros(padded_rows, np.int64)
        alike: dict[int, list[_Block]] = {}
        for part in parts:
            depths = part.rows.depths()[part.first : part.last]
            start = part.pass_offset
            positions[start : start + len(depths)] = part.rows.cache.length + np.array(depths)
            for block in _blocks(part):
                # Rows beyond what one product takes are split over several blocks. Pages that are
                # read in place can stand once in a product, so each of these has its own; pages
                # that are copied all go together.
                for number, rows in enumerate(_split(block.rows, ladder.largest // shared)):
                    kind = _PATCHED if block.patches or job_counts else number
                    alike.setdefault(kind, []).append(replace(block, rows=rows))
        pages = 1 + max(
            number for blocks in alike.values() for block in blocks for number in block.page_numbers
        )
        self._pages = doubled(pages) if job_counts else pages
        # Padding rows see nothing: a weight of one makes their result zero instead of NaN.
        real_rows = max(part.pass_offset + part.last - part.first for part in parts)
        idle = np.repeat(np.arange(padded_rows) >= real_rows, kv_heads).astype(np.float32)
        arrays: list[npt.NDArray[Any]] = [
            np.arange(step_offset, step_offset + padded_rows),
            idle[:, None],
        ]
        self._runs: list[slice | None] = []
        for blocks in alike.values():
            widths = _by_width(blocks, lambda rows: ladder.padded(rows * shared) // shared)
            for width, equal in sorted(widths.items()):
                jobs = _Jobs.of(width, equal)
                in_place = None if job_counts else jobs.in_place()
                if in_place is not None:
                    jobs, run = in_place
                    self._runs.append(run)
                    arrays += self._arrays(jobs, positions)
                    continue
                for lot in jobs.in_lots(job_counts) if job_counts else [jobs]:
                    self._runs.append(None)
                    arrays += self._arrays(lot, positions)
        self._use(Packed.of(arrays, device))

    @property
    def shape(self) -> tuple[object, ...]:
        """What plans have in common whose arrays have equal shapes."""
        groups = tuple((group.jobs, group.width, len(group.patch_from)) for group in self._groups)
        return self._rows, self._step_rows, self._pages, *groups

    def twin(self) -> "AttentionPlan":
        """Copy the plan, to memory of its own."""
        other = copy(self)
        other._use(self._packed.twin())
        return other

    def load(self, other: "AttentionPlan") -> None:
        """Take over another plan of this shape, in the memory of this one."""
        self._packed.whole.copy_(other._packed.whole)

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Hold the memory that `attend` works in, for all layers of one pass."""
        shared, kv_heads = self._shared, self._kv_heads
        places = self._pages * self._rows * kv_heads
        # The last place takes what padding rows compute. Places that no job fills keep these
        # values through all layers: a sum of zero under the smallest possible maximum.
        self._sums = torch.zeros(places + 1, shared * self._head_dim, device=self._device)
        self._weights = torch.zeros(places + 1, shared, device=self._device)
        self._maxima = torch.full((places + 1, shared), MASKED, device=self._device)
        self._weights[: self._rows * kv_heads].copy_(self._idle.expand(-1, shared))
        try:
            yield
        finally:
            del self._sums, self._weights, self._maxima

    def keep(self, keys: torch.Tensor, values: torch.Tensor, uncommitted: torch.Tensor) -> None:
        """Note the rows' own keys and values, `[rows, kv_heads, head_dim]`, in `uncommitted`.

        They are rounded as the KV cache's are, so that a row reads the same before and after
        those it follows are committed.
        """
        for kind, own in enumerate((keys, values)):
            uncommitted[kind].index_copy_(0, self._own, own.to(uncommitted.dtype))

    def attend(
        self,
        queries: torch.Tensor,
        pool: torch.Tensor,
        uncommitted: torch.Tensor,
        window: int = 0,
    ) -> torch.Tensor:
        """Attend with every row of the pass, inside `scratch`.

        Args:
            queries: Rotated and scaled, float32 `[rows, heads, head_dim]`.
            pool: One layer of the cache, `[2, pages, kv_heads, 64, head_dim]`.
            uncommitted: Keys and values of the step's rows in this layer,
                `[2, step_rows, kv_heads, head_dim]`.
            window: Which of the windows the layer has.

        Returns:
            Float32 `[rows, heads * head_dim]`.
        """
        kv_heads, shared, head_dim = self._kv_heads, self._shared, self._head_dim
        flat_queries = queries.view(self._rows * kv_heads, shared * head_dim)
        flat_uncommitted = uncommitted.view(-1, head_dim)
        for group in self._groups:
            if isinstance(group.pages, slice):
                pages = pool[:, group.pages]
            else:
                pages = pool.index_select(1, group.pages)
                if len(group.patch_to):
                    pages.view(-1, head_dim).index_copy_(
                        0, group.patch_to, flat_uncommitted.index_select(0, group.patch_from)
                    )
            keys, values = pages.float().flatten(1, 2)
            width = group.width * shared
            asked = flat_queries.index_select(0, group.queries).view(-1, width, head_dim)
            scores = torch.bmm(asked, keys.transpose(1, 2))
            scores = scores.view(group.jobs, kv_heads, group.width, shared, PAGE_POSITIONS)
            maxima = (scores + group.bias[window]).amax(-1, keepdim=True)
            # Unseen scores may exceed the maximum of the seen ones, and so are clamped above too.
            scores.sub_(maxima).clamp_(LEAST_EXPONENT, 0).exp_().mul_(group.seen[window])
            sums = torch.bmm(scores.view(-1, width, PAGE_POSITIONS), values)
            self._sums.index_copy_(0, group.results, sums.view(-1, shared * head_dim))
            self._weights.index_copy_(0, group.results, scores.sum(-1).view(-1, shared))
            self._maxima.index_copy_(0, group.results, maxima.view(-1, shared))
        return self._merge().view(self._rows, kv_heads * shared * head_dim)

    def _merge(self) -> torch.Tensor:
        """Merge the partial results of all pages, `[rows * kv_heads, shared, head_dim]`."""
        shape = (self._pages, self._rows * self._kv_heads, self._shared)
        maxima = self._maxima[:-1].view(shape)
        scale = (maxima - maxima.amax(0)).clamp_(min=LEAST_EXPONENT).exp_()
        weights = self._weights[:-1].view(shape) * scale
        sums = self._sums[:-1].view(*shape, self._head_dim) * scale.unsqueeze(-1)
        return add_pairwise(sums).div_(add_pairwise(weights).unsqueeze(-1))

    def _arrays(self, jobs: _Jobs, positions: np.ndarray) -> list[npt.NDArray[Any]]:
        """Lay jobs out: the arrays of a `_JobGroup`, in its order."""
        kv_heads = self._kv_heads
        padding = jobs.rows < 0
        rows = np.where(padding, 0, jobs.rows)
        numbers = jobs.numbers
        heads = np.arange(kv_heads)[None, :, None]
        queries = rows[:, None, :] * kv_heads + heads
        places = (numbers[:, None, None] * self._rows + rows[:, None, :]) * kv_heads + heads
        trash = self._pages * self._rows * kv_heads
        places = np.where(padding[:, None, :], trash, places)
        keys = numbers[:, None] * PAGE_POSITIONS + np.arange(PAGE_POSITIONS)
        distance = positions[rows][:, :, None] - keys[:, None, :]
        seen = [
            (distance >= 0) & (True if window is None else distance < window)
            for window in self._windows
        ]
        # One patch moves a key and a value for every head.
        heads_patch = np.arange(kv_heads)
        job, offset, row = jobs.patches.T[:, :, None]
        origin = row * kv_heads + heads_patch
        target = (job * kv_heads + heads_patch) * PAGE_POSITIONS + offset
        both = np.array([0, 1])[:, None, None]
        origin = origin + both * self._step_rows * kv_heads
        target = target + both * len(rows) * kv_heads * PAGE_POSITIONS
        return [
            jobs.pages,
            queries.reshape(-1),
            places.reshape(-1),
            origin.reshape(-1),
            target.reshape(-1),
            *(one.astype(np.float32)[:, None, :, None, :] for one in seen),
            *(np.where(one, 0, MASKED).astype(np.float32)[:, None, :, None, :] for one in seen),
        ]

    def _use(self, packed: Packed) -> None:
        """Read the plan's arrays from `packed`."""
        self._packed = packed
        self._own, self._idle, *others = packed.parts
        self._groups = []
        windows = len(self._windows)
        each = 5 + 2 * windows
        for place, run in enumerate(self._runs):
            pages, queries, results, patch_from, patch_to, *masks = others[
                each * place : each * (place + 1)
            ]
            self._groups.append(
                _JobGroup(
                    jobs=masks[0].shape[0],
                    width=masks[0].shape[2],
                    pages=pages if run is None else run,
                    queries=queries,
                    seen=masks[:windows],
                    bias=masks[windows:],
                    results=results,
                    patch_from=patch_from,
                    patch_to=patch_to,
                )
            )


def add_pairwise(values: torch.Tensor) -> torch.Tensor:
    """Sum over the first dimension by adding neighbours, so that trailing zeros change nothing.

    `torch.sum` groups its terms by how many there are; here term `2i` always meets `2i + 1`.
    """
    while values.shape[0] > 1:
        even = values.shape[0] // 2 * 2
        pairs = values[0:even:2] + values[1:even:2]
        values = torch.cat([pairs, values[even:]]) if even < values.shape[0] else pairs
    return values[0]


def doubled(count: int) -> int:
    """Give the smallest power of two that is no less than `count`."""
    return 1 << (count - 1).bit_length()


def _blocks(part: PassPart) -> list[_Block]:
    """Split what the rows of a part read into blocks of pages."""
    cache = part.rows.cache
    shared_pages = cache.length // PAGE_POSITIONS
    blocks = []
    if shared_pages:
        all_rows = list(range(part.pass_offset, part.pass_offset + part.last - part.first))
        blocks.append(_Block(cache.pages[:shared_pages], list(range(shared_pages)), all_rows, []))
    depths = part.rows.depths()
    for path, own in part.rows.lanes(part.first, part.last):
        last_page = (cache.length + depths[own[-1]]) // PAGE_POSITIONS
        patches = []
        for row in path:
            page, offset = divmod(cache.length + depths[row], PAGE_POSITIONS)
            if page <= last_page:
                patches.append((page - shared_pages, offset, part.step_offset + row))
        rows = [part.pass_offset + row - part.first for row in own]
        numbers = list(range(shared_pages, last_page + 1))
        blocks.append(_Block([cache.pages[n] for n in numbers], numbers, rows, patches))
    return blocks


def _reads_in_place(pages: npt.NDArray[np.int64]) -> bool:
    """Whether pages lie close enough together to be read where they are, and each is named once."""
    if len(np.unique(pages)) < len(pages):
        return False
    run = int(pages.max() - pages.min()) + 1
    return run - len(pages) <= MOST_IDLE_PAGES * run


def _by_width(blocks: list[_Block], padded: Callable[[int], int]) -> dict[int, list[_Block]]:
    """Group blocks by the rows they are padded to: one width for the widest, one for the narrow.

    Every group costs a round of small operations in every layer, and every padding row a product;
    two groups at most are a good trade between them.
    """
    widest = max(padded(len(block.rows)) for block in blocks)
    narrow = min(widest, padded(NARROW_ROWS))
    widths: dict[int, list[_Block]] = {}
    for block in blocks:
        width = narrow if len(block.rows) <= narrow else widest
        widths.setdefault(width, []).append(block)
    return widths


def _patch_count(patches: int) -> int:
    count = _FEWEST_PATCHES
    while count < patches:
        count *= 4
    return count


def _split(rows: list[int], most: int) -> list[list[int]]:
    return [rows[start : start + most] for start in range(0, len(rows), most)]
