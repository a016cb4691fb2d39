"""Changes are made once, whatever becomes of the connection, the broker or the disk before the answer."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import pytest
from core_bench import START, Bench, chunks, offer, publish, request, send, subscribe

from malamute.core.admin import changes
from malamute.core.iteration.effects import LoadConfiguration
from malamute.core.iteration.settings import ConfigurationLoaded
from malamute.core.queue import paging
from malamute.core.session.numbers import Numbers
from malamute.errors import StorageFull
from malamute.protocol import admin
from malamute.protocol.admin import BackupMade
from malamute.protocol.limits import CHANGES_MAX
from malamute.protocol.messages import (
    VERSION,
    Bye,
    Cancel,
    Change,
    Commit,
    Error,
    Hello,
    Ok,
    Query,
    Reject,
    Stored,
)
from malamute.store.operations import PutValue
from malamute.store.tables import CURSORS, FEEDS, NUMBERS, SESSIONS

CHANGE = 15

CHANGES: dict[str, dict[str, Any]] = {
    "cursor.set": {"stream": "s", "cursor": "c", "start": f"time:{int(START * 1e9)}"},
    "cursor.delete": {"stream": "s", "cursor": "old"},
    "stream.create": {"stream": "made", "count": 5},
    "stream.retain": {"stream": "s", "count": 5},
    "stream.purge": {"stream": "s"},
    "stream.delete-messages": {"stream": "s", "sequence": 1},
    "stream.delete": {"stream": "s", "cascade": True},
    "feed.set": {"source": "stream/s", "feed": "w", "target": "service/w", "start": "since:1h"},
    "feed.enable": {"source": "stream/t", "feed": "fed"},
    "feed.disable": {"source": "stream/t", "feed": "fed"},
    "feed.delete": {"source": "stream/t", "feed": "fed"},
    "link.set": {"link": "new", "urls": ["tcp://e:1"], "remote": "s", "stream": "copy"},
    "link.pause": {"link": "edge", "stream": "linked"},
    "link.resume": {"link": "edge", "stream": "linked"},
    "link.advance": {
        "link": "far",
        "generation": int(START * 1e9),
        "stream": "linked",
        "after": "",
        "upto": f"1@{'ab' * 16}",
    },
    "link.stop": {"link": "far", "generation": int(START * 1e9), "stream": "linked", "reason": "r"},
    "link.remove": {"link": "far", "stream": "linked"},
    "queue.redrive": {"kind": "service", "name": "w"},
    "queue.set": {"kind": "service", "name": "w", "attempts": 3},
    "queue.purge": {"kind": "mailbox", "name": "bob"},
    "queue.delete": {"kind": "service", "name": "idle", "cascade": True},
    "broker.reload": {},
    "client.disconnect": {"id": "carl"},
    "journal.backup": {"directory": "monday"},
    "group.add": {"name": "clerks", "access_rules": []},
    "group.set": {"name": "staff", "access_rules": []},
    "group.remove": {"name": "staff"},
    "user.add": {"name": "ann", "groups": ["staff"]},
    "user.set": {"name": "eve", "disabled": True},
    "user.remove": {"name": "eve"},
}
"""Of each topic a change that succeeds on `furnished`."""

by_topic = pytest.mark.parametrize("topic", CHANGES)


def furnished(bench: Bench) -> None:
    """There is something to change of every kind."""
    bench.open("alice", "carl", "op")
    bench.tell("alice", publish(b"1", b"2"), publish(b"1", stream="t"), send("bob", b"1"), request(b"1"))
    bench.settle()
    bench.tell("alice", Change(0, "cursor.set", {"stream": "s", "cursor": "old", "start": "first"}))
    bench.tell("alice", Change(0, "feed.set", {"source": "stream/t", "feed": "fed", "target": "service/fed"}))
    for name in ("far", "edge"):
        link = {"link": name, "urls": ["tcp://e:1"], "remote": "s", "stream": "linked"}
        bench.tell("alice", Change(0, "link.set", link))
    bench.tell("alice", Change(0, "user.add", {"name": "eve", "uid": 7}))
    bench.tell("alice", Change(0, "group.add", {"name": "staff"}))
    bench.tell("carl", offer(), offer(2, service="idle"))
    bench.settle()
    bench.tell("carl", Reject(1, [[1, 1]], "no"))
    bench.settle()
    bench.sent("op")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The changes that were executed."""
    calls: list[str] = []

    def counted(topic: str, handler: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> None:
            calls.append(topic)
            handler(*arguments, **named)

        return call

    makers = changes.makers
    monkeypatch.setattr(
        changes,
        "makers",
        lambda core: {topic: counted(topic, handler) for topic, handler in makers(core).items()},
    )
    return calls


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, made: list[str]) -> Bench:
    import malamute.server.worker as worker

    monkeypatch.setitem(
        worker.ANSWERS, worker.Backup, lambda store, backup: BackupMade(directory=backup.directory, bytes=1)
    )
    bench = Bench()
    loaded = ConfigurationLoaded(bench.settings, ("limits.streams",), ())
    monkeypatch.setitem(worker.ANSWERS, LoadConfiguration, lambda store, question: loaded)
    furnished(bench)
    made.clear()
    return bench


