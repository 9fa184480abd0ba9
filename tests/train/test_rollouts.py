import numpy as np
import pytest

from peagle.train.rollouts import Sampling, sample_rows, segments
from tests.train.predicate import visible

PROMPT, TOKENS = 10, 60


def sampled(seed: int = 0, **settings):
    return sample_rows(PROMPT, TOKENS, Sampling(**settings), np.random.default_rng(seed))


def pairs(rows) -> set[tuple[int, int]]:
    return set(zip(rows.anchors.tolist(), rows.depths.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_every_kept_element_keeps_all_its_ancestors(seed: int) -> None:
    kept = pairs(sampled(seed, depths=8, ratio=0.6))
    assert all((anchor, depth - 1) in kept for anchor, depth in kept if depth)


def test_depth_zero_keeps_every_slot_and_deeper_ones_a_falling_share() -> None:
    rows = sampled(depths=8, ratio=0.8)
    counts = np.bincount(rows.depths).tolist()
    # 59 slots, of which 49 are anchors: floor((49 - d) * 0.8 ** d).
    assert counts == [59, 38, 30, 23, 18, 14, 11, 8]
    assert rows.anchors[: rows.context].tolist() == list(range(59))


def test_chains_stay_within_the_answer_and_the_document() -> None:
    rows = sampled(depths=8, ratio=1.0)
    deep = rows.depths > 0
    assert rows.anchors[deep].min() == PROMPT - 1
    assert (rows.anchors[deep] + rows.depths[deep] + 2).max() == TOKENS - 1
    assert rows.supervised[deep].all()
    context = np.flatnonzero(rows.supervised[: rows.context])
    assert (context[0], context[-1]) == (PROMPT - 1, TOKENS - 3)


def test_a_share_of_the_anchors_starts_fewer_chains() -> None:
    assert (sampled(depths=2, ratio=1.0, anchor_share=0.25).depths == 1).sum() == 11


@pytest.mark.parametrize("tokens", [PROMPT + 1, PROMPT + 2, PROMPT + 3])
def test_short_documents_have_what_they_can_have(tokens: int) -> None:
    rows = sample_rows(PROMPT, tokens, Sampling(depths=4, ratio=1.0), np.random.default_rng(0))
    assert rows.context == tokens - 1
    assert rows.supervised.sum() == {11: 0, 12: 1, 13: 3}[tokens]


def test_segments_supervise_every_row_once_and_show_it_what_the_whole_shows() -> None:
    rows = sampled(depths=6, ratio=0.9)
    parts = segments(rows, 3)
    assert len(parts) == 3

    def seen(part) -> list[tuple[tuple[int, int], set[tuple[int, int]]]]:
        """Name each supervised row with what it sees."""
        names = list(zip(part.anchors.tolist(), part.depths.tolist(), strict=True))
        lines = zip(names, part.supervised, visible(part), strict=True)
        return [(name, {names[k] for k in np.flatnonzero(line)}) for name, on, line in lines if on]

    together = [line for part in parts for line in seen(part)]
    assert sorted(name for name, _ in together) == sorted(name for name, _ in seen(rows))
    assert dict(together) == dict(seen(rows))
    # A chain that begins before a boundary goes on behind it.
    width = -(-59 // 3)
    assert any(a + 1 < width <= a + d for a, d in pairs(parts[0]) if d)
