"""The audit has each administrative change, in the transaction of the change, and nobody can make it less."""

from __future__ import annotations

import json
from typing import Any

import pytest
from core_bench import Bench, publish, send, subscribe
from test_core_changes import CHANGES, furnished

from malamute.access import AccessRule, Policy
from malamute.core.iteration.effects import LoadConfiguration
from malamute.core.iteration.settings import ConfigurationLoaded
from malamute.core.queue import purge
from malamute.core.reports import audit
from malamute.core.reports.audit import CHARACTERS_MAX, ITEMS_MAX, RETRY_SECONDS, SAMPLED, _short
from malamute.core.reports.refusal_log import PERIOD_SECONDS, REFUSALS_MAX
from malamute.errors import ConfigError, NotFound, StorageFull
from malamute.protocol.admin import BackupMade
from malamute.protocol.batch import unpack_payload, unpack_record
from malamute.protocol.messages import Change, Commit, Error, Ok
from malamute.protocol.names import AUDIT
from malamute.store.commit import Append
from malamute.store.operations import AppendChunk, PutValue
from malamute.store.tables import OUTCOMES, SESSIONS

by_topic = pytest.mark.parametrize("topic", CHANGES)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    import malamute.server.worker as worker

    monkeypatch.setitem(
        worker.ANSWERS, worker.Backup, lambda store, backup: BackupMade(directory=backup.directory, bytes=1)
    )
    bench = Bench(audit=True)
    loaded = ConfigurationLoaded(bench.settings, ("limits.streams",), ())
    monkeypatch.setitem(worker.ANSWERS, LoadConfiguration, lambda store, question: loaded)
    furnished(bench)
    bench.wait(PERIOD_SECONDS)
    bench.settle()
    return bench


def records(bench: Bench, start: int = 1) -> list[dict[str, Any]]:
    """The records on the disk from a sequence on: subject, headers and body as one map."""
    found = []
    for chunk in bench.store.read(AUDIT, start, bytes_max=1 << 30).found:
        columns = unpack_payload(chunk.payload, chunk.large)
        assert {*columns.all_senders()} == {"$broker"}
        for subject, record in zip(columns.subjects, columns.records, strict=True):
            headers, body = unpack_record(record)
            found.append({"topic": subject, **headers, **json.loads(b"".join(body))})
    return found


def head(bench: Bench) -> int:
    return bench.core.streams.by_name[AUDIT].progress.next


def new(bench: Bench, start: int) -> list[dict[str, Any]]:
    bench.settle()
    return records(bench, start)


def is_recorded(append: Append) -> bool:
    return any(type(o) is AppendChunk and o.stream == AUDIT for o in append.operations)


def change(bench: Bench, topic: str, number: int = 1, **more: Any) -> None:
    bench.tell("op", Change(number, topic, {**CHANGES[topic], **more}))


@by_topic
def test_a_change_is_recorded_with_who_what_and_what_came_of_it(bench, topic):
    start = head(bench)
    change(bench, topic)
    (record,) = new(bench, start)
    assert (record["topic"], record["outcome"], record["count"]) == (topic, "done", 1)
    assert record["arguments"] == CHANGES[topic]
    assert (record["address"], record["user"], record["method"]) == ("op", "", "")
    assert record["before"] or record["after"]


@by_topic
def test_the_record_is_stored_by_the_append_that_has_the_outcome(bench, topic):
    start = head(bench)
    change(bench, topic)
    bench.read_all()
    appends = []
    while bench.appends:
        appends.append(bench.appends[0])
        bench.commit()
        bench.read_all()
    having = [append for append in appends if is_recorded(append)]
    assert len(having) == 1
    assert any(
        type(o) is PutValue and o.table == SESSIONS and o.key[1] == OUTCOMES for o in having[0].operations
    )
    assert len(records(bench, start)) == 1


@by_topic
def test_what_was_confirmed_is_recorded_wherever_the_broker_is_killed(bench, topic):
    start = head(bench)
    change(bench, topic)
    while not (confirmed := [m for m in bench.sent("op") if isinstance(m, Ok) and m.about == 15]):
        assert records(bench, start) == [] or bench.appends
        bench.commit() if bench.appends else bench.read()
    bench.crash()
    assert confirmed
    assert [record["topic"] for record in records(bench, start)] == [topic]


AT_ONCE = dict.fromkeys(
    ("broker.reload", "client.disconnect", "journal.backup", "queue.delete", "stream.delete-messages"), "done"
)


