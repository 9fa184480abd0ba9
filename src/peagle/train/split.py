"""Which conversations are kept out of training and corpora, decided by document.

Conversations often share a document: one writes it, others summarise it or ask about it. A rule
that looked at conversations one by one would put a document on both sides, and every figure
measured on the held-out side would flatter. So conversations that share a long run of tokens are
one document, and a document goes to one side as a whole, by a hash of its text.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from peagle.train.conversations import Conversation

HELD_OUT_FRACTION: Final = 0.03
SHARED_RUN: Final = 32
"""Tokens in a row that make two conversations one document."""

RULE: Final = (
    f"conversations sharing {SHARED_RUN} tokens in a row (the prompts' common prefix aside) are "
    f"one document; held out when sha256 of its smallest conversation digest is below "
    f"{HELD_OUT_FRACTION:.0%} of its range"
)
"""The rule in words, as files made from one side of the split record it."""

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)


def documents(conversations: Sequence[Conversation], shared_run: int = SHARED_RUN) -> list[int]:
    """Group conversations that share a document.

    Args:
        conversations: Prompts with their answers. The prefix that all prompts share (the chat
            template's header) does not count as shared text.
        shared_run: Tokens in a row that two conversations must share, within the prompt or
            within the response.

    Returns:
        For each conversation the index of its document's first conversation.
    """
    header = _common_prefix_length([each.prompt for each in conversations])
    edges = _sharing_pairs(
        [(index, each.prompt[header:]) for index, each in enumerate(conversations)]
        + [(index, each.response) for index, each in enumerate(conversations)],
        shared_run,
    )
    first = list(range(len(conversations)))

    def root(index: int) -> int:
        while first[index] != index:
            first[index] = first[first[index]]
            index = first[index]
        return index

    for one, other in edges:
        low, high = sorted((root(one), root(other)))
        first[high] = low
    return [root(index) for index in range(len(conversations))]


def held_out(
    conversations: Sequence[Conversation], fraction: float = HELD_OUT_FRACTION
) -> list[bool]:
    """Tell which conversations neither training nor a corpus may see.

    The answer depends on the texts alone, not on their order.

    Args:
        conversations: All conversations of a data set.
        fraction: Expected share of documents that is held out.

    Returns:
        One flag per conversation; all conversations of a document have the same.
    """
    document = documents(conversations)
    smallest: dict[int, bytes] = {}
    for index, conversation in enumerate(conversations):
        digest = _digest(conversation)
        smallest[document[index]] = min(smallest.get(document[index], digest), digest)
    # Hashed once more: the smallest of many digests is small, and large documents would always
    # be held out.
    out = {
        each: int.from_bytes(hashlib.sha256(digest).digest()[:8]) < fraction * 2**64
        for each, digest in smallest.items()
    }
    return [out[each] for each in document]


def _digest(conversation: Conversation) -> bytes:
    text = [len(conversation.prompt), *conversation.prompt, *conversation.response]
    return hashlib.sha256(np.asarray(text, dtype="<u4").tobytes()).digest()


def _common_prefix_length(sequences: Sequence[Sequence[int]]) -> int:
    if not sequences:
        return 0
    # Whatever the smallest and the largest sequence share, all between them share as well.
    low, high = min(map(tuple, sequences)), max(map(tuple, sequences))
    length = 0
    while length < min(len(low), len(high)) and low[length] == high[length]:
        length += 1
    return length


def _sharing_pairs(
    texts: Sequence[tuple[int, Sequence[int]]], shared_run: int
) -> set[tuple[int, int]]:
    """Find pairs of owners that have a run in common, enough of them to connect all that do."""
    long_enough = [(owner, text) for owner, text in texts if len(text) >= shared_run]
    if not long_enough:
        return set()
    runs = np.concatenate([_run_hashes(text, shared_run) for _, text in long_enough])
    owners = np.concatenate(
        [np.full(len(text) - shared_run + 1, owner) for owner, text in long_enough]
    )
    order = np.lexsort((owners, runs))
    runs, owners = runs[order], owners[order]
    same = (runs[1:] == runs[:-1]) & (owners[1:] != owners[:-1])
    return set(zip(owners[:-1][same].tolist(), owners[1:][same].tolist(), strict=True))


def _run_hashes(text: Sequence[int], length: int) -> npt.NDArray[np.uint64]:
    """Hash every run of `length` tokens: `[len(text) - length + 1]`."""
    tokens = (np.asarray(text, dtype=np.uint64) + np.uint64(1)) * _MULTIPLIER
    tokens ^= tokens >> np.uint64(29)
    hashes = np.zeros(len(text) - length + 1, dtype=np.uint64)
    for offset in range(length):
        hashes = hashes * _MULTIPLIER + tokens[offset : offset + len(hashes)]
    return hashes
