"""Whether rows are independent on this machine: the ground on which losslessness stands."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from peagle.model.kv_cache import KVCache, SequenceCache, page_bytes, pages_for
from peagle.model.rows import SequenceRows
from peagle.model.target import Target

_PREFIXES: Final = (40, 64, 320, 700)


@dataclass(frozen=True, slots=True)
class RowCheck:
    """Whether a row's logits depend on anything but its own text.

    Attributes:
        compared: Rows compared with plain decoding, bit for bit.
        differing: Rows that differed.
        largest_pass: Most rows in one pass of the check, the most that the engine uses.
    """

    compared: int
    differing: int
    largest_pass: int


def check_rows(
    target: Target, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> RowCheck:
    """Compare rows of mixed passes with the same rows decoded one at a time.

    At several context lengths a path of tokens is placed at every row index of the largest block
    that a product takes, and at every block's last row of a full pass, among siblings and beside
    another sequence.

    Args:
        target: The model.
        progress: Told how many passes of how many are done.
    """
    chance = random.Random(1)
    most, block = target.rows_per_pass, target.rows_per_block
    places = [*range(block), *range(2 * block - 1, most, block)]
    vocab_size = target.config.vocab_size
    budget = 4 * pages_for(_PREFIXES[-1] + 2 * most) * page_bytes(target.config, target.kv_dtype)
    cache = target.new_cache(budget)
    compared = differing = done = 0
    total = len(_PREFIXES) * len(places)
    for prefix in _PREFIXES:
        context = [chance.randrange(vocab_size) for _ in range(prefix)]
        path = [chance.randrange(vocab_size) for _ in range(4)]
        sequence, other = cache.open(prefix + 2 * most), cache.open(prefix)
        for one in (sequence, other):
            target.forward(cache, [SequenceRows(one, context[: prefix - 1], logits="none")]).commit(
                [range(prefix - 1)]
            )
        start = cache.mark(sequence)
        expected = _plainly(target, cache, sequence, [context[-1], *path])
        cache.rewind(sequence, start)
        for place in places:
            count = max(place + 1, len(path) + 1)
            tokens, parents, spots = _scattered([context[-1], *path], count, place, chance)
            step = [SequenceRows(sequence, tokens, parents)]
            if count < most:
                step.insert(place % 2, SequenceRows(other, [tokens[0]]))
            logits = target.forward(cache, step).logits[-1 if len(step) == 1 else 1 - place % 2]
            for spot, plain in zip(spots, expected, strict=True):
                compared += 1
                differing += not torch.equal(logits[spot], plain)
            done += 1
            progress(done, total)
        cache.close(sequence)
        cache.close(other)
    return RowCheck(compared, differing, most)


def _plainly(
    target: Target, cache: KVCache, sequence: SequenceCache, tokens: list[int]
) -> list[torch.Tensor]:
    """Logits after each of the tokens, computed one at a time."""
    logits = []
    for token in tokens:
        output = target.forward(cache, [SequenceRows(sequence, [token])])
        output.commit([[0]])
        logits.append(output.logits[0][0])
    return logits


def _scattered(
    path: list[int], count: int, place: int, chance: random.Random
) -> tuple[list[int], list[int], list[int]]:
    """Make a tree of `count` rows in which `path` begins at row 0 and ends at or near `place`.

    Returns:
        Tokens and parents of the rows, and which rows hold the path.
    """
    behind = len(path) - 1
    spots = [0, *sorted(chance.sample(range(1, max(place, behind) + 1), behind))]
    if place > behind:
        spots[-1] = place
    tokens, parents, on_path = [], [], 0
    for row in range(count):
        if on_path < len(spots) and row == spots[on_path]:
            tokens.append(path[on_path])
            parents.append(-1 if on_path == 0 else spots[on_path - 1])
            on_path += 1
        else:
            tokens.append(chance.choice(path))
            parents.append(chance.randrange(row))
    return tokens, parents, spots
