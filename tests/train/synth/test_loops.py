import pytest

from peagle.train.synth.loops import LoopDetector


def kept_of(tokens: list[int]) -> tuple[int, int] | None:
    """How many tokens were read when the loop was noticed, and how many are kept."""
    detector = LoopDetector()
    for read, token in enumerate(tokens, 1):
        kept = detector.push(token)
        if kept is not None:
            return read, kept
    return None


@pytest.mark.parametrize("length", [16, 17, 40, 128])
def test_a_cycle_is_noticed_at_the_end_of_its_third_turn_and_cut_after_the_second(
    length: int,
) -> None:
    before = list(range(1000, 1031))
    cycle = list(range(length))
    assert kept_of(before + cycle * 4) == (31 + 3 * length, 31 + 2 * length)


@pytest.mark.parametrize(("length", "turns"), [(1, 48), (2, 24), (5, 10), (15, 4)])
def test_a_short_cycle_needs_more_turns(length: int, turns: int) -> None:
    cycle = list(range(length))
    assert kept_of([99, *cycle * turns]) is not None
    read, kept = kept_of([99, *cycle * 100]) or (0, 0)
    assert read == 1 + max(48, 3 * length)
    assert kept == 1 + 2 * length


def test_text_without_a_loop_is_left_alone() -> None:
    assert kept_of(list(range(500))) is None
    # A row of 40 dashes, a repeated paragraph, and a cycle longer than those looked for.
    assert kept_of([1, *[7] * 40, 2, *range(100, 160), *range(100, 160)]) is None
    assert kept_of(list(range(129)) * 4) is None


def test_a_cycle_must_be_whole_up_to_the_last_token() -> None:
    cycle = list(range(20))
    assert kept_of(cycle * 2 + cycle[:19] + [99] + list(range(200, 260))) is None


def test_what_is_kept_does_not_depend_on_what_follows() -> None:
    text = [5, 6, *list(range(10, 40)) * 3]
    assert kept_of(text) == kept_of(text + list(range(900, 950))) == (92, 62)
