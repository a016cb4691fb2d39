"""A sequence of a queue is one message's for ever, whatever the disk has of it."""

from __future__ import annotations

import pytest
from core_bench import Bench, ack, mail_credit, offer, reply, request, send

from malamute.core.queue.limits import KEY, RESERVE, RETRY_SECONDS
from malamute.protocol.messages import Error
from malamute.store.operations import DeleteValue, PutValue, Stranded
from malamute.store.policies import MEMORY, QueuePolicy
from malamute.store.tables import SEQUENCES


def stored(bench: Bench) -> int:
    """Up to where the disk has it that sequences may be in use."""
    return bench.store.recover().table(SEQUENCES).get(KEY, 0)


def new_bench(**policy) -> Bench:
    """A broker at its very first start, a worker `bob`, and who asks him."""
    bench = Bench(reserved=False, queues=QueuePolicy(**policy))
    bench.open("alice", "bob", "carl")
    bench.tell("bob", offer())
    return bench


def sequences(bench: Bench, name: str) -> list[int]:
    return [item.sequence for item in bench.got(name)]


def test_nothing_is_delivered_before_its_sequence_is_reserved_and_then_at_once():
    bench = new_bench()
    bench.tell("alice", request(b"1"))
    assert bench.got("bob") == []
    bench.settle()
    assert bench.bodies("bob") == [b"1"]
    bench.tell("alice", request(b"2"))
    assert bench.bodies("bob") == [b"2"]
    assert stored(bench) == 1 + RESERVE


@pytest.mark.parametrize("persistence", ["durable", MEMORY])
def test_a_late_reply_to_what_a_crash_took_answers_nobody_else(persistence):
    bench = new_bench(persistence=persistence)
    bench.tell("alice", request(b"0"))
    bench.settle()
    bench.tell("alice", request(b"2+2?"))
    lost = sequences(bench, "bob")[-1]
    bench.crash()
    bench.open("bob", "carl")
    bench.tell("bob", offer())
    bench.tell("carl", request(b"3*3?", number=1), mail_credit())
    bench.settle()
    assert lost not in sequences(bench, "bob")
    answers = bench.ask("bob", reply(1, lost, body=b"4"))
    bench.settle()
    assert [m.code for m in answers if isinstance(m, Error)] == [420]
    assert bench.bodies("carl") == []


def test_a_late_reply_to_what_a_restart_took_of_a_queue_in_memory_answers_nobody_else():
    bench = new_bench(persistence=MEMORY)
    bench.tell("alice", request(b"2+2?"))
    bench.settle()
    (lost,) = sequences(bench, "bob")
    bench.restart()
    bench.open("bob", "carl")
    bench.tell("bob", offer())
    bench.tell("carl", request(b"3*3?"))
    bench.settle()
    assert sequences(bench, "bob") == [lost + 1]


def test_a_late_acknowledgement_of_what_a_crash_took_of_a_new_mailbox_settles_nothing():
    bench = new_bench()
    bench.tell("alice", request(b"0"))
    bench.settle()
    bench.tell("bob", mail_credit())
    bench.tell("alice", send("bob", b"lost"))
    lost = sequences(bench, "bob")[-1]
    bench.crash()
    bench.open("bob", "alice")
    bench.tell("alice", send("bob", b"kept", number=1))
    bench.settle()
    bench.tell("bob", mail_credit(), ack(0, (lost, lost)))
    bench.settle()
    bench.crash()
    bench.open("bob")
    assert bench.ask("bob", mail_credit())
    assert [*bench.core.mailboxes.by_name["bob"].entries] == [RESERVE + 2]


def test_what_the_disk_refuses_while_the_broker_stops_keeps_its_sequence():
    bench = new_bench()
    bench.tell("alice", request(b"0"))
    bench.settle()
    bench.tell("alice", request(b"1"))
    assert bench.bodies("bob") == [b"0", b"1"]
    bench.wait(1)  # it is handed to the store
    bench.core.close()
    bench.fail()
    bench.settle()
    bench.crash()
    bench.open("alice")
    bench.tell("alice", request(b"2"))
    bench.settle()
    assert max(bench.core.services.by_name["w"].entries) == 3


def test_a_queue_that_the_store_knows_is_known_though_it_has_nothing_any_more():
    bench = Bench(lifecycle=True)
    bench.open("alice", "bob")
    bench.tell("alice", send("bob", b"1", number=1))
    bench.settle()
    bench.tell("bob", mail_credit())
    bench.tell("bob", ack(0, (1, 1)))
    bench.settle()
    bench.crash()
    assert bench.core.mailboxes.by_name["bob"].is_known


