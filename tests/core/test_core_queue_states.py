"""The table of the states of a queued message, and the counters that hang on them."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malamute.core.queue import state as state_module
from malamute.core.queue.state import (
    DELIVERED,
    PENDING,
    READY,
    SETTLED,
    SETTLING,
    TRANSITIONS,
    MessageStates,
)

EVENTS = sorted({event for following in TRANSITIONS.values() for event in following})


def message(sequence=1):
    return SimpleNamespace(
        sequence=sequence,
        state=PENDING,
        consumer=None,
        attempts=0,
        deadline_from=0.0,
        first_delivered_at=0.0,
        last_delivered_at=0.0,
    )


def holder():
    return SimpleNamespace(outstanding={}, session=SimpleNamespace(holding=0))


def apply(states, event, some, consumer):
    if event == "assign":
        states.assign(consumer, some, 1.0)
        return
    had = [m.sequence for m in some if m.state == DELIVERED]
    {
        "wait": states.wait,
        "delay": lambda some: states.delay(*some),
        "due": states.due,
        "take back": states.take_back,
        "settle": states.settle,
        "refuse": states.refuse,
        "remove": states.remove,
    }[event](some)
    states.detach(consumer, had)


def test_every_state_is_reached_and_left():
    reached = {after for following in TRANSITIONS.values() for after in following.values()} | {PENDING}
    assert reached == set(TRANSITIONS)
    assert [state for state, following in TRANSITIONS.items() if not following] == [SETTLED]
    # Whatever becomes of a message, it can leave.
    assert all(following.get("remove") == SETTLED for state, following in TRANSITIONS.items() if following)


@given(st.lists(st.sampled_from(EVENTS), max_size=30))
def test_the_counters_are_right_whatever_happens(events):
    states, consumer, one, other = MessageStates(), holder(), message(1), message(2)
    states.enqueue(2)
    for event in events:
        if event not in TRANSITIONS[one.state]:
            continue
        before = one.state
        apply(states, event, [one], consumer)
        assert one.state == TRANSITIONS[before][event]
        states.assert_these([m for m in (one, other) if m.state != SETTLED])
        assert consumer.session.holding == len(consumer.outstanding) == (one.state == DELIVERED)


@pytest.mark.parametrize("state", TRANSITIONS)
@pytest.mark.parametrize("event", EVENTS)
def test_what_is_not_in_the_table_cannot_happen(state, event):
    if event in TRANSITIONS[state] or (state, event) == (SETTLING, "settle"):
        return
    states, it = MessageStates(), message()
    it.state = state
    states.counts[state] = 1
    with pytest.raises(KeyError):
        apply(states, event, [it], holder())
    assert it.state == state


def test_a_batch_may_be_in_several_states():
    states, some = MessageStates(), [message(n) for n in range(6)]
    states.enqueue(6)
    states.wait(some[1::2])
    states.settle(some)
    assert states.counts[SETTLING] == 6
    assert (states.counts[PENDING], states.counts[READY]) == (0, 0)


def test_a_consumer_cannot_get_what_it_has():
    states, consumer, it = MessageStates(), holder(), message()
    states.enqueue(1)
    states.assign(consumer, [it], 1.0)
    states.take_back([it])
    with pytest.raises(AssertionError):
        states.assign(consumer, [it], 2.0)


def test_the_first_delivery_is_remembered():
    states, consumer, it = MessageStates(), holder(), message()
    states.enqueue(1)
    for now in (1.0, 2.0):
        states.assign(consumer, [it], now)
        states.detach(consumer, [1])
        states.take_back([it])
    assert (it.attempts, it.first_delivered_at, it.last_delivered_at) == (2, 1.0, 2.0)
    assert it.consumer is None


WRITTEN = {"state", "consumer", "attempts", "holding", "uncommitted", "outstanding", "counts"}
"""What only `state.py` writes, once it is there; `counts` of others are of outcomes."""


def _written(path: Path) -> set[str]:
    """The attributes of anything but `self` that a file assigns or deletes, or items of them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            target = node.value if isinstance(node, ast.Subscript) else node
            if isinstance(target, ast.Attribute) and not (
                isinstance(target.value, ast.Name) and target.value.id == "self"
            ):
                found.add(target.attr)
    return found


def test_nothing_else_writes_a_state_or_what_is_counted_by_it():
    core = Path(state_module.__file__).parents[1]
    writers = {
        (path.name, name)
        for path in core.glob("**/*.py")
        if path != Path(state_module.__file__)
        for name in _written(path) & WRITTEN
    }
    # Counts of outcomes in `QueueUsage`, and the states of readers and of sessions.
    assert writers == {("delivery.py", "counts"), ("reader_state.py", "state"), ("state.py", "state")}