def again(bench: Bench, change: Change) -> list[Any]:
    """The connection was cut: the client is back and sends the change again. What it is answered."""
    bench.tell("op", Hello([VERSION], "op", "", change.number))
    bench.sent("op")
    bench.tell("op", change)
    bench.settle()
    return [m for m in bench.sent("op") if isinstance(m, Ok | Error) and m.about == CHANGE]


def test_there_is_an_example_of_every_change():
    assert CHANGES.keys() == admin.CHANGES.keys() == changes.makers(Bench().core).keys()


@by_topic
def test_a_repeated_change_is_answered_again_and_not_made_again(bench, made, topic):
    change = Change(1, topic, CHANGES[topic])
    bench.tell("op", change)
    bench.settle()
    (answer,) = bench.sent("op")
    assert isinstance(answer, Ok)
    assert (answer.about, answer.ref) == (CHANGE, 1)
    bench.tell("alice", publish(b"3", number=1), publish(b"2", stream="t"), send("bob", b"2"))
    bench.settle()
    before = sorted(chunks(bench.store)), sorted(chunks(bench.store, "t"))
    assert again(bench, change) == [answer]
    bench.crash()
    assert again(bench, change) == [answer]
    assert made == [topic]
    assert (sorted(chunks(bench.store)), sorted(chunks(bench.store, "t"))) == before


@by_topic
def test_a_change_repeated_while_it_is_under_way_is_made_once_and_answered_once(bench, made, topic):
    change = Change(1, topic, CHANGES[topic])
    bench.tell("op", change)
    bench.tell("op", Hello([VERSION], "op"))
    bench.sent("op")
    bench.tell("op", change)
    bench.settle()
    assert [type(m) for m in bench.sent("op")] == [Ok]
    assert made == [topic]


@by_topic
def test_a_change_that_a_crash_took_back_is_made_when_it_is_repeated(bench, made, topic):
    change = Change(1, topic, CHANGES[topic])
    bench.tell("op", change)
    bench.crash()
    (answer,) = again(bench, change)
    # With the broker the session was gone, and the queue that was there for its consumer alone.
    assert isinstance(answer, Error if topic in ("client.disconnect", "queue.delete") else Ok)
    assert made == [topic, topic]


DONE_AT_ONCE = {"broker.reload", "client.disconnect", "journal.backup", "queue.delete"}
"""What these do is not in the commit that has their outcome."""


def refused(bench: Bench, *changes: Change) -> list[Any]:
    """The disk refuses all that comes of changes. What they are answered."""
    bench.tell("op", *changes)
    bench.read_all()
    while bench.appends:
        bench.fail(StorageFull("full"))
    return [m for m in bench.sent("op") if isinstance(m, Ok | Error)]


