from collections.abc import Sequence

from peagle.train.conversations import Conversation
from peagle.train.synth.duplicates import SAME_BEGINNING, SHORT_ANSWER, Duplicates, Likeness

HEADER = [1, 2, 3]
ANSWER = list(range(500, 500 + SHORT_ANSWER))


def likeness(
    one: tuple[Sequence[int], Sequence[int]],
    other: tuple[Sequence[int], Sequence[int]],
    *,
    first_turn: bool = True,
) -> Likeness | None:
    duplicates = Duplicates(len(HEADER))
    duplicates.add(Conversation([*HEADER, *one[0]], one[1]))
    return duplicates.likeness(Conversation([*HEADER, *other[0]], other[1]), first_turn=first_turn)


def test_an_equal_prompt_is_a_duplicate() -> None:
    assert likeness(([5, 6], [7]), ([5, 6], [8])) is Likeness.PROMPT
    assert likeness(([5, 6], [7]), ([5, 6], [8]), first_turn=False) is Likeness.PROMPT
    assert likeness(([5, 6], [7]), ([5, 7], [7])) is None


def test_an_equal_beginning_is_a_near_duplicate_unless_it_is_the_conversation_itself() -> None:
    beginning = list(range(10, 10 + SAME_BEGINNING))
    one, other = ([*beginning, 90], [1]), ([*beginning, 91], [1])
    assert likeness(one, other) is Likeness.BEGINNING
    assert likeness(one, other, first_turn=False) is None
    assert likeness(([*beginning[:-1], 90], [1]), other) is None


def test_an_equal_answer_is_a_near_duplicate_unless_it_is_short() -> None:
    assert likeness(([5], ANSWER), ([6], ANSWER)) is Likeness.ANSWER
    assert likeness(([5], ANSWER[:-1]), ([6], ANSWER[:-1])) is None
    assert likeness(([5], ANSWER), ([6], [*ANSWER, 9])) is None
