"""When a run stops, and how far it is."""

from collections import Counter
from dataclasses import dataclass, field

from peagle.errors import InvalidRequestError
from peagle.train.conversations import Conversation


@dataclass(slots=True)
class Tally:
    """How far a run is.

    Attributes:
        conversations: Lines of the file.
        response_tokens: Their response tokens.
        generated_tokens: All tokens that the target wrote in this run, messages of users included.
        dropped: Conversations that were left out in this run, by reason.
    """

    conversations: int = 0
    response_tokens: int = 0
    generated_tokens: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def count(self, conversation: Conversation) -> None:
        """Count a conversation of the file."""
        self.conversations += 1
        self.response_tokens += len(conversation.response)


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop; None sets no limit.

    Attributes:
        conversations: Lines of the file, those of earlier runs included.
        tokens: Response tokens in the file, those of earlier runs included.
        hours: After so long nothing is begun any more; what is under way is finished.
    """

    conversations: int | None = None
    tokens: int | None = None
    hours: float | None = None

    def __post_init__(self) -> None:
        """Refuse limits that nothing can meet.

        Raises:
            InvalidRequestError: A limit is not above 0.
        """
        for name in ("conversations", "tokens", "hours"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise InvalidRequestError(
                    f"{name} cannot be {limit}.", remedy="Give a number above 0.", field=name
                )

    @property
    def any_set(self) -> bool:
        """Whether there is a limit at all."""
        return (self.conversations, self.tokens, self.hours) != (None, None, None)

    def reached(self, tally: Tally) -> bool:
        """Whether the file holds what was asked for."""
        return (self.conversations is not None and tally.conversations >= self.conversations) or (
            self.tokens is not None and tally.response_tokens >= self.tokens
        )

    def more_wanted(self, tally: Tally, seconds: float, *, coming: int) -> bool:
        """Whether to begin another scenario.

        Args:
            tally: How far the run is.
            seconds: How long it has been running.
            coming: Scenarios under way, which are taken to bring a conversation each, as long as
                those before.
        """
        if self.hours is not None and seconds > self.hours * 3600:
            return False
        mean = tally.response_tokens / tally.conversations if tally.conversations else 0.0
        return (
            self.conversations is None or tally.conversations + coming < self.conversations
        ) and (self.tokens is None or tally.response_tokens + coming * mean < self.tokens)

    def shares(self, tally: Tally, seconds: float) -> list[float]:
        """How much of each limit that is set is used up; 0 alone where none is."""
        used = (
            (tally.conversations, self.conversations),
            (tally.response_tokens, self.tokens),
            (seconds / 3600, self.hours),
        )
        return [part / limit for part, limit in used if limit is not None] or [0.0]
