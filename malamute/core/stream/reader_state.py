"""The states of a reader of a stream: a table, and the only code that changes a state or a cursor.

`TRANSITIONS` is complete: an event that the table does not have in a state raises, and the fault ends one
operation. The `cursor` of a reader is the first sequence that it has not had. A reader that is LIVE has had
all that was dispatched, so its cursor is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, Protocol

ReaderState = Literal["starting", "replay", "live", "ended"]

STARTING: Final = "starting"
"""The position where it begins is not known yet."""
REPLAY: Final = "replay"
"""Reading from memory or the journal, at its cursor."""
LIVE: Final = "live"
"""Offered each chunk as it is dispatched."""
ENDED: Final = "ended"
"""Ended: no more messages."""

Event = Literal["begin behind", "begin at head", "fall behind", "catch up", "restart", "end"]

TRANSITIONS: Mapping[ReaderState, Mapping[Event, ReaderState]] = {
    STARTING: {
        "begin behind": REPLAY,
        "begin at head": LIVE,
        "end": ENDED,
    },
    REPLAY: {
        "catch up": LIVE,  # it has had all that was dispatched
        "fall behind": REPLAY,  # the disk refused messages that a feed had put: back to the first of them
        "restart": STARTING,  # a feed goes on from another position
        "end": ENDED,
    },
    LIVE: {
        "fall behind": REPLAY,  # it has no credit, or its selector changed while a chunk was dispatched
        "restart": STARTING,
        "end": ENDED,
    },
    ENDED: {
        "end": ENDED,  # a fault has ended it, and then its session takes it apart
    },
}


class Stateful(Protocol):
    """A reader, as far as its state goes."""

    state: ReaderState
    cursor: int


def change(reader: Stateful, event: Event, cursor: int = 0) -> None:
    """Apply an event to a reader, whose cursor is 0 unless it is in REPLAY then."""
    state = TRANSITIONS[reader.state].get(event)
    assert state is not None, f"a reader that is {reader.state!r} cannot {event}"
    assert (cursor > 0) == (state is REPLAY), f"a reader that is {state!r} has the cursor {cursor}"
    reader.state, reader.cursor = state, cursor


def move(reader: Stateful, cursor: int) -> None:
    """Move the cursor of a reader in REPLAY to a sequence that is not before it."""
    assert reader.state is REPLAY, f"a reader that is {reader.state!r} has no cursor to move"
    assert cursor >= reader.cursor, f"a cursor moves back from {reader.cursor} to {cursor}"
    reader.cursor = cursor
