import gzip
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from peagle.draft.corpus import ORDER, Corpus
from peagle.draft.corpus_build import SMOOTHING, build_corpus, until_it_repeats
from peagle.errors import CheckpointError
from peagle.train.conversations import Conversation
from peagle.train.split import held_out
from tests.draft.conftest import SHIPPED_CORPUS

VOCABULARY = 40
TRAINING_TEXT = Path(__file__).parents[2] / "data" / "smollm2-self-chat.jsonl.gz"


def some_documents(seed: int = 0, count: int = 60) -> list[list[int]]:
    """Text in which a token depends on the one before."""
    random = np.random.default_rng(seed)
    follows = random.dirichlet(np.full(VOCABULARY, 0.08), size=VOCABULARY)
    documents = []
    for _ in range(count):
        document = [int(random.integers(VOCABULARY))]
        while len(document) < 40:
            document.append(int(random.choice(VOCABULARY, p=follows[document[-1]])))
        documents.append(document)
    return documents


def made_of(documents: list[list[int]], **told: Any) -> Corpus:
    return build_corpus(
        documents, vocab_size=VOCABULARY, source_sha256="0" * 64, split_rule="none", **told
    )


def interpolated(text: list[int], context: list[int]) -> dict[int, float]:
    c, e = SMOOTHING
    estimate: dict[int, float] = {}
    for order in range(1, len(context) + 1):
        wanted = context[-order:]
        counts = Counter(
            text[end] for end in range(order, len(text)) if text[end - order : end] == wanted
        )
        if not counts:
            break
        a = c * len(counts) ** e if order > 1 else 0.0
        total = sum(counts.values()) + a
        estimate = {
            token: (counts[token] + a * estimate.get(token, 0.0)) / total
            for token in counts | estimate
        }
    return estimate


def test_successors_are_the_interpolated_counts() -> None:
    documents = some_documents()
    text = [token for document in documents for token in document]
    corpus = made_of(documents)
    random = np.random.default_rng(1)
    orders = []
    for begin in random.integers(0, len(text) - ORDER, size=200).tolist():
        context = text[begin : begin + ORDER]
        if begin % 3 == 0:
            context[0] = (context[0] + 1) % VOCABULARY
        ranges = corpus.ranges(context)
        orders.append(len(ranges))
        expected = interpolated(text, context)
        found = corpus.successors(ranges)
        # Rare successors of frequent contexts, and the last 2% of shorter contexts, are left out.
        for token in expected | found:
            assert found.get(token, 0.0) == pytest.approx(expected.get(token, 0.0), abs=0.025)
        assert max(expected, key=expected.__getitem__) in found
    assert {4, 5} <= set(orders)


def test_ranges_know_the_longest_context_that_occurs() -> None:
    corpus = made_of([[1, 2, 3, 4, 5, 6], [9, 3, 4, 7]])
    assert len(corpus.ranges([1, 2, 3, 4, 5])) == 5
    assert len(corpus.ranges([8, 9, 3, 4])) == 3
    assert len(corpus.ranges([4, 7])) == 2
    assert corpus.ranges([1, 30]) == []
    assert corpus.ranges([1, VOCABULARY + 5]) == []


def test_following_a_branch_equals_looking_up_its_end() -> None:
    documents = some_documents(2)
    corpus = made_of(documents)
    ranges = corpus.ranges([])
    for end, token in enumerate(documents[3], 1):
        ranges = corpus.follow(ranges, token)
        assert ranges == corpus.ranges(documents[3][:end])


def test_saved_corpus_is_loaded_the_same(tmp_path: Path) -> None:
    corpus = made_of(some_documents(), tokenizer_fingerprint="abc")
    path = tmp_path / "corpus.safetensors"
    corpus.save(path)
    loaded = Corpus.load(path, tokenizer_fingerprint="abc")
    assert loaded.description == corpus.description
    for context in ([3], [4, 5], some_documents()[0][:5]):
        ranges = corpus.ranges(context)
        assert loaded.ranges(context) == ranges
        assert loaded.successors(ranges) == corpus.successors(ranges)


def test_same_text_makes_the_same_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        made_of(some_documents()).save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_empty_corpus_knows_nothing(tmp_path: Path) -> None:
    made_of([]).save(tmp_path / "empty")
    corpus = Corpus.load(tmp_path / "empty")
    assert corpus.ranges([1, 2]) == []
    assert corpus.successors([]) == {}


