import psutil
import pytest
import torch

from peagle.errors import OutOfMemoryBudgetError
from peagle.model.kv_cache import KVCache, SequenceCache, page_bytes, pages_for
from tests.model.random_models import CPU, GROUPED


def cache_of(pages: int) -> KVCache:
    budget = pages * page_bytes(GROUPED, torch.float32)
    return KVCache(GROUPED, budget=budget, dtype=torch.float32, device=CPU)


def test_a_page_holds_keys_and_values_of_64_positions_in_every_layer() -> None:
    # 2 (keys, values) * 4 layers * 2 heads * 16 wide * 64 positions * 4 bytes
    assert page_bytes(GROUPED, torch.float32) == 65_536
    assert page_bytes(GROUPED, torch.bfloat16) == 32_768


@pytest.mark.parametrize(("positions", "pages"), [(1, 1), (64, 1), (65, 2), (128, 2)])
def test_pages_for_positions(positions: int, pages: int) -> None:
    assert pages_for(positions) == pages


def test_pages_are_reserved_and_given_back() -> None:
    cache = cache_of(5)
    first, second = cache.open(65), cache.open(129)
    assert (first.pages, second.pages) == ([], [])
    assert cache.free_pages == 0
    assert cache.used_bytes == 5 * 65_536
    assert not cache.fits(1)
    cache.close(first)
    assert cache.free_pages == 2
    assert cache.fits(128)
    assert not cache.fits(129)


def test_pages_are_handed_out_when_needed_and_lowest_first() -> None:
    cache = cache_of(6)
    first, second, third = cache.open(65), cache.open(129), cache.open(10)
    for sequence, positions in ((second, 64), (first, 1), (third, 10), (second, 65), (second, 66)):
        cache.take_pages(sequence, positions)
    assert (first.pages, second.pages, third.pages) == ([1], [0, 3], [2])
    cache.close(first)
    cache.take_pages(second, 129)
    assert second.pages == [0, 3, 1]
    with pytest.raises(ValueError, match="4 pages needed, 3 reserved"):
        cache.take_pages(second, 193)


def test_a_rewound_sequence_has_its_last_page_as_it_was() -> None:
    cache = cache_of(3)
    sequence = cache.open(129)
    cache.take_pages(sequence, 70)
    cache.pool[:, :, :2] = 5.0
    sequence.length = 64
    whole = cache.mark(sequence)
    sequence.length = 70
    inside = cache.mark(sequence)
    cache.pool[:, :, :2] = 6.0
    sequence.length = 129
    cache.rewind(sequence, inside)
    assert sequence.length == 70
    assert cache.pool[:, :, 0].eq(6.0).all()
    assert cache.pool[:, :, 1].eq(5.0).all()
    cache.pool[:, :, :2] = 7.0
    cache.rewind(sequence, whole)
    assert sequence.length == 64
    assert cache.pool[:, :, :2].eq(7.0).all()


def filled(cache: KVCache, *keys: str) -> SequenceCache:
    """Open a sequence that computes pages, tells what fills them, and begins another."""
    sequence = cache.open(64 * len(keys) + 1)
    cache.take_pages(sequence, 64 * len(keys) + 1)
    for key in keys:
        sequence.length += 64
        cache.share(sequence, key)
    return sequence


def test_pages_outlast_their_sequence_and_are_free_all_the_same() -> None:
    cache = cache_of(4)
    first = filled(cache, "a", "b")
    assert first.pages == [0, 1, 2]
    assert (cache.free_pages, cache.kept_pages) == (1, 0)
    cache.close(first)
    assert (cache.free_pages, cache.kept_pages) == (4, 2)
    assert cache.used_bytes == 0
    second = cache.open(192)
    cache.adopt(second, cache.find(["a", "b", "c"]))
    assert (second.pages, second.length) == ([0, 1], 128)
    assert (cache.free_pages, cache.kept_pages) == (1, 0)
    cache.take_pages(second, 192)
    assert second.pages == [0, 1, 2]
    cache.close(second)
    assert [one.page for one in cache.find(["a", "b", "c"])] == [0, 1]


