"""The matrix of two stores: a name of a stream, mailbox or service leads to one of them, and stays there."""

from __future__ import annotations

import pytest
from core_bench import Bench, Message, mail_credit, offer, publish, reply, request, send

from malamute.protocol.messages import VERSION, Error, Hello, Stored
from malamute.store.policies import DURABLE, MEMORY, QueuePolicy, StreamPolicy
from malamute.store.tables import NUMBERS, SESSIONS

KINDS = ("stream", "mailbox", "service")
PUTS = {
    "stream": lambda body, number: publish(body, stream="n", number=number),
    "mailbox": lambda body, number: send("n", body, number=number),
    "service": lambda body, number: request(body, service="n", number=number, correlation=int(body)),
}


def rule(bench: Bench, in_memory: bool) -> None:
    """Apply these rules to the names from now on, in a running broker too."""
    bench.settings = bench.settings._replace(
        streams=lambda name: StreamPolicy(journal=not in_memory),
        queues=lambda kind, name: QueuePolicy(persistence=MEMORY if in_memory else DURABLE),
        unjournaled=in_memory,
    )
    bench.core.configure(bench.settings, bench.now)


def begun(in_memory: bool) -> Bench:
    bench = Bench()
    rule(bench, in_memory)
    bench.restart()
    bench.open("alice")
    return bench


def put(bench: Bench, kind: str, body: bytes, number: int = 0) -> list[Message]:
    bench.tell("alice", PUTS[kind](body, number))
    bench.settle()
    return bench.sent("alice")


def on_disk(bench: Bench, kind: str) -> int:
    """How many messages of the name are in the durable store."""
    found = bench.store.recover()
    if kind == "stream":
        status = bench.store.status().streams.get("n")
        return status.count if status is not None else 0
    queue = found.queues.get((kind, "n"))
    return len(queue.messages) if queue is not None else 0


@pytest.mark.parametrize("in_memory", [False, True], ids=["durable", "memory"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_name_is_in_the_store_that_its_rule_says_alone(kind: str, in_memory: bool) -> None:
    bench = begun(in_memory)
    put(bench, kind, b"1")
    assert on_disk(bench, kind) == (0 if in_memory else 1)


@pytest.mark.parametrize("in_memory", [False, True], ids=["durable", "memory"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_name_resolves_to_one_store_and_is_found_there_again(kind: str, in_memory: bool) -> None:
    bench = begun(in_memory)
    put(bench, kind, b"1")
    rule(bench, not in_memory)
    put(bench, kind, b"2")
    assert on_disk(bench, kind) == (0 if in_memory else 2), "a rule that changes moves nothing"


@pytest.mark.parametrize("in_memory", [False, True], ids=["durable", "memory"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_keeps_what_is_durable_and_ends_what_is_in_memory(kind: str, in_memory: bool) -> None:
    bench = begun(in_memory)
    put(bench, kind, b"1")
    bench.restart()
    bench.open("alice")
    assert on_disk(bench, kind) == (0 if in_memory else 1)
    put(bench, kind, b"2")
    assert on_disk(bench, kind) == (0 if in_memory else 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_of_the_durable_store_stays_there_over_a_restart_with_another_rule(kind: str) -> None:
    bench = begun(False)
    put(bench, kind, b"1")
    rule(bench, True)
    bench.restart()
    bench.open("alice")
    put(bench, kind, b"2")
    assert on_disk(bench, kind) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_was_in_memory_is_new_after_a_restart_with_another_rule(kind: str) -> None:
    bench = begun(True)
    put(bench, kind, b"1")
    rule(bench, False)
    bench.restart()
    bench.open("alice")
    put(bench, kind, b"2")
    assert on_disk(bench, kind) == 1


def numbers_on_disk(bench: Bench) -> list[object]:
    return [value for (_, part), value in bench.store.recover().table(SESSIONS).items() if part == NUMBERS]


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_in_memory_is_confirmed_at_once_and_leaves_nothing_of_its_session(kind: str) -> None:
    bench = begun(True)
    bench.settle()
    for number in (1, 2):
        bench.tell("alice", PUTS[kind](b"%d" % number, number))
        (stored,) = bench.sent("alice")
        assert isinstance(stored, Stored)
        assert stored.ranges[0][:2] == [number, number]
    bench.settle()
    assert numbers_on_disk(bench) == []


def test_a_reply_in_memory_is_confirmed_at_once() -> None:
    bench = begun(True)
    bench.open("worker")
    bench.tell("worker", offer(service="n"))
    bench.tell("alice", mail_credit(), request(b"1", service="n", number=1, correlation=1))
    bench.settle()
    (task,) = bench.got("worker")
    bench.sent("worker")
    bench.tell("worker", reply(1, task.sequence, number=1))
    assert Stored([[1, 1, 0]]) in bench.sent("worker")
    assert bench.bodies("alice") == [b"done"]


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_number_that_is_confirmed_before_an_earlier_one_is_answered_again(is_refused: bool) -> None:
    bench = begun(False)
    queues = {"n": MEMORY}
    bench.settings = bench.settings._replace(
        queues=lambda kind, name: QueuePolicy(persistence=queues.get(name, DURABLE))
    )
    bench.restart()
    bench.open("alice")
    bench.settle()
    durable, volatile = send("kept", b"1", number=1), send("n", b"2", number=2)
    bench.tell("alice", durable, volatile)
    assert bench.sent("alice") == [Stored([[2, 2, 0]])]
    bench.tell("alice", Hello([VERSION], "alice", unsettled=1))
    bench.sent("alice")
    bench.tell("alice", durable, volatile)
    assert bench.sent("alice") == [Stored([[2, 2, 0]])], "the first waits for the disk"
    if is_refused:
        bench.fail()
    else:
        bench.commit()
    bench.settle()
    (answer,) = bench.sent("alice")
    assert isinstance(answer, Error if is_refused else Stored)
    bench.tell("alice", volatile)
    assert bench.sent("alice") == [Stored([[2, 2, 0]])]
    assert [len(bench.core.mailboxes.by_name[name].entries) for name in ("kept", "n")] == [not is_refused, 1]
