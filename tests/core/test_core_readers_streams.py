"""A stream that is there for its readers alone goes with the last of them."""

from __future__ import annotations

import pytest
from core_bench import Bench, publish, subscribe

from malamute.errors import StorageFull
from malamute.protocol.limits import Limits
from malamute.protocol.messages import Bye, Cancel, Change, Commit, Error, Gap, Message, Ok
from malamute.store.operations import DeleteValue, PutValue
from malamute.store.tables import DELETED, OTHERS


def make(**options: object) -> Bench:
    bench = Bench(Limits(streams=2), lifecycle=True, **options)
    bench.open("ann", "bob")
    bench.settle()
    return bench


def names(bench: Bench) -> list[str]:
    return sorted(name for name in bench.core.streams.by_name if name != "$sys")


def errors(messages: list[Message]) -> list[int]:
    return [message.code for message in messages if isinstance(message, Error)]


LEAVING = {
    "cancel": lambda bench: bench.tell("ann", Cancel(1)),
    "bye": lambda bench: bench.tell("ann", Bye()),
    "loss": lambda bench: bench.lost("ann"),
}


@pytest.mark.parametrize("how", LEAVING)
@pytest.mark.parametrize("no_journal", [(), ("t",)])
def test_it_goes_when_the_last_reader_leaves_and_makes_room(how, no_journal):
    """`$sys` is one of the two."""
    bench = make(no_journal=no_journal, unjournaled=bool(no_journal))
    bench.tell("ann", subscribe(1, stream="t"))
    bench.tell("bob", subscribe(1, stream="t"))
    bench.settle()
    LEAVING[how](bench)
    assert names(bench) == ["t"]
    assert errors(bench.ask("bob", subscribe(2, stream="u"))) == [429]
    bench.tell("bob", Cancel(1))
    assert names(bench) == []
    assert "stream.collected.t" in bench.events
    assert errors(bench.ask("bob", subscribe(2, stream="u"))) == []
    bench.settle()
    assert "t" not in bench.store.status().streams


LASTING = {
    "a message": publish(b"1", stream="t"),
    "a retention": Change(0, "stream.retain", {"stream": "t", "count": 5}),
    "a cursor": Commit("t", 0, "c", 0),
    "a feed": Change(0, "feed.set", {"source": "stream/t", "feed": "w", "target": "service/w"}),
}


@pytest.mark.parametrize("what", LASTING)
def test_it_stays_for_anything_else(what):
    bench = make()
    bench.tell("ann", subscribe(1, stream="t"))
    bench.tell("bob", LASTING[what])
    bench.settle()
    assert errors(bench.sent("bob")) == []
    bench.tell("ann", Cancel(1))
    bench.settle()
    assert names(bench) == ["t"]


def test_one_that_an_operator_has_made_stays():
    bench = make()
    bench.tell("bob", Change(0, "stream.create", {"stream": "t"}))
    bench.settle()
    bench.tell("ann", subscribe(1, stream="t"), Cancel(1))
    assert names(bench) == ["t"]


def test_a_stream_that_the_store_kept_stays():
    bench = make()
    bench.tell("ann", publish(b"1", stream="t"))
    bench.settle()
    bench.restart()
    bench.open("ann")
    bench.tell("ann", subscribe(1, stream="t"), Cancel(1))
    assert names(bench) == ["t"]


def test_a_stream_whose_name_was_taken_anew_is_not_the_one_that_is_left():
    bench = make()
    bench.tell("ann", subscribe(1, stream="t"), Cancel(1), publish(b"1", stream="t"))
    assert names(bench) == ["t"]


def test_who_comes_back_to_it_misses_nothing():
    """Though another stream was deleted since, and so it begins elsewhere."""
    bench = make()
    bench.tell("ann", publish(b"1", b"2", b"3", stream="gone"))
    bench.settle()
    bench.tell("ann", Change(0, "stream.delete", {"stream": "gone"}))
    bench.settle()
    again = subscribe(1, stream="t", start="seq:1")
    told = bench.ask("ann", again)
    assert not [message for message in told if isinstance(message, Gap)]
    assert [message.value for message in told if isinstance(message, Ok)] == [4]
    bench.tell("bob", publish(b"4", stream="t"))
    bench.settle()
    assert [item.sequence for item in bench.got("ann")] == [4]


