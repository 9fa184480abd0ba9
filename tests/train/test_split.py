import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.train.conversations import Conversation
from peagle.train.split import SHARED_RUN, documents, held_out

HEADER = list(range(1000, 1040))


def tokens(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 900, size=count).tolist()


def conversation(seed: int, *, prompt: list[int], response: list[int]) -> Conversation:
    own = tokens(seed, 40)
    return Conversation([*HEADER, *prompt, *own[:20]], [*own[20:], *response])


def test_conversations_about_a_document_belong_together() -> None:
    document = tokens(1, 60)
    many = [
        conversation(10, prompt=[], response=document),
        conversation(11, prompt=[], response=tokens(2, 60)),
        conversation(12, prompt=document[5:50], response=[]),
        conversation(13, prompt=document[:SHARED_RUN], response=[]),
    ]
    assert documents(many) == [0, 1, 0, 0]


def test_sharing_reaches_over_a_third_conversation() -> None:
    one, other = tokens(1, 40), tokens(2, 40)
    many = [
        conversation(10, prompt=one, response=[]),
        conversation(11, prompt=other, response=[]),
        conversation(12, prompt=one, response=other),
    ]
    assert documents(many) == [0, 0, 0]


def test_shorter_runs_and_the_common_header_join_nothing() -> None:
    shared = tokens(1, SHARED_RUN - 1)
    many = [conversation(seed, prompt=shared, response=shared) for seed in range(10, 14)]
    assert len(HEADER) > SHARED_RUN
    # The prompts' common prefix is the header and the shared run.
    assert documents(many) == [0, 1, 2, 3]


@given(st.permutations(range(30)))
@settings(max_examples=20, deadline=None)
def test_decision_does_not_depend_on_the_order(order: list[int]) -> None:
    shared = tokens(5, 50)
    many = [
        conversation(seed, prompt=[], response=shared if seed % 5 == 0 else [])
        for seed in range(30)
    ]
    out = held_out(many, 0.5)
    assert 3 < sum(out) < 27
    assert held_out([many[index] for index in order], 0.5) == [out[index] for index in order]
    assert len({flag for seed, flag in enumerate(out) if seed % 5 == 0}) == 1


def test_fraction_is_kept_whatever_the_size_of_documents() -> None:
    many = []
    for number in range(300):
        shared = tokens(10_000 + number, 40)
        many += [
            conversation(number * 10 + copy, prompt=[], response=shared)
            for copy in range(1 + number % 3 * 4)
        ]
    share = sum(held_out(many, 0.2)) / len(many)
    assert 0.13 < share < 0.27


def test_larger_fraction_holds_out_all_that_a_smaller_one_does() -> None:
    many = [conversation(seed, prompt=[], response=[]) for seed in range(200)]
    small, large = held_out(many, 0.1), held_out(many, 0.4)
    assert sum(small) < sum(large)
    assert all(out for out, before in zip(large, small, strict=True) if before)


def test_no_conversations_need_no_split() -> None:
    assert documents([]) == []
    assert held_out([]) == []
