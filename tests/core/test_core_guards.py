"""A fault of the broker's own ends the command, the operation or the connection that met it, and no more."""

from __future__ import annotations

from typing import Any

import pytest
import wire_strategies as wire
from core_bench import Bench, items, mail_credit, offer, peer_id, publish, request, send, subscribe
from hypothesis import Phase, given, settings

from malamute.core.commands import STATES, UNATTACHED
from malamute.core.iteration.faults import PLACES_MAX, TELL_SECONDS, Faults
from malamute.core.queue.delivery import Deliveries
from malamute.core.queue.paging import RETRY_SECONDS
from malamute.core.sources import Sources
from malamute.core.stream import stream as stream_module
from malamute.core.stream.subscription import Subscription
from malamute.errors import StoreError
from malamute.matching import Index
from malamute.protocol.limits import Limits
from malamute.protocol.messages import (
    BY_TYPE,
    Answer,
    Change,
    Deliver,
    Error,
    Hello,
    Ok,
    Ping,
    Pong,
    Query,
    Recall,
    Stored,
    Subscribe,
    Welcome,
)
from malamute.store.policies import QueuePolicy

SUBSCRIBE = BY_TYPE[Subscribe].opcode


class Oops(Exception):
    """What nobody expected."""


def oops(*arguments: Any, **more: Any) -> Any:
    raise Oops


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.faulty = True
    bench.open("alice", "bob", "carl")
    return bench


def errors(bench: Bench, name: str) -> list[tuple[int, int, int]]:
    return [(m.code, m.about, m.ref) for m in bench.sent(name) if isinstance(m, Error)]


def faults(bench: Bench) -> int:
    return bench.core.effects.faults.count


def once(monkeypatch, target: Any, name: str, when=lambda *arguments: True) -> None:
    """Let a function raise the next time that it is called with such arguments."""
    real = getattr(target, name)

    def raising(*arguments, **more):
        if when(*arguments):
            monkeypatch.setattr(target, name, real)
            raise Oops
        return real(*arguments, **more)

    monkeypatch.setattr(target, name, raising)


# Commands


@pytest.mark.parametrize("command", STATES["open"], ids=lambda command: command.__name__)
@settings(max_examples=3, phases=[Phase.generate])
@given(message=wire.st.data())
def test_a_command_whose_handler_raises_is_refused_and_its_connection_begins_anew(command, message):
    spec = BY_TYPE[command]
    bench = Bench()
    bench.faulty = True
    bench.open("alice", "bob")
    drawn = message.draw(wire.messages(spec))
    given_values = {"number": 1, "act_as": ""}
    drawn = drawn._replace(**{name: given_values[name] for name in given_values if name in drawn._fields})
    real, STATES["open"][command] = STATES["open"][command], oops
    try:
        answers = bench.ask("alice", drawn)
    finally:
        STATES["open"][command] = real
    ref = drawn[spec.ref] if spec.ref >= 0 else 0
    told = [(m.code, m.about, m.ref) for m in answers if isinstance(m, Error)]
    anew = [] if command in UNATTACHED else [(405, 0, 0)]
    assert told == [(500, spec.opcode, ref), *anew]
    assert faults(bench) == 1
    [notice] = bench.notices
    assert "Oops" in notice.details["cause"]
    assert "in oops" in notice.details["traceback"]
    assert bench.ask("bob", Ping()) == [Pong()]
    [welcome, *_] = bench.ask("alice", Hello([2], "alice", unsettled=2))
    assert isinstance(welcome, Welcome)
    assert welcome.resumed


@pytest.mark.parametrize("key", wire.ARGUMENTS, ids=lambda key: f"{key[0].__name__}-{key[1]}")
@settings(max_examples=1, phases=[Phase.generate])
@given(data=wire.st.data())
def test_a_topic_whose_handler_raises_is_refused_and_nothing_else(key, data):
    command, topic = key
    bench = Bench()
    queries, changes = bench.core.commands.queries, bench.core.commands.changes
    tables: list[dict[str, Any]] = (
        [queries.at_once, queries.asking, queries.telling] if command is Query else [changes.makers]
    )
    (table,) = (table for table in tables if topic in table)
    bench.faulty = True
    bench.open("alice")
    real, table[topic] = table[topic], oops
    try:
        arguments = data.draw(wire.arguments(wire.ARGUMENTS[key]))
        bench.receive("alice", command(0 if command is Change else 7, topic, arguments))
        bench.settle()
    finally:
        table[topic] = real
    assert [error[:2] for error in errors(bench, "alice")] == [(500, BY_TYPE[command].opcode)]
    assert bench.ask("alice", Ping()) == [Pong()]


