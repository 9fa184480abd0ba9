import time

from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.draft.lookup import Lookup

LONGEST = 8
BY_LENGTH = [0.0, *(float(10**length) for length in range(LONGEST))]


def common_suffix(text: list[int], end: int) -> int:
    length = 0
    while length < end and text[end - 1 - length] == text[-1 - length]:
        length += 1
    return length


def expected_evidence(text: list[int]) -> dict[int, float]:
    found: dict[int, float] = {}
    for end in range(1, len(text)):
        length = min(common_suffix(text, end), LONGEST)
        if length:
            found[text[end]] = found.get(text[end], 0.0) + BY_LENGTH[length]
    return found


texts = st.lists(st.integers(0, 3), min_size=1, max_size=30)


@given(texts)
def test_evidence_counts_every_earlier_occurrence_by_its_match(text: list[int]) -> None:
    lookup = Lookup(text, LONGEST)
    assert lookup.evidence(lookup.matches, BY_LENGTH) == expected_evidence(text)


@given(texts, st.lists(st.integers(1, 4), min_size=1))
@settings(max_examples=60)
def test_text_may_come_in_any_pieces(text: list[int], sizes: list[int]) -> None:
    lookup = Lookup([], LONGEST)
    done = 0
    for size in sizes:
        lookup.extend(text[done : done + size])
        done += size
    lookup.extend(text[done:])
    assert lookup.evidence(lookup.matches, BY_LENGTH) == expected_evidence(text)


@given(texts, st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_branch_is_matched_against_committed_text_only(text: list[int], path: list[int]) -> None:
    lookup = Lookup(text, LONGEST)
    matches = lookup.matches
    for token in path:
        matches = lookup.follow(matches, token)
    together = [*text, *path]
    expected: dict[int, float] = {}
    for end in range(1, len(text)):
        length = min(common_suffix(together, end), LONGEST)
        if length:
            expected[text[end]] = expected.get(text[end], 0.0) + BY_LENGTH[length]
    assert lookup.evidence(matches, BY_LENGTH) == expected


@given(texts)
def test_matches_are_earlier_places_and_not_the_end_itself(text: list[int]) -> None:
    longest = max((common_suffix(text, end) for end in range(1, len(text))), default=0)
    found = Lookup(text, LONGEST).matches
    assert min(max(found.values(), default=0), LONGEST) == min(longest, LONGEST)
    assert all(position < len(text) for position in found)


def test_unknown_token_has_no_matches() -> None:
    lookup = Lookup([1, 2, 1, 2], LONGEST)
    assert lookup.follow(lookup.matches, 7) == {}


def test_long_match_survives_many_later_occurrences_of_its_token() -> None:
    quotation = [100, 101, 5, 102, 103]
    lookup = Lookup([*quotation, *[5, 6] * 60, 100, 101], LONGEST)
    matches = lookup.follow(lookup.matches, 5)
    assert lookup.evidence(matches, BY_LENGTH)[102] == BY_LENGTH[3]


def test_long_prompt_is_absorbed_in_time_that_grows_with_its_length() -> None:
    prompt = [(7 * index * index + index // 3) % 900 for index in range(32_000)]

    def seconds(count: int) -> float:
        begin = time.process_time()
        Lookup(prompt[:count], 32)
        return time.process_time() - begin

    # Sixteen times as long, and a quadratic search would take 256 times the time.
    assert min(seconds(32_000) for _ in range(3)) < 100 * min(seconds(2000) for _ in range(3))
