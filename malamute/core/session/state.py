"""The states of a session: a table, and the only code that changes a state.

A session begins AWAY: it is new, or the store remembers it. An event that the table does not have in a state
raises an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, Protocol

SessionState = Literal["away", "open", "ended"]

AWAY: Final = "away"
"""Without a connection; its numbers wait for the client to resume it."""
OPEN: Final = "open"
"""With a connection and its state: an address, sources, credit, deliveries."""
ENDED: Final = "ended"
"""Forgotten. Callbacks of the store may still have the session."""

Event = Literal["hello", "leave", "end"]

TRANSITIONS: Mapping[SessionState, Mapping[Event, SessionState]] = {
    AWAY: {
        "hello": OPEN,
        "end": ENDED,  # it was away too long, or has left by BYE
    },
    OPEN: {
        "leave": AWAY,  # its connection is lost, begins anew, or ends
    },
    ENDED: {},
}


class Stateful(Protocol):
    """A session, as far as its state goes."""

    state: SessionState
    open: bool
    """Whether it is OPEN."""
    blocked: bool
    """Whether its connection takes no more for now."""


def change(session: Stateful, event: Event) -> None:
    """Apply an event to a session."""
    state = TRANSITIONS[session.state].get(event)
    assert state is not None, f"a session that is {session.state!r} cannot meet {event!r}"
    session.state = state
    session.open = state is OPEN
    session.blocked = False
