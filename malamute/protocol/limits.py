"""Every limit of the wire, in one place.

The constants are part of the protocol: both sides refuse values past them. `Limits` holds those
that a broker may set; WELCOME tells them to the client, so that it refuses early and with a better word.
"""

from __future__ import annotations

from typing import NamedTuple

NAME_BYTES_MAX = 255
"""Bytes of UTF-8 in the name of a stream, a mailbox or a service."""

SUBJECT_BYTES_MAX = 255
"""Bytes of UTF-8 in a subject. An empty subject is allowed."""

PATTERN_BYTES_MAX = 1024
"""Bytes of UTF-8 in a pattern, and in each word of a pattern that is not plain text."""

WHERE_BYTES_MAX = 4096
"""Bytes of UTF-8 in a match expression, and in the words of an error."""

CRITERIA_MAX = 100
"""Criteria in one subscription, or patterns in one offer."""

RANGES_MAX = 1000
"""Ranges in one ACK."""

SETTLED_MAX = 100
"""Ranges of settled numbers in one HELLO."""

BATCH_MESSAGES_MAX = 10_000
"""Messages in one PUBLISH, SEND, REQUEST or REPLY."""

ITEMS_MAX = 100_000
"""Items in any list of a command or a record. A declared list is allocated before it is read."""

VALUES_MAX = 250_000
"""Values in a frame of more than a mebibyte: the lists, the maps, and each of their items."""

DEPTH_MAX = 32
"""Lists and maps around a value, where a field may hold any value."""

VERSIONS_MAX = 16
"""Versions of the protocol that one HELLO may name."""

TEXT_BYTES_MAX = 255
"""Bytes of UTF-8 in a client's name for itself, and in other words meant for people."""

TOKEN_BYTES_MAX = 8_192
"""Bytes of a bearer token in HELLO."""

PASSWORD_BYTES_MAX = 255
"""Bytes of UTF-8 in a password, and in the name of its user: the limit of libzmq's handshake."""

RECORD_LARGE_BYTES = 65_536
"""A record of this size or more travels as a frame of its own."""

URLS_MAX = 8
"""URLs of the source of a link, or of the brokers of a pair."""

LINKS_MAX = 1_000
"""Links to the streams of a broker."""

WAYS_MAX = 256
"""Ways by which messages come to the source of a link, in one report."""

HOPS_MAX = 32
"""Links and feeds on each of these ways."""

CHANGES_MAX = 16
"""Changes of one session without an answer, and outcomes of changes that are kept for the session."""

DURATION_MS_MAX = 10 * 365 * 86_400_000
"""Milliseconds of the longest delay, deadline or time to live: ten years."""

AGE_SECONDS_MAX = 100 * 365 * 86_400
"""Seconds of the longest age for which a stream keeps its messages: a hundred years."""

DELAYS_MAX = 32
"""Delays of a backoff."""

ROWS_MAX = 1_000
"""Messages of a queue in one ANSWER."""

HEADERS_MAX = 1_000
"""Headers of the message that a QUERY asks about."""

PATH_BYTES_MAX = 4_095
"""Bytes of UTF-8 in a path on the broker's machine."""

GROUPS_MAX = 100
"""Groups of one account."""

RULES_MAX = 100
"""Rules of one account."""

RULE_BYTES_MAX = 4_096
"""Bytes of UTF-8 in a rule of an account."""

UID_MAX = 2**32 - 2
"""The highest uid of a system."""

VALUE_BYTES_MAX = 1024 * 1024
"""Bytes of a value in a bucket."""

KEYS_MAX = 1_000
"""Keys in one GET or WATCH."""

NUMBER_MAX = 2**63 - 1
"""The highest number, sequence or count."""

SOURCE_MAX = 2**31 - 1
"""The highest source id that a client may choose."""


class Limits(NamedTuple):
    """The limits of a broker, with their defaults."""

    message_bytes: int = 64 * 1024 * 1024
    """The records of one command together, in bytes."""
    unconfirmed: int = 65_536
    """How far the oldest unconfirmed number of a session may be behind its newest."""
    sessions: int = 20_000
    """Sessions that the broker keeps, connected or waiting to be resumed."""
    sources: int = 1_000
    """Subscriptions and offers of one session."""
    selector_bytes: int = 4 * 1024 * 1024
    """Memory of one selector, which is computed from its terms: each term takes 600 bytes of it, and a
    regular expression 128 KiB."""
    session_selector_bytes: int = 16 * 1024 * 1024
    """Memory of all selectors of one session, and of the subscriptions and offers that have them."""
    selectors_bytes: int = 256 * 1024 * 1024
    """The same of all sessions together."""
    caches_bytes: int = 64 * 1024 * 1024
    """Memory of cached results of subjects, in all streams and services together."""
    streams: int = 10_000
    """Streams of the broker."""
    cursors: int = 1_000
    """Cursors of one stream, those of feeds from it too."""
    cursors_bytes: int = 64 * 1024 * 1024
    """Memory of all cursors of the broker: each takes 400 bytes and those of its name."""
    buckets: int = 10_000
    """Buckets of the broker."""
    buckets_bytes: int = 768 * 1024 * 1024
    """Memory of all keys with their values, in all buckets: each takes 600 bytes, and those of its key, its
    value and its user's name. A user may have as much of it as is left to all others, or a quota."""
    feeds: int = 1_000
    """Feeds, by which messages are passed on from place to place."""
    accounts: int = 100_000
    """Accounts that operators have put into the store; those of a file are not counted."""
    queues: int = 50_000
    """Mailboxes and service queues of the broker."""
    queue_messages: int = 1_500_000
    """Messages in one mailbox or service queue. A configuration derives it by `share_queues`."""
    queue_bytes: int = 96 * 1024 * 1024
    """Bytes in one mailbox or service queue; derived, too."""
    queues_bytes: int = 128 * 1024 * 1024
    """Bytes in all mailboxes and service queues together. One of them may have three quarters of that, so
    that the others go on when it is full; a `[[queues.rule]]` may give it less."""
    queues_messages: int = 2_000_000
    """Messages in all mailboxes and service queues together, dead letters too; one may have three quarters of
    them. Each takes some 400 bytes of memory, wherever its body is, and 600 more while it is delayed."""
    queues_memory_bytes: int = 64 * 1024 * 1024
    """Bytes of queued messages that are kept in memory. The bodies of those beyond it are on the disk only,
    until they are delivered."""
    identities_bytes: int = 16 * 1024 * 1024
    """Bytes of identities, by which messages are known again, in all queues. Past it, the queue that has most
    forgets its oldest."""
    published_ids_bytes: int = 64 * 1024 * 1024
    """Bytes of the ids of published messages, in all streams. Past it, the user who has most loses the
    oldest."""
    answers_bytes: int = 4 * 1024 * 1024
    """Bytes of answers to QUERY that one session may have under way; past it, a query is refused with 503."""
    backlog_bytes: int = 128 * 1024 * 1024
    """Memory of accepted messages that are not durable yet. One session may take as much of it as it leaves
    to all others; a command that would take more is refused with 503."""

    def share_queues(self) -> Limits:
        """Return the limits with those of one queue: three quarters of the limits of all queues together."""
        messages, size_bytes = self.queues_messages * 3 // 4, self.queues_bytes * 3 // 4
        return self._replace(queue_messages=max(1, messages), queue_bytes=max(1, size_bytes))
