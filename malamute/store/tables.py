"""The tables of durable values: what is kept by a name, and is nothing but its newest value.

A table is a name, and a value in it is named by a key: its *owner*, and what else distinguishes it from
others of the same owner. `PutValue` sets a value and `DeleteValue` forgets it; nothing else is needed for
another durable thing but its table here, and the code that uses it. The store knows no more of a table than
what it says here.
"""

from __future__ import annotations

from typing import NamedTuple


class Table(NamedTuple):
    """What a store has to know of the values in a table.

    Values `of_stream` have a stream for their owner, and leave with it. They are on its card as well, which
    is for the case that the log is damaged; of those that change `often` the card has the keys alone. To
    forget one that `gives_room` is done even if the disk refuses what came with it.
    """

    of_stream: bool = False
    changes_often: bool = False
    gives_room: bool = False


CURSORS = "cursors"
"""Of (stream, cursor): the last sequence that its reader is done with."""

OWNERS = "owners"
"""Of (stream, cursor): the user whose cursor it is; with an empty cursor, who has made the stream."""

RETENTIONS = "retentions"
"""Of (stream,): how much of it is kept, in place of what the configuration says: a `StreamRetention`."""

BEGINNINGS = "beginnings"
"""Of (stream,): the first and the last sequence before its first message that no stream of its name ever had,
as far as that is known: it is new, and began behind those of streams that were deleted."""

DELETED = "deleted-streams"
"""Of (stream,): the last sequence of a stream of this name that was deleted. Of `OTHERS`: the highest of all
deleted streams that have no row, and the floor up to which that is known."""

OTHERS = ("",)

SKIPPED = "skipped"
"""Of (stream,): the ranges of sequences between its messages that no message has, to count by."""

FEEDS = "feeds"
"""Of (stream, name): what passes its messages on. The value is the core's own; its position is a cursor."""

QUEUE_FEEDS = "queue-feeds"
"""Of (kind, name, feed): what moves the messages of a queue on. The value is as in `FEEDS`."""

FEED_POSITIONS = "feed-positions"
"""Of (stream, name): in the store of the target of a feed, if it is another one than that of the stream, how
far the feed has come: the generation of its rule, and the last sequence that it has put."""

SESSIONS = "sessions"
"""Of (session, part): what the broker must know of a client after a restart. The values are the core's
own."""

NUMBERS, REFUSALS, OUTCOMES = 0, 1, 2
"""The parts of a session."""

ACCOUNTS = "accounts"
"""Of (name,): who may log in beside those of the configuration: an `Account` as plain values."""

GROUPS = "groups"
"""Of (name,): the rules of a group beside those of the configuration, as texts."""

MEMORY_QUEUES = "memory-queues"
"""Of (kind, name): how many messages a queue that is in memory only had at the last graceful shutdown, or -1
since its first one. After the start they are gone."""

CLOCK = "clock"
"""Of ("",): what the clock of the broker said when something was stored last, in nanoseconds UTC."""

SEQUENCES = "queue-sequences"
"""Of ("",): up to which sequence any of a queue may be in use, though the store has no message with it."""

STORES = "stores"
"""Of (name,): the id of the store that has this name, or no bytes if an operator has it forgotten."""

OWNER = "owner"
"""Of `OWN`: in a store that has a name, the id of the broker's own store that knows it."""

OWN = ("",)

TABLES = {
    CURSORS: Table(of_stream=True, changes_often=True),
    OWNERS: Table(of_stream=True),
    RETENTIONS: Table(of_stream=True),
    BEGINNINGS: Table(of_stream=True),
    DELETED: Table(),
    SKIPPED: Table(of_stream=True),
    FEEDS: Table(of_stream=True, gives_room=True),
    QUEUE_FEEDS: Table(gives_room=True),
    FEED_POSITIONS: Table(gives_room=True),
    SESSIONS: Table(gives_room=True),
    ACCOUNTS: Table(),
    GROUPS: Table(),
    MEMORY_QUEUES: Table(gives_room=True),
    CLOCK: Table(),
    SEQUENCES: Table(),
    STORES: Table(),
    OWNER: Table(),
}

OF_STREAMS = frozenset(name for name, table in TABLES.items() if table.of_stream)
"""The tables whose values belong to streams."""

ON_CARDS = frozenset(name for name, table in TABLES.items() if table.of_stream and not table.changes_often)
"""The tables whose values are on the cards of streams as well."""

PLAIN = Table()
"""What a store takes a table for that it does not know: a later version of Malamute has written it."""