# What an iteration ends with


def test_what_cannot_be_made_a_chunk_is_refused_and_not_confirmed(bench, monkeypatch):
    bench.tell("bob", subscribe(credit=-1))
    bench.receive("alice", publish(b"0", number=1))
    bench.settle()
    bench.sent("alice")
    once(monkeypatch, stream_module, "pack_stream_payload")
    bench.receive("alice", publish(b"1", number=2))
    bench.receive("carl", send("bob", b"m", number=1))
    bench.settle()
    assert errors(bench, "alice") == [(500, BY_TYPE[type(publish())].opcode, 2)]
    assert [code for code, _, _ in errors(bench, "carl")] == [500]
    bench.tell("alice", publish(b"2", number=3))
    bench.settle()
    assert any(isinstance(m, Stored) for m in bench.sent("alice"))
    assert bench.bodies("bob") == [b"0", b"2"]
    assert faults(bench) == 1


def test_a_live_delivery_that_raises_ends_that_subscription_and_no_other(bench, monkeypatch):
    for name in ("alice", "bob", "carl"):
        bench.tell(name, subscribe())
    bob = bench.core.sessions.by_peer[peer_id("bob")]
    once(monkeypatch, Subscription, "offer", lambda reader, part: reader.session is bob)
    bench.tell("alice", publish(b"1", number=1))
    bench.tell("alice", publish(b"2", number=2))
    bench.settle()
    assert errors(bench, "bob") == [(500, SUBSCRIBE, 1)]
    assert bench.bodies("carl") == [b"1", b"2"]
    assert bob.sources == {}
    assert [len(g.members) for g in bench.core.streams.by_name["s"].audience.groups()] == [2]
    assert bench.bodies("alice") == [b"1", b"2"]
    bench.tell("bob", subscribe(start="first"))
    bench.settle()
    assert bench.bodies("bob") == [b"1", b"2"]


def test_when_matching_raises_each_reader_finds_out_for_itself(bench, monkeypatch):
    bench.tell("bob", subscribe(1, criteria=[["topic", "a"]]), subscribe(2, criteria=[["topic", "b"]]))
    once(monkeypatch, Index, "match_many")
    bench.tell("alice", publish(b"1", number=1, subject="a"), publish(b"2", number=2, subject="b"))
    bench.settle()
    got = {m.source: items(m)[0].body for m in bench.sent("bob") if isinstance(m, Deliver)}
    assert got == {1: b"1", 2: b"2"}
    assert faults(bench) == 1


@pytest.mark.parametrize("method", ["_advance", "_serve"])
def test_a_replay_that_raises_ends_that_subscription_and_no_other(bench, monkeypatch, method):
    bench.tell("alice", publish(b"1"), publish(b"2"))
    bench.settle()
    replay = bench.core.streams.by_name["s"].replay
    bob = bench.core.sessions.by_peer[peer_id("bob")]
    once(monkeypatch, type(replay), method, lambda self, reader, *more: reader.session is bob)
    bench.receive("bob", subscribe(start="first"))
    bench.receive("carl", subscribe(start="first"))
    bench.settle()
    assert errors(bench, "bob") == [(500, SUBSCRIBE, 1)]
    assert bench.bodies("carl") == [b"1", b"2"]
    assert bob.sources == {}


def test_a_delivery_that_raises_gives_the_work_to_another(bench, monkeypatch):
    bench.tell("bob", offer(1, 1))
    once(monkeypatch, Deliveries, "_columns")
    bench.tell("alice", request(b"1", number=1))
    bench.settle()
    assert errors(bench, "bob") == [(405, 0, 0)]
    assert bench.core.sessions.by_peer[peer_id("bob")].open is False
    bench.tell("carl", offer(1, 1))
    bench.settle()
    assert bench.bodies("carl") == [b"1"]


