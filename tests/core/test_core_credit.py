"""Credit: what is granted, taken, and left (WP25, WP44)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malamute.core.iteration.credit import CreditBalance
from malamute.protocol.limits import NUMBER_MAX

GRANTS = st.integers(-1, 20)
SIZES = st.lists(st.integers(1, 9), max_size=12)


def test_grants_add_up():
    credit = CreditBalance(2, 100)
    credit.grant(3, 50)
    assert (credit.messages, credit.bytes) == (5, 150)


def test_without_limit_stays_without_limit():
    credit = CreditBalance(-1, -1)
    credit.consume(1_000, 1_000_000)
    credit.grant(1, 1)
    assert credit.room([10**9] * 5) == 5


def test_grants_end_at_the_highest_number():
    credit = CreditBalance(NUMBER_MAX, NUMBER_MAX)
    credit.grant(NUMBER_MAX, NUMBER_MAX)
    assert (credit.messages, credit.bytes) == (NUMBER_MAX, NUMBER_MAX)


@pytest.mark.parametrize(("messages", "size_bytes"), [(0, 9), (9, 0), (9, -3)])
def test_there_is_no_room_without_messages_or_without_bytes(messages, size_bytes):
    credit = CreditBalance(messages, max(size_bytes, 0))
    credit.consume(0, max(-size_bytes, 0))
    assert not credit.open
    assert credit.room([1]) == 0


def test_the_message_that_uses_up_the_bytes_is_the_last():
    assert CreditBalance(9, 10).room([4, 6, 1]) == 2
    assert CreditBalance(9, 11).room([4, 6, 1]) == 3
    assert CreditBalance(9, 9).room([4, 6, 1]) == 2


@given(GRANTS, GRANTS, SIZES)
def test_room_is_what_one_message_after_the_other_would_have(messages, size_bytes, sizes):
    credit, step = CreditBalance(messages, size_bytes), CreditBalance(messages, size_bytes)
    room = 0
    for size in sizes:
        if not step.open:
            break
        step.consume(1, size)
        room += 1
    assert credit.room(sizes) == room
