"""Tell how far a download is: a bar on a terminal, one line anywhere else."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TransferSpeedColumn,
)

ProgressReport = Callable[[str, int, int | None], None]
"""Called with what is fetched, the bytes so far and the bytes in all (None: not known).

Calls come from a thread of their own, five times a second.
"""

_SECONDS_BETWEEN_REPORTS = 0.2


@contextmanager
def reporting(
    progress: ProgressReport | None, what: str, total: int | None
) -> Iterator[ProgressReport]:
    """Choose where reports go: to `progress`, or to a person who reads standard error."""
    if progress is not None:
        yield progress
    elif not sys.stderr.isatty():
        size = f" ({decimal(total)})" if total is not None else ""
        announce(f"Fetching {what}{size}.")
        yield lambda _what, _done, _total: None
    else:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda what, done, total: bar.update(
                task, description=what, completed=done, total=total
            )


def announce(line: str) -> None:
    """Write one plain line to standard error."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextmanager
def watching(folder: Path, report: ProgressReport, what: str, total: int | None) -> Iterator[None]:
    """Report the growing size of `folder` while the block runs."""
    ended = threading.Event()

    def measure() -> None:
        while not ended.wait(_SECONDS_BETWEEN_REPORTS):
            report(what, folder_bytes(folder), total)

    thread = threading.Thread(target=measure, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def folder_bytes(folder: Path) -> int:
    """Sum the sizes of the files below `folder`, links followed; vanishing files count nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total