def test_what_waits_for_the_store_is_reported_though_another_raises(bench):
    effects = bench.core.effects
    called: list[Any] = []
    effects.stage.when_stored(called.append)
    effects.stage.when_stored(oops)
    effects.stage.when_stored(called.append)
    bench.settle()
    assert called == [None, None]
    assert faults(bench) == 1


def test_a_timer_that_raises_keeps_no_other_from_running(bench):
    ran: list[int] = []
    bench.core.timers.at(bench.now + 1, oops)
    bench.core.timers.at(bench.now + 1, lambda: ran.append(1))
    bench.wait(1)
    assert ran == [1]
    assert faults(bench) == 1


def test_a_session_that_cannot_be_ended_holds_up_no_other(bench, monkeypatch):
    bench.lost("alice")
    bench.lost("bob")
    sessions = bench.core.sessions
    once(monkeypatch, type(sessions), "end")
    bench.wait(10_000)
    bench.tell("carl", Ping())
    assert set(sessions.by_peer) == {peer_id("carl")}
    assert faults(bench) == 1
    bench.open("alice")
    assert bench.ask("alice", Ping()) == [Pong()]


def test_a_connection_whose_source_cannot_be_ended_is_lost_nevertheless(bench, monkeypatch):
    bench.tell("bob", subscribe(1), offer(2, 1), mail_credit())
    bench.tell("alice", request(b"1"))
    bench.settle()
    once(monkeypatch, Sources, "end")
    bench.lost("bob")
    assert bench.core.sessions.by_peer[peer_id("bob")].sources == {}
    bench.tell("carl", offer(1, 1))
    bench.settle()
    assert bench.bodies("carl") == [b"1"]


def test_a_stop_is_not_kept_from_ending_in_good_order(bench, monkeypatch):
    bench.tell("alice", publish(b"1"), publish(b"1", stream="t"))
    bench.settle()
    once(monkeypatch, stream_module.Stream, "close")
    bench.restart()
    assert {stream.progress.next - 1 for stream in bench.core.streams.by_name.values()} == {
        1,
        1 + stream_module.RESERVE,
    }


# The store


@pytest.fixture
def no_answers(bench, monkeypatch):
    """The store can answer nothing."""

    def read() -> None:
        question = bench.reads.popleft()
        bench.core.answered(question, StoreError("input/output error"), bench.now)
        bench.iterate()

    monkeypatch.setattr(bench, "read", read)
    return bench


@pytest.mark.parametrize("start", ["first", "time:1", "last-per-subject"])
def test_a_subscription_that_the_store_cannot_serve_is_ended(bench, no_answers, start):
    bench.tell("alice", publish(b"1"))
    bench.settle()
    bench.tell("bob", subscribe(start=start))
    bench.settle()
    assert errors(bench, "bob") == [(800, SUBSCRIBE, 1)]
    assert bench.core.sessions.by_peer[peer_id("bob")].sources == {}
    assert faults(bench) == 0


@pytest.mark.parametrize(
    "message",
    [
        Query(1, "storage", {}),
        Change(0, "cursor.set", {"stream": "s", "cursor": "c", "start": "time:1"}),
        Change(0, "feed.set", {"source": "stream/s", "feed": "v", "target": "service/v", "start": "time:1"}),
        Change(0, "journal.backup", {"directory": "/backups/one"}),
    ],
)
def test_a_question_that_the_store_cannot_answer_is_refused(bench, no_answers, message):
    bench.tell("alice", publish(b"1"))
    bench.settle()
    bench.tell("bob", message)
    bench.settle()
    assert [error[:2] for error in errors(bench, "bob")] == [(800, BY_TYPE[type(message)].opcode)]


def cold_bench() -> Bench:
    """Two requests, and one dead letter, whose records are on the disk only."""
    bench = Bench(Limits(queues_memory_bytes=1), queues=QueuePolicy(attempts_max=1, ack_timeout_seconds=0))
    bench.faulty = True
    bench.open("alice", "bob", "carl")
    bench.tell("alice", request(b"x" * 1000, b"y" * 1000, b"z" * 1000))
    bench.settle()
    bench.crash()
    bench.open("alice", "bob", "carl")
    return bench


