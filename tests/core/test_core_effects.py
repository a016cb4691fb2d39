"""The iteration: what is handed over together, and the one place that confirms (the core's contract)."""

from __future__ import annotations

import re
from functools import partial
from math import inf
from pathlib import Path

from core_bench import Bench, publish, send

from malamute.core.commands import STATES
from malamute.core.iteration.effects import Effects
from malamute.errors import StorageFull
from malamute.protocol.messages import SPECS, Pong
from malamute.store.operations import DeleteValue, FindTime, LastPerSubject, PutValue, ReadChunks
from malamute.store.tables import NUMBERS, SESSIONS

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_a_callback_waits_for_the_iteration_that_it_was_made_in():
    effects, called = Effects(0.0), []
    effects.stage.store(DeleteValue(SESSIONS, (b"1",)))
    effects.stage.when_stored(called.append)
    [first] = effects.finish().appends
    effects.stage.store(DeleteValue(SESSIONS, (b"2",)))
    [second] = effects.finish().appends
    effects.stage.settle(second.token, None, effects.now)
    assert called == []
    error = StorageFull()
    effects.stage.settle(first.token, error, effects.now)
    assert called == [error]


def test_an_iteration_is_handed_over_once():
    effects = Effects(0.0)
    effects.send(b"peer", Pong())
    effects.stage.store(DeleteValue(SESSIONS, (b"1",)))
    effects.stage.store_bound(DeleteValue(SESSIONS, (b"2",)))
    [append] = effects.finish().appends
    assert append.operations == [DeleteValue(SESSIONS, (b"1",)), DeleteValue(SESSIONS, (b"2",))]
    assert append.bound == [DeleteValue(SESSIONS, (b"2",))]
    assert not any(effects.finish())


def test_the_backlog_is_what_was_handed_over_and_not_settled():
    effects = Effects(0.0)
    effects.stage.store(PutValue(SESSIONS, (b"1", NUMBERS), b""), size_bytes=10)
    [append] = effects.finish().appends
    effects.stage.store(PutValue(SESSIONS, (b"2", NUMBERS), b""), size_bytes=5)
    assert effects.stage.backlog_bytes == 15
    assert effects.stage.unsettled
    effects.stage.settle(append.token, StorageFull(), effects.now)
    assert effects.stage.backlog_bytes == 5
    assert not effects.stage.unsettled


def test_who_asks_the_same_shares_an_answer_and_who_asks_another_kind_has_its_own():
    effects, answers = Effects(0.0), []

    def note(kind, result):
        answers.append((kind, result))

    same = (ReadChunks("s", 5, 1), FindTime("s", 5, 1), LastPerSubject("s", 5, 1))
    assert len(set(same[:2])) == 1
    for question in (*same, *same):
        effects.ask(question, partial(note, type(question).__name__))
    assert [type(question) for question in effects.finish().reads] == [ReadChunks, FindTime, LastPerSubject]
    for place, question in enumerate(same):
        effects.answer(question, place)
    assert answers == [(type(same[n // 2]).__name__, n // 2) for n in range(6)]


def test_what_was_handed_over_gets_nothing_of_the_next_iteration():
    effects = Effects(0.0)
    first = effects.finish()
    effects.ask(FindTime("s", 1, 1), lambda answer: None)
    effects.notice("something")
    effects.send(b"peer", Pong())
    effects.closed.append(b"peer")
    second = effects.finish()
    assert not any(first)
    assert [len(part) for part in second] == [0, 1, 1, 1, 1]
    assert not any(effects.finish())


def test_all_of_an_iteration_is_one_transaction(bench: Bench):
    bench.open("alice", "bob")
    bench.receive("alice", publish(b"1", number=1))
    bench.tell("bob", send("alice", b"2", number=1))
    assert len(bench.appends) == 1


def test_nothing_to_do_is_nothing(bench: Bench):
    assert not any(bench.core.ready())
    assert bench.core.next_deadline() == inf
    assert bench.core.idle


# The table of states


def test_the_table_of_states_covers_exactly_the_commands_of_a_client():
    assert set(STATES["open"]) == {spec.message for spec in SPECS if spec.opcode < 64}


def test_before_hello_there_is_hello_alone():
    text = PROTOCOL.read_text(encoding="utf-8")
    assert re.search(r"Until WELCOME has answered it, each other command gets\s+\[405\]", text)
    for state in STATES.keys() - {"open"}:
        assert [message.__name__ for message in STATES[state]] == ["Hello"]


def test_the_states_are_those_of_the_specification():
    drawing = PROTOCOL.read_text(encoding="utf-8").partition("## Sessions")[2].partition("- **HELLO**")[0]
    assert set(STATES) == set(re.findall(r"absent|open|away", drawing))
