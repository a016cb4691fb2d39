"""Records a small store of the format that this code writes: `python tests/journal/record_store.py`.

Run it with the old code before a format is changed, and never again for that version: the recorded store
is what such a store looked like. `test_recorded_stores.py` opens it, and knows what is in it.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path

from malamute.journal import ring, subjects
from malamute.journal.disk import DiskStore
from malamute.journal.format import STORE_VERSION, VERSION
from malamute.journal.write_ahead import FILE
from malamute.protocol.batch import Columns, pack_record, pack_stream_payload
from malamute.store.operations import (
    AppendChunk,
    Chunk,
    DeleteMessages,
    DeleteQueue,
    DeleteStream,
    DeleteValue,
    ForgetIdentities,
    MarkDelivered,
    NoteRefused,
    PutIdentity,
    PutMessages,
    PutValue,
    Reserve,
    SetAttempts,
)
from malamute.store.tables import CURSORS, FEEDS, NUMBERS, REFUSALS, RETENTIONS, SESSIONS

TIME = 1_700_000_000_000_000_000
DATA = Path(__file__).parent / "data"


def chunk(stream, first, *names, sizes=()):
    """A chunk of one message for each subject, with bodies of these sizes."""
    records = [pack_record({"n": n}, bytes(size)) for n, size in enumerate(sizes or [5] * len(names))]
    payload, large = pack_stream_payload(Columns(first, TIME + first, "alice", list(names), records))
    return AppendChunk(
        stream, Chunk(first, len(names), TIME + first, payload, large), first + 100, list(names)
    )


def put(kind, queue, first, properties=None, *, count=1):
    """Messages of a queue."""
    records = [pack_record(None, b"body %d" % sequence) for sequence in range(first, first + count)]
    columns = ["subject"] * count, records, properties and [properties] * count
    return PutMessages(kind, queue, first, TIME, "alice", *columns)


def operations():
    """Transactions with every kind of operation in them."""
    yield [chunk("weather", 1, "oslo", "rome"), chunk("weather", 3, "oslo"), Reserve("bare", 77)]
    yield [chunk("weather", n, "rome") for n in range(10, 14)]
    yield [chunk("weather", 20, "bern", "large", sizes=(5, 70_000)), chunk("trimmed", 1, "a", "b")]
    yield [chunk("trimmed", n, "a") for n in range(3, 9)] + [PutValue(RETENTIONS, ("trimmed",), (0, 3, 0.5))]
    yield [put("mailbox", "bob", 1, {"tracker": "t", "deep": [1, None]}, count=3)]
    yield [put("service", "printer", 5), put("mailbox", "gone", 1), DeleteQueue("mailbox", "gone")]
    yield [DeleteMessages("mailbox", "bob", [(2, 2)]), MarkDelivered("mailbox", "bob", 1)]
    yield [
        PutValue(SESSIONS, (b"s" * 16, NUMBERS), b"value"),
        PutValue(SESSIONS, (b"t" * 16, NUMBERS), b"value"),
        DeleteValue(SESSIONS, (b"t" * 16,)),
    ]
    yield [
        PutValue(CURSORS, ("weather", "mine"), 11),
        PutValue(CURSORS, ("weather", "gone"), 1),
        DeleteValue(CURSORS, ("weather", "gone")),
    ]
    yield [chunk("deleted", n, "x") for n in range(1, 9)] + [PutValue(CURSORS, ("deleted", "c"), 1)]
    yield [put("mailbox", "ann", n) for n in (1, 2)] + [SetAttempts("mailbox", "ann", 1, 3)]
    yield [DeleteMessages("mailbox", "ann", [(2, 2)]), put("mailbox-dead", "ann", 1, {"dead": {}})]
    yield [put("service-dead", "printer", 9), SetAttempts("service-dead", "printer", 9, 1)]
    yield [PutIdentity("mailbox", "ann", f"id{n}", n, TIME + n) for n in (1, 2, 3)]
    yield [ForgetIdentities("mailbox", "ann", TIME + 2)]
    yield [PutValue(FEEDS, ("weather", "printer"), b"feed"), PutValue(FEEDS, ("weather", "gone"), b"")]
    yield [DeleteValue(FEEDS, ("weather", "gone"))]
    yield [put("service", "late", 1, count=2)]
    yield [SetAttempts("service", "late", 1, 2, TIME + 9), SetAttempts("service", "late", 2, 1)]
    yield [PutValue(SESSIONS, (b"s" * 16, REFUSALS), b"refusals"), NoteRefused("weather", 5, 6, 13)]
    # Last, since its chunks leave with what follows.
    yield [DeleteStream("deleted")]


def write_store(directory, *, has_log=False):
    """A store of 2 MiB with all of it, in which a deleted stream has not wholly left.

    One that has a log is killed before that deletion, with half of its transactions in the log only.
    """
    ring.STEP_CHUNKS, subjects.RANGE_CHUNKS, subjects.SHARE = 3, 2, 1
    store = DiskStore.open(directory, size=2 << 20, preallocate=has_log, has_log=has_log)
    store.recover()
    for transaction in [*operations()][: -1 if has_log else None]:
        store.write(transaction)
    if has_log:
        store.take_over = lambda: None
    store.close()


def record(path, *, has_log):
    """Pack such a store."""
    with tempfile.TemporaryDirectory() as directory, tarfile.open(path, "w:xz") as archive:
        write_store(directory, has_log=has_log)
        for name in ("data.mdb", FILE)[: 1 + has_log]:
            data = (Path(directory) / name).read_bytes()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    for version in {VERSION, STORE_VERSION}:
        target = DATA / f"store-v{version}.tar.xz"
        if target.exists():
            print(f"{target} is there already, and is what it was meant to keep")
        else:
            record(target, has_log=version > VERSION)
            print(f"{target}: {target.stat().st_size} bytes")