def test_large_vocabulary_keeps_its_ids() -> None:
    corpus = build_corpus(
        [[70_000, 70_001, 70_002]], vocab_size=80_000, source_sha256="", split_rule=""
    )
    assert corpus.successors(corpus.ranges([70_000, 70_001])) == {70_002: pytest.approx(1.0)}


def test_corpus_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "corpus.safetensors"
    made_of(some_documents(), tokenizer_fingerprint="abc").save(path)
    with pytest.raises(CheckpointError, match="made with tokenizer abc, the target has xyz"):
        Corpus.load(path, tokenizer_fingerprint="xyz")


def test_unusable_files_are_named_with_a_remedy(tmp_path: Path) -> None:
    good = tmp_path / "good"
    made_of(some_documents()).save(good)
    truncated = tmp_path / "truncated"
    truncated.write_bytes(good.read_bytes()[:-100])
    other = tmp_path / "other"
    save_file({"weight": np.zeros(3, dtype=np.float32)}, other)
    text = tmp_path / "text"
    text.write_text("not a corpus")
    with pytest.raises(CheckpointError, match="There is no corpus at"):
        Corpus.load(tmp_path / "missing")
    for path in (truncated, other, text, tmp_path):
        with pytest.raises(CheckpointError, match="no usable corpus") as raised:
            Corpus.load(path)
        assert str(path) in raised.value.problem
        assert "peagle corpus build" in raised.value.remedy


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("positions", lambda table: table + np.uint32(1), "points beyond the end"),
        ("tokens", lambda table: table + np.uint16(VOCABULARY), "points beyond the end"),
        ("successor_bounds", lambda table: table[:-1], "has shape"),
        ("tokens", lambda table: table.astype(np.float32), "not unsigned"),
    ],
)
def test_damaged_tables_are_refused(tmp_path: Path, name: str, change: Any, reason: str) -> None:
    path = tmp_path / "corpus.safetensors"
    corpus = made_of(some_documents())
    corpus.save(path)
    tables = load_file(path)
    tables[name] = change(tables[name])
    save_file(tables, path, metadata={"peagle_corpus": corpus.description.model_dump_json()})
    with pytest.raises(CheckpointError, match=reason):
        Corpus.load(path)


def test_loop_is_stored_once() -> None:
    assert until_it_repeats([9, *[1, 2, 3, 4] * 10], run=4) == [9, 1, 2, 3, 4, 1, 2, 3]
    assert until_it_repeats(list(range(50)), run=4) == list(range(50))


def test_shipped_corpus_is_small_and_loads_at_once() -> None:
    begin = time.perf_counter()
    corpus = Corpus.load(SHIPPED_CORPUS)
    assert time.perf_counter() - begin < 1
    assert SHIPPED_CORPUS.stat().st_size < 12e6
    assert corpus.description.tokens > 900_000
    assert corpus.description.tokenizer_fingerprint is not None


def runs(texts: list[list[int]], length: int) -> set[tuple[int, ...]]:
    return {
        tuple(text[begin : begin + length])
        for text in texts
        for begin in range(len(text) - length + 1)
    }


def test_shipped_corpus_holds_no_public_prompt_and_no_held_out_text(
    public_answers: list[dict[str, Any]],
) -> None:
    text = load_file(SHIPPED_CORPUS)["tokens"].tolist()
    stored = runs([text], 24)
    # The chat template's header and the header of the answer are in every prompt.
    prompts = [each["prompt_token_ids"][24:-6] for each in public_answers]
    assert not runs(prompts, 24) & stored

    # Of the answers, stock phrases are stored: more than a twentieth of two only, the beginning
    # of a class Stack and a loop of nested JSON objects.
    known = {
        each["id"]: len(runs([each["response_token_ids"]], 24) & stored)
        / max(1, len(runs([each["response_token_ids"]], 24)))
        for each in public_answers
    }
    assert sorted(name for name, share in known.items() if share > 0.05) == ["code-04", "json-05"]

    everything = [
        Conversation(each["prompt_token_ids"], each["response_token_ids"])
        for each in map(json.loads, gzip.decompress(TRAINING_TEXT.read_bytes()).splitlines())
    ]
    outside = [
        list(each.response)
        for each, out in zip(everything, held_out(everything), strict=True)
        if out
    ]
    assert len(outside) > 200
    assert not runs(outside, 32) & runs([text], 32)