def seen(bench: Bench) -> dict[str, Any]:
    """What an operator sees of all that changes can change."""
    queries = {topic: ({}, fields) for topic, fields in LISTS.items()}
    for kind, name in ("service", "w"), ("mailbox", "bob"):
        for dead in (False, True):
            arguments = {"kind": kind, "name": name, "dead": dead}
            queries[f"messages {kind} {dead}"] = arguments, ("sequence",)
    found = {}
    for place, (topic, (arguments, fields)) in enumerate(queries.items()):
        bench.tell("looker", Query(place, topic.split()[0], arguments))
        bench.read_all()
        (answer,) = bench.sent("looker")
        rows = [[row.get(field) for field in fields] for row in answer.value]
        # An empty queue is not stored.
        found[topic] = sorted(row for row in rows if topic not in ("mailboxes", "services") or any(row[1:]))
    found["retentions"] = dict(bench.core.streams.retentions)
    return found


LISTS = {
    "streams": ("name", "first", "last"),
    "cursors": ("stream", "name", "sequence"),
    "feeds": ("service", "stream", "sequence"),
    "mailboxes": ("name", "messages", "dead"),
    "services": ("name", "messages", "dead"),
}


@by_topic
def test_a_change_that_the_disk_refuses_is_refused_for_good(bench, made, topic):
    change = Change(1, topic, CHANGES[topic])
    answers = refused(bench, change)
    expected = [(Ok, 1)] if topic in DONE_AT_ONCE else [(Error, 1)]
    assert [(type(m), m.ref) for m in answers] == expected
    assert [m.code for m in answers if isinstance(m, Error)] == [507] * (topic not in DONE_AT_ONCE)
    assert [(type(m), m.ref) for m in again(bench, change)] == expected
    assert made == [topic]


def test_a_change_counts_as_work_of_its_iteration(bench):
    bench.open("alice")
    before = bench.core.effects.work
    for number in range(1, 4):
        bench.receive("alice", Change(number, "stream.create", {"stream": f"s-{number}"}))
    assert before - bench.core.effects.work >= 3 * changes.CHANGE_WORK


BOUND = sorted(CHANGES.keys() - DONE_AT_ONCE)


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("topic", BOUND)
def test_nothing_of_a_change_that_the_disk_refuses_is_seen_then_or_after_a_restart(bench, topic, dead):
    arguments = CHANGES[topic]
    if topic == "queue.purge" and dead:
        arguments = {"kind": "service", "name": "w", "dead": True}
    bench.open("looker")
    bench.settle()
    before = seen(bench)
    events = len(bench.events)
    refused(bench, Change(1, topic, arguments))
    assert seen(bench) == before
    assert [e for e in bench.events[events:] if e.startswith(("stream", "feed")) and "created" not in e] == []
    bench.settle()
    bench.crash()
    bench.open("looker")
    assert {name: row for name, row in seen(bench).items() if name != "streams"} == {
        name: row for name, row in before.items() if name != "streams"
    }


@pytest.mark.parametrize("start", ["new", "first"])
def test_a_feed_from_a_new_stream_that_the_disk_refuses_leaves_no_stream(bench, start):
    names = {*bench.core.streams.by_name}
    refused(
        bench,
        Change(1, "feed.set", {"source": "stream/new", "feed": "w", "target": "service/w", "start": start}),
    )
    assert {*bench.core.streams.by_name} == names


def test_a_feed_whose_start_cannot_be_found_leaves_no_stream(bench):
    names = {*bench.core.streams.by_name}
    places = {"source": "stream/new", "feed": "w", "target": "stream/target"}
    bench.tell("op", Change(1, "feed.set", {**places, "start": "since:1h"}))
    bench.core.answered(bench.reads.popleft(), StorageFull("full"), bench.now)
    bench.settle()
    assert [m.code for m in bench.sent("op") if isinstance(m, Error)] == [507]
    assert {*bench.core.streams.by_name} == names


