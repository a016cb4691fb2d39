"""Temporary mailboxes: each goes with its last consumer, and what it holds too."""

from __future__ import annotations

import pytest
from core_bench import Bench, offer, send

from malamute.errors import InUse, InvalidValue
from malamute.protocol.messages import Bye, Cancel, Change, Error, Query
from malamute.store.policies import QueuePolicy

AWAY_SECONDS = 600.0
"""How long a lost session may be resumed."""


@pytest.fixture
def bench():
    bench = Bench(lifecycle=True, queues=QueuePolicy(backoff_seconds=()))
    bench.open("alice", "bob", "carol")
    return bench


def consume(source=1, *, temporary=True, name="once", credit=-1, **fields):
    criteria = [["all", ""]]
    return offer(
        source, credit, service=name, criteria=criteria, kind="mailbox", temporary=temporary, **fields
    )


def is_there(bench, name="once"):
    return name in bench.core.mailboxes.by_name


def code(bench, name, *messages):
    [answer] = bench.ask(name, *messages)
    return answer.code if isinstance(answer, Error) else 0


def test_it_goes_with_its_last_consumer_and_with_its_messages(bench):
    bench.tell("bob", consume(credit=1))
    bench.tell("carol", consume(temporary=False, credit=0))
    bench.tell("alice", *[send("once", b"%d" % number, number=number) for number in (1, 2)])
    bench.settle()
    bench.tell("bob", Cancel(1))
    assert is_there(bench)
    bench.tell("carol", Cancel(1))
    bench.settle()
    assert not is_there(bench)
    bench.restart()
    assert not is_there(bench)


def test_its_row_says_so_and_that_of_another_does_not(bench):
    bench.tell("bob", consume())
    bench.tell("carol", consume(2, name="other", temporary=False))
    (answer,) = bench.ask("alice", Query(1, "mailboxes", {}))
    rows = {row["name"]: row.get("temporary") for row in answer.value}
    assert rows == {"once": True, "other": None}


@pytest.mark.parametrize("end", [Cancel(1), Bye()], ids=["cancelled", "bye"])
def test_an_end_of_the_consumer_ends_it_at_once(bench, end):
    bench.tell("bob", consume())
    bench.tell("bob", end)
    assert not is_there(bench)


def test_one_source_of_two_leaves_it_there(bench):
    bench.tell("bob", consume(1), consume(2))
    bench.tell("bob", Cancel(1))
    assert is_there(bench)
    bench.tell("bob", Cancel(2))
    assert not is_there(bench)


@pytest.mark.parametrize("restarts", [False, True], ids=["lost", "restarted"])
def test_a_lost_consumer_finds_it_for_as_long_as_its_session_may_be_resumed(bench, restarts):
    bench.tell("bob", consume())
    bench.settle()
    if restarts:
        bench.restart()
        bench.open("alice")
    else:
        bench.lost("bob")
    bench.tell("alice", send("once", b"1", number=1))
    bench.settle()
    bench.wait(AWAY_SECONDS - 1)
    bench.open("bob")
    bench.tell("bob", consume())
    bench.settle()
    assert bench.bodies("bob") == [b"1"]
    bench.wait(AWAY_SECONDS)
    assert is_there(bench)
    bench.tell("bob", Cancel(1))
    assert not is_there(bench)


@pytest.mark.parametrize("restarts", [False, True], ids=["lost", "restarted"])
def test_one_that_does_not_come_back_takes_it_along(bench, restarts):
    bench.tell("bob", consume(credit=0))
    bench.tell("alice", send("once", b"1", number=1))
    bench.settle()
    if restarts:
        bench.restart()
    else:
        bench.lost("bob")
    bench.wait(AWAY_SECONDS - 1)
    assert is_there(bench)
    bench.wait(1.1)
    assert not is_there(bench)
    bench.settle()
    bench.restart()
    assert not is_there(bench)


def test_a_consumer_that_leaves_does_not_take_it_from_one_that_is_away(bench):
    bench.tell("bob", consume())
    bench.tell("carol", consume())
    bench.lost("bob")
    bench.tell("carol", Cancel(1))
    assert is_there(bench)
    bench.wait(AWAY_SECONDS + 1)
    assert not is_there(bench)


def test_a_mailbox_that_is_there_stays_what_it_is(bench):
    bench.tell("alice", send("once", b"1"))
    assert code(bench, "bob", consume()) == InUse.code
    bench.tell("carol", consume(temporary=False), Cancel(1))
    bench.settle()
    assert is_there(bench)


def test_a_service_cannot_be_temporary(bench):
    assert code(bench, "bob", offer(1, 1, temporary=True)) == InvalidValue.code
    assert not bench.core.services.by_name


def test_an_operator_deletes_it_with_its_consumers(bench):
    bench.tell("bob", consume())
    bench.tell("alice", send("once", b"1", number=1))
    bench.settle()
    bench.tell("carol", Change(1, "queue.delete", {"kind": "mailbox", "name": "once", "cascade": True}))
    bench.settle()
    assert not is_there(bench)
    assert code(bench, "bob", consume()) == 0
