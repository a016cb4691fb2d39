"""Readers of history who are close to each other become one pass, which decodes each chunk once for all."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from core_bench import Bench, items, peer_id, publish, subscribe
from test_core_dispatch import batch, got, wanted

from malamute.core.stream import replay
from malamute.core.stream.chunk import Loaded
from malamute.errors import StoreError
from malamute.protocol.messages import Credit, Deliver, Error, Switch


def far_apart(readers: int = 1, **fields: Any) -> Bench:
    """Ten messages, each of which takes a read, and readers who had the first one and have no more credit."""
    bench = Bench()
    bench.open("reader", "alice")
    for number in range(10):
        bench.tell("alice", publish(b"%d" % number))
        bench.settle()
    bench.tell("reader", *[subscribe(n + 1, start="first", credit=1, **fields) for n in range(readers)])
    bench.settle()
    return bench


@pytest.fixture
def one_message_a_read(monkeypatch):
    monkeypatch.setattr(replay, "READ_BYTES", 1)


@pytest.mark.usefixtures("one_message_a_read")
@pytest.mark.parametrize(("start", "reads"), [(replay.REACH_READS + 1, 1), (replay.REACH_READS + 2, 2)])
def test_who_is_close_in_front_of_a_pass_joins_it(start, reads):
    bench = far_apart()
    bench.tell("reader", Credit(1, -1, -1))
    bench.tell("reader", subscribe(2, start=f"seq:{start}"))
    assert len(bench.reads) == reads
    bench.settle()
    assert got(bench) == {
        1: [b"%d" % number for number in range(10)],
        2: [b"%d" % number for number in range(start - 1, 10)],
    }


@pytest.mark.usefixtures("one_message_a_read")
def test_who_has_joined_a_pass_in_vain_goes_on_by_itself():
    bench = far_apart()
    bench.tell("reader", Credit(1, -1, -1), subscribe(2, start="seq:4"))
    asked = []
    while bench.reads:
        asked.append([read.start for read in bench.reads])
        bench.read()
    # It waits for the read from 2 on, then reads from 4 on beside the one from 3 on, and so they meet.
    assert asked[:2] == [[2], [3, 4]]
    assert asked[-1] == [10]
    assert len(asked) < 9 + 7
    bench.settle()
    assert got(bench)[2] == [b"%d" % number for number in range(3, 10)]


@pytest.mark.usefixtures("one_message_a_read")
@pytest.mark.parametrize("costly", [0, 1])
def test_nobody_joins_the_pass_of_a_costly_reader_who_joins_none(costly):
    where = ["", ""]
    where[costly] = "not within(lat, lon, 1, 1, 1)"
    bench = far_apart(where=where[0])
    bench.tell("reader", Credit(1, -1, -1))
    bench.tell("reader", subscribe(2, start="seq:3", where=where[1]))
    assert len(bench.reads) == 2


@pytest.mark.usefixtures("one_message_a_read")
def test_a_read_that_fails_ends_those_who_needed_it_and_not_who_joined():
    bench = far_apart()
    bench.tell("reader", Credit(1, -1, -1))
    bench.tell("reader", subscribe(2, start="seq:4"))
    bench.sent("reader")
    bench.core.answered(bench.reads.popleft(), StoreError("the disk does not answer"), bench.now)
    bench.settle()
    sent = bench.sent("reader")
    assert [m.ref for m in sent if isinstance(m, Error)] == [1]
    assert [i.body for m in sent if isinstance(m, Deliver) for i in items(m)] == [
        b"%d" % number for number in range(3, 10)
    ]


def test_readers_who_come_one_after_the_other_soon_have_each_chunk_decoded_once(monkeypatch):
    decoded: list[int] = []
    read = Loaded.read

    def counted(found):
        decoded.append(found.first)
        return read(found)

    bench = Bench()
    bench.open("reader", "alice")
    for number in range(30):
        bench.tell("alice", batch(number, count=200))
        bench.settle()
    monkeypatch.setattr(Loaded, "read", counted)
    monkeypatch.setattr(replay, "READ_BYTES", 1)
    for source in range(1, 6):
        bench.tell("reader", subscribe(source, criteria=[["topic", f"*.{source}"]], start="first"))
        if bench.reads:
            bench.read()
    bench.settle()
    assert max(Counter(decoded).values()) <= 5
    assert all(decoded.count(first) == 1 for first in range(10 * 200 + 1, 30 * 200, 200))
    assert got(bench) == {
        source: [body for number in range(30) for body in wanted(source, number, 200)]
        for source in range(1, 6)
    }


@pytest.mark.parametrize("messages", [replay.STEP, replay.STEP + 1])
def test_many_readers_for_whom_there_is_nothing_are_moved_on_together(monkeypatch, messages):
    served: list[int] = []
    serve = replay.Replay._serve

    def counted(own, reader, loaded, **more):
        served.append(reader.source)
        serve(own, reader, loaded, **more)

    bench = Bench()
    bench.open("reader", "alice")
    bench.tell("alice", batch(count=messages))
    bench.settle()
    monkeypatch.setattr(replay.Replay, "_serve", counted)
    nobody = [subscribe(n + 1, criteria=[["topic", f"other.{n}"]], start="first") for n in range(20)]
    bench.tell("reader", *nobody, subscribe(100, criteria=[["topic", "*.0"]], start="first"))
    bench.settle()
    assert set(served) == {100}
    assert got(bench) == {100: wanted(0, 0, messages)}
    switches = [m for m in bench.sent("reader") if isinstance(m, Switch)]
    assert not switches
    assert all(
        not reader.cursor for reader in bench.core.sessions.by_peer[peer_id("reader")].sources.values()
    )
