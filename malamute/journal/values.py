"""The values and messages that recovery reads from the log, for the core.

Theory. `Log` knows the live entries only at the end of the log. Until then the newest value of every key is
held here. A message is removed at the entry that deletes it, so a long log of few messages takes little
memory.

The records may exceed the memory. Records beyond a number of bytes are paged out: they stay on the disk, only
their sizes are held, and `fetch` reads them. Blocks are read in order, so about the oldest records are in
memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from malamute.journal.log import Log, QueueIndex, present
from malamute.store.operations import (
    DeleteMessages,
    DeleteQueue,
    Key,
    Operation,
    PutIdentity,
    PutMessages,
    PutValue,
    QueueKind,
    QueueState,
    StoredMessage,
    Value,
)

Name = tuple[QueueKind, str]


class Records:
    """The messages of queues, with at most `bytes_max` bytes of records in memory; None is no limit."""

    def __init__(self, bytes_max: int | None) -> None:
        self._room = sys.maxsize if bytes_max is None else bytes_max
        self._messages: dict[Name, dict[int, StoredMessage]] = {}
        self._paged_out: dict[Name, dict[int, int]] = {}
        self._damaged: dict[Name, set[int]] = {}
        self._texts: dict[str, str] = {}

    def put_damaged(self, put: PutMessages) -> None:
        """Add messages with unreadable records."""
        name = put.kind, put.queue
        self.put(name, (message._replace(record=b"") for message in put.messages()))
        self._damaged.setdefault(name, set()).update(range(put.first, put.last + 1))

    def put(self, name: Name, arriving: Iterable[StoredMessage]) -> None:
        """Add messages, or replace them."""
        messages = self._messages.setdefault(name, {})
        same = self._texts.setdefault
        for sequence, time_ns, sender, subject, record, properties in arriving:
            if sequence in messages:
                self._drop(name, sequence)
            size = len(record)
            if size <= self._room:
                self._room -= size
            else:
                self._paged_out.setdefault(name, {})[sequence] = size
                record = b""
            messages[sequence] = StoredMessage(
                sequence, time_ns, same(sender, sender), same(subject, subject), record, properties
            )

    def delete(self, name: Name, ranges: Sequence[tuple[int, int]]) -> None:
        """Remove the messages of these ranges."""
        for first, last in ranges:
            for sequence in present(self._messages.get(name, {}), first, last):
                self._drop(name, sequence)

    def delete_queue(self, name: Name) -> None:
        """Remove all messages of a queue."""
        for sequence in list(self._messages.get(name, ())):
            self._drop(name, sequence)

    def _drop(self, name: Name, sequence: int) -> None:
        message = self._messages[name].pop(sequence)
        self._damaged.get(name, set()).discard(sequence)
        if self._paged_out.get(name, {}).pop(sequence, None) is None:
            self._room += len(message.record)

    def damaged(self, name: Name) -> tuple[int, ...]:
        """Return the messages with unreadable records."""
        return tuple(sorted(self._damaged.get(name, ())))

    def of(self, name: Name) -> tuple[list[StoredMessage], dict[int, int]]:
        """Remove a queue; return its messages in order, and the sizes of the records that are paged out."""
        messages = self._messages.pop(name, {})
        return [messages[sequence] for sequence in sorted(messages)], self._paged_out.pop(name, {})


class Values:
    """The newest values and the messages of the log, live or not."""

    def __init__(self, records_bytes: int | None) -> None:
        self._values: dict[tuple[str, Key], Value] = {}
        self._records = Records(records_bytes)
        self._identities: dict[Name, dict[str, tuple[int, int]]] = {}

    def apply_damaged(self, puts: Iterable[PutMessages]) -> None:
        """Add the salvaged messages of an unreadable block."""
        for put in puts:
            self._records.put_damaged(put)

    def apply(self, entries: Sequence[Operation]) -> None:
        """Apply the entries of a block."""
        for entry in entries:
            if type(entry) is PutMessages:
                self._records.put((entry.kind, entry.queue), entry.messages())
            elif type(entry) is DeleteMessages:
                self._records.delete((entry.kind, entry.queue), entry.ranges)
            elif type(entry) is DeleteQueue:
                self._records.delete_queue((entry.kind, entry.queue))
            elif type(entry) is PutIdentity:
                identities = self._identities.setdefault((entry.kind, entry.queue), {})
                identities[entry.identity] = entry.sequence, entry.until_ns
            elif type(entry) is PutValue:
                self._values[entry.table, entry.key] = entry.value

    def of_tables(self, log: Log) -> dict[str, dict[Key, Value]]:
        """Return the live values of each table, by the index of the log."""
        found: dict[str, dict[Key, Value]] = {}
        for table, key, _ in log.places():
            found.setdefault(table, {})[key] = self._values[table, key]
        return found

    def queues(self, log: Log) -> dict[Name, QueueState]:
        """Return the state of each queue, by the index of the log. To be called once."""
        return {name: self._queue(name, queue) for name, queue in log.queues.items()}

    def _queue(self, name: Name, queue: QueueIndex) -> QueueState:
        messages, paged_out = self._records.of(name)
        attempts = {sequence: count for sequence, (_, count, _) in queue.attempts.items()}
        due = {sequence: due for sequence, (_, _, due) in queue.attempts.items() if due}
        known = self._identities.get(name, {})
        identities = {identity: known[identity] for identity in queue.identities}
        damaged = self._records.damaged(name)
        return QueueState(
            queue.next, queue.delivered, messages, attempts, identities, paged_out, due, damaged
        )
