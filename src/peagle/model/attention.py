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
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from peagle.model.config import DecoderConfig
from peagle.model.invariance import RowLadder
from peagle.model.kv_cache import PAGE_POSITIONS
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
class _JobGroup:
    """Jobs with equally many rows each: `jobs` pages, `width` rows on each.

    Attributes:
        pages: Pool pages, `[jobs]`, or a run of them that is read in place.
        queries: Which query each job row takes, `[jobs * kv_heads * width]`.
        seen: One where a key is seen, zero elsewhere, `[jobs, 1, width, 1, 64]`.
        bias: Zero where a key is seen, `MASKED` elsewhere, `[jobs, 1, width, 1, 64]`.
        results: Where each job row's partial result goes, `[jobs * kv_heads * width]`.
        patch_from: Rows of the step's uncommitted keys and values, `[patches]`.
        patch_to: Places in the gathered pages, `[patches]`.
    """

    jobs: int
    width: int
    pages: torch.Tensor | slice
    queries: torch.Tensor
    seen: torch.Tensor
    bias: torch.Tensor
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
        ladder: Agreeing query counts of the products with a page, multiples of
            `config.queries_per_kv_head`.
        device: Where attention runs.
    """

    def __init__(
        self,
        parts: Sequence[PassPart],
        *,
        padded_rows: int,
        step_rows: int,
        step_offset: int,
        config: DecoderConfig,
        ladder: RowLadder,
        device: torch.device,
    ) -> None:
        self._rows = padded_rows
        self._step_rows = step_rows
        self.step_offset = step_offset
        self._shared = shared = config.queries_per_kv_head
        self._kv_heads = kv_heads = config.num_kv_heads
        self._head_dim = head_dim = config.head_dim
        self._window = config.sliding_window
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
                # to be patched are copied, and all go together.
                for number, rows in enumerate(_split(block.rows, ladder.largest // shared)):
                    kind = _PATCHED if block.patches else number
                    alike.setdefault(kind, []).append(replace(block, rows=rows))
        self._pages = 1 + max(
            number for blocks in alike.values() for block in blocks for number in block.page_numbers
        )
        self._groups: list[_JobGroup] = []
        for blocks in alike.values():
            widths = _by_width(blocks, lambda rows: ladder.padded(rows * shared) // shared)
            self._groups.extend(
                self._group(width, equal, positions) for width, equal in sorted(widths.items())
            )
        places = self._pages * padded_rows * kv_heads
        # The last place takes what padding rows compute. Places that no job fills keep these
        # values through all layers: a sum of zero under the smallest possible maximum.
        self._sums = torch.zeros(places + 1, shared * head_dim, device=device)
        self._weights = torch.zeros(places + 1, shared, device=device)
        self._maxima = torch.full((places + 1, shared), MASKED, device=device)
        # Padding rows see nothing: a weight of one makes their result zero instead of NaN.
        real_rows = max(part.pass_offset + part.last - part.first for part in parts)
        self._weights[real_rows * kv_heads : padded_rows * kv_heads] = 1

    def attend(
        self, queries: torch.Tensor, pool: torch.Tensor, uncommitted: torch.Tensor
    ) -> torch.Tensor:
        """Attend with every row of the pass.

        Args:
            queries: Rotated and scaled, float32 `[rows, heads, head_dim]`.
            pool: One layer of the cache, `[2, pages, kv_heads, 64, head_dim]`.
            uncommitted: Keys and values of the step's rows in this layer,
                `[2, step_rows, kv_heads, head_dim]`.

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
                pages.view(-1, head_dim).index_copy_(
                    0, group.patch_to, flat_uncommitted.index_select(0, group.patch_from)
                )
            keys, values = pages.float().flatten(1, 2)
            width = group.width * shared
            asked = flat_queries.index_select(0, group.queries).view(-1, width, head_dim)
            scores = torch.bmm(asked, keys.transpose(1, 2))
            scores = scores.view(group.jobs, kv_heads, group.width, shared, PAGE_POSITIONS)
            maxima = (scores + group.bias).amax(-1, keepdim=True)
            # Unseen scores may exceed the maximum of the seen ones, and so are clamped above too.
            scores.sub_(maxima).clamp_(LEAST_EXPONENT, 0).exp_().mul_(group.seen)
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

    def _group(self, width: int, blocks: list[_Block], positions: np.ndarray) -> _JobGroup:
        kv_heads = self._kv_heads
        pool_pages = np.array([page for b in blocks for page in b.pool_pages])
        numbers = np.array([number for b in blocks for number in b.page_numbers])
        rows = np.full((len(pool_pages), width), -1)
        patch_from: list[int] = []
        patch_to: list[int] = []
        job = 0
        for block in blocks:
            rows[job : job + len(block.pool_pages), : len(block.rows)] = block.rows
            for page, offset, row in block.patches:
                patch_from.append(row)
                patch_to.append((job + page) * kv_heads * PAGE_POSITIONS + offset)
            job += len(block.pool_pages)
        pages: npt.NDArray[np.int64] | slice = pool_pages
        if not patch_from and _reads_in_place(pool_pages):
            # Jobs of the pages between have padding rows only.
            pages = slice(int(pool_pages.min()), int(pool_pages.max()) + 1)
            run = np.full((pages.stop - pages.start, width), -1)
            run[pool_pages - pages.start] = rows
            run_numbers = np.zeros(len(run), np.int64)
            run_numbers[pool_pages - pages.start] = numbers
            rows, numbers = run, run_numbers
        padding = rows < 0
        rows = np.where(padding, 0, rows)
        heads = np.arange(kv_heads)[None, :, None]
        queries = rows[:, None, :] * kv_heads + heads
        places = (numbers[:, None, None] * self._rows + rows[:, None, :]) * kv_heads + heads
        trash = self._pages * self._rows * kv_heads
        places = np.where(padding[:, None, :], trash, places)
        keys = numbers[:, None] * PAGE_POSITIONS + np.arange(PAGE_POSITIONS)
        distance = positions[rows][:, :, None] - keys[:, None, :]
        seen = distance >= 0
        if self._window is not None:
            seen &= distance < self._window
        # One patch moves a key and a value for every head.
        heads_patch = np.arange(kv_heads)
        origin = np.array(patch_from, np.int64)[:, None] * kv_heads + heads_patch
        target = np.array(patch_to, np.int64)[:, None] + heads_patch * PAGE_POSITIONS
        both = np.array([0, 1])[:, None, None]
        origin = origin + both * self._step_rows * kv_heads
        target = target + both * len(rows) * kv_heads * PAGE_POSITIONS

        def on_device(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

        return _JobGroup(
            jobs=len(rows),
            width=width,
            pages=pages if isinstance(pages, slice) else on_device(pages),
            queries=on_device(queries.reshape(-1)),
            seen=on_device(seen.astype(np.float32)[:, None, :, None, :]),
            bias=on_device(np.where(seen, 0, MASKED).astype(np.float32)[:, None, :, None, :]),
            results=on_device(places.reshape(-1)),
            patch_from=on_device(origin.reshape(-1)),
            patch_to=on_device(target.reshape(-1)),
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
    """Whether pages, each named once, lie close enough together to be read where they are."""
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


def _split(rows: list[int], most: int) -> list[list[int]]:
    return [rows[start : start + most] for start in range(0, len(rows), most)]