def test_a_stream_that_somebody_uses_stays_though_the_disk_refuses_to_make_it(bench):
    bench.tell("op", Change(1, "stream.create", {"stream": "new"}))
    bench.tell("alice", subscribe(stream="new"))
    bench.fail(StorageFull("full"))
    assert "new" in bench.core.streams.by_name
    bench.settle()
    bench.tell("carl", publish(b"1", stream="new"))
    bench.settle()
    assert bench.bodies("alice") == [b"1"]


@pytest.mark.parametrize("topic", ["stream.create", "stream.retain"])
def test_it_goes_with_its_last_reader_then(bench, topic):
    make = Change(1, topic, {"stream": "new", "count": 5})
    bench.tell("op", make)
    bench.tell("op", make._replace(number=2))
    bench.tell("alice", subscribe(stream="new"))
    while bench.appends:
        bench.fail(StorageFull("full"))
    bench.settle()
    bench.tell("alice", Cancel(1))
    assert "new" not in bench.core.streams.by_name


def test_a_stream_that_is_made_twice_is_there_though_the_disk_refuses_the_first(bench):
    create = Change(1, "stream.create", {"stream": "new"})
    bench.tell("op", create)
    bench.tell("op", create._replace(number=2))
    bench.sent("op")
    bench.fail(StorageFull("full"))
    bench.settle()
    assert [type(m) for m in bench.sent("op")] == [Error, Ok]
    assert "new" in bench.core.streams.by_name
    bench.crash()
    assert "new" in bench.core.streams.by_name


def cursor(bench: Bench) -> int | None:
    """Where the cursor `old` is, and whether the disk says the same."""
    here = bench.core.streams.by_name["s"].cursors.get("old")
    assert bench.store.recover().table(CURSORS).get(("s", "old")) == here
    return here


def test_a_cursor_that_is_deleted_and_set_again_is_where_the_disk_has_it():
    """Each of three changes of a cursor, one after the other before any outcome, may be refused."""
    changes: list[Any] = [
        Commit("s", 0, "old", 1),
        Change(0, "cursor.delete", {"stream": "s", "cursor": "old"}),
        Commit("s", 0, "old", 2),
        Change(0, "cursor.delete", {"stream": "s", "cursor": "old"}),
    ]
    orders = [*permutations(changes, 3)]
    for order in (order for place, order in enumerate(orders) if order not in orders[:place]):
        for outcomes in product((True, False), repeat=3):
            bench = Bench()
            furnished(bench)
            for change in order:
                bench.tell("op", change)
            expected = bench.core.streams.by_name["s"].cursors.get("old")
            made = len(bench.appends)
            for stored in outcomes[:made]:
                assert bench.core.streams.by_name["s"].cursors.get("old") == expected
                bench.commit() if stored else bench.fail()
            bench.settle()
            cursor(bench)


def test_a_lost_cursor_is_found_again_when_the_disk_has_its_new_place(bench):
    stream = bench.core.streams.by_name["s"]
    for change in (
        Change(1, "cursor.set", {"stream": "s", "cursor": "lost", "start": "first"}),
        Change(2, "cursor.delete", {"stream": "s", "cursor": "lost"}),
    ):
        stream.cursors.pop("lost", None)
        stream.cursors.lost.add("lost")
        refused(bench, change)
        assert stream.cursors.lost == {"lost"}
        again(bench, change._replace(number=change.number + 10))
        bench.tell("op", change._replace(number=0))
        bench.settle()
        assert not stream.cursors.lost


def test_a_purge_of_dead_letters_that_is_under_way_is_not_redriven_or_purged_again(bench):
    purge = {"kind": "service", "name": "w", "dead": True}
    bench.tell("op", Change(1, "queue.purge", purge))
    bench.tell("op", Change(2, "queue.redrive", {"kind": "service", "name": "w"}))
    bench.tell("op", Change(3, "queue.purge", purge))
    bench.settle()
    assert [m.value["messages"] for m in bench.sent("op")] == [1, 0, 0]
    assert not bench.core.services.by_name["w"].entries


