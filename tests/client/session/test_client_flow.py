"""Bytes on their way to the broker, and the questions about them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from malamute.client.session.congestion import INITIAL_BYTES
from malamute.client.session.flow import COMMAND_BYTES, PART_BYTES, PARTS, PathFlow
from malamute.protocol import messages as wire

PART = max(INITIAL_BYTES // PARTS, PART_BYTES)


class Asker:
    """Takes questions, and answers them when it is asked to."""

    def __init__(self) -> None:
        self.asked: list[SimpleNamespace] = []

    def __call__(self) -> SimpleNamespace:
        self.asked.append(SimpleNamespace(done=False))
        return self.asked[-1]

    def answer(self) -> None:
        next(question for question in self.asked if not question.done).done = True


@pytest.fixture
def ask() -> Asker:
    return Asker()


def test_the_broker_is_asked_after_each_part_of_the_window(ask: Asker) -> None:
    flow = PathFlow(1 << 30)
    flow.sent += PART - 1
    flow.observe(0.0, ask)
    assert len(ask.asked) == 0
    flow.sent += 1
    flow.observe(0.1, ask)
    flow.observe(0.2, ask)
    assert len(ask.asked) == 1


def test_an_answer_is_about_all_before_its_question(ask: Asker) -> None:
    flow = PathFlow(1 << 30)
    flow.sent += PART
    flow.observe(0.0, ask)
    flow.sent += 10
    assert flow.under_way == PART + 10
    ask.answer()
    flow.observe(0.1, ask)
    assert flow.under_way == 10
    assert flow.window.round_trip == pytest.approx(0.1)


def test_a_full_window_is_asked_about_however_small_it_is(ask: Asker) -> None:
    flow = PathFlow(PART_BYTES // 2)
    flow.sent += PART_BYTES // 2 - 1
    flow.observe(0.0, ask)
    assert not flow.full
    assert not ask.asked
    flow.sent += 1
    assert flow.full
    flow.observe(0.0, ask)
    assert len(ask.asked) == 1
    ask.answer()
    flow.observe(1.0, ask)
    assert not flow.full


# In a session


def fill(dialogue) -> int:
    """Publish unconfirmed until the window is full. Returns how many messages that are."""
    count = 0
    while dialogue.session.outbox.room(numbered=False):
        dialogue.session.sending.publish("s", ["a"], [b"x" * 1000])
        dialogue.session.look_at_clock(count * 0.001)
        dialogue.said()
        count += 1
    return count


def test_nothing_is_given_while_the_window_is_full_confirmed_or_not(dialogue):
    outbox = dialogue.session.outbox
    count = fill(dialogue)
    assert (count - 1) * (1000 + COMMAND_BYTES) < INITIAL_BYTES <= count * (1000 + COMMAND_BYTES)
    assert not outbox.room(numbered=True)
    for _ in range(PARTS):
        dialogue.receives(wire.Pong())
    dialogue.session.look_at_clock(1.0)
    assert outbox.room(numbered=True)
    assert outbox.room(numbered=False)


def test_the_question_stands_behind_what_it_is_about(dialogue):
    dialogue.session.sending.publish("s", ["a"], [b"x" * INITIAL_BYTES])
    dialogue.session.look_at_clock(0.0)
    assert [type(message) for message in dialogue.said()] == [wire.Publish, wire.Ping]


def test_a_ping_of_the_program_and_those_of_the_window_are_answered_in_their_order(dialogue):
    dialogue.session.sending.publish("s", ["a"], [b"x" * INITIAL_BYTES])
    dialogue.session.look_at_clock(0.0)
    query = dialogue.session.questions.ping()
    dialogue.receives(wire.Pong())
    dialogue.session.look_at_clock(0.1)
    assert not query.done
    assert dialogue.session.outbox.flow.under_way == 0
    dialogue.receives(wire.Pong())
    assert query.done


def test_a_connection_begins_with_nothing_on_its_way_but_what_is_sent_again(dialogue):
    fill(dialogue)
    dialogue.broken()
    assert dialogue.session.outbox.flow.under_way == 0
    command = dialogue.publish(b"x" * 1000)
    dialogue.session.sending.publish("s", ["a"], [b"y" * 500])
    dialogue.receives(wire.Welcome(2, b"\x01session-identit", b"broker", True, "malamute 0", {}))
    sent = command.size_bytes + 500 + 2 * COMMAND_BYTES
    assert dialogue.session.outbox.flow.under_way >= sent
    dialogue.said()
    assert dialogue.session.outbox.room(numbered=True)


def test_what_is_given_while_there_is_no_connection_is_bounded_by_the_window_of_the_session(dialogue):
    fill(dialogue)
    dialogue.session.disconnected()
    assert dialogue.session.outbox.room(numbered=False)
    assert dialogue.session.outbox.room(numbered=True)


def test_a_session_that_ends_asks_no_more(dialogue):
    dialogue.session.sending.publish("s", ["a"], [b"x" * INITIAL_BYTES])
    dialogue.session.close()
    dialogue.session.look_at_clock(0.0)
    assert wire.Ping not in map(type, dialogue.said())


def test_messages_that_join_a_command_count_with_it(dialogue):
    outbox = dialogue.session.outbox
    for _ in range(2):
        outbox.publish("s", "a", b"x" * 100, None)
    assert outbox.flow.under_way == 2 * 100 + COMMAND_BYTES
    assert outbox.flows
    outbox.publish("s", "a", b"x" * INITIAL_BYTES, None)
    assert not outbox.flows
