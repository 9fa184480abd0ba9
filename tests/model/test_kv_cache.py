import psutil
import pytest
import torch

from peagle.errors import OutOfMemoryBudgetError
from peagle.model.kv_cache import KVCache, page_bytes, pages_for
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
