"""A scenario: texts that the target is asked for one after another, and what comes of them."""

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from peagle.engine.uniform import uniform
from peagle.sampling_params import SamplingParams
from peagle.train.conversations import Conversation
from peagle.train.synth.settings import AnswerSettings

Chain = list[Conversation]
"""Conversations of which each continues the one before."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A text wanted from the target.

    Attributes:
        prompt_ids: What it reads.
        params: How it writes.
    """

    prompt_ids: Sequence[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Written:
    """What the target wrote.

    Attributes:
        token_ids: Its tokens, cut where it began to loop.
        text: What they say.
        ended: The target ended the text itself, neither the length limit nor a loop did.
    """

    token_ids: Sequence[int]
    text: str
    ended: bool


Scenario = Generator[Ask, Written, list[Chain]]
"""Yields what it wants from the target, is sent what that wrote, and returns conversations."""


class ScenarioSource(Protocol):
    """Where scenarios come from. They are numbered from 0, and a number always gives the same."""

    @property
    def total(self) -> int | None:
        """How many there are; None where there is no end."""
        ...

    def scenario(self, number: int) -> Scenario | None:
        """Begin a scenario; None where there are no more."""
        ...


class Draws:
    """The choices of one scenario: made by its number and the seed, whatever runs beside it."""

    def __init__(self, seed: int, number: int) -> None:
        self._seed = seed
        self._number = number
        self._made = 0

    def share(self) -> float:
        """Draw a number in [0, 1)."""
        self._made += 1
        return uniform(self._seed, self._number, self._made)

    def below(self, bound: int) -> int:
        """Draw a whole number from 0 to `bound - 1`."""
        return int(self.share() * bound)

    def seed(self) -> int:
        """Draw the seed of a request."""
        self._made += 1
        told = f"{self._seed}/{self._number}/{self._made}".encode()
        return int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "little")


def answer_params(settings: AnswerSettings, draws: Draws, room: int) -> SamplingParams:
    """Decide how an answer is sampled.

    Args:
        settings: How the target answers.
        draws: The scenario's.
        room: Tokens of the context that the prompt leaves free, at least 1.
    """
    max_tokens = min(settings.max_tokens, room)
    if settings.temperature == 0 or draws.share() < settings.greedy_share:
        return SamplingParams(max_tokens=max_tokens)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        seed=draws.seed(),
    )
