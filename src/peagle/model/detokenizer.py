"""Tokens to text while they arrive, never showing part of a character."""

import codecs
from collections.abc import Sequence
from typing import Protocol

from peagle.model.tokenizer import Tokenizer


class Detokenizer:
    """Streams one answer: the pieces it gives, joined, are `Tokenizer.decode` of all its ids.

    Each token is looked at once, so time and memory per token do not grow with the answer.

    Args:
        tokenizer: The vocabulary.
        skip_special_tokens: Leave special tokens out of the text.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._stream: _Stream = (
            _ByteLevelStream(tokenizer) if tokenizer.byte_level else _ByteFallbackStream(tokenizer)
        )

    def push(self, ids: Sequence[int]) -> str:
        """Add tokens and give the text that became certain by them."""
        return "".join(
            [self._stream.text(token_id) for token_id in ids if token_id not in self._skipped]
        )

    def flush(self) -> str:
        """End the answer: give what was held back, U+FFFD for what is no whole character."""
        return self._stream.rest()


class _Stream(Protocol):
    def text(self, token_id: int) -> str:
        """Give the text that this token makes certain."""

    def rest(self) -> str:
        """Give the text that was held back."""


class _ByteLevelStream:
    """Tokens are bytes of one UTF-8 text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def text(self, token_id: int) -> str:
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def rest(self) -> str:
        return self._decoder.decode(b"", final=True)


class _ByteFallbackStream:
    """Tokens are pieces of text, or single bytes of characters outside the vocabulary.

    A run of byte tokens counts only as a whole: if it is no UTF-8, each of its bytes is U+FFFD
    (the ByteFallback decoder of tokenizers). So a run is held back until another token ends it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._run = bytearray()
        self._strip = tokenizer.strips_first_space

    def text(self, token_id: int) -> str:
        if self._tokenizer.is_byte(token_id):
            self._run += self._tokenizer.token_bytes(token_id)
            return ""
        if self._tokenizer.piece(token_id) is None:
            return ""
        return self._begun(self._end_run() + self._tokenizer.token_bytes(token_id).decode())

    def rest(self) -> str:
        return self._begun(self._end_run())

    def _end_run(self) -> str:
        run, self._run = self._run, bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _begun(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text
