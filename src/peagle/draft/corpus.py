"""What followed the last tokens in text that the target wrote before.

The table holds the corpus as token ids and the positions of all tokens, sorted by the tokens that
stand there. Places that continue with the same tokens are then neighbours: a context is a range
of the sorted positions, one more token narrows it, and what follows the context stands in order
within it. Ranges of frequent contexts are long, so their successors are stored ready-made.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from peagle.errors import CheckpointError

ORDER: Final = 5
"""Longest context that is looked up, in tokens."""

FREQUENT: Final = 8
"""Contexts that occur more often than this have their successors stored ready-made."""
PROBABILITY_SCALE: Final = 2**16 - 1
"""Stored probabilities are whole multiples of its inverse."""

_NEGLIGIBLE: Final = 0.02
"""Share of the estimate below which shorter contexts are no longer asked."""

_DESCRIPTION: Final = "peagle_corpus"
_TABLES: Final = (
    "tokens",
    "positions",
    "first_token_bounds",
    "frequent_ranges",
    "frequent_order_bounds",
    "successor_bounds",
    "successors",
    "successor_probabilities",
)

Ranges = list[tuple[int, int]]
"""Ranges of sorted positions for the contexts of the last 1, 2, … tokens that occur at all."""


class CorpusDescription(BaseModel):
    """Where a corpus comes from and how its successors are estimated.

    Attributes:
        format: Layout of the tables.
        tokenizer_fingerprint: Which tokenizer's ids these are; None where not recorded.
        vocab_size: Ids lie below it.
        documents: Number of answers in the corpus.
        tokens: Number of tokens, separators included.
        smoothing: `(c, e)` of a = c · distinct ** e, the weight of the shorter context.
        source_sha256: Digest of the file that the text was taken from.
        split_rule: Which part of that file was left out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["peagle-corpus-1"] = "peagle-corpus-1"
    tokenizer_fingerprint: str | None = None
    vocab_size: int = Field(ge=1, le=2**32 - 1)
    documents: int = Field(ge=0)
    tokens: int = Field(ge=0)
    smoothing: tuple[float, float]
    source_sha256: str
    split_rule: str


