"""The work of a command is bounded, whoever sends it: counted in what is looked at, not timed."""

from __future__ import annotations

import pytest
from core_bench import Bench, ack, items, offer, publish, request, subscribe

from malamute.core.iteration import effects as effects_module
from malamute.core.queue.dispatch import SEARCH_MESSAGES
from malamute.core.queue.entry import Entries
from malamute.core.stream import audience, replay
from malamute.matching import CompiledSelector, Index
from malamute.protocol.batch import pack_record
from malamute.protocol.messages import (
    VERSION,
    Answer,
    Bye,
    Cancel,
    Change,
    Credit,
    Deliver,
    Drain,
    Error,
    Hello,
    Nak,
    Ok,
    Progress,
    Query,
    Reject,
    Release,
    Reply,
    Switch,
    Withdraw,
)
from malamute.store.policies import QueuePolicy

DEPTH = 20_000


class Counted(dict):
    """A dict that counts how often it was asked."""

    asked = 0

    def __contains__(self, key):
        Counted.asked += 1
        return super().__contains__(key)

    def __iter__(self):
        for key in super().__iter__():
            Counted.asked += 1
            yield key


def deep(messages: int = DEPTH, subject: str = "other") -> Bench:
    """A service with so many requests, and nobody who works for it."""
    bench = Bench()
    bench.open("alice")
    for first in range(0, messages, 5_000):
        bench.tell("alice", request(*[b"x"] * min(5_000, messages - first), subject=subject))
    bench.settle()
    return bench


@pytest.mark.parametrize(
    "make", [ack, lambda s, *r: Nak(s, list(r), 0), lambda s, *r: Reject(s, list(r), "no")]
)
def test_a_thousand_ranges_cost_what_is_held_and_not_what_they_span(make):
    bench = deep(2_000)
    bench.open("worker")
    bench.ask("worker", offer(1, credit=2_000))
    bench.settle()
    (consumer,) = bench.core.services.by_name["w"].consumers.values()
    assert len(consumer.outstanding) == 2_000
    consumer.outstanding = Counted(consumer.outstanding)
    Counted.asked = 0
    ranges = [(1, 2_000 - n) for n in range(999)] + [(1, 2**62)]
    answers = bench.ask("worker", make(1, *ranges))
    assert not [a for a in answers if isinstance(a, Error)]
    assert len(consumer.outstanding) == 0
    assert Counted.asked <= 3 * 2_000


def test_ranges_that_name_nothing_are_refused_each_for_itself():
    bench = deep(10)
    bench.open("worker")
    bench.ask("worker", offer(1, credit=10))
    bench.settle()
    refused = bench.ask("worker", ack(1, (1, 2**62), (11, 2**40)))
    assert [a.code for a in refused if isinstance(a, Error)] == [420]
    assert len(next(iter(bench.core.services.by_name["w"].consumers.values())).outstanding) == 10
    bench.ask("worker", ack(1, (5, 2**62), (1, 7)))
    assert not next(iter(bench.core.services.by_name["w"].consumers.values())).outstanding


def looked_at(monkeypatch) -> list[int]:
    """How many messages each look at a queue brings."""
    sizes: list[int] = []
    run_from = Entries.run_from

    def counted(queue, sequence, count):
        run = run_from(queue, sequence, count)
        sizes.append(len(run))
        return run

    monkeypatch.setattr(Entries, "run_from", counted)
    return sizes


def test_an_offer_without_credit_looks_at_nothing(monkeypatch):
    bench = deep()
    sizes = looked_at(monkeypatch)
    bench.open("worker")
    for source in range(1, 101):
        bench.ask("worker", offer(source, credit=0, pattern=f"some.{source}"))
    assert sizes == []


