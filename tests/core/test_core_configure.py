"""Other settings while the broker runs."""

from __future__ import annotations

import pytest
from core_bench import Bench, ack, mail_credit, offer, publish, request, send, subscribe

from malamute.core.configuration import CONFIGURED
from malamute.core.iteration.settings import ConfigurationLoaded
from malamute.errors import ConfigError
from malamute.protocol.limits import Limits
from malamute.protocol.messages import Bye, Change, Error, Ok, Query
from malamute.store.policies import QueuePolicy, StreamPolicy, StreamRetention


def configure(bench, **settings):
    bench.core.configure(bench.settings._replace(**settings), bench.now)
    bench.settle()


def status(bench):
    (answer,) = bench.ask("op", Query(1, "status", {}))
    return answer.value


def test_queues_that_are_there_go_by_another_policy_but_for_what_they_were_made_for():
    bench = Bench()
    bench.open("alice")
    bench.tell("alice", request(b"1", service="w"))
    bench.settle()
    queue = bench.core.services.by_name["w"]
    configure(
        bench,
        queues=lambda kind, name: QueuePolicy(
            attempts_max=2, messages_max=1, dedup_window_seconds=1.0, priority_step_messages=7
        ),
    )
    assert (queue.usage.policy.attempts_max, queue.usage.policy.messages_max) == (2, 1)
    assert queue.usage.policy.dedup_window_seconds == QueuePolicy().dedup_window_seconds
    assert queue.usage.policy.priority_step_messages == QueuePolicy().priority_step_messages
    (refused,) = bench.ask("alice", request(b"2", service="w"))
    assert isinstance(refused, Error)
    bench.tell("alice", request(b"1", service="new"))
    assert bench.core.services.by_name["new"].usage.policy.priority_step_messages == 7


@pytest.mark.parametrize(
    ("before", "now", "is_there"), [(0, 60, False), (100, 60, False), (60, 0, True), (60, 1_000, True)]
)
def test_a_queue_goes_when_it_was_idle_for_as_long_as_is_configured_now(before, now, is_there):
    bench = Bench(queues=QueuePolicy(idle_seconds=before))
    bench.open("alice", "bob")
    bench.tell("alice", send("bob", b"1", number=1))
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", ack(0, (1, 1)), Bye())
    bench.wait(90)
    bench.settle()
    configure(bench, queues=lambda kind, name: QueuePolicy(idle_seconds=now))
    for _ in range(70):
        bench.wait(1)
    assert ("bob" in bench.core.mailboxes.by_name) == is_there
    bench.wait(1_000)
    assert ("bob" in bench.core.mailboxes.by_name) == (not now)


def test_an_offer_that_comes_later_has_the_other_time():
    bench = Bench(queues=QueuePolicy(ack_timeout_seconds=10.0))
    bench.open("alice", "bob")
    assert [m.value for m in bench.ask("alice", offer()) if isinstance(m, Ok)] == [10_000]
    configure(bench, queues=lambda kind, name: QueuePolicy(ack_timeout_seconds=20.0))
    assert [m.value for m in bench.ask("bob", offer()) if isinstance(m, Ok)] == [20_000]


def test_lower_limits_take_nothing_away_and_let_nothing_in():
    bench = Bench()
    bench.open("alice")
    bench.tell("alice", publish(b"1", stream="one"), publish(b"2", stream="two"), send("bob", b"m"))
    bench.settle()
    configure(bench, limits=Limits(streams=1, queues=1))
    assert len(bench.core.streams.by_name) == 2
    bench.tell("alice", publish(b"3", stream="one", number=1), publish(b"4", stream="three", number=2))
    bench.settle()
    assert [m.code for m in bench.sent("alice") if isinstance(m, Error)] == [429]
    configure(bench, limits=Limits())
    bench.tell("alice", publish(b"4", stream="three", number=3))
    bench.settle()
    assert not [m for m in bench.sent("alice") if isinstance(m, Error)]


def test_streams_go_by_another_policy_but_for_their_journal():
    bench = Bench()
    bench.open("alice")
    bench.tell("alice", subscribe())
    bench.settle()
    configure(bench, streams=lambda name: StreamPolicy(journal=False, committed=True))
    stream = bench.core.streams.by_name["s"]
    assert (stream.committed, stream.journaled) == (True, True)
    bench.tell("alice", publish(b"1", stream="t"))
    assert (bench.core.streams.by_name["t"].committed, bench.core.streams.by_name["t"].journaled) == (
        True,
        True,
    )