def test_a_stream_that_is_used_again_before_its_deletion_is_stored_keeps_what_is_new(bench):
    bench.tell("op", Change(1, "stream.delete", {"stream": "s", "cascade": True}))
    bench.tell("alice", publish(b"new"), subscribe(start="first", credit=10))
    bench.settle()
    assert bench.bodies("alice")[-1:] == [b"new"]
    bench.crash()
    assert [body for _, body in chunks(bench.store)] == [b"new"]
    assert bench.core.streams.by_name["s"].progress.last == 3


def test_a_purge_that_is_repeated_after_a_crash_drops_nothing_that_was_confirmed_in_between(bench):
    purge = Change(1, "stream.purge", {"stream": "s"})
    bench.tell("op", purge)
    bench.settle()
    bench.tell("alice", publish(b"confirmed", number=1))
    bench.settle()
    assert Stored([[1, 1, 3]]) in bench.sent("alice")
    bench.crash()
    again(bench, purge)
    assert [body for _, body in chunks(bench.store)] == [b"confirmed"]


@pytest.mark.parametrize(("start", "wanted"), [("new", [b"3", b"4"]), ("last", [b"2", b"3", b"4"])])
@pytest.mark.parametrize("crash", [False, True])
def test_a_feed_whose_change_is_repeated_leaves_out_nothing_that_came_in_between(bench, start, wanted, crash):
    place = {"source": "stream/s", "feed": "late", "target": "service/late", "start": start}
    change = Change(1, "feed.set", place)
    bench.tell("op", change)
    bench.settle()
    [done] = [m for m in bench.sent("op") if isinstance(m, Ok)]
    bench.tell("alice", publish(b"3", b"4"))
    bench.settle()
    if crash:
        bench.crash()
    assert again(bench, change) == [done]
    bench.settle()
    bench.open("dan")
    bench.tell("dan", offer(1, service="late"))
    bench.settle()
    assert bench.bodies("dan") == wanted


def test_what_comes_behind_a_change_that_asks_the_store_does_not_wait_for_it(bench, made):
    change = Change(1, "cursor.set", CHANGES["cursor.set"])
    bench.tell("op", change, publish(b"x", number=2))
    while bench.appends:
        bench.commit()
    assert Stored([[2, 2, 3]]) in bench.sent("op")
    bench.crash()
    (answer,) = again(bench, change)
    assert answer.value["before"] is None
    assert made == ["cursor.set"] * 2
    assert bench.ask("op", publish(b"x", number=2)) == [Stored([[2, 2, 0]])]


def test_a_redrive_of_several_commits_that_a_crash_interrupts_has_come_to_what_is_stored(bench, monkeypatch):
    monkeypatch.setattr(paging, "RUN_MESSAGES", 2)
    bench.tell("alice", request(*[b"x"] * 5))
    bench.settle()
    bench.tell("carl", Reject(1, [[2, 6]], "no"))
    bench.settle()
    change = Change(1, "queue.redrive", CHANGES["queue.redrive"])
    bench.tell("op", change)
    while len(bench.core.services.by_name["w"].dead_letters.entries) > 4:
        bench.commit() if bench.appends else bench.read()
    bench.crash()
    assert [m.value for m in again(bench, change)] == [
        {"kind": "service", "name": "w", "messages": 2, "partial": True}
    ]
    assert len(bench.core.services.by_name["w"].dead_letters.entries) == 4


def test_as_many_changes_may_wait_as_the_protocol_says_and_no_more(bench):
    many = [Change(n, "cursor.set", CHANGES["cursor.set"]) for n in range(1, CHANGES_MAX + 2)]
    bench.tell("op", *many[:-1])
    assert bench.sent("op") == []
    assert [m.code for m in bench.ask("op", many[-1])] == [429]
    bench.settle()
    assert [m.ref for m in bench.sent("op")] == [change.number for change in many[:-1]]
    assert again(bench, many[-1])[0].code == 429