def lose_unread(bench: Bench, stream: str = "t") -> None:
    """Three messages are stored, and an operator deletes them."""
    bench.tell("bob", publish(b"1", b"2", b"3", stream=stream))
    bench.settle()
    bench.tell("bob", Change(0, "stream.delete", {"stream": stream}))
    bench.settle()
    assert stream not in names(bench)


def come_back(bench: Bench, start: int) -> list[tuple[int, int, str]]:
    """The gaps that a reader is sent who has had nothing, and asks for what comes from a sequence on."""
    bench.open("ann")
    told = bench.ask("ann", subscribe(1, stream="t", start=f"seq:{start}"))
    return [(gap.first, gap.last, gap.reason) for gap in told if isinstance(gap, Gap)]


def test_who_comes_back_to_one_that_was_deleted_meanwhile_is_notified_of_what_is_missing():
    """He has had nothing of it, and it is there for him alone again."""
    bench = make()
    assert [m.value for m in bench.ask("ann", subscribe(1, stream="t")) if isinstance(m, Ok)] == [1]
    bench.lost("ann")
    lose_unread(bench)
    assert come_back(bench, 1) == [(1, 3, "overwritten")]
    bench.tell("bob", publish(b"4", stream="t"))
    bench.settle()
    assert [item.sequence for item in bench.got("ann")] == [4]


def test_who_comes_back_to_one_that_was_deleted_before_misses_nothing():
    bench = make()
    lose_unread(bench)
    assert come_back(bench, 4) == []


RESTARTS = {"restart": Bench.restart, "crash": Bench.crash}


@pytest.mark.parametrize("end", RESTARTS)
def test_over_a_restart_it_is_known_which_stream_was_deleted(end):
    bench = make()
    lose_unread(bench, "gone")
    RESTARTS[end](bench)
    assert come_back(bench, 1) == []


@pytest.mark.parametrize("end", RESTARTS)
def test_a_reader_of_a_stream_that_was_deleted_before_a_restart_is_notified(end):
    bench = make()
    lose_unread(bench)
    lose_unread(bench, "gone")
    RESTARTS[end](bench)
    assert come_back(bench, 1) == [(1, 6, "overwritten")]


def test_the_floor_stands_for_streams_that_an_earlier_version_has_deleted():
    bench = make()
    lose_unread(bench, "gone")
    bench.store.write([DeleteValue(DELETED, ("gone",)), DeleteValue(DELETED, OTHERS)])
    bench.restart()
    bench.open("bob")
    lose_unread(bench, "later")
    bench.restart()
    assert come_back(bench, 1) == [(1, 6, "overwritten")]


def test_the_floor_stands_for_streams_that_an_earlier_version_has_deleted_since():
    bench = make()
    lose_unread(bench, "gone")
    lose_unread(bench, "later")
    bench.store.write([PutValue(DELETED, OTHERS, (0, 3)), DeleteValue(DELETED, ("later",))])
    bench.restart()
    assert come_back(bench, 1) == [(1, 6, "overwritten")]


def test_a_deletion_that_the_disk_refuses_has_no_row():
    bench = make()
    bench.tell("bob", publish(b"1", stream="t"))
    bench.settle()
    bench.tell("bob", Change(0, "stream.delete", {"stream": "t"}))
    bench.fail(StorageFull("full"))
    bench.restart()
    assert "t" in names(bench)
    bench.open("bob")
    lose_unread(bench)
    bench.restart()
    assert come_back(bench, 1) == [(1, 4, "overwritten")]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(("others", "gaps"), [(1, []), (2, [(1, 6, "overwritten")])])
def test_the_names_of_so_many_deleted_streams_are_known(monkeypatch, others, gaps, restart):
    """The highest sequence of the others stands for all of them."""
    monkeypatch.setattr("malamute.core.stream.deleted.DELETED_MAX", 1)
    bench = make()
    for number in range(others):
        lose_unread(bench, f"gone{number}")
    if restart:
        bench.restart()
    assert come_back(bench, 1) == gaps
