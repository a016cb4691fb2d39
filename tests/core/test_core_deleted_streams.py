"""A stream that was deleted leaves nothing: its name is free, and its sequences are never used again."""

from __future__ import annotations

import pytest
from core_bench import Bench, chunks, items, publish, subscribe

from malamute.core.stream.stream import RESERVE
from malamute.errors import StorageFull
from malamute.protocol.batch import pack
from malamute.protocol.limits import Limits
from malamute.protocol.messages import Cancel, Change, Deliver, Error, Gap, Ok
from malamute.store.operations import FLOOR, PutValue
from malamute.store.policies import StreamRetention
from malamute.store.tables import CURSORS, FEEDS, RETENTIONS

STREAMS = 3


@pytest.fixture
def bench() -> Bench:
    bench = Bench(Limits(streams=STREAMS))
    bench.open("alice")
    return bench


def delete(bench: Bench, stream: str) -> None:
    bench.tell("alice", Change(0, "stream.delete", {"stream": stream}))
    bench.settle()
    (answer,) = bench.sent("alice")
    assert not isinstance(answer, Error), answer


def put(bench: Bench, stream: str) -> int:
    """Publish a message. Returns the sequence under which it is stored."""
    bench.tell("alice", publish(b"1", stream=stream))
    bench.settle()
    assert bench.sent("alice") == []
    return bench.core.streams.by_name[stream].progress.last


def is_refused(bench: Bench, stream: str) -> bool:
    (answer,) = bench.ask("alice", publish(b"1", stream=stream))
    return isinstance(answer, Error) and answer.code == 429


@pytest.mark.parametrize("end", ["crash", "restart"])
def test_streams_that_are_deleted_leave_their_places_to_others(bench, end):
    seen: dict[str, int] = {}
    for number in range(12):
        names = ["a", "b", f"c{number}"]
        for name in names:
            assert put(bench, name) > seen.get(name, 0)
        assert is_refused(bench, "one too many")
        if number % 3 == 0:
            getattr(bench, end)()
            bench.open("alice")
            assert is_refused(bench, "one too many")
        for name in names:
            seen[name] = bench.core.streams.by_name[name].progress.last
            delete(bench, name)
        if number % 3 == 1:
            getattr(bench, end)()
            bench.open("alice")
    assert not bench.core.streams.by_name
    assert bench.store.status().streams.keys() == {FLOOR}


@pytest.mark.parametrize("end", ["crash", "restart"])
def test_a_stream_that_was_made_and_never_used_does_not_go_back_either(bench, end):
    put(bench, "s")
    delete(bench, "s")
    bench.ask("alice", Change(0, "stream.create", {"stream": "s"}))
    bench.settle()
    getattr(bench, end)()
    bench.open("alice")
    assert put(bench, "s") > 1


def test_sequences_that_were_delivered_before_the_crash_are_not_used_again(bench):
    bench.tell("alice", subscribe(1))
    bench.settle()
    bench.sent("alice")
    put_live = publish(b"1")
    bench.tell("alice", put_live)
    bench.settle()
    bench.tell("alice", put_live)
    live = [message for message in bench.sent("alice") if isinstance(message, Deliver)]
    assert len(live) == 2
    bench.crash()
    bench.open("alice")
    delete(bench, "s")
    bench.crash()
    bench.open("alice")
    assert 2 < put(bench, "s") <= 2 + RESERVE


def test_a_deletion_that_the_disk_refuses_keeps_the_stream_and_the_numbers_of_others(bench):
    for name in ("a", "a", "a", "b"):
        put(bench, name)
    bench.tell("alice", Change(0, "stream.delete", {"stream": "a"}))
    bench.fail(StorageFull("full"))
    assert [answer.code for answer in bench.sent("alice")] == [507]
    assert "a" in bench.core.streams.by_name
    delete(bench, "b")
    bench.crash()
    bench.open("alice")
    assert bench.core.streams.by_name.keys() == {"a"}
    assert put(bench, "b") > 1


def test_who_reads_a_new_stream_from_its_first_message_gets_no_gap(bench):
    put(bench, "gone")
    delete(bench, "gone")
    bench.tell("alice", subscribe(1, start="first"))
    bench.tell("alice", publish(b"1"))
    bench.settle()
    sent = bench.sent("alice")
    assert [message.value for message in sent if isinstance(message, Ok)] == [1]
    assert not [message for message in sent if isinstance(message, Gap)]
    assert chunks_of(bench) == [(2, b"1")]


def chunks_of(bench: Bench) -> list[tuple[int, bytes]]:
    return list(chunks(bench.store))


def test_a_cursor_of_a_stream_that_is_removed_meanwhile_is_refused(bench):
    put(bench, "s")
    where = {"stream": "s", "cursor": "c", "start": "time:10000"}
    bench.tell("alice", Change(0, "cursor.set", where))
    bench.tell("alice", Change(0, "stream.delete", {"stream": "s"}))
    bench.settle()
    codes = [message.code for message in bench.sent("alice") if isinstance(message, Error)]
    assert codes == [503]
    assert "s" not in bench.core.streams.by_name


def test_what_marks_the_floor_is_no_stream_for_clients(bench):
    put(bench, "s")
    delete(bench, "s")
    for message in (publish(b"1", stream=FLOOR), subscribe(1, stream=FLOOR)):
        assert [answer.code for answer in bench.ask("alice", message)] == [401]
    bench.crash()
    assert FLOOR not in bench.core.streams.by_name


