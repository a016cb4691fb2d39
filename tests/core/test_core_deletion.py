"""A stream is deleted with what hangs on it, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from core_bench import Bench, chunks, publish, subscribe

from malamute.core.admin.deletion import LISTED_MAX
from malamute.errors import StorageFull
from malamute.protocol.messages import Change, Commit, Credit, Error, Ok
from malamute.store.tables import CURSORS, FEEDS


def feed(name: str, source: str = "stream/s", target: str = "stream/t") -> Change:
    return Change(0, "feed.set", {"source": source, "feed": name, "target": target})


def delete(**arguments: Any) -> Change:
    return Change(0, "stream.delete", {"stream": "s", **arguments})


@pytest.fixture
def bench() -> Bench:
    """A stream with three messages, a reader, a cursor, and two feeds: one from it and one to it."""
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("alice", publish(b"1", b"2"), feed("out"), feed("in", "stream/r", "stream/s"))
    bench.settle()
    bench.tell("alice", Commit("s", 0, "mine", 1), publish(b"0"))
    bench.tell("bob", subscribe(source=7))
    bench.settle()
    bench.sent("alice"), bench.sent("bob")
    return bench


def answers(bench: Bench, change: Change) -> list[Any]:
    bench.tell("alice", change)
    bench.settle()
    return [message for message in bench.sent("alice") if isinstance(message, Ok | Error)]


def hanging(bench: Bench) -> tuple[int, list[str], int]:
    core = bench.core
    stream = core.streams.by_name.get("s")
    cursors = [] if stream is None else [name for name in stream.cursors if name == "mine"]
    return len(core.feeds.by_name), cursors, len(core.sessions.by_address["bob"].sources)


def test_what_hangs_on_a_stream_is_listed_and_nothing_ends(bench: Bench) -> None:
    (refused,) = answers(bench, delete())
    ident = bench.core.sessions.by_address["bob"].ident
    assert (refused.code, refused.text) == (
        423,
        f"stream 's' is in use: 1 reader: {ident} (7); 1 cursor: mine; 2 feeds: in from stream/r, "
        "out from stream/s; end them, or delete it with cascade",
    )
    assert hanging(bench) == (2, ["mine"], 1)


def test_of_much_that_hangs_on_a_stream_some_is_listed(bench: Bench) -> None:
    bench.tell("alice", *(Commit("s", 0, f"c{n}", 1) for n in range(LISTED_MAX)))
    (refused,) = answers(bench, delete())
    assert "6 cursors: mine, c0, c1, c2, c3, …;" in refused.text


def test_what_a_cascade_would_end_is_told_and_nothing_ends(bench: Bench) -> None:
    (told,) = answers(bench, delete(cascade=True, dry_run=True))
    assert told.value == {
        "stream": "s",
        "first": 1,
        "last": 3,
        "cursors": 1,
        "readers": 1,
        "feeds": ["in from stream/r", "out from stream/s"],
    }
    assert hanging(bench) == (2, ["mine"], 1)


def test_with_cascade_all_that_hangs_on_a_stream_ends_with_a_reason(bench: Bench) -> None:
    (told,) = answers(bench, delete(cascade=True))
    assert "partial" not in told.value
    (ended,) = [message for message in bench.sent("bob") if isinstance(message, Error)]
    assert (ended.code, ended.text, ended.ref) == (404, "stream 's' was deleted", 7)
    assert hanging(bench) == (0, [], 0)
    assert "s" not in bench.core.streams.by_name
    recovered = bench.store.recover()
    assert not recovered.table(FEEDS)
    assert not [key for key in recovered.table(CURSORS) if key[0] == "s"]
    assert not [*chunks(bench.store)]
    # What the feed has passed on stays, and the name is free.
    assert [body for _, body in chunks(bench.store, "t")] == [b"0"]
    bench.tell("alice", publish(b"3"))
    bench.settle()
    assert [sequence for sequence, _ in chunks(bench.store)] == [4]


def test_nothing_follows_the_error_though_credit_came_in_the_same_iteration() -> None:
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("alice", publish(b"1", b"2"))
    bench.settle()
    bench.tell("bob", subscribe(source=7, start="first", credit=1))
    bench.settle()
    assert bench.bodies("bob") == [b"1"]
    bench.tell("alice", delete(cascade=True))
    bench.receive("bob", Credit(7, 1, 0))
    bench.commit()
    assert [(type(message), message.ref) for message in bench.sent("bob")] == [(Error, 7)]


def test_readers_stay_if_the_disk_refuses_the_deletion(bench: Bench) -> None:
    answers(bench, Change(0, "feed.delete", {"source": "stream/s", "feed": "out"}))
    answers(bench, Change(0, "feed.delete", {"source": "stream/r", "feed": "in"}))
    bench.tell("alice", delete(cascade=True))
    bench.fail(StorageFull("full"))
    assert [m.code for m in bench.sent("alice") if isinstance(m, Error)] == [507]
    assert hanging(bench) == (0, ["mine"], 1)
    bench.tell("alice", publish(b"3"))
    bench.settle()
    assert bench.bodies("bob") == [b"3"]


def test_a_cascade_that_the_disk_breaks_off_says_that_only_feeds_have_ended(bench: Bench) -> None:
    bench.tell("alice", delete(cascade=True))
    while len(bench.core.feeds.by_name):
        bench.commit()
    bench.fail(StorageFull("full"))
    (told,) = [m for m in bench.sent("alice") if isinstance(m, Ok | Error)]
    assert told.value["partial"] is True
    assert hanging(bench) == (0, ["mine"], 1)
    (told,) = answers(bench, delete(cascade=True))
    assert (told.value.get("partial"), told.value["feeds"]) == (None, [])


def test_a_cascade_of_which_the_disk_takes_nothing_is_refused(bench: Bench) -> None:
    bench.tell("alice", delete(cascade=True))
    bench.fail(StorageFull("full"))
    assert [m.code for m in bench.sent("alice") if isinstance(m, Ok | Error)] == [507]
    bench.settle()
    assert bench.sent("alice") == []
    assert hanging(bench) == (2, ["mine"], 1)


def test_what_a_cascade_has_come_to_so_far_is_its_answer_whatever_the_disk_refuses(bench: Bench) -> None:
    bench.tell("alice", delete(cascade=True))
    while len(bench.core.feeds.by_name) == 2:
        bench.commit()
    while not (told := [m for m in bench.sent("alice") if isinstance(m, Ok | Error)]):
        bench.fail(StorageFull("full"))
    assert [message.value["partial"] for message in told] == [True]
    assert hanging(bench) == (1, ["mine"], 1)


def test_a_feed_that_is_set_meanwhile_keeps_the_stream(bench: Bench) -> None:
    bench.tell("alice", delete(cascade=True), feed("late"))
    bench.settle()
    told = [m for m in bench.sent("alice") if isinstance(m, Ok | Error)]
    partial = [m for m in told if isinstance(m, Ok) and "partial" in m.value]
    assert [m.value["partial"] for m in partial] == [True]
    assert [name.name for name in bench.core.feeds.by_name] == ["late"]
    assert "s" in bench.core.streams.by_name


MADE = {
    "published": publish(b"1"),
    "created": Change(0, "stream.create", {"stream": "s"}),
    "retained": Change(0, "stream.retain", {"stream": "s", "count": 5}),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("is_restored", [False, True])
def test_a_stream_that_is_deleted_with_its_readers_is_there_no_more(made: str, is_restored: bool) -> None:
    bench = Bench()
    bench.open("alice")
    bench.tell("alice", MADE[made])
    bench.settle()
    if is_restored:
        bench.crash()
    bench.open("alice", "bob")
    bench.tell("bob", subscribe())
    (told,) = answers(bench, delete(cascade=True))
    assert told.value["readers"] == 1
    assert not bench.core.streams.by_name
    bench.restart()
    assert not bench.core.streams.by_name


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_reader_that_comes_while_a_stream_is_deleted_does_not_bring_it_back(is_restored: bool) -> None:
    bench = Bench()
    bench.open("alice")
    bench.tell("alice", publish(b"1"))
    bench.settle()
    if is_restored:
        bench.crash()
    bench.open("alice", "bob")
    bench.tell("alice", delete(cascade=True))
    bench.tell("bob", subscribe())
    bench.settle()
    assert [*bench.core.streams.by_name] == ["s"]
    bench.restart()
    assert not bench.core.streams.by_name
    bench.open("alice", "bob")
    bench.tell("bob", subscribe())
    bench.tell("alice", publish(b"2"))
    bench.settle()
    assert bench.bodies("bob") == [b"2"]
    assert bench.core.streams.by_name["s"].progress.last > 1
