import codecs
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.engine.stops import FinishReason, StopRule
from peagle.errors import InvalidRequestError
from peagle.sampling_params import SamplingParams

EOS, EOS_2 = 1000, 1001


class Pieces:
    """A detokenizer of a byte-level vocabulary: token `i` is `pieces[i]`, an end is no text."""

    def __init__(self, pieces: Sequence[str | bytes]) -> None:
        self.pieces = [p.encode() if isinstance(p, str) else p for p in pieces]
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        return "".join(self.decoder.decode(self.pieces[i]) for i in ids if i < EOS)

    def flush(self) -> str:
        return self.decoder.decode(b"", final=True)


def rule(pieces: Sequence[str | bytes] = "abc", room: int = 100, **params: object) -> StopRule:
    return StopRule(
        SamplingParams(**params),
        eos_ids=[EOS, EOS_2],
        context_room=room,
        detokenizer=Pieces(pieces),
    )


def outcome(stops: StopRule, tokens: Sequence[int]) -> tuple[int, FinishReason | None, str]:
    """Push until the end: tokens taken, the reason, the text."""
    for taken, token in enumerate(tokens, 1):
        if stops.push(token) is not None:
            return taken, stops.finish_reason, stops.text
    return len(tokens), stops.finish_reason, stops.text


def test_goes_on_without_a_reason_to_stop() -> None:
    assert outcome(rule(), [0, 1, 2]) == (3, None, "abc")


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_max_tokens_is_the_last_token_taken(max_tokens: int) -> None:
    stops = rule(max_tokens=max_tokens)
    assert outcome(stops, [0, 1, 2]) == (max_tokens, "length", "ab"[:max_tokens])
    assert stops.stop_reason is None
    assert stops.remaining == 0


@pytest.mark.parametrize("max_tokens", [None, 2, 3, 4])
def test_context_is_filled_exactly_and_never_exceeded(max_tokens: int | None) -> None:
    stops = rule(room=3, max_tokens=max_tokens)
    limit = min(3, max_tokens or 3)
    assert stops.remaining == limit
    assert outcome(stops, [0, 1, 2, 0, 1]) == (limit, "length", "abc"[:limit])


@pytest.mark.parametrize("room", [0, -1])
def test_a_prompt_that_fills_the_context_is_refused(room: int) -> None:
    with pytest.raises(InvalidRequestError, match="no room"):
        rule(room=room)


@pytest.mark.parametrize("eos", [EOS, EOS_2])
@pytest.mark.parametrize("before", [0, 1, 3])
def test_each_end_of_sequence_token_stops_and_counts_as_output(eos: int, before: int) -> None:
    stops = rule()
    assert outcome(stops, [*[0] * before, eos, 1]) == (before + 1, "stop", "a" * before)
    assert stops.stop_reason is None


def test_ignore_eos_writes_on_unless_it_is_a_stop_token() -> None:
    assert outcome(rule(ignore_eos=True), [0, EOS, 1]) == (3, None, "ab")
    stops = rule(ignore_eos=True, stop_token_ids=(EOS_2,))
    assert outcome(stops, [EOS, EOS_2, 0]) == (2, "stop", "")
    assert stops.stop_reason == EOS_2


def test_stop_token_keeps_its_text_and_is_reported() -> None:
    stops = rule(stop_token_ids=(1,))
    assert outcome(stops, [0, 1, 2]) == (2, "stop", "ab")
    assert stops.stop_reason == 1


def test_a_stop_at_the_length_limit_is_a_stop() -> None:
    assert outcome(rule(max_tokens=2), [0, EOS])[1] == "stop"
    assert outcome(rule(max_tokens=2, stop_token_ids=(1,)), [0, 1])[1] == "stop"
    assert outcome(rule(max_tokens=2, stop="b"), [0, 1]) == (2, "stop", "a")


@pytest.mark.parametrize(
    ("pieces", "taken"),
    [
        (["say END now"], 1),
        (["say E", "ND now"], 2),
        (["say ", "E", "N", "D", " now"], 4),
        (["say ", "END", " now"], 2),
    ],
)
@pytest.mark.parametrize(("include", "text"), [(False, "say "), (True, "say END")])
def test_stop_string_is_found_however_it_is_cut_into_tokens(
    pieces: list[str], taken: int, *, include: bool, text: str
) -> None:
    stops = rule(pieces, stop="END", include_stop_str_in_output=include)
    assert outcome(stops, range(len(pieces))) == (taken, "stop", text)
    assert stops.stop_reason == "END"


def test_text_that_could_begin_a_stop_string_is_held_back() -> None:
    stops = rule(["x E", "N", "D", "", "EN", "E", "END"], stop=("END!", "\n"))
    shown = []
    for token in range(7):
        stops.push(token)
        shown.append(stops.text)
    assert shown == ["x ", "x ", "x ", "x ", "x END", "x ENDEN", "x ENDENE"]
    assert stops.push(0) is None
    assert stops.text == "x ENDENEENDx "


