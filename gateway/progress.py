"""How far slow work has come, on standard error: a bar on a terminal, now and then a line elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

ReportProgress = Callable[[int, int], None]
"""Told how much is done, and of how much. From any thread, as often as one likes."""
PROGRESS_LINE_S: Final = 10.0
"""Between two lines where no terminal is."""


@contextmanager
def show_progress(
    what: str, unit: str, out: TextIO | None = None, *, now: Callable[[], float] = time.monotonic
) -> Iterator[ReportProgress]:
    """Show how far `what` has come, counted in `unit`, until this ends: a bar that leaves nothing behind.

    Where `out` (None: standard error) is no terminal, a line every `PROGRESS_LINE_S` seconds; nothing for what is over
    sooner.
    """
    stream = out or sys.stderr
    if stream.isatty():
        yield from _progress_bar(what, unit, stream)
    else:
        yield _progress_lines(what, unit, stream, now)


def _progress_bar(what: str, unit: str, stream: TextIO) -> Iterator[ReportProgress]:
    from rich.console import Console  # noqa: PLC0415 - only where a person looks
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit)
    with Progress(*columns, TimeRemainingColumn(), console=Console(file=stream), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def tell(done: int, whole: int) -> None:
            bar.update(task, completed=done, total=whole)

        yield tell


def _progress_lines(what: str, unit: str, stream: TextIO, now: Callable[[], float]) -> ReportProgress:
    last = now()

    def tell(done: int, whole: int) -> None:
        nonlocal last
        if (at := now()) - last >= PROGRESS_LINE_S:
            last = at
            stream.write(f"{what}: {done:,} of {whole:,} {unit}\n")
            stream.flush()

    return tell