def test_the_last_outcomes_are_kept_and_older_ones_are_refused_rather_than_made_again(bench, made):
    many = [Change(n, "stream.purge", {"stream": "s"}) for n in range(1, CHANGES_MAX + 2)]
    for change in many:
        bench.tell("op", change)
    bench.settle()
    bench.sent("op")
    assert [m.ref for m in bench.ask("op", *many[1:])] == [change.number for change in many[1:]]
    assert [m.code for m in bench.ask("op", many[0])] == [421]
    assert len(made) == len(many)


def test_what_the_client_has_its_answers_to_is_forgotten(bench):
    bench.tell("op", Change(1, "stream.purge", {"stream": "s"}))
    bench.settle()
    numbers = bench.core.sessions.by_address["op"].numbers
    assert 1 in numbers.outcomes.decided
    bench.tell("op", Hello([VERSION], "op", "", 2))
    assert not numbers.outcomes.decided


def test_an_answer_is_not_given_to_a_new_session_of_the_same_peer(bench):
    bench.tell("op", Change(1, "cursor.set", CHANGES["cursor.set"]))
    bench.tell("op", Bye())
    bench.tell("op", Hello([VERSION], "op"))
    bench.sent("op")
    bench.settle()
    assert bench.sent("op") == []


def test_a_change_without_a_number_is_made_as_often_as_it_comes(bench, made):
    purge = Change(0, "stream.purge", {"stream": "s"})
    bench.tell("op", purge, purge)
    bench.settle()
    assert [m.ref for m in bench.sent("op")] == [0, 0]
    assert made == ["stream.purge"] * 2


def test_what_is_stored_of_a_session_shows_what_is_undecided_and_what_was_decided():
    numbers = Numbers(9)
    numbers.outcomes.begin(7)
    numbers.outcomes.decide(6, {"a": 1})
    read = Numbers.unpack(numbers.pack(), numbers.refused.pack(), numbers.outcomes.pack()).outcomes
    assert (read.undecided, read.decided, read.running) == ({7}, {6: {"a": 1}}, set())


def test_outcomes_are_written_when_they_change_and_not_with_every_command(bench):
    bench.tell("op", Change(1, "stream.purge", {"stream": "s"}))
    bench.settle()
    bench.tell("op", publish(b"x", number=2))
    parts = [
        o.key[1]
        for a in bench.appends
        for o in a.operations
        if isinstance(o, PutValue) and o.table == SESSIONS
    ]
    assert parts == [NUMBERS]


def test_a_refusal_is_stored_with_the_numbers_behind_it_though_the_disk_refused_both_before(bench):
    refused_before = publish(b"x", number=1, stream="$sys")
    bench.tell("op", refused_before, Change(2, "cursor.delete", {"stream": "s", "cursor": "none"}))
    assert {m.ref: m.code for m in bench.sent("op")} == {1: 401, 2: 404}
    bench.fail()
    bench.commit()
    bench.crash()
    bench.tell("op", Hello([VERSION], "op"))
    bench.sent("op")
    (answer,) = bench.ask("op", refused_before)
    assert (type(answer), answer.ref) == (Error, 1)


def test_a_stream_that_feeds_a_service_while_its_deletion_is_stored_stays(bench):
    bench.tell("op", Change(1, "stream.delete", {"stream": "s", "cascade": True}))
    bench.tell("op", Change(2, "feed.set", {"source": "stream/s", "feed": "w", "target": "service/w"}))
    bench.settle()
    assert [type(m) for m in bench.sent("op")] == [Ok, Ok]
    assert bench.core.streams.by_name["s"] is bench.core.feeds.by_name[("stream", "s"), "w"].stream
    assert [*bench.store.recover().table(FEEDS)][-1] == ("s", "w")
