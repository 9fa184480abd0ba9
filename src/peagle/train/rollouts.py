"""Which (anchor, depth) pairs of a document are trained: COD sampling (PARD, arXiv 2602.01469).

Slot `a` of a document takes token `x[a+1]` and feature `g[a]`. An element `(a, d)` stands at
position `a + d`, `d` mask slots behind the anchor `a`, and predicts `x[a+d+2]`. Depth 0 keeps every
slot. Each deeper depth keeps a share of the chains that are still running, so whatever is kept has
all its ancestors `(a, d-1), ..., (a, 0)`, and no chain leaves its document.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How many elements are kept at each depth.

    Attributes:
        depths: Depths trained, the first (0) included: `K`.
        ratio: Depth `d` keeps `ratio ** d` of the anchors.
        min_ratio: Floor under that share.
        anchor_share: Share of the anchors that chains of mask slots may start from.
    """

    depths: int = 8
    ratio: float = 0.8
    min_ratio: float = 0.0
    anchor_share: float = 1.0


@dataclass(frozen=True, slots=True)
class DocumentRows:
    """The elements of a document that go through the drafter together.

    Attributes:
        anchors: Anchor of each row, `[rows]`; rows of depth 0 come first, ascending.
        depths: Depth of each row, `[rows]`.
        supervised: Which rows have a loss, `[rows]`; the others are context.
    """

    anchors: Ints
    depths: Ints
    supervised: npt.NDArray[np.bool_]

    @property
    def context(self) -> int:
        """Rows of depth 0."""
        return int((self.depths == 0).sum())


def sample_rows(
    prompt_tokens: int, tokens: int, sampling: Sampling, chance: np.random.Generator
) -> DocumentRows:
    """Sample the elements of a document.

    Trained is what serving asks for: anchors from the prompt's last slot on, and predictions of
    tokens that the document has.

    Args:
        prompt_tokens: Tokens of the prompt, `P`.
        tokens: Tokens of the document, `n`.
        sampling: How many elements are kept.
        chance: Where the choice comes from.

    Returns:
        Rows of depth 0 for the slots `0` to `n - 2`, then the chains, depth by depth.
    """
    slots = np.arange(tokens - 1)
    anchors = np.arange(max(prompt_tokens - 1, 0), tokens - 2)
    seeds = max(1, round(len(anchors) * sampling.anchor_share)) if len(anchors) else 0
    pool = anchors
    all_anchors, all_depths = [slots], [np.zeros(len(slots), np.int64)]
    for depth in range(1, sampling.depths):
        pool = pool[pool + depth + 2 <= tokens - 1]
        wanted = int((seeds - depth) * max(sampling.ratio**depth, sampling.min_ratio))
        if wanted < 1 or not len(pool):
            break
        if wanted < len(pool):
            pool = np.sort(chance.choice(pool, wanted, replace=False))
        all_anchors.append(pool)
        all_depths.append(np.full(len(pool), depth))
    kept, depths = np.concatenate(all_anchors), np.concatenate(all_depths)
    supervised = (kept >= prompt_tokens - 1) & (kept + depths + 2 <= tokens - 1)
    return DocumentRows(kept, depths, supervised)


def segments(rows: DocumentRows, count: int) -> list[DocumentRows]:
    """Split a document's rows so that less memory is needed at a time (the paper's Algorithm 1).

    Each segment holds its own elements and, as context without a loss, all rows of depth 0 up to
    its right end. A chain goes as a whole, by the position of its first mask slot. Every
    supervised row is supervised in one segment, and sees there what it sees in the whole.

    Args:
        rows: All rows of a document.
        count: Segments, of equally many slots.
    """
    slots = rows.context
    width = -(-slots // count)
    where = np.where(rows.depths == 0, rows.anchors, rows.anchors + 1) // width
    # The last slot's chain begins behind the end of the document's slots.
    where = np.minimum(where, count - 1)
    parts = []
    for segment in range(count):
        own = where == segment
        if not (own & rows.supervised).any():
            continue
        kept = own | ((rows.depths == 0) & (rows.anchors < (segment + 1) * width))
        parts.append(
            DocumentRows(rows.anchors[kept], rows.depths[kept], (rows.supervised & own)[kept])
        )
    return parts
