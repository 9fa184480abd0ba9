"""What was measured: answers with the arrival of every token, and cells of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A prompt as every contender gets it.

    Attributes:
        id: Its name.
        category: What kind of task it is.
        messages: The conversation.
        token_ids: The same as tokens of the target.
        max_tokens: Most tokens of the answer.
    """

    id: str
    category: str
    messages: Sequence[Mapping[str, Any]]
    token_ids: Sequence[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer and when it came.

    Attributes:
        id: The prompt's name.
        category: The prompt's category.
        token_ids: Its tokens, the one that ended it included.
        sent: When the request was sent, in seconds of the peer's clock.
        arrivals: When tokens came, and how many together; the counts add up to `tokens`.
        passes: Target passes that wrote the tokens after the first ones; None if not known.
    """

    id: str
    category: str
    token_ids: Sequence[int]
    sent: float
    arrivals: Sequence[tuple[float, int]]
    passes: int | None

    @property
    def tokens(self) -> int:
        """Tokens of the answer."""
        return sum(count for _, count in self.arrivals)

    @property
    def ttft_s(self) -> float:
        """Seconds from the request to the first token."""
        return self.arrivals[0][0] - self.sent

    @property
    def end_to_end_s(self) -> float:
        """Seconds from the request to the last token."""
        return self.arrivals[-1][0] - self.sent

    @property
    def gaps_s(self) -> list[float]:
        """Seconds of silence between tokens that did not come together."""
        return [
            later - earlier
            for (earlier, _), (later, _) in zip(self.arrivals, self.arrivals[1:], strict=False)
        ]

    @property
    def token_latencies_s(self) -> list[float]:
        """For every token after the first ones the silence before it.

        Tokens that come together share the silence before them equally, or else drafted tokens
        would seem to take no time at all.
        """
        return [
            gap / count
            for gap, (_, count) in zip(self.gaps_s, self.arrivals[1:], strict=True)
            for _ in range(count)
        ]


@dataclass(frozen=True, slots=True)
class Cell:
    """One contender's answers to all prompts, once, at one concurrency.

    Attributes:
        contender: Its name.
        concurrency: Requests under way at any time.
        repetition: Which round, from 0.
        answers: The answers.
        peak_bytes: Most memory that its process held meanwhile; None if not known.
    """

    contender: str
    concurrency: int
    repetition: int
    answers: Sequence[Answer]
    peak_bytes: int | None

    @property
    def seconds(self) -> float:
        """From the first request to the last token."""
        return max(one.arrivals[-1][0] for one in self.answers) - min(
            one.sent for one in self.answers
        )

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all answers together per second."""
        return sum(one.tokens for one in self.answers) / self.seconds

    def as_object(self) -> dict[str, Any]:
        """Give the cell as a line of `answers.jsonl`; times count from its first request."""
        start = min(one.sent for one in self.answers)
        return {
            "contender": self.contender,
            "concurrency": self.concurrency,
            "repetition": self.repetition,
            "peak_bytes": self.peak_bytes,
            "answers": [
                {
                    "id": one.id,
                    "token_ids": list(one.token_ids),
                    "sent": round(one.sent - start, 5),
                    "arrivals": [[round(at - start, 5), count] for at, count in one.arrivals],
                    "passes": one.passes,
                }
                for one in self.answers
            ],
        }


def stream_speed(answers: Sequence[Answer]) -> float | None:
    """Tokens per second that one stream sees, the wait for the first token included.

    Returns:
        Tokens of all answers over their seconds; None without answers.
    """
    return (
        sum(one.tokens for one in answers) / sum(one.end_to_end_s for one in answers)
        if answers
        else None
    )
