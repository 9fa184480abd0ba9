"""Texts and trees for targets to read."""

import random
from collections.abc import Sequence

import torch

from peagle.model.kv_cache import KVCache
from peagle.model.rows import SequenceRows
from peagle.model.target import Target
from tests.model.random_models import GROUPED

BUDGET = 64 << 20


def tokens_of(length: int, seed: int, vocab_size: int = GROUPED.vocab_size) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(vocab_size) for _ in range(length)]


def read_plainly(target: Target, cache: KVCache, tokens: list[int]) -> torch.Tensor:
    """Logits of every token, computed one at a time over a fresh sequence, `[tokens, vocab]`."""
    sequence = cache.open(len(tokens))
    logits = []
    for token in tokens:
        output = target.forward(cache, [SequenceRows(sequence, [token])])
        output.commit([[0]])
        logits.append(output.logits[0][0])
    cache.close(sequence)
    return torch.stack(logits)


def read_in_chunks(
    target: Target, cache: KVCache, tokens: list[int], sizes: Sequence[int]
) -> torch.Tensor:
    """Logits of every token, read over a fresh sequence so many at a time, `[tokens, vocab]`."""
    sequence = cache.open(len(tokens))
    logits = []
    for size in sizes:
        chunk = tokens[sequence.length : sequence.length + size]
        output = target.forward(cache, [SequenceRows(sequence, chunk)])
        output.commit([range(size)])
        logits.append(output.logits[0])
    cache.close(sequence)
    return torch.cat(logits)


def among_siblings(
    path: list[int], siblings: int, chance: random.Random
) -> tuple[list[int], list[int], list[int]]:
    """Lay a path's nodes anywhere among siblings that hang anywhere in the tree.

    Returns:
        Tokens and parents of the tree, and where the path's nodes are.
    """
    tokens: list[int] = []
    parents: list[int] = []
    places: list[int] = []
    order = ["path"] * len(path) + ["sibling"] * siblings
    chance.shuffle(order)
    for kind in order:
        if kind == "path":
            parents.append(places[-1] if places else -1)
            places.append(len(tokens))
            tokens.append(path[len(places) - 1])
        else:
            parents.append(chance.randrange(-1, len(tokens)))
            tokens.append(chance.randrange(GROUPED.vocab_size))
    return tokens, parents, places


def assert_tree_rows_equal_plain_decoding(
    target: Target, cache: KVCache, prefix: int, sibling_counts: Sequence[int]
) -> None:
    """Check every row of a path, laid among so many siblings, against plain decoding."""
    context, path = tokens_of(prefix, seed=4), tokens_of(6, seed=5)
    plain = read_plainly(target, cache, context + path)[prefix:]
    chance = random.Random(6)
    for siblings in sibling_counts:
        sequence = cache.open(prefix + 100)
        target.forward(cache, [SequenceRows(sequence, context)]).commit([range(prefix)])
        tokens, parents, places = among_siblings(path, siblings, chance)
        output = target.forward(cache, [SequenceRows(sequence, tokens, parents)])
        for place, expected in zip(places, plain, strict=True):
            assert torch.equal(output.logits[0][place], expected), (siblings, place)
        cache.close(sequence)
