import codecs
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.engine.choice import TokenChooser
from peagle.engine.logprobs import TokenLogprobs, token_logprobs
from peagle.engine.stops import FinishReason, StopRule
from peagle.engine.verification import Walk, verify, walk
from peagle.errors import InvalidRequestError
from peagle.sampling_params import SamplingParams

VOCAB = 8
EOS = 7
TEXTS = (b"a", b"b", "é".encode()[:1], "é".encode()[1:], b"ab", b"", b"c", b"")
PROMPT = (0, 3, 3)


@dataclass(frozen=True)
class Tree:
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    def path(self, node: int) -> tuple[int, ...]:
        return () if node < 0 else (*self.path(self.parents[node]), self.tokens[node])


class Text:
    def __init__(self) -> None:
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        return "".join(self.decoder.decode(TEXTS[i]) for i in ids)

    def flush(self) -> str:
        return self.decoder.decode(b"", final=True)


class NoRepeat:
    """Forbids the token just written, and everything after three equal sums; for a grammar."""

    def allowed(self, output_ids: Sequence[int]) -> torch.Tensor | None:
        if not output_ids:
            return None
        allowed = torch.ones(VOCAB, dtype=torch.bool)
        allowed[output_ids[-1]] = False
        if sum(output_ids) % 11 == 10:
            allowed[:] = False
        return allowed


class ToyTarget:
    """Logits by context alone, in halves so that equal ones are common."""

    def __init__(self, seed: int, context: int = 3) -> None:
        self.seed = seed
        self.context = context

    def row(self, written: Sequence[int]) -> torch.Tensor:
        known = bytes(written)[-self.context :]
        digest = hashlib.blake2b(known, key=self.seed.to_bytes(8, "little"), digest_size=VOCAB)
        return torch.tensor([(byte % 9) / 2 - 1 for byte in digest.digest()])

    def rows(self, output: Sequence[int], tree: Tree) -> torch.Tensor:
        paths = [tree.path(node) for node in range(-1, len(tree.tokens))]
        return torch.stack([self.row((*PROMPT, *output, *path)) for path in paths])


@dataclass
class Answer:
    tokens: list[int]
    text: str
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    logprobs: list[TokenLogprobs]
    error: str | None
    steps: int


def trees(rng: np.random.Generator, target: ToyTarget, output: list[int]) -> Iterator[Tree]:
    """Random trees, most of whose tokens are among the target's three most likely."""
    while True:
        tree = Tree()
        for node in range(int(rng.integers(0, 12))):
            # Chains are common, duplicates among siblings possible.
            parent = node - 1 if rng.random() < 0.6 else int(rng.integers(-1, node))
            row = target.row((*PROMPT, *output, *tree.path(parent)))
            likely = row.topk(3).indices.tolist()
            token = rng.choice(likely) if rng.random() < 0.8 else rng.integers(VOCAB)
            tree.parents.append(parent)
            tree.tokens.append(int(token))
        yield tree


def answer(
    target: ToyTarget,
    params: SamplingParams,
    *,
    seed: int,
    room: int = 24,
    drafts: int | None = None,
) -> Answer:
    """Write an answer in steps; with `drafts` None, token by token as plain decoding does."""
    chooser = TokenChooser(params, PROMPT, vocab_size=VOCAB, eos_ids=[EOS], seed=seed)
    stops = StopRule(params, eos_ids=[EOS], context_room=room, detokenizer=Text())
    output: list[int] = []
    found = Answer(output, "", None, None, [], None, 0)
    arranged = trees(np.random.default_rng(drafts), target, output)
    while found.finish_reason is None and found.error is None:
        try:
            if drafts is None:
                logits = target.row((*PROMPT, *output))[None]
                token = chooser.choose(logits[0])
                found.finish_reason = stops.push(token)
                chooser.commit([token])
                step = Walk([], [token], found.finish_reason)
            else:
                tree = next(arranged)
                logits = target.rows(output, tree)
                step = verify(tree, logits, chooser, stops)
                assert step.emitted[:-1] == [tree.tokens[node] for node in step.accepted]
                assert [tree.parents[node] for node in step.accepted] == [-1, *step.accepted][:-1]
                found.finish_reason = step.finish_reason
        except InvalidRequestError as error:
            found.error = str(error)
            break
        assert len(step.emitted) == len(step.rows)
        for row, token in zip(step.rows, step.emitted, strict=True):
            found.logprobs.append(token_logprobs(logits[row], token, 2))
        output += step.emitted
        found.steps += 1
    found.text, found.stop_reason = stops.text, stops.stop_reason
    return found


