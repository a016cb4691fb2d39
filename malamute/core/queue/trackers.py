"""Outcomes of tracked messages for their senders, and bounced messages.

An outcome is a message in the mailbox of the sender, put there in the transaction that ends the tracked
message, so each has exactly one, over crashes too. Room for it is taken when the tracked message is accepted,
which is why it never finds the mailbox full. A message that bounces may.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from malamute.core.queue.entry import ASKED, Entry, size_of
from malamute.core.queue.settlement import GONE
from malamute.errors import InvalidValue, MalamuteError, TrackerInUse, TryLater
from malamute.protocol.batch import pack_record
from malamute.protocol.bounce import BOUNCED
from malamute.protocol.limits import TEXT_BYTES_MAX
from malamute.protocol.names import ERROR_HEADER, RESERVED_PREFIX
from malamute.store.policies import BaseKind

if TYPE_CHECKING:
    from malamute.core.queue.table import QueueTable
    from malamute.core.queue.usage import QueueUsage
    from malamute.store.operations import Frame

EMPTY = pack_record(None, ())


class Trackers:
    """The tracked messages that have no outcome yet, by sender and tracker, with the room that each has."""

    def __init__(self, mailboxes: QueueTable) -> None:
        self._mailboxes = mailboxes
        self._open: dict[tuple[str, str], tuple[int, int]] = {}
        """The room that is still kept for each, in messages and bytes."""

    def check(
        self, address: str, usage: QueueUsage, messages: Sequence[Entry], arriving: Sequence[Entry]
    ) -> None:
        """Raise `InvalidValue`, `TrackerInUse` or `TryLater` unless all can be tracked.

        `messages` are the tracked ones among those that are `arriving` in the queue, which need room too.
        """
        if not address:
            raise InvalidValue("tracker of an anonymous session: expected one with an address")
        wanted: set[str] = set()
        for message in messages:
            tracker = _tracker(message)
            if (address, tracker) in self._open or tracker in wanted:
                raise TrackerInUse(f"tracker {tracker!r} is in use: expected one of no unsettled message")
            wanted.add(tracker)
        room = sum(_room(usage.kind, usage.name, message) for message in messages)
        mailbox = self._mailboxes.by_name.get(address)
        if mailbox is None:
            self._mailboxes.limits.check_queues()
            mailbox = self._mailboxes.new(address)
        size_bytes = size_of(arriving)
        own, own_bytes = (len(arriving), size_bytes) if mailbox.usage is usage else (0, 0)
        try:
            mailbox.limits.check_queue(mailbox.usage, len(messages) + own, room + own_bytes)
            mailbox.limits.check_all(len(messages) + len(arriving), room + size_bytes)
        except TryLater as error:
            raise TryLater(f"no space for the outcome: {error.text}") from None

    def open(self, usage: QueueUsage, message: Entry) -> bool:
        """A tracked message is accepted, or found in the store: keep room for its outcome.

        Returns False if another one has its tracker, which is so in a damaged store alone.
        """
        key = message.sender, _tracker(message)
        if key in self._open:
            return False
        room = _room(usage.kind, usage.name, message)
        self._open[key] = (1, room)
        mailbox = self._mailboxes.get_or_create(message.sender)
        mailbox.limits.reserve(mailbox.usage, 1, room)
        return True

    def close(self, message: Entry) -> None:
        """The outcome of a tracked message is stored, or its command was refused after all."""
        messages, room = self._open.pop((message.sender, _tracker(message)))
        mailbox = self._mailboxes.get_or_create(message.sender)
        mailbox.limits.reserve(mailbox.usage, -messages, -room)

    def post(
        self, usage: QueueUsage, entries: Iterable[Entry], outcome: str, reason: str, *, bound: bool = True
    ) -> None:
        """Put outcomes into the mailboxes of the senders, with all else of this iteration."""
        effects = self._mailboxes.limits.effects
        for entry in entries:
            mailbox = self._mailboxes.get_or_create(entry.sender)
            properties = _properties(usage.kind, usage.name, entry, outcome, reason)
            message = Entry((mailbox.next_sequence, effects.time_ns, "", entry.subject, EMPTY, properties))
            mailbox.put([message], confirmed=bound, reserved=True)
            self._use(entry, 1, message.size_bytes)
            if bound:
                effects.stage.when_stored(partial(self._stored, usage, entry, message.size_bytes))

    def bounce(
        self,
        usage: QueueUsage,
        entries: Iterable[Entry],
        records: Mapping[int, Frame],
        reason: str,
        worker: str,
    ) -> list[int]:
        """Put messages back into the mailboxes of their senders, with all else of this iteration.

        Returns the sequences of those that had room there. Their sender is the `worker` that rejects them.
        """
        fitting: list[int] = []
        time_ns = self._mailboxes.limits.effects.time_ns
        for entry in entries:
            record, properties = records[entry.sequence], _bounced(usage.name, entry, reason)
            try:
                mailbox = self._mailboxes.get(entry.sender)
                back = Entry((mailbox.next_sequence, time_ns, worker, entry.subject, record, properties))
                mailbox.limits.check_queue(mailbox.usage, 1, back.size_bytes)
            except TryLater:
                if entry.sender in self._mailboxes.by_name:
                    self._mailboxes.drop_unused(self._mailboxes.by_name[entry.sender])
                continue
            mailbox.put([back], confirmed=True, reserved=True)
            fitting.append(entry.sequence)
        return fitting

    def answer(self, service: str, requests: Iterable[Entry], error: str) -> None:
        """End requests that nobody tracks: a final reply reports an error, with all of the iteration."""
        time_ns = self._mailboxes.limits.effects.time_ns
        for request in requests:
            asked = request.properties or {}
            name = asked.get("reply_to", request.sender)
            gone = name.startswith(RESERVED_PREFIX) and name not in self._mailboxes.by_name
            if "source" in asked or "correlation" not in asked or gone:
                continue
            mailbox = self._mailboxes.get_or_create(name)
            about = {"correlation": asked["correlation"], "service": asked.get(ASKED, service), "final": True}
            record = pack_record({ERROR_HEADER: error}, ())
            reply = Entry((mailbox.next_sequence, time_ns, "", request.subject, record, about))
            mailbox.put([reply], confirmed=True, reserved=True)

    def _stored(
        self, usage: QueueUsage, message: Entry, size_bytes: int, error: MalamuteError | None
    ) -> None:
        if error is None:
            return
        if (message.sender, _tracker(message)) in self._open:
            self._use(message, -1, -size_bytes)
            return
        # The message is gone with its queue.
        self.open(usage, message)
        self.post(usage, [message], *GONE, bound=False)
        self.close(message)

    def _use(self, message: Entry, messages: int, size_bytes: int) -> None:
        """An outcome takes up the room that was kept for it, or gives it back if it was not stored."""
        key = (message.sender, _tracker(message))
        kept, room = self._open[key]
        self._open[key] = (kept - messages, room - size_bytes)
        mailbox = self._mailboxes.get_or_create(message.sender)
        mailbox.limits.reserve(mailbox.usage, -messages, -size_bytes)


def _tracker(message: Entry) -> str:
    assert message.properties is not None
    tracker: str = message.properties["tracker"]
    return tracker


def _properties(kind: BaseKind, name: str, message: Entry, outcome: str, reason: str) -> dict[str, Any]:
    properties = {"outcome": outcome, "tracker": _tracker(message), "kind": kind, "name": name}
    if message.properties and "correlation" in message.properties:
        properties["correlation"] = message.properties["correlation"]
    return {**properties, "reason": reason} if reason else properties


def _bounced(mailbox: str, message: Entry, reason: str) -> dict[str, Any]:
    kept = {n: v for n, v in (message.properties or {}).items() if n == "correlation"}
    return {**kept, BOUNCED: mailbox, **({"reason": reason} if reason else {})}


def _room(kind: BaseKind, name: str, message: Entry) -> int:
    longest = _properties(kind, name, message, "", "x" * TEXT_BYTES_MAX)
    return Entry((0, 0, "", message.subject, EMPTY, longest)).size_bytes