def test_offers_that_match_nothing_look_at_a_deep_queue_in_bounded_steps(monkeypatch):
    bench = deep()
    sizes = looked_at(monkeypatch)
    bench.open("worker")
    bench.tell("worker", *[offer(source, pattern=f"some.{source}") for source in range(1, 4)])
    iterations = 0
    while bench.core.effects.chores or not iterations:
        sizes.clear()
        bench.iterate()
        assert sum(sizes) <= effects_module.WORK_MAX + SEARCH_MESSAGES
        iterations += 1
    assert iterations >= 3 * DEPTH // (effects_module.WORK_MAX + SEARCH_MESSAGES)
    # They wait now: what comes is theirs at once.
    bench.tell("alice", request(b"mine", subject="some.2"))
    bench.settle()
    assert [m.source for m in bench.sent("worker") if isinstance(m, Deliver)] == [2]


def test_a_selective_worker_gets_what_waits_deep_in_the_queue_in_order():
    bench = deep(DEPTH)
    bench.tell("alice", request(b"1", b"2", subject="some.one"), request(b"3", subject="other"))
    bench.settle()
    bench.open("worker")
    bench.tell("worker", offer(1, pattern="some.*"))
    bench.iterate()
    bench.tell("alice", request(b"4", subject="some.one"))
    bench.settle()
    assert bench.bodies("worker") == [b"1", b"2", b"4"]


def test_an_offer_that_is_cancelled_while_it_looks_looks_no_more():
    bench = deep()
    bench.open("worker")
    bench.tell("worker", offer(1, pattern="some.*"))
    bench.iterate()
    assert bench.core.effects.chores
    bench.lost("worker")
    assert not bench.core.effects.chores


def test_costly_selectors_take_a_bounded_part_of_each_iteration_and_nobody_waits_for_them(monkeypatch):
    evaluated = [0]
    match_many, places = Index.match_many, CompiledSelector.places

    def matching(index, subjects, *columns):
        evaluated[0] += len(subjects) * index.work
        return match_many(index, subjects, *columns)

    def placing(single, subjects, *rest):
        evaluated[0] += len(subjects) * single.work
        return places(single, subjects, *rest)

    monkeypatch.setattr(Index, "match_many", matching)
    monkeypatch.setattr(CompiledSelector, "places", placing)
    costly, messages = 20, 3_000
    bench = Bench()
    bench.open("plain", "costly", "alice")
    bench.tell("alice", publish(b"so that sequences are reserved"))
    bench.settle()
    bench.ask("plain", subscribe(1))
    for source in range(1, costly + 1):
        # Nothing is remembered of areas: each message is evaluated for each of them.
        bench.ask("costly", subscribe(source, where=f"not within(lat, lon, 1, 1, {source})"))
    bench.tell("alice", publish(*[b"%d" % n for n in range(messages)]))
    bodies = [b"%d" % n for n in range(messages)]
    assert bench.bodies("plain") == bodies
    most, iterations = 0, 0
    while bench.core.streams.active or bench.appends or bench.reads:
        evaluated[0] = 0
        if bench.appends:
            bench.commit()
        elif bench.reads:
            bench.read()
        else:
            bench.iterate()
        most, iterations = max(most, evaluated[0]), iterations + 1
    assert most <= effects_module.WORK_MAX + audience.STEP + 2 * replay.STEP
    assert iterations >= costly * messages // (effects_module.WORK_MAX + audience.STEP + 2 * replay.STEP)
    sent = bench.sent("costly")
    got = {source: [] for source in range(1, costly + 1)}
    for message in sent:
        if isinstance(message, Deliver):
            got[message.source] += [item.body for item in items(message)]
    assert all(own == bodies for own in got.values())
    assert {message.state for message in sent if isinstance(message, Switch)} == {"replay", "live"}


def test_many_costly_selectors_stay_live_while_messages_are_like_those_before():
    bench = Bench()
    bench.open("costly", "alice")
    bench.tell("alice", publish(b"so that sequences are reserved"))
    bench.settle()
    bench.tell("costly", *[subscribe(source, where=f"not x = {source}") for source in range(1, 21)])
    bench.settle()
    bench.sent("costly")
    bench.tell("alice", publish(*[b"x"] * 1_000))
    bench.settle()
    sent = bench.sent("costly")
    assert sum(len(items(m)) for m in sent if isinstance(m, Deliver)) == 20 * 1_000
    assert not [m for m in sent if isinstance(m, Switch)]


