"""A stream that is there for its readers alone goes with the last of them."""

from __future__ import annotations

import pytest
from core_bench import Bench, publish, subscribe

from malamute.protocol.limits import Limits
from malamute.protocol.messages import Bye, Cancel, Change, Commit, Error, Gap, Message, Ok


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
    "a feed": Change(0, "feed.set", {"service": "w", "stream": "t"}),
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


def test_whoever_comes_back_to_it_misses_nothing():
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
