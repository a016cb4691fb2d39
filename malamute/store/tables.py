"""The tables of durable values, of which only the newest is stored.

A table has a name, and each value a key: its *owner*, and further items for values of the same owner.
`PutValue` sets a value and `DeleteValue` deletes it. Another durable value needs a table here, and the code
that uses it; the store knows nothing else about it.
"""

from __future__ import annotations

from typing import NamedTuple


class Table(NamedTuple):
    """The properties of a table.

    Values `of_stream` have a stream as their owner, and are deleted with it. The card of the stream has them,
    too, in case the log is damaged; only their keys if the table `changes_often`. A deletion that
    `gives_room` is carried out even if the disk refuses the other operations of its append.
    """

    of_stream: bool = False
    changes_often: bool = False
    gives_room: bool = False


CURSORS = "cursors"
"""Of (stream, cursor): the last sequence that its reader has confirmed."""

OWNERS = "owners"
"""Of (stream, cursor): the user who owns the cursor; with an empty cursor, the creator of the stream."""

RETENTIONS = "retentions"
"""Of (stream,): the `StreamRetention` set at run time, in place of the configuration's."""

UNJOURNALED = "unjournaled"
"""Of (stream,): true, for a stream that was created without a journal whatever the configuration says."""

BEGINNINGS = "beginnings"
"""Of (stream,): the known range of sequences before its first message that no stream of its name ever had: a
new stream begins behind the sequences of deleted streams."""

DELETED = "deleted-streams"
"""Of (stream,): the last sequence of a stream of this name that was deleted. Of `OTHERS`: the highest of all
deleted streams that have no row, and the floor up to which that is known."""

OTHERS = ("",)

SKIPPED = "skipped"
"""Of (stream,): the ranges of sequences without messages between its messages, and how many are without."""

DELETIONS = "deletions"
"""Of (stream,): the deletion of messages under way: the first and the last sequence, and a pattern of
subjects or no text."""

PUBLISHED = "published"
"""Of (stream, user, id): the first sequence that was published under an id, until when that is known, in
nanoseconds UTC, and a digest of the content."""

FEEDS = "feeds"
"""Of (stream, name): a feed of the stream's messages, encoded by the core; its position is a cursor."""

QUEUE_FEEDS = "queue-feeds"
"""Of (kind, name, feed): a feed of a queue's messages, encoded as in `FEEDS`."""

QUEUE_SETTINGS = "queue-settings"
"""Of (kind, name): the `QueueSettings` of a queue, in place of the configured ones."""

LINKS = "links"
"""Of (name,): a link from a stream of another broker, encoded by the core."""

LINK_POSITIONS = "link-positions"
"""Of (name,): the generation of a link, and how far it has come in the source, `N@STORE` or empty."""

SESSIONS = "sessions"
"""Of (session, part): the durable state of a client's session, encoded by the core."""

NUMBERS, REFUSALS, OUTCOMES = 0, 1, 2
"""The parts of a session."""

ACCOUNTS = "accounts"
"""Of (name,): an `Account` as plain values, beside the accounts of the configuration."""

GROUPS = "groups"
"""Of (name,): the rules of a group as texts, beside the groups of the configuration."""

MEMORY_QUEUES = "memory-queues"
"""Of (kind, name): the messages of a queue in memory, counted at the last graceful shutdown and lost at the
next start; or -1 since its first message."""

TEMPORARY = "temporary-mailboxes"
"""Of (mailbox,): the sessions that a temporary mailbox is kept for."""

BUCKETS = "buckets"
"""Of (bucket, key): the entry of a key, encoded by the core."""

CLOCK = "clock"
"""Of ("",): the broker's clock at the last commit, in nanoseconds UTC."""

SEQUENCES = "queue-sequences"
"""Of ("",): the highest sequence of any queue that may be in use without a message in the store."""

STORES = "stores"
"""Of (name,): the id of a store in another directory, by an earlier version, or no bytes if it was forgotten.

Nothing writes it: a broker refuses a directory that has any (`server.daemon`)."""

TABLES = {
    CURSORS: Table(of_stream=True, changes_often=True),
    OWNERS: Table(of_stream=True),
    RETENTIONS: Table(of_stream=True),
    UNJOURNALED: Table(of_stream=True),
    BEGINNINGS: Table(of_stream=True),
    DELETED: Table(),
    SKIPPED: Table(of_stream=True),
    DELETIONS: Table(of_stream=True),
    PUBLISHED: Table(gives_room=True),
    FEEDS: Table(of_stream=True, gives_room=True),
    QUEUE_FEEDS: Table(gives_room=True),
    QUEUE_SETTINGS: Table(gives_room=True),
    LINKS: Table(),
    LINK_POSITIONS: Table(),
    SESSIONS: Table(gives_room=True),
    ACCOUNTS: Table(),
    GROUPS: Table(),
    MEMORY_QUEUES: Table(gives_room=True),
    TEMPORARY: Table(gives_room=True),
    BUCKETS: Table(gives_room=True),
    CLOCK: Table(),
    SEQUENCES: Table(),
    STORES: Table(),
}

OF_STREAMS = frozenset(name for name, table in TABLES.items() if table.of_stream)
"""The tables whose values belong to streams."""

ON_CARDS = frozenset(name for name, table in TABLES.items() if table.of_stream and not table.changes_often)
"""The tables whose values are on the cards of streams as well."""

PLAIN = Table()
"""The properties of an unknown table, which a later version of Malamute has written."""
