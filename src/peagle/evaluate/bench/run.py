"""Measure all cells, keeping each as soon as it is complete."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peagle.evaluate.bench.answer import BenchPrompt, Cell
from peagle.evaluate.bench.schedule import Turn
from peagle.evaluate.bench.services import ServicePool


@dataclass(slots=True)
class Measured:
    """What was measured so far.

    Attributes:
        cells: Complete cells.
        ended_early: Why the run did not come to its end; None if it did.
    """

    cells: list[Cell] = field(default_factory=list)
    ended_early: str | None = None


def measure(
    pool: ServicePool,
    turns: Iterable[Turn],
    prompts: Sequence[BenchPrompt],
    measured: Measured,
    *,
    record: Path | None,
    on_turn: Callable[[Turn], None],
    on_answer: Callable[[], None],
) -> None:
    """Measure cells one after the other.

    Args:
        pool: The services, started once already.
        turns: The cells, in order.
        prompts: What is asked.
        measured: Gets each cell that is complete.
        record: A file that gets each of them as a line; None for none.
        on_turn: Told when a cell begins.
        on_answer: Told when an answer is complete.

    Raises:
        PeerError: A service failed.
    """
    for turn in turns:
        on_turn(turn)
        service = pool.awake(turn.contender)
        batch = service.answer(prompts, turn.concurrency, turn.contender.request, on_answer)
        cell = Cell(
            turn.contender.name, turn.concurrency, turn.repetition, batch.answers, batch.peak_bytes
        )
        measured.cells.append(cell)
        if record is not None:
            with record.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(cell.as_object(), separators=(",", ":")) + "\n")
