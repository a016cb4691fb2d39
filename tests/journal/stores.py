"""The helpers that tests of the stores share: opening either kind, and making operations."""

from __future__ import annotations

from malamute.errors import StorageFull
from malamute.journal.disk import DiskStore
from malamute.journal.format import encode_chunk
from malamute.journal.memory import MemoryStore
from malamute.store.operations import AppendChunk, Chunk, DeleteMessages, PutMessages, Retain

KINDS = ("disk", "logged", "memory")
"""A logged store is a disk whose writes go into its write-ahead log; it is opened again as after a kill."""

AT_ONCE = ("disk", "memory")
"""The kinds whose writes are transactions of their own, for what counts by transactions."""
MIB = 1 << 20


class Maker:
    """Opens one store again and again. The one in memory stays the same object."""

    def __init__(self, kind, directory):
        self.kind = kind
        self.directory = directory
        self.store = None

    def __call__(self, *, size=4 * MIB, records_bytes=None, retention=None, **options):
        """`retention` tells what is configured for a stream: the store is given it as the core does."""
        if self.kind != "memory":
            self.close()
            self.store = DiskStore.open(self.directory, size=size, has_log=self.kind == "logged", **options)
        elif self.store is None:
            self.store = MemoryStore(size=size, **options)
        self.recovered = self.store.recover(records_bytes=records_bytes)
        vars(self.store).pop("write", None)
        if retention is not None:
            self._hold_to(retention)
        return self.store

    def _hold_to(self, retention):
        write = self.store.write
        first = [Retain(name, retention(name)) for name in self.recovered.streams]

        def held(operations):
            write([*first, *held_to(retention, operations)])
            first.clear()

        self.store.write = held

    def close(self):
        """Close the store; a logged one as a process that is killed, which leaves its log."""
        if self.store is not None and self.kind != "memory":
            if self.kind == "logged":
                self.store.take_over = lambda: None
            self.store.close()


def append(first, *, stream="s", count=1, time=None, payload=b"p", large=(), reserved=0):
    chunk = Chunk(first, count, first if time is None else time, payload, tuple(large))
    return AppendChunk(stream, chunk, reserved)


def put(first, *, count=1, queue="q", kind="mailbox", record=b"record", properties=None):
    columns = ["subject"] * count, [record] * count, properties and [properties] * count
    return PutMessages(kind, queue, first, 7, "alice", *columns)


def held_to(retention, operations):
    """The operations, with the retention of its stream in each chunk, as the core gives it."""
    return [o._replace(retention=retention(o.stream)) if type(o) is AppendChunk else o for o in operations]


def delete(*ranges, queue="q", kind="mailbox"):
    return DeleteMessages(kind, queue, ranges)


def firsts(store, stream="s", start=1, bytes_max=1 << 30):
    return [item.first for item in store.read(stream, start, bytes_max=bytes_max).found]


def size_of_a_chunk(**options):
    """The stored bytes of the chunk that `append` makes with these options."""
    return len(encode_chunk(append(1, **options).chunk))


def chunk_size(store, stream="s"):
    """The stored bytes of one chunk, of a stream whose chunks are alike."""
    state = store.status().streams[stream]
    return state.bytes // state.chunks


def fill(store, make_operations):
    """Write until the store refuses; returns how many transactions it took."""
    for n in range(1, 10_000):
        try:
            store.write(make_operations(n))
        except StorageFull:
            return n - 1
    raise AssertionError("the store never said that it is full")
