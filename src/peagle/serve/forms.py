"""How an interface reads the bodies of requests and writes the answers to them."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel

from peagle.llm import LLM, Generation, Piece, Prompt

Event = dict[str, Any]


class Asking(Protocol):
    """The body of a request, checked.

    Attributes:
        model: What the client calls the model; None where it does not say.
        stream: Whether the answer is sent while it is written.
    """

    model: str | None
    stream: bool

    def prompts(self) -> Sequence[Prompt]:
        """What is to be answered."""
        ...

    def generations(self, llm: LLM, client: str) -> list[Generation]:
        """Make the request ready for the engine.

        Args:
            llm: The model.
            client: Who asks; what others wrote shortens nobody's wait.

        Raises:
            ApiError: It is impossible.
        """
        ...


class Writer(Protocol):
    """Writes the answers to one request, whole or as events of a stream.

    Attributes:
        event_prefix: What stands before the JSON of an event.
        stream_end: What ends a stream.
    """

    event_prefix: ClassVar[bytes]
    stream_end: ClassVar[bytes]

    def opening(self) -> list[Event]:
        """Give the events before any token is written."""
        ...

    def chunks(self, place: int, piece: Piece) -> list[Event]:
        """Give the events for what a step added to the answer to one of the prompts."""
        ...

    def closing(self) -> list[Event]:
        """Give the events after all answers have ended."""
        ...

    def whole(self) -> Any:
        """Give the response in one JSON value; all answers must have ended."""
        ...


class Form:
    """How a body is read, and its answer written.

    Args:
        body: The body's fields.
        writer: Makes what writes the answer, from the request, the model, what the client calls
            the model, and the answers on their way.
    """

    def __init__(
        self,
        body: type[BaseModel],
        writer: Callable[[Any, LLM, str, Sequence[Generation]], Writer],
    ) -> None:
        self.body = body
        self.writer = writer