settings_of_requests = st.builds(
    SamplingParams,
    max_tokens=st.sampled_from([None, 1, 2, 9, 30]),
    min_tokens=st.sampled_from([0, 0, 1]),
    temperature=st.sampled_from([0, 0, 1e-6, 0.7, 2]),
    top_k=st.sampled_from([0, 1, 3]),
    top_p=st.sampled_from([1, 0.8, 1e-9]),
    min_p=st.sampled_from([0, 0.1, 1]),
    repetition_penalty=st.sampled_from([1, 1, 1.5]),
    presence_penalty=st.sampled_from([0, 0, 0.5]),
    frequency_penalty=st.sampled_from([0, 0, 0.5, -0.5]),
    logit_bias=st.sampled_from([None, {1: 100}, {1: -100, 2: 2}, {EOS: -100}]),
    stop=st.sampled_from([(), ("ab",), ("é",), ("ba", "bab"), ("\ufffd",), ("caba",)]),
    include_stop_str_in_output=st.booleans(),
    stop_token_ids=st.sampled_from([(), (), (6,), (5, 6)]),
    ignore_eos=st.booleans(),
    logits_mask=st.sampled_from([None, None, NoRepeat()]),
)


@settings(max_examples=300, deadline=None)
@given(
    params=settings_of_requests,
    target=st.integers(0, 2**32).map(ToyTarget),
    seed=st.integers(0, 2**64 - 1),
    room=st.sampled_from([1, 2, 24]),
    drafts=st.integers(0, 2**32),
)
def test_any_trees_write_the_answer_of_plain_decoding(
    *, params: SamplingParams, target: ToyTarget, seed: int, room: int, drafts: int
) -> None:
    plain = answer(target, params, seed=seed, room=room)
    drafted = answer(target, params, seed=seed, room=room, drafts=drafts)
    assert drafted.steps <= plain.steps
    drafted.steps = plain.steps
    assert drafted == plain


@pytest.mark.parametrize("ends_with", ["length", "stop"])
@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 11, 12])
def test_a_chain_of_right_drafts_writes_six_tokens_a_step(length: int, ends_with: str) -> None:
    last = EOS if ends_with == "stop" else 6
    right = [*([1, 2, 3, 4, 5, 0] * 2)[: length - 1], last]
    params = SamplingParams(max_tokens=length)
    chooser = TokenChooser(params, [], vocab_size=VOCAB, eos_ids=[EOS], seed=0)
    stops = StopRule(params, eos_ids=[EOS], context_room=99, detokenizer=Text())
    following = [*right, 1, 1, 1, 1, 1, 1]  # What the target would write after the end.
    written: list[int] = []
    steps = 0
    while stops.finish_reason is None:
        ahead = following[len(written) : len(written) + 6]
        logits = torch.eye(VOCAB)[ahead]
        chain = Tree(ahead[:5], [-1, 0, 1, 2, 3])
        written += verify(chain, logits, chooser, stops).emitted
        steps += 1
    assert written == right
    assert stops.finish_reason == ends_with
    assert steps == -(-length // 6)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1, max_tokens=3),
        SamplingParams(temperature=0.7, top_k=5, top_p=0.9, presence_penalty=0.5, max_tokens=3),
    ],
    ids=["plain", "filtered"],
)
def test_sampling_through_trees_follows_the_target_distribution(params: SamplingParams) -> None:
    target = ToyTarget(4)
    draws = 6000
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(2):
        law = {
            (*path, token): share * p
            for path, share in law.items()
            for token, p in enumerate(exact_law(target, params, path))
            if p > 0
        }
    # Not the likeliest tokens, so that a walk biased towards drafts would show.
    tree = Tree([0, 1, 2, 3, 4, 5], [-1, -1, -1, 0, 0, 1])
    logits = target.rows((), tree)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(draws):
        chooser = TokenChooser(params, PROMPT, vocab_size=VOCAB, eos_ids=[], seed=seed)
        stops = StopRule(params, eos_ids=[], context_room=9, detokenizer=Text())
        written = list(verify(tree, logits, chooser, stops).emitted)
        while len(written) < 2:
            written += verify(Tree(), target.rows(written, Tree()), chooser, stops).emitted
        counts[tuple(written[:2])] += 1
    assert set(counts) <= set(law)
    distance = sum(abs(counts[path] / draws - share) for path, share in law.items()) / 2
    # A true sample's mean distance is 0.4 of this sum, with little spread over so many paths.
    assert distance < 0.6 * sum((p * (1 - p) / draws) ** 0.5 for p in law.values())