@by_topic
def test_what_the_disk_refuses_is_recorded_as_soon_as_it_takes_anything(bench, topic):
    start = head(bench)
    change(bench, topic)
    bench.read_all()
    while not is_recorded(bench.appends[0]):
        bench.commit()
        bench.read_all()
    bench.fail(StorageFull("the disk is full"))
    (record,) = [r for r in new(bench, start) if r["topic"] == topic]
    assert record["outcome"] == AT_ONCE.get(topic, "failed")
    assert record.get("code") == (None if topic in AT_ONCE else 507)


@by_topic
def test_what_the_disk_refuses_twice_is_recorded_when_it_takes_anything(bench, topic):
    start = head(bench)
    change(bench, topic)
    bench.read_all()
    while not is_recorded(bench.appends[0]):
        bench.commit()
        bench.read_all()
    for _ in range(3):
        while not is_recorded(bench.appends[0]):
            bench.commit()
        bench.fail(StorageFull("the disk is full"))
        bench.wait(RETRY_SECONDS)
    (record,) = [r for r in new(bench, start) if r["topic"] == topic]
    assert record["outcome"] == AT_ONCE.get(topic, "failed")


def test_a_refusal_that_the_disk_does_not_take_is_recorded_later(bench):
    start = head(bench)
    bench.tell("op", Change(1, "stream.delete", {"stream": "nothing"}))
    bench.fail()
    assert new(bench, start) == []
    bench.wait(RETRY_SECONDS)
    (record,) = new(bench, start)
    assert (record["outcome"], record["code"]) == ("refused", NotFound.code)


@pytest.mark.parametrize("more", [0, 1])
def test_no_more_records_wait_for_the_disk_than_may(bench, monkeypatch, more):
    monkeypatch.setattr(audit, "WAITING_MAX", 3)
    start = head(bench)
    for number in range(3 + more):
        bench.tell("op", Change(number + 1, "stream.delete", {"stream": f"nothing{number}"}))
        while not is_recorded(bench.appends[0]):
            bench.commit()
        bench.fail()
    bench.wait(RETRY_SECONDS)
    assert len(new(bench, start)) == 3
    assert bench.core.audit.dropped == more
    words = [notice.event for notice in bench.notices]
    assert words.count(audit.DROPPED_WORDS) == more


def test_what_waits_to_be_recorded_is_written_when_the_broker_ends(bench):
    start = head(bench)
    bench.tell("op", Change(1, "stream.delete", {"stream": "nothing"}))
    bench.fail()
    bench.core.close()
    (record,) = new(bench, start)
    assert record["outcome"] == "refused"


@by_topic
def test_what_is_only_tried_is_not_recorded(bench, topic):
    start = head(bench)
    change(bench, topic, dry_run=True)
    assert new(bench, start) == []


BEFORE = [
    ("cursor.set", {}, {"sequence": None}),
    ("cursor.delete", {}, {"before": 0}),
    ("stream.retain", {}, {"bytes": 0, "count": 0, "age": 0.0}),
    ("stream.purge", {}, {"first": 1, "last": 2}),
    ("stream.delete", {}, {"first": 1, "last": 2, "cursors": 1}),
    ("stream.delete-messages", {}, {"messages": 1, "first": 1, "last": 1}),
    ("queue.purge", {}, {"messages": 1}),
    ("queue.set", {}, {"attempts": 20}),
    ("queue.redrive", {}, {"messages": 1}),
    ("queue.delete", {}, {"consumers": 1}),
    (
        "feed.set",
        {"source": "stream/t", "feed": "fed", "target": "service/fed"},
        {"target": "service/fed", "where": ""},
    ),
    ("feed.set", {}, None),
    ("feed.enable", {}, {"state": "live"}),
    ("feed.disable", {}, {"state": "live"}),
    ("feed.delete", {}, {"source": "stream/t"}),
    ("client.disconnect", {}, {"address": "carl", "connected": True}),
]


@pytest.mark.parametrize(("topic", "arguments", "before"), BEFORE, ids=str)
def test_a_record_has_what_there_was_before(bench, topic, arguments, before):
    start = head(bench)
    change(bench, topic, **arguments)
    (record,) = new(bench, start)
    assert before is None or record["before"].items() >= before.items()
    assert before is not None or record["before"] is None


def purge_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> int:
    """Purge three messages in three commits. Returns where the records begin."""
    monkeypatch.setattr(purge, "STEP_MESSAGES", 1)
    bench.tell("alice", *[send("eve", bytes(2)) for _ in range(3)])
    bench.settle()
    start = head(bench)
    bench.tell("op", Change(1, "queue.purge", {"kind": "mailbox", "name": "eve"}))
    return start


