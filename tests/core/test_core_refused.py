"""What the disk refused, and took more behind it, is reported to who had it, over the death of the broker."""

from __future__ import annotations

import pytest
from core_bench import Bench, publish, subscribe

from malamute.protocol.messages import Gap
from malamute.store.operations import AppendChunk, Chunk, NoteRefused


@pytest.fixture
def bench():
    """Bob has had 1, 2 and 3; the disk refused 2 and took 3, and the broker was killed before it told."""
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("bob", subscribe())
    for body in (b"1", b"2", b"3"):
        bench.tell("alice", publish(body))
        if body == b"1":
            bench.settle()
    assert bench.bodies("bob") == [b"1", b"2", b"3"]
    _, taken = bench.appends
    # As the writer does it: the note is of one transaction with what comes next.
    bench.store.write([NoteRefused("s", 2, 2), *taken.operations])
    restart(bench)
    return bench


def restart(bench):
    bench.crash()
    bench.open("alice", "bob")
    bench.settle()


def told(bench, had, start=None):
    begin = had + 1 if start is None else start
    sent = bench.ask("bob", subscribe(start=f"seq:{begin}", had=had))
    bench.settle()
    gaps = [message for message in [*sent, *bench.sent("bob")] if isinstance(message, Gap)]
    return [gap for gap in gaps if gap.reason != "restart"]


def test_who_had_what_was_refused_is_notified_after_a_crash(bench):
    assert told(bench, 3) == [Gap(1, 2, 2, "taken-back")]


def test_who_had_less_gets_no_gap(bench):
    assert told(bench, 1, start=4) == []


def test_who_reads_there_later_learns_that_it_was_not_stored(bench):
    assert told(bench, 0, start=1) == [Gap(1, 2, 2, "not-stored")]


@pytest.mark.parametrize("has_newer", [True, False])
def test_who_has_had_something_newer_was_notified_before(bench, has_newer):
    bench.tell("alice", publish(b"4"))
    bench.settle()
    newest = bench.store.status().streams["s"].last
    restart(bench)
    if has_newer:
        assert told(bench, newest) == []
    else:
        assert told(bench, 3) == [Gap(1, 2, 2, "taken-back")]


def test_what_nobody_can_have_had_is_not_noted(bench):
    reserved = bench.store.status().streams["s"].reserved
    bench.store.write([NoteRefused("s", reserved + 1, reserved + 9), NoteRefused("new", 1, 1)])
    assert [*bench.store.recover().refused] == ["s"]
    assert len(bench.store.recover().refused["s"]) == 1


def counts(bench):
    """How many messages are counted, and how many are there."""
    return bench.core.streams.by_name["s"].numbering.messages(0), bench.store.status().streams["s"].count


def test_what_is_noted_as_refused_is_not_counted(bench):
    assert counts(bench) == (2, 2)
    # The next start knows that without the note.
    bench.tell("alice", publish(b"4"))
    bench.settle()
    assert counts(bench) == (3, 3)
    restart(bench)
    assert counts(bench) == (3, 3)


@pytest.mark.parametrize("is_stored", [True, False])
def test_what_a_restore_skipped_before_the_first_message_of_a_stream_is_not_counted(is_stored):
    bench = Bench()
    bench.store = bench.store.copy()
    bench.crash()
    bench.open("alice", "bob")
    bench.tell("alice", publish(b"1"))
    if is_stored:
        bench.settle()
    stream = bench.core.streams.by_name["s"]
    assert stream.progress.last == bench.core.streams.incarnation + 1
    assert stream.numbering.messages(0) == 1


def test_what_a_refused_chunk_told_of_skipped_sequences_is_stored_with_the_next_one(bench):
    for body in (b"4", b"5"):
        bench.tell("alice", publish(body))
        bench.iterate()
    refused, taken = bench.appends
    [first] = [o.chunk for o in refused.operations if type(o) is AppendChunk]
    # The broker is killed before it knows of the refusal.
    bench.store.write([NoteRefused("s", first.first, first.last), *taken.operations])
    restart(bench)
    assert counts(bench) == (3, 3)


def test_what_is_refused_beyond_what_was_reserved_is_noted_with_a_chunk_behind_it():
    bench = Bench()
    bench.store.write([NoteRefused("s", 1, 2), AppendChunk("s", Chunk(3, 1, 1, b"payload"), 9)])
    assert bench.store.recover().refused == {"s": [NoteRefused("s", 1, 2)]}
