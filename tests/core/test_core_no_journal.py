"""A stream without a journal waits for no disk, and uses no sequence twice all the same."""

from __future__ import annotations

import pytest
from core_bench import Bench, publish, subscribe

from malamute.core.stream.chunk import chunk_bytes
from malamute.core.stream.stream import EPOCH
from malamute.errors import StoreError
from malamute.protocol.limits import Limits
from malamute.protocol.messages import Change, Error
from malamute.store.operations import FLOOR

BACKLOG = 20_000


@pytest.fixture
def bench() -> Bench:
    """A broker that has begun, and whose disk hangs since."""
    bench = Bench(Limits(backlog_bytes=BACKLOG), no_journal=("live", "other"), unjournaled=True)
    bench.iterate()
    bench.commit()
    begin(bench)
    return bench


def begin(bench: Bench) -> None:
    bench.open("alice", "bob")
    bench.tell("bob", subscribe(1, stream="live"))


def sequences(bench: Bench) -> list[int]:
    return [item.sequence for item in bench.got("bob")]


def test_while_the_disk_hangs_all_is_delivered_at_once_and_nothing_waits(bench):
    for _ in range(1000):
        bench.tell("alice", publish(bytes(1000), stream="live"))
    assert sequences(bench) == list(range(1, 1001))
    assert bench.core.effects.stage.backlog_bytes == 0
    assert bench.sent("alice") == []


@pytest.mark.parametrize("end", ["crash", "restart", "a fault of the disk"])
@pytest.mark.parametrize("committed", [0, 1])
def test_no_sequence_is_used_twice_wherever_the_disk_hung(bench, committed, end):
    bench.tell("alice", publish(b"1", stream="live"))
    had = sequences(bench)
    assert had
    for _ in range(committed):
        bench.commit()
    if end == "a fault of the disk":
        while bench.appends:
            bench.fail(StoreError("broken"))
        bench.crash()
    else:
        getattr(bench, end)()
    bench.settle()
    begin(bench)
    bench.tell("alice", publish(b"1", stream="live"))
    again = sequences(bench)
    assert again
    assert not {*had} & {*again}


def test_the_first_epoch_and_what_waits_for_it_are_bounded_in_bytes():
    bench = Bench(Limits(backlog_bytes=BACKLOG), no_journal=("live",), unjournaled=True)
    begin(bench)
    sent = 0
    while not (refused := bench.sent("alice")):
        bench.tell("alice", publish(bytes(1000), stream="live"))
        sent += 1
    assert [answer.code for answer in refused if isinstance(answer, Error)] == [503]
    one = chunk_bytes(1, 1_000, ())
    assert BACKLOG / 2 - 2 * one < bench.core.effects.stage.backlog_bytes <= BACKLOG / 2
    assert sequences(bench) == []
    bench.settle()
    assert len(sequences(bench)) == sent - 1


def test_a_stream_that_stops_in_good_order_gives_its_epoch_back(bench):
    bench.tell("alice", publish(b"1", stream="live"))
    bench.settle()
    bench.restart()
    bench.settle()
    begin(bench)
    bench.sent("bob")
    bench.tell("alice", publish(b"1", stream="live"), publish(b"1", stream="other"))
    bench.settle()
    assert sequences(bench) == [2]
    assert bench.core.streams.by_name["other"].progress.last == 1


def test_an_epoch_is_extended_before_it_ends(bench, monkeypatch):
    monkeypatch.setattr("malamute.core.stream.stream.EPOCH", 4)
    bench.settle()
    stream = bench.core.streams.by_name["live"]
    stream.progress.reserved = 4
    for _ in range(20):
        bench.tell("alice", publish(b"1", stream="live"))
        bench.settle()
    assert sequences(bench) == list(range(1, 21))
    assert bench.store.status().streams["live"].reserved >= 20


def test_a_stream_that_was_deleted_and_made_again_does_not_wait_either(bench):
    bench.settle()
    bench.tell("alice", publish(b"1", stream="other"))
    bench.settle()
    bench.tell("alice", Change(0, "stream.delete", {"stream": "other"}))
    bench.settle()
    bench.sent("alice")
    assert EPOCH < bench.store.status().streams[FLOOR].reserved <= 2 * EPOCH
    bench.tell("bob", subscribe(2, stream="other"))
    bench.sent("bob")
    bench.tell("alice", publish(b"1", stream="other"))
    assert sequences(bench) == [2]
