"""Single messages deleted from a stream, in both stores, against a plain dictionary of messages."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from stores import MIB, Maker

from malamute.journal.format import encode_deleted, item_of
from malamute.journal.memory import MemoryStore
from malamute.journal.reader import StoreReader
from malamute.protocol.batch import Columns, pack_stream_payload, unpack_payload
from malamute.protocol.limits import RECORD_LARGE_BYTES
from malamute.store.operations import AppendChunk, Chunk, Damage, DeleteStreamMessages

SUBJECTS = ("a", "b", "c")
LARGE = 4
"""Each so manieth message has a record of its own frame."""


def record(sequence):
    return b"%d" % sequence + bytes(RECORD_LARGE_BYTES * (sequence % LARGE == 0))


def chunk_of_messages(first, count, ttl=0):
    sequences = range(first, first + count)
    subjects = [SUBJECTS[sequence % 3] for sequence in sequences]
    columns = Columns(first, first, "alice", subjects, [*map(record, sequences)], ttls=ttl)
    return AppendChunk("s", Chunk(first, count, first, *pack_stream_payload(columns)), 0, subjects)


def contents(store, start=1, step=1 << 30):
    """The messages of a stream and its deleted sequences, as a reader in steps of some bytes finds them."""
    messages, deleted = {}, set()
    while found := store.read("s", start, bytes_max=step).found:
        for item in found:
            if isinstance(item, Damage):
                assert item.reason == "deleted"
                deleted |= {*range(max(start, item.first), item.last + 1)}
                continue
            columns = unpack_payload(item.payload, item.large)
            assert [*columns.each_sequence()] == [*range(item.first, item.last + 1)]
            rows = zip(
                columns.each_sequence(), columns.subjects, columns.records, columns.each_ttl(), strict=False
            )
            messages |= {s: (subject, bytes(body), ttl) for s, subject, body, ttl in rows if s >= start}
        start = found[-1].last + 1
    return messages, deleted


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 9), st.integers(0, 2)),
        st.tuples(st.just("delete"), st.integers(0, 30), st.integers(1, 12)),
        st.tuples(st.just("every"), st.integers(0, 30), st.integers(2, 3)),
        st.tuples(st.just("skip"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("open"), st.just(0), st.just(0)),
    ),
    min_size=3,
    max_size=14,
)


@given(STEPS, st.sampled_from([1, 100, 1 << 30]))
def test_what_is_deleted_is_gone_and_all_else_stays(steps, step):
    with tempfile.TemporaryDirectory() as directory:
        memory, maker = MemoryStore(size=32 * MIB), Maker("disk", Path(directory))
        disk = maker(size=32 * MIB, preallocate=False)
        memory.recover()
        following, kept, deleted = 1, {}, set()
        for what, number, more in steps:
            if what == "append":
                operation = chunk_of_messages(following, number, more)
                kept |= {s: (SUBJECTS[s % 3], record(s), more) for s in range(following, following + number)}
                following += number
            elif what == "skip":
                following += number
                continue
            elif what == "open":
                disk = maker(size=32 * MIB, preallocate=False)
                continue
            else:
                singles = [(number + more * place, number + more * place) for place in range(8)]
                ranges = [(number, number + more - 1)] if what == "delete" else singles
                operation = DeleteStreamMessages("s", ranges)
                gone = {s for first, last in ranges for s in range(first, last + 1)} & {*kept}
                deleted |= gone
                kept = {s: message for s, message in kept.items() if s not in gone}
            for store in (disk, memory):
                store.write([operation])
        for store in (disk, memory):
            assert contents(store, step=step) == (kept, deleted)
            start = following // 2
            messages, gone = contents(store, start, step)
            assert ({*messages}, gone) == (
                {s for s in kept if s >= start},
                {s for s in deleted if s >= start},
            )
            newest = {subject: s for s, (subject, *_) in sorted(kept.items())}
            assert store.last_per_subject("s", limit=9) == newest
            assert all(not checked.damages for checked in store.verify("s"))
        ours, others = (store.status().streams.get("s") for store in (disk, memory))
        assert ours is None or ours == others._replace(identifier=ours.identifier)
        assert ours is None or ours.count == len(kept)
        maker.close()


def test_a_deleted_message_is_in_no_value_of_the_store(disk):
    store = disk(size=8 * MIB)
    store.write([chunk_of_messages(1, 3), chunk_of_messages(4, 3)])
    store.write([DeleteStreamMessages("s", [(2, 2), (4, 4)])])
    store.close()
    disk.store = None
    with StoreReader.open(disk.directory) as reader:
        messages, deleted = contents(reader)
    assert ({*messages}, deleted) == ({1, 3, 5, 6}, {2, 4})
    store = disk(size=8 * MIB)
    copy = disk.directory.parent / "copy"
    assert not store.backup(copy).damages
    data = (copy / "data.mdb").read_bytes()
    assert record(4)[:200] not in data
    assert b"alice" in data


def test_an_unreadable_chunk_stays_and_a_deleted_one_is_checked(make):
    store = make()
    store.write([AppendChunk("s", Chunk(1, 3, 1, b"no columns"), 0)])
    store.write([DeleteStreamMessages("s", [(2, 2)])])
    assert store.read("s", 1, bytes_max=1).found == [Chunk(1, 3, 1, b"no columns")]
    store.write([DeleteStreamMessages("s", [(1, 9)])])
    assert store.read("s", 1, bytes_max=1).found == [Damage(1, 3, "deleted")]
    value = encode_deleted(5, 2, 7, 0)
    assert item_of(value, 5) == Damage(5, 6, "deleted")
    assert item_of(value, 6) is item_of(value[:-1], 5) is None


def test_nothing_happens_to_a_stream_that_is_not_there(make):
    store = make()
    store.write([DeleteStreamMessages("s", [(1, 5)])])
    assert store.read("s", 1, bytes_max=1).found in ([], ())