def test_records_that_cannot_be_read_for_now_come_later(monkeypatch):
    bench = cold_bench()
    bench.tell("bob", offer(1, 1))
    while bench.appends:
        bench.commit()
    [question] = bench.reads
    bench.reads.clear()
    bench.core.answered(question, StoreError("input/output error"), bench.now)
    bench.iterate()
    bench.settle()
    assert bench.bodies("bob") == []
    bench.wait(RETRY_SECONDS)
    bench.settle()
    assert bench.bodies("bob") == [b"x" * 1000]
    assert "damaged" not in bench.core.services.by_name["w"].usage.counts


@pytest.mark.parametrize(
    "message",
    [
        Query(1, "messages", {"kind": "service", "name": "w"}),
        Query(1, "message", {"kind": "service", "name": "w", "sequence": 2}),
        Change(0, "queue.purge", {"kind": "service", "name": "w", "where": "n = 1"}),
    ],
)
def test_a_look_at_messages_that_cannot_be_read_is_refused(message):
    bench = cold_bench()
    bench.sent("bob")
    bench.receive("bob", message)
    bench.iterate()
    [question] = bench.reads
    bench.reads.clear()
    bench.core.answered(question, StoreError("input/output error"), bench.now)
    bench.settle()
    assert [error[:2] for error in errors(bench, "bob")] == [(800, BY_TYPE[type(message)].opcode)]
    assert len(bench.core.services.by_name["w"].entries) == 3


def test_dead_letters_that_cannot_be_read_stay_and_the_redrive_is_refused():
    bench = cold_bench()
    bench.tell("bob", offer(1, 1))
    bench.settle()
    bench.lost("bob")
    bench.settle()
    bench.sent("carl")
    bench.receive("carl", Change(0, "queue.redrive", {"kind": "service", "name": "w"}))
    bench.iterate()
    reserved = bench.core.services.by_name["w"].usage.reserved
    assert reserved == 1
    [question] = bench.reads
    bench.reads.clear()
    bench.core.answered(question, StoreError("input/output error"), bench.now)
    bench.settle()
    assert [code for code, _, _ in errors(bench, "carl")] == [800]
    queue = bench.core.services.by_name["w"]
    assert (queue.usage.reserved, len(queue.dead_letters.entries)) == (0, 1)
    bench.tell("carl", Change(0, "queue.redrive", {"kind": "service", "name": "w"}))
    bench.settle()
    assert [m.value["messages"] for m in bench.sent("carl") if isinstance(m, (Answer, Ok))] == [1]


# What is sent


def test_an_answer_that_cannot_be_encoded_is_an_error(bench):
    bench.core.unsent(peer_id("alice"), Answer(9, 2**80), OverflowError(), bench.now)
    bench.iterate()
    assert errors(bench, "alice") == [(500, BY_TYPE[Query].opcode, 9)]
    bench.core.unsent(peer_id("alice"), Recall(2**80, [], ""), OverflowError(), bench.now)
    bench.iterate()
    assert errors(bench, "alice") == [(405, 0, 0)]
    assert faults(bench) == 2


# What is reported


def test_a_fault_is_reported_once_for_a_while_and_always_counted():
    told: list[dict] = []
    faults = Faults(lambda event, **details: told.append(details))

    def note(now: float) -> None:
        try:
            oops()
        except Oops as error:
            faults.note("a test", error, now)

    for now in (0.0, 1.0, TELL_SECONDS - 0.1, TELL_SECONDS, TELL_SECONDS + 1):
        note(now)
    assert [details["times"] for details in told] == [1, 4]
    assert faults.count == 5
    [place] = faults.by_place
    assert place.startswith("core/test_core_guards.py:")


def test_places_are_bounded():
    faults = Faults(lambda event, **details: None)
    for number in range(PLACES_MAX + 5):
        faults.note("a test", type(f"Oops{number}", (Exception,), {})(), 0.0)
    assert len(faults.by_place) == PLACES_MAX + 1
    assert sum(faults.by_place.values()) == faults.count == PLACES_MAX + 5


def test_faults_are_reported_by_status(bench):
    bench.core.timers.at(bench.now + 1, oops)
    bench.wait(1)
    [answer] = bench.ask("alice", Query(1, "status", {}))
    assert answer.value["faults"] == 1