def test_a_reload_is_asked_for_and_reported_and_remembered():
    bench = Bench(lifecycle=True)
    bench.open("op")
    bench.now += 5
    bench.core.reload(bench.now)
    bench.iterate()
    question = bench.reads.pop()
    loaded = ConfigurationLoaded(
        bench.settings._replace(limits=Limits(streams=3)), ("limits.streams",), ("listen.endpoints",)
    )
    bench.core.answered(question, loaded, bench.now)
    bench.settle()
    told = status(bench)
    assert told["waiting_for_restart"] == ["listen.endpoints"]
    assert (told["configured_at"], told["config_error"]) == (bench.now, "")
    assert bench.core.streams.limits.streams == 3
    assert "broker.configured" in bench.events
    assert [n.event for n in bench.notices] == [CONFIGURED]


def test_a_reload_that_is_asked_for_while_the_files_are_read_reads_them_again():
    """They may have changed since. Both are answered, and the one that was read last is in force."""
    bench = Bench()
    questions = []
    for _ in range(2):
        bench.core.reload(bench.now)
        bench.iterate()
        questions += bench.reads
        bench.reads.clear()
    for question, streams in zip(questions, (3, 4), strict=True):
        limits = Limits(streams=streams)
        loaded = ConfigurationLoaded(bench.settings._replace(limits=limits), ("limits.streams",), ())
        bench.core.answered(question, loaded, bench.now)
        assert bench.core.streams.limits.streams == streams


def test_a_configuration_that_is_refused_changes_nothing_and_is_reported():
    bench = Bench()
    bench.open("op")
    started = status(bench)["configured_at"]
    bench.now += 5
    bench.tell("op", Change(1, "broker.reload", {}))
    question = bench.reads.pop()
    bench.core.answered(question, ConfigError("limits.streams = 'x' is no number"), bench.now)
    bench.settle()
    (refused,) = bench.sent("op")
    assert (refused.code, refused.text) == (700, "limits.streams = 'x' is no number")
    told = status(bench)
    assert told["configured_at"] == started
    assert "limits.streams" in told["config_error"]
    bench.core.reload(bench.now)
    bench.iterate()
    bench.core.answered(bench.reads.pop(), ConfigurationLoaded(bench.settings), bench.now)
    assert status(bench)["config_error"] == ""


def test_a_dry_run_shows_and_changes_nothing():
    bench = Bench()
    bench.open("op")
    bench.tell("op", Change(1, "broker.reload", {"dry_run": True}))
    other = ConfigurationLoaded(
        bench.settings._replace(limits=Limits(streams=3)), ("limits.streams",), ("listen.x",)
    )
    bench.core.answered(bench.reads.pop(), other, bench.now)
    bench.settle()
    (done,) = bench.sent("op")
    assert done.value == {"changed": ["limits.streams"], "waiting_for_restart": ["listen.x"]}
    assert bench.core.streams.limits.streams == Limits().streams
    assert status(bench)["waiting_for_restart"] == []


def retain(bench, name, **arguments):
    """What an operator is answered who sets how much of a stream is kept."""
    bench.sent(name)
    bench.tell(name, Change(0, "stream.retain", {"stream": "s", **arguments}))
    bench.settle()
    (answer,) = bench.sent(name)
    return answer.value if isinstance(answer, Ok) else answer.code


def test_two_operators_who_set_different_limits_lose_nothing():
    bench = Bench(retention=StreamRetention(bytes_max=1000))
    bench.open("one", "two")
    bench.receive("one", Change(0, "stream.retain", {"stream": "s", "count": 5}))
    bench.receive("two", Change(0, "stream.retain", {"stream": "s", "age": 60}))
    bench.settle()
    assert retain(bench, "one", dry_run=True) == {"stream": "s", "bytes": 1000, "count": 5, "age": 60.0}


def test_of_two_operators_who_race_for_one_limit_the_second_is_refused():
    bench = Bench(retention=StreamRetention(messages_max=10))
    bench.open("one", "two")
    bench.receive("one", Change(0, "stream.retain", {"stream": "s", "count": 5, "expect_count": 10}))
    bench.receive("two", Change(0, "stream.retain", {"stream": "s", "count": 20, "expect_count": 10}))
    bench.settle()
    assert [m.value["count"] for m in bench.sent("one") if isinstance(m, Ok)] == [5]
    (refused,) = bench.sent("two")
    assert (refused.code, "count 5" in refused.text) == (412, True)
    assert retain(bench, "two", count=20, expect_count=5)["count"] == 20
    assert retain(bench, "two", count=7, expect_age=1, dry_run=True) == 412


def test_what_the_disk_refused_is_not_expected():
    bench = Bench()
    bench.open("one")
    bench.receive("one", Change(0, "stream.retain", {"stream": "s", "count": 5}))
    bench.iterate()
    bench.fail()
    bench.settle()
    bench.sent("one")
    assert retain(bench, "one", count=7, expect_count=0)["count"] == 7