def test_a_change_of_several_commits_has_a_record_in_each(bench, monkeypatch):
    start = purge_in_steps(bench, monkeypatch)
    found = [(record["outcome"], record["after"]["messages"]) for record in new(bench, start)]
    assert found == [("partial", 1), ("partial", 2), ("done", 3)]


def test_a_change_that_comes_to_less_is_recorded_as_that(bench, monkeypatch):
    start = purge_in_steps(bench, monkeypatch)
    while not records(bench, start):
        bench.commit()
    bench.fail(StorageFull("the disk is full"))
    found = [(r["outcome"], r["after"]["messages"], r["after"]["partial"]) for r in new(bench, start)]
    assert found == [("partial", 1, True), ("done", 1, True)]


# Refusals


def test_a_change_that_is_refused_is_recorded_with_the_error(bench):
    start = head(bench)
    bench.tell("op", Change(1, "stream.purge", {"stream": "none"}), Change(2, "nothing\n", {"x": 1}))
    bench.tell("op", Change(3, "stream.retain", {"stream": "s", "expect_count": 7}))
    purge, unknown, retain = new(bench, start)
    assert (purge["outcome"], purge["code"], purge["topic"]) == ("refused", 404, "stream.purge")
    assert (unknown["topic"], unknown["code"], unknown["arguments"]) == ("unknown", 416, {"x": 1})
    assert retain["code"] == 412


def test_a_change_before_hello_has_no_record_and_no_fault(bench):
    start = head(bench)
    bench.crash()
    change(bench, "stream.purge")
    (answer,) = bench.sent("op")
    assert answer.code == 405
    assert new(bench, start) == []


def test_a_change_that_no_rule_allows_is_recorded(bench):
    bench.core.configure(
        bench.settings._replace(access=Policy([AccessRule.parse("receive mailbox/#")])), bench.now
    )
    start = head(bench)
    change(bench, "stream.purge")
    (record,) = new(bench, start)
    assert (record["outcome"], record["code"]) == ("refused", 401)
    assert "'admin stream/s' is not allowed" in record["error"]


def test_a_change_whose_question_to_the_store_fails_is_recorded_as_refused(bench):
    start = head(bench)
    change(bench, "cursor.set")
    question = bench.reads.popleft()
    bench.core.answered(question, NotFound("nothing there"), bench.now)
    bench.iterate()
    (record,) = new(bench, start)
    assert (record["outcome"], record["code"]) == ("refused", 404)


def test_refusals_cannot_fill_the_audit(bench):
    start = head(bench)
    for number in range(1, 501):
        bench.receive("op", Change(0, "stream.purge", {"stream": f"none{number}"}))
    assert len(new(bench, start)) == REFUSALS_MAX
    change(bench, "stream.purge")
    bench.wait(PERIOD_SECONDS)
    found = new(bench, start)
    assert [record["outcome"] for record in found[REFUSALS_MAX:]] == ["done", "refused"]
    assert sum(record["count"] for record in found if record["outcome"] == "refused") == 500


def test_who_may_only_read_cannot_fill_the_audit_with_cursors(bench):
    assert {"cursor.set", "cursor.delete", "link.advance", "link.stop"} == SAMPLED
    start = head(bench)
    for _ in range(200):
        bench.receive("op", Change(0, "cursor.set", {"stream": "s", "cursor": "c", "start": "first"}))
    bench.wait(PERIOD_SECONDS)
    found = new(bench, start)
    assert len(found) == REFUSALS_MAX + 1
    assert sum(record["count"] for record in found) == 200


def test_what_a_record_stands_for_is_not_lost_with_the_change_that_the_disk_refuses(bench):
    """The last left out is of the iteration in which their time is over, and the disk takes it not."""
    start = head(bench)
    refused = REFUSALS_MAX + 5
    for _ in range(refused):
        bench.receive("op", Change(0, "cursor.delete", {"stream": "s", "cursor": "none"}))
    bench.settle()
    bench.now += PERIOD_SECONDS
    bench.receive("op", Change(1, "cursor.delete", {"stream": "s", "cursor": "old"}))
    bench.core.tick(bench.now)
    bench.iterate()
    while not is_recorded(bench.appends[0]):
        bench.commit()
    bench.fail()
    bench.wait(RETRY_SECONDS)
    found = new(bench, start)
    assert sum(record["count"] for record in found if record["outcome"] != "failed") == refused + 1
    assert [record["count"] for record in found if record["outcome"] == "failed"] == [1]


def test_what_was_left_out_is_recorded_when_the_broker_ends(bench):
    start = head(bench)
    for _ in range(REFUSALS_MAX + 5):
        bench.receive("op", Change(0, "stream.purge", {"stream": "none"}))
    bench.restart()
    assert records(bench, start)[-1]["count"] == 5