def test_a_few_costly_selectors_stay_live():
    bench = Bench()
    bench.open("costly", "alice")
    bench.ask("costly", subscribe(1, where="not x = 1"), subscribe(2, where="x matches '^a'"))
    bench.settle()
    bench.tell("alice", publish(*[b"x"] * 100))
    assert not [m for m in bench.sent("costly") if isinstance(m, Switch)]


STEP = 1_000
"""What one iteration may end or give back of what a command names."""


def in_iterations(bench: Bench, ended) -> list[int]:
    """How many messages each iteration ended or gave back, until there is nothing left to do."""
    steps = [ended()]
    while bench.core.effects.chores or bench.appends or bench.reads:
        before = ended()
        if bench.appends or bench.reads:
            bench.commit() if bench.appends else bench.read()
        else:
            bench.iterate()
        steps.append(ended() - before)
    return steps


def test_a_purge_of_a_deep_queue_continues_in_bounded_steps():
    bench = deep(5_500)
    queue = bench.core.services.by_name["w"]
    bench.tell("alice", Change(0, "queue.purge", {"kind": "service", "name": "w"}))
    steps = in_iterations(bench, lambda: 5_500 - len(queue.entries))
    assert max(steps) <= STEP
    assert sum(steps) == 5_500
    (answer,) = bench.sent("alice")
    assert answer.value == {"kind": "service", "name": "w", "messages": 5_500}


def test_a_purge_that_the_disk_refuses_half_way_says_so_and_loses_nothing():
    bench = deep(3_000)
    queue = bench.core.services.by_name["w"]
    bench.tell("alice", Change(0, "queue.purge", {"kind": "service", "name": "w"}))
    bench.commit()
    bench.fail()
    bench.settle()
    (answer,) = bench.sent("alice")
    assert answer.value == {"kind": "service", "name": "w", "messages": 1_000, "partial": True}
    assert (len(queue.entries), queue.states.counts["ready"]) == (2_000, 2_000)


def correlated(messages: int) -> Bench:
    """A service with requests of alice, all under one correlation."""
    bench = Bench()
    bench.open("alice")
    bench.tell("alice", request(*[b"x"] * messages)._replace(properties=[{"correlation": 7}] * messages))
    bench.settle()
    bench.sent("alice")
    return bench


def test_what_is_withdrawn_at_once_ends_in_bounded_steps():
    bench = correlated(5_500)
    queue = bench.core.services.by_name["w"]
    bench.tell("alice", Withdraw(1, "service", "w", 7))
    steps = in_iterations(bench, lambda: 5_500 - len(queue.entries))
    assert (max(steps), sum(steps)) == (STEP, 5_500)
    assert bench.sent("alice") == [Ok(20, 1, 5_500)]
    assert [a.code for a in bench.ask("alice", Withdraw(2, "service", "w", 7))] == [404]


@pytest.mark.parametrize(("stored", "left"), [(0, 3_000), (1, 2_000), (2, 1_000)])
def test_a_withdrawal_that_the_disk_refuses_shows_how_much_was_withdrawn(stored, left):
    bench = correlated(3_000)
    queue = bench.core.services.by_name["w"]
    bench.tell("alice", Withdraw(1, "service", "w", 7))
    for _ in range(stored):
        bench.commit()
    bench.fail()
    bench.settle()
    (answer,) = bench.sent("alice")
    assert (answer.code if not stored else answer.value) == (507 if not stored else 3_000 - left)
    assert (len(queue.entries), queue.states.counts["ready"]) == (left, left)


