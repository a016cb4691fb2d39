"""How long the command line takes to start: from the start of a process to its end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from malamute.bench.figures import extent, middle

LINES = {
    "python -c pass": ("-c", "pass"),
    "malamute --help": ("-m", "malamute", "--help"),
    "malamute pub --help": ("-m", "malamute", "pub", "--help"),
}
"""What is run: the interpreter alone, and with the command."""


class CommandsOptions(NamedTuple):
    """What was asked for."""

    rounds: int
    directory: Path


class CommandsRow(NamedTuple):
    """One line, and how long it takes beyond the interpreter alone."""

    what: str
    milliseconds: float
    extent: list[float]
    more_milliseconds: float


def measure(options: CommandsOptions) -> Iterator[CommandsRow]:
    """Each line once a round, after one that fills the caches."""
    took: dict[str, list[float]] = {what: [] for what in LINES}
    for number in range(options.rounds + 1):
        for what, words in LINES.items():
            milliseconds = _run(words)
            if number:
                took[what].append(milliseconds)
    alone = middle(next(iter(took.values())))
    for what, each in took.items():
        yield CommandsRow(
            what,
            round(middle(each), 1),
            [round(ms, 1) for ms in extent(each)],
            round(middle(each) - alone, 1),
        )


def _run(words: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1e3
