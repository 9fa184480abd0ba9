"""A synthesis run with someone looking on: a progress bar, Ctrl-C between two steps, a tally."""

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, Self

import typer

if TYPE_CHECKING:
    from rich.progress import TaskID

    from peagle.train.synth.run import Synthesis

_INTERRUPTED: Final = 130
_SECONDS_BETWEEN_LINES: Final = 60.0
_SECONDS_BETWEEN_UPDATES: Final = 0.2


def run_watched(run: "Synthesis", output: Path) -> None:
    """Run to the end and tell what came of it.

    Args:
        run: The run.
        output: The file that it writes.

    Raises:
        typer.Exit: It was interrupted; what is written stays.
    """
    for note in run.notes:
        sys.stderr.write(note + "\n")
    with _Interrupt() as interrupt, _Display(run) as display:
        run.run(interrupted=lambda: interrupt.told, report=display.update)
    tally = run.tally
    sys.stdout.write(
        f"{tally.conversations} conversations, {tally.response_tokens} response tokens: {output}\n"
    )
    if tally.dropped:
        listed = ", ".join(f"{count} {reason}" for reason, count in sorted(tally.dropped.items()))
        sys.stdout.write(f"Left out: {listed}\n")
    if interrupt.told:
        sys.stderr.write("What is written stays; the same command goes on from here.\n")
        raise typer.Exit(_INTERRUPTED)


class _Interrupt:
    """Lets Ctrl-C, or a request to terminate, end the run between two steps.

    The second one ends the process at once; the file is then repaired by the next run.
    """

    _SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.told = False

    def __enter__(self) -> Self:
        self._before = {each: signal.signal(each, self._note) for each in self._SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.told = True
        self._restore()

    def _restore(self) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)


class _Display:
    """Shows how far a run is: a bar on a terminal, a line a minute anywhere else."""

    def __init__(self, run: "Synthesis") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._run = run
        console = Console(stderr=True)
        self._terminal = console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not self._terminal,
        )
        self._bar: TaskID = self._progress.add_task(self._line(), total=1.0)
        self._shown = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self) -> None:
        """Show the run's tally, if it was not shown just now."""
        pause = _SECONDS_BETWEEN_UPDATES if self._terminal else _SECONDS_BETWEEN_LINES
        if time.monotonic() - self._shown < pause:
            return
        self._shown = time.monotonic()
        if self._terminal:
            self._progress.update(
                self._bar, description=self._line(), completed=self._run.share_done
            )
        else:
            sys.stderr.write(self._line() + "\n")
            sys.stderr.flush()

    def _line(self) -> str:
        tally = self._run.tally
        speed = tally.generated_tokens / max(self._run.seconds, 1e-9)
        return (
            f"{tally.conversations} conversations, {tally.response_tokens} response tokens, "
            f"writing {speed:.0f} tokens/s"
        )
