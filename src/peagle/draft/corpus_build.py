"""Make a corpus table from text."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from peagle.draft.corpus import FREQUENT, ORDER, PROBABILITY_SCALE, Corpus, CorpusDescription

SMOOTHING: Final = (4.5, 0.85)
"""Fitted by maximum likelihood on text held out from the corpus; the optimum is flat."""

_READY_MADE: Final = 16
"""Most successors stored for a context."""
_LEAST_PROBABILITY: Final = 1 / 200
"""Successors less probable than this are not stored."""
_REPEATED_RUN: Final = 16

_Array = npt.NDArray[Any]


def until_it_repeats(document: Sequence[int], run: int = _REPEATED_RUN) -> Sequence[int]:
    """Cut a document where it begins to repeat a run of its own tokens.

    Small models loop. A loop in the corpus would count as many times as it turned, and the
    request's own text proposes loops better.
    """
    seen: set[tuple[int, ...]] = set()
    for begin in range(len(document) - run + 1):
        window = tuple(document[begin : begin + run])
        if window in seen:
            return document[: begin + run - 1]
        seen.add(window)
    return document


def build_corpus(
    documents: Sequence[Sequence[int]],
    *,
    vocab_size: int,
    source_sha256: str,
    split_rule: str,
    tokenizer_fingerprint: str | None = None,
    smoothing: tuple[float, float] = SMOOTHING,
) -> Corpus:
    """Make the table for some text.

    Args:
        documents: Token ids of each document, beginning with those that come before an answer.
        vocab_size: Size of the target's vocabulary.
        source_sha256: Digest of the file that the text was taken from.
        split_rule: Which part of that file was left out.
        tokenizer_fingerprint: Which tokenizer's ids these are.
        smoothing: See `CorpusDescription`.
    """
    dtype = np.uint16 if vocab_size <= 2**16 else np.uint32
    text = np.asarray([token for each in documents for token in each], dtype=dtype)
    # What follows the last contexts lies past the end, and sorting looks one token further.
    tokens = np.concatenate([text, np.zeros(ORDER, dtype=dtype)])
    shifted = [tokens[offset : offset + len(text)] for offset in range(ORDER + 1)]
    positions = np.lexsort(shifted[::-1]).astype(np.uint32)
    counts = np.bincount(text, minlength=vocab_size)
    return Corpus(
        CorpusDescription(
            tokenizer_fingerprint=tokenizer_fingerprint,
            vocab_size=vocab_size,
            documents=len(documents),
            tokens=len(text),
            smoothing=smoothing,
            source_sha256=source_sha256,
            split_rule=split_rule,
        ),
        {
            "tokens": tokens,
            "positions": positions,
            "first_token_bounds": np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32),
            **_frequent_contexts(np.stack([each[positions] for each in shifted]), smoothing, dtype),
        },
    )


def _frequent_contexts(
    columns: _Array, smoothing: tuple[float, float], dtype: type[np.unsignedinteger[Any]]
) -> dict[str, _Array]:
    """Estimate what follows the contexts that occur often.

    Args:
        columns: The tokens at each sorted position and after it: `[ORDER + 1, tokens]`.
        smoothing: See `CorpusDescription`.
        dtype: Type of a token.
    """
    c, e = smoothing
    ranges: list[int] = []
    order_bounds = [0]
    successor_bounds = [0]
    successors: list[int] = []
    probabilities: list[float] = []
    shorter: dict[tuple[int, ...], dict[int, float]] = {(): {}}
    for order in range(1, ORDER + 1):
        estimates: dict[tuple[int, ...], dict[int, float]] = {}
        for low, high in _runs(columns[:order]):
            context = tuple(columns[:order, low].tolist())
            following = columns[order, low:high]
            begins = np.flatnonzero(np.append(True, following[1:] != following[:-1]))
            counts = np.diff(begins, append=high - low)
            weight = c * len(begins) ** e if order > 1 else 0.0
            scale = 1 / (high - low + weight)
            estimate = {t: p * weight * scale for t, p in shorter[context[1:]].items()}
            for token, count in zip(following[begins].tolist(), counts.tolist(), strict=True):
                estimate[token] = estimate.get(token, 0.0) + count * scale
            best = sorted(estimate.items(), key=lambda item: (-item[1], item[0]))[:_READY_MADE]
            kept = [(token, p) for token, p in best if p >= _LEAST_PROBABILITY]
            estimates[context] = dict(kept)
            ranges.append(low)
            successors += [token for token, _ in kept]
            probabilities += [p for _, p in kept]
            successor_bounds.append(len(successors))
        order_bounds.append(len(ranges))
        shorter = estimates
    return {
        "frequent_ranges": np.asarray(ranges, dtype=np.uint32),
        "frequent_order_bounds": np.asarray(order_bounds, dtype=np.uint32),
        "successor_bounds": np.asarray(successor_bounds, dtype=np.uint32),
        "successors": np.asarray(successors, dtype=dtype),
        "successor_probabilities": np.rint(np.asarray(probabilities) * PROBABILITY_SCALE).astype(
            np.uint16
        ),
    }


def _runs(columns: _Array) -> Iterator[tuple[int, int]]:
    """Yield the ranges of columns that are the same and occur often."""
    changes = (columns[:, 1:] != columns[:, :-1]).any(axis=0)
    bounds = np.concatenate([[0], np.flatnonzero(changes) + 1, [columns.shape[1]]])
    often = np.flatnonzero(np.diff(bounds) > FREQUENT)
    yield from zip(bounds[often].tolist(), bounds[often + 1].tolist(), strict=True)
