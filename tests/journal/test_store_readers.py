"""Readers in other processes: what they pin, who they are, and what becomes of those that are killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from stores import MIB, append, fill

from malamute.journal import disk_writer as disk_module

READER = """
import sys
from malamute.journal.reader import StoreReader
with StoreReader.open(sys.argv[1]) as reader, reader._cursor():
    print("reads", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def reader(disk) -> Iterator[subprocess.Popen]:
    """A process in the middle of a read transaction of the store."""
    disk(size=4 * MIB).write([append(1)])
    command = [sys.executable, "-c", READER, str(disk.directory)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"reads\n"
    yield process
    process.kill()
    process.communicate()


def chunks(start: int, count: int) -> Iterator[list]:
    """Transactions of a chunk each."""
    for first in range(start, start + count):
        yield [append(first, payload=bytes(100_000))]


def kill(reader: subprocess.Popen) -> None:
    reader.kill()
    reader.wait()


@pytest.mark.parametrize("seconds", [0.0, 1e9], ids=["now and then", "before refusing"])
def test_a_reader_that_was_killed_pins_nothing(disk, reader, monkeypatch, seconds):
    monkeypatch.setattr(disk_module, "READERS_SECONDS", seconds)
    kill(reader)
    for operations in chunks(2, 200):
        disk.store.write(operations)
    assert disk.store.status().reader_pid == 0


def test_the_process_that_pins_most_is_reported_and_when_it_is_gone_there_is_room(disk, reader):
    store = disk.store
    # The store gives the ring what it can without the pages that the reader has before it refuses.
    written = fill(store, lambda n: [append(n + 1, payload=bytes(100_000))])
    status = store.status()
    assert status.reader_pid == reader.pid
    assert status.reader_lag >= written
    kill(reader)
    for operations in chunks(written + 2, 200):
        store.write(operations)
    assert store.status().reader_lag == 0