@pytest.mark.parametrize("early", [True, False])
def test_what_comes_while_a_stream_is_being_deleted_is_not_sent_before_it_is_reserved(early):
    """The deletion takes back what was reserved: a crash would use the sequence again."""
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("alice", publish(b"1", stream="a"))
    if not early:
        bench.settle()
    bench.tell("alice", Change(0, "stream.delete", {"stream": "a"}))
    bench.tell("bob", subscribe(stream="a"))
    if early:
        bench.commit()
    bench.tell("bob", publish(b"2", stream="a"))
    assert bench.bodies("bob") == []
    bench.settle()
    assert bench.bodies("bob") == [b"2"]
    last = bench.core.streams.by_name["a"].progress.last
    bench.crash()
    bench.open("alice", "bob")
    assert put(bench, "a") > last


KEPT = {
    "retention": PutValue(RETENTIONS, ("s",), StreamRetention(messages_max=5)),
    "cursor": PutValue(CURSORS, ("s", "c"), 1),
    # One whose criteria mean nothing here is kept all the same.
    "feed": PutValue(FEEDS, ("s", "w"), pack(([["none-such", ""]], ""))),
}


def kept(bench: Bench) -> dict[str, int]:
    """How much of each is kept of a stream."""
    stream = bench.core.streams.by_name["s"]
    return {
        "retention": int(stream.retention is not None),
        "cursor": len(stream.cursors),
        "feed": len(bench.core.feeds.values),
    }


@pytest.mark.parametrize("what", KEPT)
@pytest.mark.parametrize("removal", ["stream.delete", "cursor.delete"])
def test_a_purge_does_not_remove_what_the_disk_refused_to(bench, what, removal):
    """It stores again all that is set, and what is being removed is not there then."""
    put(bench, "s")
    bench.store.write([KEPT[what]])
    bench.crash()
    bench.open("alice")
    bench.settle()
    before = kept(bench)
    assert before[what] == 1
    bench.sent("alice")
    cursor = {"cursor": "c"} if removal == "cursor.delete" else {}
    bench.tell("alice", Change(0, removal, {"stream": "s", **cursor}))
    bench.tell("alice", Change(0, "stream.purge", {"stream": "s"}))
    bench.fail()
    bench.settle()
    assert kept(bench) == before
    bench.crash()
    assert kept(bench) == before


@pytest.mark.parametrize("change", ["stream.retain", "cursor.set"])
def test_a_purge_does_not_store_what_the_disk_refused(bench, change):
    put(bench, "s")
    before = kept(bench)
    cursor = {"cursor": "c", "start": "first"} if change == "cursor.set" else {"count": 5}
    bench.tell("alice", Change(0, change, {"stream": "s", **cursor}))
    assert kept(bench) != before
    bench.tell("alice", Change(0, "stream.purge", {"stream": "s"}))
    bench.fail()
    bench.settle()
    assert [answer.code for answer in bench.sent("alice")] == [507, 507]
    assert kept(bench) == before
    bench.crash()
    assert kept(bench) == before


def reader(bench: Bench, stream: str, **fields) -> tuple[list[int], list[tuple[int, int, str]]]:
    """The sequences and the gaps that a reader of a stream has."""
    bench.tell("alice", subscribe(7, **fields)._replace(stream=stream))
    bench.settle()
    answers = bench.sent("alice")
    assert not [answer for answer in answers if isinstance(answer, Error)]
    sequences = [item.sequence for answer in answers if isinstance(answer, Deliver) for item in items(answer)]
    gaps = [(gap.first, gap.last, gap.reason) for gap in answers if isinstance(gap, Gap)]
    bench.tell("alice", Cancel(7))
    bench.settle()
    bench.sent("alice")
    return sequences, gaps


@pytest.mark.parametrize("end", [None, "crash", "restart"])
@pytest.mark.parametrize("start", ["first", "seq:1", "seq:3", "after:0@" + "00" * 16])
def test_readers_of_a_new_stream_are_not_told_of_messages_that_never_were(bench, end, start):
    for _ in range(5):
        put(bench, "old")
    delete(bench, "old")
    first = put(bench, "new")
    assert first > 5
    if end:
        getattr(bench, end)()
        bench.open("alice")
    sequences, gaps = reader(bench, "new", start=start)
    # After a crash there is a gap behind the message, of what was reserved.
    assert (sequences, [gap for gap in gaps if gap[0] <= first]) == ([first], [])
    # Readers of the stream that was there are notified of what was deleted.
    again = put(bench, "old")
    if end is None:
        assert reader(bench, "old", start="seq:3") == ([again], [(3, again - 1, "overwritten")])


def test_a_new_stream_without_messages_has_nothing_to_tell_of(bench):
    for _ in range(5):
        put(bench, "old")
    delete(bench, "old")
    bench.tell("alice", subscribe(7, start="seq:1")._replace(stream="new"))
    bench.settle()
    sequence = put_unseen(bench, "new")
    answers = bench.sent("alice")
    assert [answer for answer in answers if isinstance(answer, Gap)] == []
    assert [answer.value for answer in answers if isinstance(answer, Ok)] == [sequence]


def put_unseen(bench: Bench, stream: str) -> int:
    bench.tell("alice", publish(b"1", stream=stream))
    bench.settle()
    return bench.core.streams.by_name[stream].progress.last


def test_a_reader_who_had_something_of_a_name_is_told_of_what_was_deleted(bench):
    for _ in range(5):
        put(bench, "old")
    delete(bench, "old")
    again = put(bench, "old")
    own = "00" * 16
    gaps = [(3, again - 1, "overwritten")]
    assert reader(bench, "old", start="new", resume=f"2@{own}", had=2) == ([again], gaps)
    assert reader(bench, "old", start=f"after:2@{own}") == ([again], gaps)