def test_what_was_held_back_is_shown_at_the_end() -> None:
    assert outcome(rule(["so E", "N"], stop="END", max_tokens=2), [0, 1]) == (2, "length", "so EN")
    assert outcome(rule(["so E"], stop="END"), [0, EOS]) == (2, "stop", "so E")


def test_a_prefix_of_another_stop_string_stops_first() -> None:
    stops = rule(["xabcd"], stop=("abcd", "ab"), include_stop_str_in_output=True)
    assert outcome(stops, [0]) == (1, "stop", "xab")
    assert stops.stop_reason == "ab"


def test_the_longer_of_two_strings_that_end_together_counts() -> None:
    stops = rule(["xa", "bc"], stop=("bc", "abc"))
    assert outcome(stops, [0, 1]) == (2, "stop", "x")
    assert stops.stop_reason == "abc"


def test_an_inner_stop_string_ends_a_longer_one_that_began_before() -> None:
    stops = rule(["a", "bc", "d"], stop=("abcd", "bc"))
    assert outcome(stops, [0, 1, 2]) == (2, "stop", "a")
    assert stops.stop_reason == "bc"


def test_a_stop_string_that_began_in_the_prompt_does_not_count() -> None:
    # The prompt ended with "EN"; only the output is ever seen.
    assert outcome(rule(["D", " E", "ND"], stop="END"), [0, 1, 2]) == (3, "stop", "D ")


def test_stop_string_of_a_character_cut_across_tokens() -> None:
    first, second = "🦅".encode()[:2], "🦅".encode()[2:]
    stops = rule(["é", first, second, "z"], stop="🦅")
    assert outcome(stops, [0, 1, 2, 3]) == (3, "stop", "é")


def test_a_character_never_completed_is_shown_at_the_end() -> None:
    pieces = ["a", "🦅".encode()[:3]]
    assert outcome(rule(pieces, max_tokens=2), [0, 1]) == (2, "length", "a\ufffd")
    stops = rule(pieces, max_tokens=2, stop="\ufffd")
    assert outcome(stops, [0, 1]) == (2, "stop", "a")
    assert stops.stop_reason == "\ufffd"


def test_a_stop_string_in_the_text_of_a_stop_token_counts() -> None:
    stops = rule(["a", "b."], stop=".", stop_token_ids=(1,))
    assert outcome(stops, [0, 1]) == (2, "stop", "ab")
    assert stops.stop_reason == "."


def test_stop_strings_complete_by_min_tokens_do_not_count() -> None:
    pieces = ["ab", "a", "b"]
    assert outcome(rule(pieces, stop="ab", min_tokens=1), [0, 0]) == (2, "stop", "ab")
    assert outcome(rule(pieces, stop="ab", min_tokens=2), [0, 1, 2]) == (3, "stop", "ab")
    assert outcome(rule(pieces, stop="ab", min_tokens=3), [0, 1, 2]) == (3, None, "abab")


def test_an_early_stop_string_inside_held_text_does_not_count_later() -> None:
    pieces = ["xab", "q", "y"]
    assert outcome(rule(pieces, stop=("ab", "xaby"), min_tokens=1), [0, 1]) == (2, None, "xabq")
    assert outcome(rule(pieces, stop=("ab", "xaby"), min_tokens=1), [0, 2]) == (2, "stop", "")


def by_character(text: str, stops: Sequence[str], *, include: bool) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            stop = max(ended, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@settings(max_examples=400, deadline=None)
@given(
    pieces=st.lists(st.text("abé", max_size=4), min_size=1, max_size=8),
    strings=st.lists(st.text("abé", min_size=1, max_size=5), max_size=3),
    include=st.booleans(),
)
def test_text_is_that_of_writing_character_by_character(
    pieces: list[str], strings: list[str], *, include: bool
) -> None:
    stops = rule(
        pieces,
        stop=tuple(strings),
        include_stop_str_in_output=include,
        max_tokens=len(pieces),
    )
    text, matched = by_character("".join(pieces), strings, include=include)
    shown = ""
    for token in range(len(pieces)):
        finish = stops.push(token)
        assert stops.text.startswith(shown)
        assert text.startswith(stops.text)
        shown = stops.text
        if finish is not None:
            break
    assert (stops.text, stops.stop_reason) == (text, matched)
    assert stops.finish_reason == ("length" if matched is None else "stop")


def test_without_stop_strings_text_is_made_when_it_is_looked_at() -> None:
    read: list[list[int]] = []

    class Watched(Pieces):
        def push(self, ids: Sequence[int]) -> str:
            read.append(list(ids))
            return super().push(ids)

    def watched(**params: object) -> StopRule:
        return StopRule(
            SamplingParams(max_tokens=4, **params),
            eos_ids=[],
            context_room=9,
            detokenizer=Watched("abcd"),
        )

    lazy, eager = watched(), watched(stop=("x",))
    for token in range(3):
        lazy.push(token)
    assert read == []
    assert (lazy.text, lazy.text, read) == ("abc", "abc", [[0, 1, 2]])
    lazy.push(3)
    assert lazy.finish_reason == "length"
    assert lazy.text == "abcd"
    assert lazy.detokenizing_s > 0
    read.clear()
    eager.push(0)
    assert read == [[0]], "a stop string may be complete"
