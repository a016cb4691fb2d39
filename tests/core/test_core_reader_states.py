"""The states of a reader of a stream: the table, and who changes a state or a cursor."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

import malamute.core
from malamute.core.stream.reader_state import ENDED, LIVE, REPLAY, STARTING, TRANSITIONS, change, move

CORE = Path(malamute.core.__file__).parent
EVENTS = sorted({event for following in TRANSITIONS.values() for event in following})


def reader(state=STARTING):
    return SimpleNamespace(state=state, cursor=7 if state == REPLAY else 0)


def test_every_state_is_reached_and_all_but_the_last_are_left():
    assert {state for following in TRANSITIONS.values() for state in following.values()} == {*TRANSITIONS}
    assert [state for state in TRANSITIONS if {*TRANSITIONS[state].values()} <= {state}] == [ENDED]


@pytest.mark.parametrize("state", TRANSITIONS)
@pytest.mark.parametrize("event", EVENTS)
def test_an_event_leads_where_the_table_says_or_raises(state, event):
    one, after = reader(state), TRANSITIONS[state].get(event)
    cursor = 9 if after == REPLAY else 0
    if after is None:
        with pytest.raises(AssertionError, match="cannot"):
            change(one, event, 9 if event in ("begin behind", "fall behind") else 0)
        assert one == reader(state)
        return
    change(one, event, cursor)
    assert (one.state, one.cursor) == (after, cursor)


@pytest.mark.parametrize(("state", "event", "cursor"), [(LIVE, "fall behind", 0), (REPLAY, "catch up", 8)])
def test_a_reader_has_a_cursor_just_while_it_is_in_replay(state, event, cursor):
    one = reader(state)
    with pytest.raises(AssertionError, match=f"has the cursor {cursor}"):
        change(one, event, cursor)
    assert one == reader(state)


@pytest.mark.parametrize(("state", "cursor"), [(LIVE, 8), (STARTING, 8), (ENDED, 8), (REPLAY, 6)])
def test_a_cursor_moves_in_replay_and_never_back(state, cursor):
    one = reader(state)
    with pytest.raises(AssertionError, match="cursor"):
        move(one, cursor)
    assert one == reader(state)


def _assigned(path):
    """Return the attributes that a file assigns to, outside of constructors."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    made = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
        for node in ast.walk(function)
    }
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and id(node) not in made
    }


def test_one_file_alone_changes_the_state_and_the_cursor_of_a_reader():
    files = [path for room in ("stream", "feed", "admin") for path in (CORE / room).glob("*.py")]
    assert [path.name for path in files if _assigned(path) & {"state", "cursor"}] == ["reader_state.py"]
