"""What the measuring client asks of whatever answers: a process or a server."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from peagle.evaluate.bench.answer import Answer, BenchPrompt


@dataclass(frozen=True, slots=True)
class Started:
    """What starting came to.

    Attributes:
        seconds: From the start of the process to a loaded model; None for a server.
        about: Releases and the like.
        peak_bytes: Most memory held meanwhile; None if not known.
    """

    seconds: float | None
    about: Mapping[str, Any]
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Answers to prompts that were asked together.

    Attributes:
        answers: In the order of the prompts.
        peak_bytes: Most memory held meanwhile; None if not known.
    """

    answers: Sequence[Answer]
    peak_bytes: int | None


class Service(Protocol):
    """Whatever answers."""

    def start(self) -> Started:
        """Load the model."""
        ...

    def answer(
        self,
        prompts: Sequence[BenchPrompt],
        concurrency: int,
        request: Mapping[str, Any],
        on_answer: Callable[[], None],
    ) -> Batch:
        """Answer prompts with `concurrency` requests under way; tell when one is complete."""
        ...

    def held_bytes(self) -> int:
        """Memory held now; 0 if not known."""
        ...

    def pause(self) -> None:
        """Use no processor until `resume`."""
        ...

    def resume(self) -> None:
        """Be ready again."""
        ...

    def stop(self) -> None:
        """End, and free everything."""
        ...
