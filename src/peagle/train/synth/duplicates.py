"""Which conversations say again what others said before."""

import hashlib
from collections.abc import Sequence
from enum import Enum
from typing import Final

import numpy as np

from peagle.train.conversations import Conversation

SAME_BEGINNING: Final = 24
"""Tokens at the beginning of a first message that make another one a near duplicate."""
SHORT_ANSWER: Final = 16
"""Answers of fewer tokens may repeat: many questions are answered with the same few words."""


class Likeness(Enum):
    """In what a conversation equals an earlier one."""

    PROMPT = "same prompt"
    BEGINNING = "same beginning"
    ANSWER = "same answer"


class Duplicates:
    """Remembers conversations, eight bytes for each thing to compare.

    Args:
        header_tokens: Tokens before the first message, the same in every prompt.
    """

    def __init__(self, header_tokens: int) -> None:
        self._beginning = header_tokens + SAME_BEGINNING
        self._seen: dict[Likeness, set[int]] = {likeness: set() for likeness in Likeness}

    def likeness(self, conversation: Conversation, *, first_turn: bool) -> Likeness | None:
        """Tell in what a conversation equals one that was added; None where it is new.

        Args:
            conversation: The conversation.
            first_turn: It continues no conversation, with which it would share its beginning.
        """
        for likeness, key in self._keys(conversation).items():
            compared = first_turn or likeness is not Likeness.BEGINNING
            if compared and key in self._seen[likeness]:
                return likeness
        return None

    def add(self, conversation: Conversation) -> None:
        """Remember a conversation."""
        for likeness, key in self._keys(conversation).items():
            self._seen[likeness].add(key)

    def _keys(self, conversation: Conversation) -> dict[Likeness, int]:
        prompt, response = conversation.prompt, conversation.response
        keys = {
            Likeness.PROMPT: token_hash(prompt),
            Likeness.BEGINNING: token_hash(prompt[: self._beginning]),
        }
        if len(response) >= SHORT_ANSWER:
            keys[Likeness.ANSWER] = token_hash(response)
        return keys


def token_hash(token_ids: Sequence[int]) -> int:
    """Hash a text, so that equal ones can be found: 64 bits."""
    content = np.asarray(token_ids, dtype="<u4").tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
