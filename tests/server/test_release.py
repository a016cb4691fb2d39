"""A primary of a pair: what only its own disk has is neither confirmed nor read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import pytest
import zmq

import malamute
from malamute.config import ListenConfig
from malamute.errors import StorageFull, StoreError
from malamute.journal import pair_record
from malamute.journal import reader as reader_module
from malamute.journal.disk import DiskStore
from malamute.journal.pair_record import PairRecord
from malamute.journal.reader import StoreReader
from malamute.journal.released import FILE, ReleasedFile, read_released
from malamute.protocol.batch import Columns, pack_record, pack_stream_payload
from malamute.server.daemon import open_broker
from malamute.server.release import Primary, ReleaseGate
from malamute.store.commit import Written
from malamute.store.operations import AppendChunk, Chunk, ReadResult
from malamute.testing import small_config

SIZE = 16 * 1024 * 1024


def chunk(first: int, count: int = 1) -> Chunk:
    columns = Columns(first, 1, "a", ["s"] * count, [pack_record(None, b"x")] * count)
    return Chunk(first, count, 1, *pack_stream_payload(columns))


def append(first: int, stream: str = "s") -> AppendChunk:
    return AppendChunk(stream, chunk(first), 0)


class Bench:
    """A release whose writer is the test."""

    def __init__(self, directory: Path) -> None:
        self.lsn = 0
        self.out: list[Written] = []
        self.release = ReleaseGate(directory, lambda: self.lsn, 0)
        self.release.on_outcome = self.out.append

    def write(self, *operations: AppendChunk, error: malamute.MalamuteError | None = None) -> None:
        noted = self.release.begin(operations)
        if error is None:
            self.lsn += 1
        self.release.end(noted, is_stored=error is None)
        self.release.put(Written([self.lsn], error))

    def read(self, stream: str, *firsts: int) -> list[int]:
        found = self.release.bounded(stream, ReadResult([chunk(first) for first in firsts], 1)).found
        return [one.first for one in found]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.release.close()


def test_outcomes_are_passed_on_in_order_once_they_are_released(bench: Bench) -> None:
    bench.write(append(1))
    bench.write(append(2))
    refused = StorageFull("full")
    bench.write(append(3), error=refused)
    bench.write(append(3))
    assert bench.out == []
    bench.release.advance(1)
    assert bench.out == [Written([1])]
    bench.release.advance(2)
    assert bench.out[1:] == [Written([2]), Written([2], refused)]
    bench.release.advance(7)
    assert bench.out[3:] == [Written([3])]
    bench.lsn = 7
    bench.release.put(Written([], StoreError("the log")))
    assert len(bench.out) == 5


def test_a_read_ends_before_the_first_message_of_its_stream_that_is_not_released(bench: Bench) -> None:
    bench.write(append(1), append(2), append(5, "other"))
    bench.write(append(3))
    assert bench.read("s", 1, 2, 3) == []
    assert bench.read("t", 1, 2, 3) == [1, 2, 3]
    bench.release.advance(1)
    assert bench.read("s", 1, 2, 3) == [1, 2]
    assert bench.read("other", 5) == [5]
    bench.write(append(4), error=StorageFull("full"))
    assert bench.read("s", 1, 2, 3) == [1, 2]
    bench.release.advance(2)
    assert bench.read("s", 1, 2, 3, 4) == [1, 2, 3, 4]


def test_an_acknowledgement_may_come_before_the_commit_is_done(bench: Bench) -> None:
    noted = bench.release.begin([append(1)])
    bench.release.advance(1)
    assert bench.read("s", 1) == []
    bench.lsn = 1
    bench.release.end(noted, is_stored=True)
    assert bench.read("s", 1) == [1]


def test_a_reader_of_the_directory_waits_for_the_release_of_what_it_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "RELEASE_SECONDS", 0.05)
    store = DiskStore.open(tmp_path, size=SIZE, preallocate=False)
    store.recover()
    store.write([append(1)])
    lsn = store.lsn
    store.close()
    file = ReleasedFile(tmp_path)
    file.write(lsn - 1)
    with StoreReader.open(tmp_path) as reader:
        with pytest.raises(StoreError, match="has not confirmed"):
            reader.streams()
        monkeypatch.setattr(reader_module, "RELEASE_SECONDS", 30.0)
        later = threading.Timer(0.05, file.write, [lsn])
        later.start()
        assert reader.streams()["s"].last == 1
        later.join()
    file.close()
    assert read_released(tmp_path) == lsn
    (tmp_path / FILE).write_bytes(b"")
    assert read_released(tmp_path) == 0


class Primaries:
    """A broker that serves as the primary of a pair, whose standby is the test."""

    def __init__(self, directory: Path) -> None:
        self.changed = threading.Condition()
        self.lsn = 0
        self.holds = False
        pair = Primary(
            1, lambda one: self.note(one.lsn), lambda record, lsn: self.note(lsn), self.opened, ["tcp://a:1"]
        )
        config = small_config()
        storage = replace(config.storage, kind="lmdb", directory=directory)
        listen = ListenConfig(endpoints=("tcp://127.0.0.1:*",))
        DiskStore.open(directory, size=config.storage.size, preallocate=False).close()
        with lmdb.open(str(directory), map_size=1 << 30) as found, found.begin(write=True) as transaction:
            pair_record.put(transaction, PairRecord(b"p" * 16, b"r" * 16, ((1, 1),), whole=True))
        self.context: zmq.Context[Any] = zmq.Context()
        self.loop = open_broker(replace(config, storage=storage, listen=listen), self.context, pair=pair)
        self.url = self.loop.endpoints[0]
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()

    def opened(self, store: DiskStore, release: ReleaseGate) -> None:
        self.release = release

    def note(self, lsn: int) -> None:
        with self.changed:
            self.lsn = max(lsn, self.lsn)
            self.changed.notify_all()
            if not self.holds and hasattr(self, "release"):
                self.release.advance(self.lsn)

    def wait(self, done: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(done, 30)

    def stop(self) -> None:
        self.holds = False
        self.release.advance(1 << 40)
        self.loop.stop()
        self.thread.join()
        self.context.term()


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[Primaries]:
    primary = Primaries(tmp_path)
    yield primary
    primary.stop()


def test_a_committed_reader_in_replay_gets_only_what_is_confirmed(primary: Primaries) -> None:
    with malamute.connect(primary.url) as client, malamute.connect(primary.url) as other:
        assert client.publish("s", "a", b"1") == 1
        primary.holds = True
        before = primary.lsn
        command = client.publisher("s")
        command.publish("a", b"2")
        with pytest.raises(malamute.TimedOut):
            command.flush(timeout=0.05)
        primary.wait(lambda: primary.lsn > before)
        subscription = other.subscribe("s", start="first", committed=True)
        assert [message.body for message in subscription.take(9, timeout=30)] == [b"1"]
        assert other.publish("t", "a", b"", assurance="none") == 0
        for _ in range(20):
            other.ping()
        assert subscription.take(1, timeout=0.1) == []
        primary.holds = False
        primary.release.advance(primary.lsn)
        command.flush(timeout=30)
        command.close()
        assert [message.body for message in subscription.take(9, timeout=30)] == [b"2"]


def test_welcome_names_the_urls_of_the_pair(primary: Primaries) -> None:
    with malamute.connect(primary.url) as client:
        assert client._session.urls == ["tcp://a:1"]
