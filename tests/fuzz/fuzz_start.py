"""A start on a damaged store: what a disk may make of the values of a real one."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from unittest.mock import patch

import lmdb
from core_bench import Bench, check_accounts, mail_credit, offer, subscribe
from record_store import write_store

from malamute.errors import StoreError
from malamute.journal.disk import DiskStore
from malamute.protocol.messages import Ping, Pong

SIZE = 2 << 20
_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@cache
def _recorded() -> tuple[Path, list[tuple[bytes, bytes]]]:
    """A directory, and the values of a store with one of each kind."""
    memory = Path("/dev/shm")
    _KEPT.append(tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None))
    directory = Path(_KEPT[0].name)
    with (
        patch("malamute.journal.ring.STEP_CHUNKS", 3),
        patch("malamute.journal.subjects.RANGE_CHUNKS", 3),
        patch("malamute.journal.subjects.SHARE", 3),
    ):
        write_store(directory)
    with lmdb.open(str(directory), map_size=SIZE) as environment, environment.begin() as transaction:
        return directory, [*transaction.cursor()]


def _damaged(data: bytes) -> Path:
    """The store with bytes changed: a value, a place in it, and what it is combined with, four bytes each."""
    directory, good = _recorded()
    values = [[key, bytearray(value)] for key, value in good]
    for at in range(0, min(len(data), 64) - 3, 4):
        number, high, low, bits = data[at : at + 4]
        _, value = values[number % len(values)]
        value[(high << 8 | low) % len(value)] ^= bits
    environment = lmdb.open(str(directory), map_size=SIZE, sync=False)
    with environment, environment.begin(write=True) as transaction:
        transaction.drop(environment.open_db(), delete=False)
        for key, value in values:
            transaction.put(bytes(key), bytes(value))
    return directory


def start(data: bytes) -> None:
    """The broker starts, and serves what is left; or says that it cannot."""
    directory = _damaged(data)
    try:
        store = DiskStore.open(directory, size=SIZE, preallocate=False)
    except StoreError:
        return
    try:
        bench = Bench()
        bench.store = store  # type: ignore[assignment]  # it does what the one in memory does
        bench._start()
        bench.open("dan")
        assert bench.ask("dan", Ping()) == [Pong()]
        for source, name in enumerate(bench.core.streams.by_name, 1):
            bench.tell("dan", subscribe(source, stream=name, start="first"))
        for source, name in enumerate(bench.core.services.by_name, 100):
            bench.tell("dan", offer(source)._replace(service=name))
        bench.open(*bench.core.mailboxes.by_name)
        for name in [*bench.core.mailboxes.by_name]:
            bench.tell(name, mail_credit())
        bench.settle()
        check_accounts(bench.core)
    finally:
        store.close()