def test_a_reload_by_a_signal_is_recorded(bench, monkeypatch):
    start = head(bench)
    bench.core.reload(bench.now)
    (record,) = new(bench, start)
    assert (record["topic"], record["method"], record["outcome"]) == ("broker.reload", "signal", "done")
    assert record["after"]["changed"] == ["limits.streams"]
    bench.core.reload(bench.now)
    bench.iterate()
    bench.core.answered(bench.reads.popleft(), ConfigError("wrong"), bench.now)
    bench.iterate()
    (refused,) = new(bench, start + 1)
    assert (refused["outcome"], refused["error"]) == ("refused", "wrong")


# Nobody can make it less


@pytest.mark.parametrize("rules", [(), ("* */#", "admin,publish stream/$audit")], ids=["open", "rules"])
def test_nobody_publishes_to_it_or_changes_it(bench, rules):
    bench.core.configure(bench.settings._replace(access=Policy(map(AccessRule.parse, rules))), bench.now)
    before = len(records(bench))
    attempts = [
        publish(b"1", stream=AUDIT, number=1),
        Change(2, "stream.create", {"stream": AUDIT}),
        Change(3, "stream.purge", {"stream": AUDIT}),
        Change(4, "stream.delete", {"stream": AUDIT}),
        Change(5, "stream.retain", {"stream": AUDIT, "count": 1}),
        Change(6, "feed.set", {"source": f"stream/{AUDIT}", "feed": "w", "target": "service/w"}),
    ]
    answers = bench.ask("op", *attempts)
    assert [m.code for m in answers if isinstance(m, Error)] == [401] * len(attempts)
    assert len(new(bench, 1)) == before + len(attempts) - 1


def test_reading_it_takes_a_right_once_there_are_rules(bench):
    def refused(*rules: str) -> bool:
        access = Policy(map(AccessRule.parse, ["receive mailbox/#", *rules]))
        bench.core.configure(bench.settings._replace(access=access), bench.now)
        command = subscribe(next(sources), stream=AUDIT)
        return any(isinstance(m, Error) and m.code == 401 for m in bench.ask("op", command))

    sources = iter(range(1, 10))
    assert refused()
    assert refused("subscribe stream/#")
    assert refused("* */#")
    assert not refused("subscribe stream/$audit")


def test_it_is_read_like_any_stream_and_has_cursors(bench):
    change(bench, "stream.purge")
    bench.settle()
    bench.tell("alice", subscribe(1, stream=AUDIT, start="last"))
    bench.settle()
    assert [item.subject for item in bench.got("alice")] == ["stream.purge"]
    bench.tell("alice", Commit(AUDIT, 0, "mine", head(bench) - 1))
    bench.settle()
    assert bench.core.streams.by_name[AUDIT].cursors["mine"] == head(bench) - 1


def test_without_the_option_there_is_none():
    bench = Bench()
    furnished(bench)
    assert AUDIT not in bench.core.streams.by_name
    assert [e.code for e in bench.ask("op", subscribe(1, stream=AUDIT))] == [401]


# What a record has


@pytest.mark.parametrize(
    ("value", "short"),
    [
        ({"a": [1, None, True]}, {"a": [1, None, True]}),
        ([*range(ITEMS_MAX + 1)], [*range(ITEMS_MAX), f"… {ITEMS_MAX + 1} items"]),
        ("x" * (CHARACTERS_MAX + 1), "x" * CHARACTERS_MAX + "…"),
        (b"\0\1", "2 bytes"),
        (float("nan"), "nan"),
        ([[[[[[[1]]]]]]], [[[[["1 items"]]]]]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_a_client_sends_takes_little_of_a_record(value, short):
    assert _short(value) == short


def test_a_large_change_makes_a_small_record(bench):
    start = head(bench)
    arguments = {"kind": "mailbox", "name": "bob", "sequences": [*range(1, 100_000)], "where": "x = 1" * 9999}
    bench.tell("op", Change(0, "queue.purge", arguments))
    (record,) = new(bench, start)
    assert len(json.dumps(record)) < 10_000


def test_a_fault_in_a_record_takes_the_change_back(bench, monkeypatch):
    bench.faulty = True
    start = head(bench)
    monkeypatch.setattr(audit, "pack_record", lambda headers, body: [][0])
    change(bench, "stream.purge")
    monkeypatch.undo()
    (record,) = new(bench, start)
    (answer,) = [m for m in bench.sent("op") if isinstance(m, Ok | Error) and m.about == 15]
    assert isinstance(answer, Error)
    assert bench.core.streams.by_name["s"].progress.first_kept == 1
    assert (record["outcome"], record["code"]) == ("failed", 500)