def test_very_much_is_rejected_in_bounded_steps_and_becomes_dead_letters():
    bench = deep(5_500)
    bench.open("worker")
    bench.ask("worker", offer(1))
    bench.settle()
    dead = bench.core.services.by_name["w"].dead_letters
    bench.tell("worker", Reject(1, [(1, 5_500)], "no"))
    steps = in_iterations(bench, lambda: len(dead.entries))
    # What is left of an iteration's work may be enough for one more step.
    assert max(steps) <= 2 * STEP
    assert sum(steps) == 5_500


@pytest.mark.parametrize("reported", [[(1, 30)], [(11, 20)], [(21, 30), (1, 10)]])
def test_what_is_reported_on_is_late_after_the_rest(reported):
    bench = Bench(queues=QueuePolicy(ack_timeout_seconds=10.0))
    bench.open("alice", "worker")
    bench.ask("worker", offer(1, credit=30))
    bench.tell("alice", request(*[b"x"] * 30))
    bench.settle()
    bench.wait(6.0)
    assert not [
        m for m in bench.ask("worker", Progress(1, [list(r) for r in reported])) if isinstance(m, Error)
    ]
    (consumer,) = bench.core.services.by_name["w"].consumers.values()
    renewed = [s for first, last in reported for s in range(first, last + 1)]
    assert [*consumer.outstanding] == [*(s for s in range(1, 31) if s not in renewed), *renewed]
    bench.wait(5.0)
    assert sorted(consumer.outstanding) == sorted(renewed)


@pytest.mark.parametrize("end", ["lost", "cancel", "nak", "release", "drain"])
def test_what_a_worker_held_is_given_back_in_bounded_steps_and_in_order(end):
    bench = deep(5_500)
    bench.open("worker")
    bench.ask("worker", offer(1))
    bench.settle()
    bench.sent("worker")
    queue = bench.core.services.by_name["w"]
    assert queue.states.counts["ready"] == 0
    if end == "lost":
        bench.lost("worker")
    elif end == "cancel":
        bench.tell("worker", Cancel(1))
    elif end == "nak":
        bench.tell("worker", Nak(1, [(1, 5_500)], 0))
    else:
        bench.tell("worker", Release(1, [(1, 5_500)]) if end == "release" else Drain(1, []))
    steps = in_iterations(bench, lambda: len([e for e in queue.entries.values() if e.state != "pending"]))
    assert max(steps[1:]) <= STEP
    assert sum(steps) == 5_500
    bench.open("other")
    bench.tell("other", offer(1))
    bench.settle()
    got = [*bench.got("worker"), *bench.got("other")]
    assert [item.sequence for item in got] == list(range(1, 5_501))
    assert {item.attempt for item in got} == ({1} if end in ("release", "drain") else {2})


def test_a_drain_of_very_much_is_confirmed_when_all_of_it_is_stored():
    bench = deep(2_500)
    bench.open("worker")
    bench.ask("worker", offer(1))
    bench.settle()
    bench.sent("worker")
    bench.tell("worker", Drain(1, []))
    while bench.core.effects.chores or bench.appends:
        assert not bench.sent("worker")
        bench.iterate() if bench.core.effects.chores else bench.commit()
    assert bench.sent("worker") == [Ok(21, 1)]


def test_a_drain_of_which_the_disk_refuses_a_part_is_not_confirmed():
    bench = deep(2_500)
    bench.open("worker")
    bench.ask("worker", offer(1))
    bench.settle()
    bench.sent("worker")
    bench.tell("worker", Drain(1, []))
    bench.fail()
    bench.settle()
    (answer,) = bench.sent("worker")
    assert (type(answer), answer.code) == (Error, 507)


def handed_out(bench: Bench) -> list[int]:
    """How many messages each iteration gives to the worker, until there is nothing left to do."""
    (consumer,) = bench.core.services.by_name["w"].consumers.values()
    return in_iterations(bench, lambda: len(consumer.outstanding))


