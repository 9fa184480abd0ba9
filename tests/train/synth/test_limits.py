import pytest

from peagle.errors import InvalidRequestError
from peagle.train.conversations import Conversation
from peagle.train.synth.limits import Limits, Tally


def tally_of(*responses: int) -> Tally:
    tally = Tally()
    for tokens in responses:
        tally.count(Conversation([1], [2] * tokens))
    return tally


def test_a_limit_is_reached_by_what_the_file_holds() -> None:
    tally = tally_of(10, 30)
    assert (tally.conversations, tally.response_tokens) == (2, 40)
    assert Limits(conversations=2).reached(tally)
    assert not Limits(conversations=3, tokens=41).reached(tally)
    assert Limits(conversations=3, tokens=40).reached(tally)
    assert not Limits(hours=1e-9).reached(tally)


def test_no_more_is_begun_than_is_likely_to_be_needed() -> None:
    tally = tally_of(10, 30)
    assert Limits(conversations=5).more_wanted(tally, 0, coming=2)
    assert not Limits(conversations=5).more_wanted(tally, 0, coming=3)
    # Twenty tokens a conversation so far.
    assert Limits(tokens=100).more_wanted(tally, 0, coming=2)
    assert not Limits(tokens=100).more_wanted(tally, 0, coming=3)
    assert Limits(hours=1).more_wanted(tally, 3600, coming=99)
    assert not Limits(hours=1).more_wanted(tally, 3601, coming=0)


def test_shares_tell_how_much_of_each_limit_is_used_up() -> None:
    limits = Limits(conversations=8, tokens=100, hours=2)
    assert limits.shares(tally_of(10, 30), 1800) == [0.25, 0.4, 0.25]
    assert Limits().shares(tally_of(10), 5) == [0.0]
    assert (limits.any_set, Limits().any_set) == (True, False)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"conversations": 0}, "conversations cannot be 0"),
        ({"tokens": -1}, "tokens cannot be -1"),
        ({"hours": float("nan")}, "hours cannot be nan"),
    ],
)
def test_impossible_limits_are_refused(told: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        Limits(**told)  # type: ignore[arg-type]
