"""Progress of long work: on standard error, if that is a terminal, so that output has only results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

Progress = Callable[[int, int | None], None]
"""Called with the work done, and the whole of it; None if that is unknown."""

Counted = Literal["bytes", "messages", "seconds", "tasks"]


@contextmanager
def bar(label: str, counted: Counted) -> Iterator[Progress]:
    """Show the progress of work during the block. A label counted in seconds needs no calls."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich import progress as columns
    from rich.console import Console

    shown: dict[Counted, tuple[columns.ProgressColumn, ...]] = {
        "bytes": (columns.BarColumn(), columns.DownloadColumn(), columns.TransferSpeedColumn()),
        "messages": (columns.BarColumn(), columns.MofNCompleteColumn(), columns.TimeElapsedColumn()),
        "seconds": (columns.SpinnerColumn(), columns.TimeElapsedColumn()),
        "tasks": (columns.BarColumn(), columns.MofNCompleteColumn(), columns.TimeElapsedColumn()),
    }
    words = columns.TextColumn("{task.description}")
    with columns.Progress(words, *shown[counted], console=Console(stderr=True), transient=True) as live:
        task = live.add_task(label, total=None)
        yield lambda done, total: live.update(task, completed=done, total=total)
