"""A broker is killed at the end of a commit, while another process reads its store."""

from __future__ import annotations

import multiprocessing
import signal
import struct
import sys
from contextlib import closing
from multiprocessing.synchronize import Event
from os import getpid, kill
from pathlib import Path

import lmdb
import pytest

from malamute.journal.disk import DiskStore
from malamute.journal.reader import StoreReader

SIZE = 8 * 1024 * 1024
TXNID_AT = 48
"""Where LMDB's lock file has the number of the last transaction that readers may see."""
FORK = multiprocessing.get_context("forkserver")
PATIENCE = 60.0


def read_on(directory: Path, ready: Event, over: Event) -> None:
    with StoreReader.open(directory):
        ready.set()
        over.wait(PATIENCE)


def die_at_the_end_of_a_commit(directory: Path) -> None:
    """The root is written, the note of it in the lock file is not, and the lock of the writer is held."""
    environment = lmdb.open(str(directory), map_size=SIZE, max_dbs=0)
    with environment.begin(write=True) as transaction:
        transaction.put(b"\xffproof", b"")
    last = environment.info()["last_txnid"]
    held = environment.begin(write=True)
    with (directory / "lock.mdb").open("r+b") as file:
        file.seek(TXNID_AT)
        assert file.read(8) == struct.pack("=Q", last)
        file.seek(TXNID_AT)
        file.write(struct.pack("=Q", last - 1))
        file.flush()
        assert held
        kill(getpid(), signal.SIGKILL)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux: robust mutexes")
def test_the_last_commit_is_there_from_the_first_read_on(tmp_path: Path) -> None:
    DiskStore.open(tmp_path, size=SIZE).close()
    ready, over = FORK.Event(), FORK.Event()
    reader = FORK.Process(target=read_on, args=(tmp_path, ready, over))
    reader.start()
    try:
        assert ready.wait(PATIENCE)
        writer = FORK.Process(target=die_at_the_end_of_a_commit, args=(tmp_path,))
        writer.start()
        writer.join(PATIENCE)
        assert writer.exitcode == -signal.SIGKILL
        with closing(DiskStore.open(tmp_path, size=SIZE)) as s, s._store.environment.begin() as transaction:
            assert transaction.get(b"\xffproof") is not None
    finally:
        over.set()
        reader.join(PATIENCE)
