"""Readers of a store beside the broker: each process has a slot in LMDB's table of readers.

A reader pins the pages of the transaction that it sees. A reader that was killed in a transaction would pin
them for ever, until the file is full of pages that cannot be reused. Slots of dead processes are cleared
from time to time, and always before a write is refused.
"""

from __future__ import annotations

from typing import NamedTuple

import lmdb


class OldestReader(NamedTuple):
    """The process that reads the oldest state, and its lag in transactions; 0 without a reader."""

    pid: int = 0
    lag: int = 0


def oldest_reader(environment: lmdb.Environment) -> OldestReader:
    """Return the reader that pins the oldest pages."""
    reading: list[tuple[int, int]] = []
    # The text has a title, then a line for each slot: process, thread, and the transaction, or a dash.
    for line in environment.readers().splitlines()[1:]:
        pid, _, transaction = line.split()
        if transaction.isdecimal():
            reading.append((int(transaction), int(pid)))
    if not reading:
        return OldestReader()
    oldest, whose = min(reading)
    return OldestReader(whose, int(environment.info()["last_txnid"]) - oldest)