def exact_law(target: ToyTarget, params: SamplingParams, path: Sequence[int]) -> list[float]:
    """The filtered distribution after `path`, from formulas."""
    logits = target.row((*PROMPT, *path)).double()
    for token in set(path):
        logits[token] -= params.presence_penalty
    p = torch.softmax(logits / params.temperature, 0)
    falling = sorted(range(VOCAB), key=lambda i: (-logits[i].item(), i))
    kept = falling[: params.top_k or VOCAB]
    shares = [p[i].item() for i in kept]
    sums = list(itertools.accumulate(shares))
    size = next((n for n, s in enumerate(sums, 1) if s >= params.top_p * sums[-1]), len(kept))
    total = sums[size - 1]
    return [p[i].item() / total if i in kept[:size] else 0.0 for i in range(VOCAB)]


def never(_: int) -> None:
    return None


def test_walk_follows_the_child_with_the_chosen_token() -> None:
    #        3        4
    #      5   6      5
    #      7
    tree = Tree([3, 4, 5, 6, 5, 7], [-1, -1, 0, 0, 1, 2])
    choices = {0: 3, 1: 5, 3: 7, 6: 2}
    paths = {}

    def choose(row: int, path: Sequence[int]) -> int:
        paths[row] = list(path)
        return choices[row]

    walked = walk(tree, choose, never)
    assert walked == Walk(accepted=[0, 2, 5], emitted=[3, 5, 7, 2], finish_reason=None)
    assert walked.rows == [0, 1, 3, 6]
    assert paths == {0: [], 1: [3], 3: [3, 5], 6: [3, 5, 7]}


def test_walk_ends_with_a_token_that_no_child_holds() -> None:
    tree = Tree([3, 5], [-1, 0])
    assert walk(tree, lambda row, _: [4, 5, 6][row], never) == Walk([], [4], None)
    assert walk(tree, lambda row, _: [3, 4, 6][row], never) == Walk([0], [3, 4], None)
    assert walk(Tree(), lambda row, _: [3][row], never) == Walk([], [3], None)


def test_the_first_of_equal_siblings_is_walked() -> None:
    tree = Tree([3, 3, 5], [-1, -1, 0])
    assert walk(tree, lambda row, _: {0: 3, 1: 5, 3: 1}[row], never).accepted == [0, 2]


@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_nothing_exists_after_the_token_that_ends_the_answer(place: int) -> None:
    tree = Tree([1, 2, 3], [-1, 0, 1])
    told: list[int] = []

    def stop(token: int) -> FinishReason | None:
        told.append(token)
        return "stop" if len(told) == place else None

    walked = walk(tree, lambda row, _: row + 1, stop)
    assert walked.emitted == told == [1, 2, 3, 4][:place]
    assert walked.accepted == [0, 1, 2][: place - 1]
    assert walked.finish_reason == "stop"


def test_an_impossible_choice_fails_in_the_step_after_its_path() -> None:
    tree = Tree([1, 2], [-1, 0])

    def choose(row: int, path: Sequence[int]) -> int:
        if len(path) == 2:
            raise InvalidRequestError("nothing left.", remedy="allow something.")
        return row + 1

    assert walk(tree, choose, never) == Walk([0], [1, 2], None)
    with pytest.raises(InvalidRequestError):
        walk(Tree(), lambda row, _: choose(row, [1, 2]), never)


def test_penalties_count_the_path_inside_the_tree() -> None:
    # Without the path's counts token 1 would be chosen three times.
    row = torch.tensor([0.0, 2.0, 1.5, 1.2])
    params = SamplingParams(presence_penalty=1)
    chooser = TokenChooser(params, [], vocab_size=4, eos_ids=[], seed=0)
    stops = StopRule(params, eos_ids=[], context_room=9, detokenizer=Text())
    tree = Tree([1, 1, 2], [-1, 0, 0])
    assert verify(tree, row.repeat(4, 1), chooser, stops).emitted == [1, 2, 3]
