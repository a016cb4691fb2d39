"""Windows in bytes: what was sent to peers and is not known to be received."""

from __future__ import annotations

from itertools import pairwise

import pytest

from malamute.server.flow import MESSAGE_BYTES, PING_BYTES, Flows, Windows

ANN, BOB = b"ann", b"bob"
STEP = PING_BYTES - MESSAGE_BYTES
"""A message after which the peer is asked."""


@pytest.fixture
def flows() -> Flows:
    flows = Flows(Windows(4 * PING_BYTES, 6 * PING_BYTES))
    flows.open(ANN)
    flows.open(BOB)
    return flows


def test_a_peer_is_asked_after_so_many_bytes(flows):
    assert flows.sent(ANN, STEP - 1) == 0
    assert flows.sent(ANN, 1) > 0
    assert flows.sent(ANN, STEP - MESSAGE_BYTES) == 0


def test_a_peer_is_full_with_one_byte_more_than_its_window(flows):
    for _ in range(3):
        assert flows.sent(ANN, STEP)
    assert not flows.is_full(ANN)
    assert flows.sent(ANN, STEP)
    assert flows.is_full(ANN)
    assert not flows.is_full(BOB)


def test_an_answer_is_for_all_that_came_before(flows):
    tokens = [flows.sent(ANN, STEP) for _ in range(4)]
    flows.received(ANN, tokens[2])
    assert (flows.is_full(ANN), flows.unread) == (False, PING_BYTES)
    flows.received(ANN, tokens[0])  # an old one changes nothing
    assert flows.unread == PING_BYTES
    flows.received(ANN, tokens[3])
    assert flows.unread == 0


def test_an_answer_that_nobody_was_asked_for_counts_nothing(flows):
    token = [flows.sent(ANN, STEP) for _ in range(4)][-1]
    for guess in (0, 1, token - 1, token + 1):
        flows.received(ANN, guess)
    flows.received(BOB, token)
    assert flows.is_full(ANN)


def test_tokens_cannot_be_guessed(flows):
    tokens = [flows.sent(ANN, STEP) for _ in range(20)]
    assert len({later - earlier for earlier, later in pairwise(tokens)}) == 19


def test_hello_on_the_same_connection_makes_no_room(flows):
    for _ in range(4):
        flows.sent(ANN, STEP)
    tokens = {flows.open(ANN) for _ in range(1000)}
    assert flows.is_full(ANN)
    # However often it comes, there is one question, and its answer is for everything.
    (token,) = tokens
    flows.received(ANN, token)
    assert not flows.is_full(ANN)
    assert flows.unread == 0


def test_what_was_not_asked_about_is_asked_about_with_hello(flows):
    flows.sent(ANN, 5)
    token = flows.open(ANN)
    assert token
    flows.received(ANN, token)
    assert flows.unread == 0
    assert flows.open(ANN) == 0


def test_a_connection_that_is_gone_takes_no_room(flows):
    flows.sent(ANN, STEP)
    flows.close(ANN)
    flows.close(ANN)
    assert flows.unread == 0
    assert ANN not in flows
    assert flows.sent(ANN, STEP) == 0
    assert not flows.is_full(ANN)


def test_when_all_together_have_too_much_each_has_a_small_window(flows):
    for _ in range(3):
        flows.sent(ANN, STEP)
        flows.sent(BOB, STEP)
    assert not flows.is_crowded
    assert not flows.is_full(ANN)
    flows.sent(BOB, 0)
    assert flows.is_crowded
    assert flows.is_full(ANN)
    assert flows.is_full(BOB)