def test_one_who_has_credit_again_for_very_much_gets_it_in_shares():
    bench = Bench()
    bench.open("alice", "worker")
    bench.ask("worker", offer(1, credit=0))
    bench.tell("worker", Credit(1, 1, -1))
    bench.tell("alice", request(*[b"x"] * 5_500))
    bench.settle()
    bench.tell("worker", Credit(1, -1, -1))
    steps = handed_out(bench)
    assert (max(steps[1:]), sum(steps)) == (STEP, 5_500)
    assert [item.sequence for item in bench.got("worker")] == list(range(1, 5_501))


@pytest.mark.parametrize("number", [0, 1])
def test_a_batch_is_dealt_out_in_shares_and_nothing_overtakes_it(number):
    bench = Bench()
    bench.open("alice", "worker")
    bench.ask("worker", offer(1))
    bench.tell("alice", request(*[b"x"] * 5_500, number=number))
    bench.commit()
    bench.tell("alice", request(b"y", number=2 * number))
    steps = handed_out(bench)
    assert max(steps[1:]) <= STEP + 1
    assert [item.sequence for item in bench.got("worker")] == list(range(1, 5_502))


def test_the_private_mailbox_of_one_who_leaves_is_cleared_in_bounded_steps():
    bench = Bench()
    bench.open("worker")
    bench.tell("asker", Hello([VERSION], ""))
    bench.ask("worker", offer(1))
    bench.tell("asker", request(*[b"x"] * 5_500))
    bench.settle()
    sequences = [item.sequence for item in bench.got("worker")]
    bench.tell("worker", Reply(1, 1, sequences, [True] * 5_500, [pack_record(None, b"")] * 5_500))
    bench.settle()
    limits = bench.core.queue_limits
    assert (limits.messages, len(bench.core.mailboxes.by_name)) == (5_500, 1)
    bench.tell("asker", Bye())
    assert not bench.core.mailboxes.by_name
    steps = in_iterations(bench, lambda: 5_500 - limits.messages)
    # The iteration in which it begins ends with a step, too.
    assert max(steps) <= 2 * STEP
    assert (max(steps[1:]), sum(steps)) == (STEP, 5_500)
    assert (limits.bytes, limits.memory.paged_out_bytes) == (0, 0)


def test_a_redrive_of_very_much_continues_in_bounded_steps():
    bench = deep(5_500)
    bench.open("worker")
    bench.ask("worker", offer(1))
    bench.settle()
    bench.ask("worker", Reject(1, [(1, 5_500)], "no"))
    bench.settle()
    dead = bench.core.services.by_name["w"].dead_letters
    assert len(dead.entries) == 5_500
    bench.tell("alice", Change(0, "queue.redrive", {"kind": "service", "name": "w"}))
    steps = in_iterations(bench, lambda: 5_500 - len(dead.entries))
    assert (max(steps), sum(steps)) == (STEP, 5_500)


def test_an_ack_of_very_much_ends_it_in_bounded_steps():
    bench = deep(5_500)
    bench.open("worker")
    bench.ask("worker", offer(1))
    bench.settle()
    queue = bench.core.services.by_name["w"]
    before = len(queue.entries)
    bench.tell("worker", ack(1, (1, 5_500)))
    # None of it goes back to the queue, even if its worker goes before the last step.
    bench.lost("worker")
    steps = in_iterations(bench, lambda: before - len(queue.entries))
    assert max(steps[1:]) <= STEP < 5 * STEP < sum(steps)
    assert (len(queue.entries), queue.states.counts["ready"]) == (0, 0)


def test_a_look_at_a_deep_queue_that_finds_nothing_continues_in_bounded_steps(monkeypatch):
    bench = deep()
    sizes = looked_at(monkeypatch)
    where = {"kind": "service", "name": "w", "state": "delayed"}
    bench.tell("alice", Query(1, "messages", where))
    iterations = 0
    while bench.core.effects.chores:
        sizes.clear()
        bench.iterate()
        assert sum(sizes) <= effects_module.WORK_MAX + 2 * STEP
        iterations += 1
    assert iterations >= DEPTH // (effects_module.WORK_MAX + 2 * STEP) - 1
    assert [m.value for m in bench.sent("alice") if isinstance(m, Answer)] == [[]]