def test_pages_that_several_sequences_hold_count_once() -> None:
    cache = cache_of(8)
    first = filled(cache, "a", "b")
    second, third = cache.open(129), cache.open(65)
    assert cache.free_pages == 0
    cache.adopt(second, cache.find(["a", "b"]))
    assert cache.free_pages == 2
    cache.adopt(third, cache.find(["a"]))
    assert cache.free_pages == 3
    cache.close(first)
    assert (cache.free_pages, cache.kept_pages) == (4, 0)
    cache.close(second)
    assert (cache.free_pages, cache.kept_pages) == (6, 1)
    cache.close(third)
    assert (cache.free_pages, cache.kept_pages) == (8, 2)


def test_a_page_that_is_known_already_replaces_the_one_computed_again() -> None:
    cache = cache_of(8)
    first, second = filled(cache, "a", "b"), filled(cache, "a", "c")
    assert (first.pages, second.pages) == ([0, 1, 2], [0, 4, 5])
    assert cache.free_pages == 8 - 5
    third = cache.open(10)
    cache.take_pages(third, 10)
    assert third.pages == [3]
    for sequence in (first, second, third):
        cache.close(sequence)
    assert (cache.free_pages, cache.kept_pages) == (8, 3)


def test_room_comes_from_the_text_used_longest_ago_its_end_first() -> None:
    cache = cache_of(5)
    for keys in (("a", "b"), ("c", "d"), ("a", "b")):
        cache.close(filled(cache, *keys))
    assert (cache.free_pages, cache.kept_pages) == (5, 4)
    wide = cache.open(320)
    known = []
    for positions in (64, 128, 192, 256, 320):
        cache.take_pages(wide, positions)
        known.append([len(cache.find(text)) for text in ("ab", "cd")])
    assert known == [[2, 2], [2, 1], [2, 0], [1, 0], [0, 0]]
    assert sorted(wide.pages) == [0, 1, 2, 3, 4]
    assert cache.free_pages == 0


def test_only_full_pages_are_shared_and_only_sequences_that_have_not_begun_adopt() -> None:
    cache = cache_of(4)
    sequence = filled(cache, "a")
    sequence.length += 63
    with pytest.raises(ValueError, match="page 1 of a sequence of 127 is not full"):
        cache.share(sequence, "b")
    with pytest.raises(ValueError, match="1 pages for a sequence of 2 that began"):
        cache.adopt(sequence, cache.find("a"))


def test_a_pool_has_no_more_pages_than_asked_for() -> None:
    budget = 5 * page_bytes(GROUPED, torch.float32)
    for most, pages in ((3, 3), (5, 5), (9, 5), (None, 5)):
        cache = KVCache(GROUPED, budget=budget, most_pages=most, dtype=torch.float32, device=CPU)
        assert (cache.total_pages, cache.pool.shape[2]) == (pages, pages)


def test_a_budget_below_one_page_is_refused_with_one_that_would_do() -> None:
    with pytest.raises(OutOfMemoryBudgetError, match=r"65,535.*65,536") as caught:
        KVCache(GROUPED, budget=65_535, dtype=torch.float32, device=CPU)
    # 1024 positions of context are 16 pages.
    assert "Set kv_cache_bytes to 1,048,576 for the whole context of 1,024" in caught.value.remedy
    cache = KVCache(GROUPED, budget=1_048_576, dtype=torch.float32, device=CPU)
    assert cache.total_positions == 1024
    assert (cache.bytes_for(64), cache.bytes_for(65)) == (65_536, 131_072)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_untouched_pages_are_zero_and_take_no_memory(dtype: torch.dtype) -> None:
    before = psutil.Process().memory_info().rss
    cache = KVCache(GROUPED, budget=4 << 30, dtype=dtype, device=CPU)
    assert cache.pool.dtype == dtype
    assert cache.pool.numel() * dtype.itemsize > (4 << 30) - cache.bytes_per_page
    assert not cache.pool[3, 1, 7].any()
    assert psutil.Process().memory_info().rss - before < 256 << 20
