"""The cut-through of queues: what a consumer has before the store knows it, and that nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from core_bench import Bench, ack, check_accounts, items, mail_credit, offer, reply, request, send
from hypothesis import given
from hypothesis import strategies as st

from malamute.core.queue.entry import Entry
from malamute.core.queue.queue import Queue
from malamute.core.queue.unwritten import HOLD_SECONDS
from malamute.protocol.messages import Cancel, Credit, Deliver, Drain, Nak, Reject, Release, Withdraw
from malamute.store.operations import DeleteMessages, MarkDelivered, PutMessages, QueueState
from malamute.store.policies import QueuePolicy


def new_bench(queues: QueuePolicy | None = None) -> Bench:
    """A bench with alice, who asks, and bob, who works; both are ready for mail."""
    bench = Bench(queues=queues)
    bench.open("alice", "bob")
    bench.tell("alice", mail_credit())
    bench.tell("bob", mail_credit())
    bench.tell("bob", offer(credit=3))
    commit(bench)
    return bench


def commit(bench: Bench) -> list[Any]:
    """Store what was handed over, and no more. Returns what that was."""
    operations = [o for append in bench.appends for o in append.operations if type(o) in QUEUED]
    while bench.appends:
        bench.commit()
    return operations


QUEUED = {PutMessages, DeleteMessages, MarkDelivered}


def service(bench: Bench) -> Queue:
    return bench.core.services.by_name["w"]


def test_a_request_that_is_answered_within_the_hold_is_never_stored() -> None:
    bench = new_bench()
    bench.tell("alice", request(b"1"))
    (task,) = bench.got("bob")
    bench.tell("bob", reply(1, task.sequence))
    (answer,) = bench.got("alice")
    bench.tell("alice", ack(0, (answer.sequence, answer.sequence)))
    bench.wait(2 * HOLD_SECONDS)
    assert commit(bench) == []
    assert not bench.core.queue_limits.hold.holding
    check_accounts(bench.core)
    metrics = service(bench).usage.metrics
    assert metrics is not None
    assert metrics.row(bench.now)["processing_time_p50_ms"] is not None
    assert bench.core.queue_limits.settlements == {"acknowledged": 2}


def test_a_request_that_is_out_when_the_hold_ends_is_stored_with_its_mark() -> None:
    bench = new_bench()
    bench.tell("alice", request(b"1"))
    bench.wait(HOLD_SECONDS / 2)
    assert commit(bench) == []
    bench.wait(HOLD_SECONDS / 2)
    assert [type(o) for o in commit(bench)] == [PutMessages, MarkDelivered]
    bench.tell("bob", reply(1, 1))
    # Its reply is not held: it is stored with what removes the request.
    assert [type(o) for o in commit(bench)] == [PutMessages, MarkDelivered, DeleteMessages]


def test_a_crash_within_the_hold_uses_no_sequence_again() -> None:
    bench = new_bench()
    bench.tell("alice", request(b"1"))
    (task,) = bench.got("bob")
    bench.crash()
    bench.open("alice", "bob")
    bench.tell("alice", request(b"2"))
    bench.tell("bob", offer())
    bench.settle()
    assert [item.sequence > task.sequence for item in bench.got("bob")] == [True]


def test_a_clean_restart_stores_what_is_out_and_uses_no_sequence_again() -> None:
    bench = new_bench()
    bench.tell("alice", request(b"1", b"2"))
    bench.tell("alice", request(b"3"))
    bench.tell("bob", reply(1, 3))
    bench.restart()
    bench.open("alice", "bob")
    assert [*service(bench).entries] == [1, 2]
    bench.tell("alice", request(b"4"))
    assert max(service(bench).entries) > 3


@pytest.mark.parametrize("stored", [False, True])
def test_a_message_that_comes_behind_is_stored_behind(stored: bool) -> None:
    bench = new_bench()
    bench.tell("alice", request(b"1"))
    bench.tell("alice", request(b"2", number=1) if stored else request(b"2", priority=1))
    assert [o.first for o in commit(bench) if type(o) is PutMessages] == [1, 2]


def test_nothing_passes_where_the_watermark_has_each_message() -> None:
    bench = new_bench(QueuePolicy(attempts_max=1))
    bench.tell("alice", request(b"1"))
    assert not service(bench).unwritten.entries


# The same history with the cut-through and without

Act = Callable[[Bench, int], None]


def _last(bench: Bench, name: str, source: int) -> int:
    """The last sequence that a peer was sent from a source; 1 if there was none."""
    found = [m for peer, m in bench.log if peer == name and isinstance(m, Deliver) and m.source == source]
    return items(found[-1])[-1].sequence if found else 1


def _outstanding(bench: Bench, name: str, source: int, n: int) -> int:
    return max(_last(bench, name, source) - n % 3, 1)


def _lose(bench: Bench, n: int) -> None:
    bench.lost("bob")
    bench.open("bob")
    bench.tell("bob", mail_credit())
    bench.tell("bob", offer(credit=n))


_numbers: dict[int, tuple[int, int]] = {}


def _number(bench: Bench, place: int) -> int:
    """The next number of alice or bob."""
    before = _numbers.get(id(bench), (0, 0))
    _numbers[id(bench)] = (before[0] + (place == 0), before[1] + (place == 1))
    return before[place] + 1


ACTS: dict[str, Act] = {
    "request": lambda bench, n: bench.tell("alice", request(b"%d" % n, subject="ab"[n % 2])),
    "requests": lambda bench, n: bench.tell("alice", *[request(b"%d" % place) for place in range(n)]),
    "batch": lambda bench, n: bench.tell("alice", request(*[b"x"] * (1 + n % 3))),
    "stored": lambda bench, n: bench.tell("alice", request(b"s", number=_number(bench, 0))),
    "wish": lambda bench, n: bench.tell("alice", request(b"w", priority=n, ttl=30 + n)),
    "mail": lambda bench, n: bench.tell("alice", send("bob", b"%d" % n)),
    "reply": lambda bench, n: bench.tell("bob", reply(1, _outstanding(bench, "bob", 1, n))),
    "partial": lambda bench, n: bench.tell("bob", reply(1, _outstanding(bench, "bob", 1, n), final=False)),
    "confirmed": lambda bench, n: bench.tell(
        "bob", reply(1, _outstanding(bench, "bob", 1, n), number=_number(bench, 1))
    ),
    "credit": lambda bench, n: bench.tell("bob", Credit(1, 1 + n % 2, -1)),
    "ack": lambda bench, n: bench.tell("bob", ack(0, (_outstanding(bench, "bob", 0, n),) * 2)),
    "take": lambda bench, n: bench.tell("alice", ack(0, (_outstanding(bench, "alice", 0, n),) * 2)),
    "nak": lambda bench, n: bench.tell("bob", Nak(1, [[_last(bench, "bob", 1)] * 2], (0, 20)[n % 2])),
    "reject": lambda bench, n: bench.tell("bob", Reject(1, [[_last(bench, "bob", 1)] * 2], "no")),
    "release": lambda bench, n: bench.tell("bob", Release(1, [[_last(bench, "bob", 1)] * 2])),
    "drain": lambda bench, n: bench.tell("bob", Drain(1, [])),
    "cancel": lambda bench, n: bench.tell("bob", Cancel(1)),
    "offer": lambda bench, n: bench.tell("bob", offer(credit=n, pattern=("#", "a")[n % 2])),
    "withdraw": lambda bench, n: bench.tell("alice", Withdraw(n, "service", "w", 0)),
    "lose": _lose,
    "block": lambda bench, n: bench.block("bob"),
    "unblock": lambda bench, n: bench.unblock("bob"),
    "wait": lambda bench, n: bench.wait(n * HOLD_SECONDS / 3),
}


def history(acts: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, passes: object) -> Bench:
    """What becomes of some acts."""
    monkeypatch.setattr(Queue, "cut_through", passes)
    bench = new_bench(QueuePolicy(attempts_max=3, ack_timeout_seconds=0.3, backoff_seconds=(0.01,)))
    _numbers.pop(id(bench), None)
    for name, n in acts:
        ACTS[name](bench, n)
        commit(bench)
        check_accounts(bench.core)
        for queue in queues_of(bench):
            queue.states.assert_these(queue.entries.values())
    return bench


def queues_of(bench: Bench) -> list[Queue]:
    return [q for table in (bench.core.mailboxes, bench.core.services) for q in table.by_name.values()]


def facts(bench: Bench) -> list[object]:
    """What an operator sees of all queues."""
    limits = bench.core.queue_limits
    return [
        (limits.messages, limits.bytes, limits.settlements, limits.memory.used_bytes),
        bench.core.effects.counters.delivered,
        *[
            (
                q.kind,
                q.name,
                q.usage.counts,
                q.states.counts,
                q.next_sequence,
                [*q.entries],
                _row(q, bench.now),
            )
            for q in queues_of(bench)
        ],
    ]


def _row(queue: Queue, now: float) -> object:
    return queue.usage.metrics and queue.usage.metrics.row(now)


def stored(bench: Bench) -> dict[Any, QueueState]:
    """What a restart finds, of the queues that hold anything."""
    found = bench.store.recover(records_bytes=1 << 20, now=bench.now).queues
    return {name: state for name, state in found.items() if state.messages}


def attempts(state: QueueState, sequence: int) -> int:
    return state.attempts.get(sequence, int(sequence <= state.delivered))


@given(acts=st.lists(st.tuples(st.sampled_from([*ACTS]), st.integers(0, 5)), max_size=40))
def test_nobody_can_tell_whether_a_message_passed(acts: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        without = history(acts, monkeypatch, False)
        mixed = property(lambda queue: queue.next_sequence % 2 == 0)
        for passes in (True, mixed):
            bench = history(acts, monkeypatch, passes)
            assert bench.log == without.log
            assert bench.events == without.events
            assert facts(bench) == facts(without)
            bench.settle()
            without.settle()
            after, before = stored(bench), stored(without)
            entries: dict[Any, Entry] = {
                (q.kind, q.name, s): e for q in queues_of(bench) for s, e in q.entries.items()
            }
            assert {name: state.messages for name, state in after.items()} == {
                name: state.messages for name, state in before.items()
            }
            for name, state in after.items():
                for message in state.messages:
                    # A message that left before it was stored has left no mark on those before it.
                    seen = attempts(state, message.sequence), attempts(before[name], message.sequence)
                    assert seen[0] <= seen[1]
                    entry = entries.get((*name, message.sequence))  # a dead letter is none
                    assert entry is None or not entry.attempts or seen[0] == seen[1]
