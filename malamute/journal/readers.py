"""Who reads a store beside the broker: other processes have a slot each in LMDB's table of readers.

A reader pins the pages of the transaction that it sees. One that was killed in the middle of a transaction
would pin them for ever, until the file is full of what nobody can use again. So slots of dead processes are
cleared now and then, and always before a write is refused.
"""

from __future__ import annotations

from typing import NamedTuple

import lmdb


class OldestReader(NamedTuple):
    """The process that reads the oldest state, and how many transactions it is behind; 0 if nobody reads."""

    pid: int = 0
    lag: int = 0


def oldest_reader(environment: lmdb.Environment) -> OldestReader:
    """Who pins the oldest pages."""
    reading: list[tuple[int, int]] = []
    # A title, and then a line for each slot: process, thread, and the transaction, or a dash.
    for line in environment.readers().splitlines()[1:]:
        pid, _, transaction = line.split()
        if transaction.isdecimal():
            reading.append((int(transaction), int(pid)))
    if not reading:
        return OldestReader()
    oldest, whose = min(reading)
    return OldestReader(whose, int(environment.info()["last_txnid"]) - oldest)
