import hashlib
from pathlib import Path

import numpy as np
import pytest

from peagle.errors import CheckpointError
from peagle.train.conversations import Conversation, ConversationFile
from peagle.train.corpus import corpus_of
from peagle.train.split import RULE, held_out


def conversations(count: int, *, first: int = 0) -> list[Conversation]:
    return [
        Conversation(
            [1, *np.random.default_rng(seed).integers(10, 900, size=40).tolist(), 2, 3],
            np.random.default_rng(10_000 + seed).integers(10, 900, size=50).tolist(),
        )
        for seed in range(first, first + count)
    ]


def file_of(many: list[Conversation], sha256: str = "a" * 64) -> ConversationFile:
    return ConversationFile(Path("data.jsonl"), sha256, many)


def test_answers_are_stored_after_the_last_tokens_of_their_prompts() -> None:
    many = conversations(200)
    made = corpus_of([file_of(many)], tokenizer_fingerprint="f")
    out = held_out(many)
    assert made.held_out == sum(out) > 0
    assert made.kept == 200 - sum(out)
    assert made.corpus.description.tokens == made.kept * 52
    for each, held in zip(many, out, strict=True):
        context = [2, 3, *each.response[:3]]
        successors = made.corpus.successors(made.corpus.ranges(context))
        best = max(successors, key=successors.__getitem__)
        assert (best == each.response[3] and successors[best] > 0.2) is not held


def test_description_says_where_the_text_comes_from() -> None:
    one, two = file_of(conversations(20), "a"), file_of(conversations(20, first=50), "b")
    alone = corpus_of([one], tokenizer_fingerprint="f").corpus.description
    assert (alone.source_sha256, alone.split_rule) == ("a", RULE)
    assert alone.tokenizer_fingerprint == "f"
    assert alone.vocab_size == 1 + max(
        token for each in one.conversations for token in (*each.prompt, *each.response)
    )
    both = corpus_of([one, two], tokenizer_fingerprint="f").corpus.description
    assert both.source_sha256 == hashlib.sha256(b"ab").hexdigest()
    assert both.documents > alone.documents


def test_a_document_shared_by_two_files_stays_on_one_side() -> None:
    kept_alone = next(each for each in conversations(300) if not held_out([each])[0])
    partner = next(
        Conversation(other.prompt, [*kept_alone.response[:40], *other.response[:10]])
        for other in conversations(400, first=1000)
        if held_out(
            [
                kept_alone,
                Conversation(other.prompt, [*kept_alone.response[:40], *other.response[:10]]),
            ]
        )[0]
    )
    rest = conversations(20, first=5000)
    alone = corpus_of([file_of([kept_alone, *rest])], tokenizer_fingerprint="f")
    both = corpus_of(
        [file_of([kept_alone, *rest]), file_of([partner], "b")], tokenizer_fingerprint="f"
    )
    assert both.kept == alone.kept - 1
    assert both.held_out == alone.held_out + 2


def test_nothing_left_is_an_error() -> None:
    lone = next(each for each in conversations(300) if held_out([each])[0])
    with pytest.raises(CheckpointError, match="All 1 conversations"):
        corpus_of([file_of([lone])], tokenizer_fingerprint="f")


def test_loops_are_stored_once() -> None:
    looping = Conversation([1, 2], [5, *range(20, 40), *range(20, 40), *range(20, 40)])
    made = corpus_of([file_of([looping])], tokenizer_fingerprint="f")
    # Two tokens of prompt, the answer up to the end of its second turn of the loop but one.
    assert made.corpus.description.tokens == 2 + 1 + 20 + 15