def test_a_restart_gives_back_what_was_reserved_and_not_used():
    bench = new_bench()
    bench.tell("alice", request(b"1"))
    bench.settle()
    bench.restart()
    bench.open("alice")
    bench.tell("alice", request(b"2"))
    bench.settle()
    assert [*bench.core.services.by_name["w"].entries] == [1, 2]


def test_more_is_reserved_before_it_is_used_up(monkeypatch):
    monkeypatch.setattr("malamute.core.queue.limits.RESERVE", 4)
    bench = new_bench()
    for number in range(20):
        bench.tell("alice", request(b"%d" % number))
        early = bench.bodies("bob")
        assert early == ([b"%d" % number] if number else [])
        bench.settle()
        bench.sent("bob")
        assert stored(bench) >= number + 1


@pytest.mark.parametrize("persistence", ["durable", MEMORY])
def test_what_comes_faster_than_the_disk_reserves_is_not_delivered_before_that(monkeypatch, persistence):
    monkeypatch.setattr("malamute.core.queue.limits.RESERVE", 4)
    bench = new_bench(persistence=persistence)
    bench.tell("alice", request(b"1"))
    bench.tell("alice", *[request(b"%d" % number) for number in range(2, 20)])
    while bench.appends:
        seen = sequences(bench, "bob")
        assert max(seen, default=0) <= stored(bench)
        bench.commit()
    bench.crash()
    bench.open("alice", "bob")
    bench.tell("bob", offer())
    bench.tell("alice", request(b"20"))
    bench.settle()
    assert max(sequences(bench, "bob")) > 19


def test_what_the_disk_refused_with_its_reservation_waits_for_another_one():
    bench = new_bench()
    bench.tell("alice", request(b"1"))
    for _ in range(3):
        bench.fail()
        bench.wait(RETRY_SECONDS)
    assert bench.bodies("bob") == []
    bench.settle()
    assert bench.bodies("bob") == [b"1"]


def test_a_duplicate_of_what_waits_for_its_reservation_is_not_confirmed():
    bench = new_bench()
    bench.tell("alice", send("bob", b"1", id="x"))
    bench.fail()
    answers = bench.ask("carl", send("bob", b"1", number=1, id="x"))
    assert [m.code for m in answers if isinstance(m, Error)] == [503]


def test_nothing_overtakes_what_waits_for_its_reservation():
    bench = new_bench()
    bench.tell("alice", request(b"1"))
    bench.fail()
    bench.tell("alice", request(b"2", number=1))
    bench.settle()
    assert bench.bodies("bob") == [b"1", b"2"]


def test_what_is_in_memory_is_delivered_though_the_disk_refused_the_reservation():
    bench = new_bench(persistence=MEMORY)
    bench.tell("alice", request(b"1"))
    bench.fail()
    assert bench.bodies("bob") == [b"1"]


def test_a_reservation_that_is_lost_counts_for_more_than_any_that_may_have_been_stored():
    bench = new_bench()
    bench.tell("alice", request(b"1"))
    bench.settle()
    recover = bench.store.recover
    bench.store.write([DeleteValue(SEQUENCES, KEY)])
    bench.store.recover = lambda **how: recover(**how)._replace(lost=frozenset([(SEQUENCES, KEY)]))
    bench.crash()
    assert bench.core.queue_limits.sequences.floor > 1 + RESERVE


def test_what_the_store_has_lost_of_it_is_stored_again():
    bench = new_bench()
    bench.tell("alice", request(b"1"))
    bench.settle()
    bench.store.write([DeleteValue(SEQUENCES, KEY)])
    bench.core.queue_limits.store_again(Stranded({}, [(SEQUENCES, KEY)]))
    bench.iterate()
    assert PutValue(SEQUENCES, KEY, 1 + RESERVE) in bench.appends[0].operations


def test_what_is_being_reserved_is_not_taken_back_by_what_is_stored_again():
    bench = new_bench()
    bench.tell("alice", request(b"1"))
    bench.core.queue_limits.store_again(Stranded({}, [(SEQUENCES, KEY)]))
    bench.iterate()
    bench.settle()
    assert bench.bodies("bob") == [b"1"]
    assert stored(bench) == 1 + RESERVE