class Corpus:
    """Text that the target wrote before, for looking up what follows a context.

    The estimate is an interpolated n-gram: P_1 = counts / total for a context of one token, and
    P_n = (counts + a · P_(n-1)) / (total + a) with a = c · distinct ** e for longer ones, which
    fitted held-out text as well as modified Kneser-Ney smoothing.

    Args:
        description: Where the text comes from.
        tables: The arrays of a corpus file, by name:
            `tokens` `[tokens + ORDER]`, the text and padding;
            `positions` `[tokens]`, sorted by the tokens that stand there;
            `first_token_bounds` `[vocab_size + 1]`, where each token's positions begin;
            `frequent_ranges` `[frequent]`, where the ranges of frequent contexts begin, sorted
            within each context length, and `frequent_order_bounds` `[ORDER + 1]`, where each
            length begins in it;
            `successor_bounds` `[frequent + 1]`, where each frequent context begins in
            `successors` and `successor_probabilities`.

    Attributes:
        description: As given.
        tables: As given.
        weight_of_shorter: The weight a of the shorter context, by distinct successors from 0 up.
    """

    def __init__(self, description: CorpusDescription, tables: dict[str, npt.NDArray[Any]]) -> None:
        self.description = description
        self.tables = tables
        # A memoryview hands out Python integers several times faster than an array does.
        self._tokens = tables["tokens"].data
        self._positions = tables["positions"].data
        self._first = tables["first_token_bounds"].data
        self._frequent_ranges = tables["frequent_ranges"].data
        self._frequent_orders: list[int] = tables["frequent_order_bounds"].tolist()
        self._successor_bounds = tables["successor_bounds"].data
        self._successors = tables["successors"].data
        self._probabilities = tables["successor_probabilities"].data
        c, e = description.smoothing
        self.weight_of_shorter = [c * distinct**e for distinct in range(FREQUENT + 1)]

    def save(self, path: Path) -> None:
        """Write the table as a safetensors file."""
        # One entry, as several are written in any order: the same text makes the same file.
        metadata = {_DESCRIPTION: self.description.model_dump_json()}
        path.write_bytes(save(self.tables, metadata=metadata))

    @classmethod
    def load(
        cls,
        path: Path,
        tokenizer_fingerprint: str | None = None,
        vocab_size: int | None = None,
    ) -> Self:
        """Map a corpus file into memory.

        Args:
            path: The file.
            tokenizer_fingerprint: The target's; a corpus of another tokenizer is refused where
                both are known.
            vocab_size: Rows of the target's embedding; a corpus with larger ids is refused.

        Raises:
            CheckpointError: The file is missing, damaged, no corpus, or of another tokenizer.
        """
        try:
            # Tensors of torch share the mapped file; numpy's would be copies.
            with safe_open(path, framework="pt") as file:
                told = (file.metadata() or {}).get(_DESCRIPTION)
                if told is None:
                    raise ValueError("it does not say that it holds a corpus")
                description = CorpusDescription.model_validate_json(told)
                tables = {name: file.get_tensor(name).numpy() for name in _TABLES}
            _check(tables, description)
        except FileNotFoundError:
            raise CheckpointError(
                f"There is no corpus at {path}.",
                remedy="Give the path of a file that `peagle corpus build` wrote.",
                field="corpus",
            ) from None
        except (OSError, SafetensorError, ValueError) as error:
            raise CheckpointError(
                f"{path} is no usable corpus: {' '.join(str(error).split())}.",
                remedy="Fetch the file again, or build it anew with `peagle corpus build`.",
                field="corpus",
            ) from None
        known = description.tokenizer_fingerprint
        if tokenizer_fingerprint and known and known != tokenizer_fingerprint:
            raise CheckpointError(
                f"{path} was made with tokenizer {known}, the target has {tokenizer_fingerprint}.",
                remedy="Use the corpus of this target, or turn the corpus off.",
                field="corpus",
            )
        if vocab_size is not None and description.vocab_size > vocab_size:
            raise CheckpointError(
                f"{path} has token ids up to {description.vocab_size - 1}, the target's "
                f"vocabulary ends at {vocab_size - 1}.",
                remedy="Use the corpus of this target, or turn the corpus off.",
                field="corpus",
            )
        return cls(description, tables)

    def ranges(self, context: Sequence[int]) -> Ranges:
        """Find the last tokens of a text."""
        found: Ranges = []
        for token in context[-ORDER:]:
            found = self.follow(found, token)
        return found

    def follow(self, ranges: Ranges, token: int) -> Ranges:
        """Narrow the ranges of a branch that continues one having `ranges` with `token`."""
        if token >= self.description.vocab_size:
            return []
        low, high = self._first[token], self._first[token + 1]
        if low >= high:
            return []
        found = [(low, high)]
        tokens, positions = self._tokens, self._positions
        for offset, (low, high) in enumerate(ranges[: ORDER - 1], 1):

            def token_at(position: int, offset: int = offset) -> int:
                return tokens[position + offset]

            begin = bisect_left(positions, token, low, high, key=token_at)
            if begin == high or tokens[positions[begin] + offset] != token:
                break
            # Mostly all or few of the positions are left.
            if tokens[positions[high - 1] + offset] != token:
                high = bisect_right(positions, token, begin, high, key=token_at)  # noqa: PLW2901
            found.append((begin, high))
        return found

    def follow_all(self, ranges: Ranges, tokens: Sequence[int]) -> Ranges:
        """Narrow the ranges of a branch by some tokens."""
        if len(tokens) >= ORDER:
            return self.ranges(tokens)
        for token in tokens:
            ranges = self.follow(ranges, token)
        return ranges

    def successors(self, ranges: Ranges) -> dict[int, float]:
        """Estimate what follows a context.

        Returns:
            The probability of each token that followed it, or its last tokens, often enough.
        """
        tokens, positions = self._tokens, self._positions
        estimate: dict[int, float] = {}
        share = 1.0
        for order in range(len(ranges), 0, -1):
            low, high = ranges[order - 1]
            total = high - low
            if total > FREQUENT:
                share /= PROBABILITY_SCALE
                followed = self._ready_made(order, low)
                if not estimate:
                    return {token: share * probability for token, probability in followed}
                for token, probability in followed:
                    estimate[token] = estimate.get(token, 0.0) + share * probability
                break
            counts: dict[int, int] = {}
            for position in positions[low:high]:
                token = tokens[position + order]
                counts[token] = counts.get(token, 0) + 1
            weight_of_shorter = self.weight_of_shorter[len(counts)] if order > 1 else 0.0
            per_count = share / (total + weight_of_shorter)
            for token, count in counts.items():
                estimate[token] = estimate.get(token, 0.0) + count * per_count
            share = per_count * weight_of_shorter
            if share < _NEGLIGIBLE:
                break
        return estimate

    def _ready_made(self, order: int, low: int) -> Iterator[tuple[int, int]]:
        bounds = self._frequent_orders
        index = bisect_left(self._frequent_ranges, low, bounds[order - 1], bounds[order])
        begin, end = self._successor_bounds[index], self._successor_bounds[index + 1]
        return zip(self._successors[begin:end], self._probabilities[begin:end], strict=True)


def _check(tables: dict[str, npt.NDArray[Any]], description: CorpusDescription) -> None:
    """Refuse tables that would be read outside their bounds."""
    tokens = description.tokens
    frequent = len(tables["frequent_ranges"])
    shapes = {
        "tokens": tokens + ORDER,
        "positions": tokens,
        "first_token_bounds": description.vocab_size + 1,
        "frequent_order_bounds": ORDER + 1,
        "successor_bounds": frequent + 1,
        "successor_probabilities": len(tables["successors"]),
    }
    for name, table in tables.items():
        if table.dtype.kind != "u":
            raise ValueError(f"{name} holds {table.dtype}, not unsigned integers")
    for name, length in shapes.items():
        if tables[name].shape != (length,):
            raise ValueError(f"{name} has shape {tables[name].shape}, not ({length},)")
    limits = {
        "tokens": description.vocab_size,
        "positions": tokens,
        "first_token_bounds": tokens + 1,
        "frequent_order_bounds": frequent + 1,
        "successor_bounds": len(tables["successors"]) + 1,
        "successors": description.vocab_size,
    }
    for name, limit in limits.items():
        if tables[name].size and tables[name].max() >= limit:
            raise ValueError(f"{name} points beyond the end")
