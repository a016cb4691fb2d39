"""Commands that a session sends: messages to streams and mailboxes, requests, replies, and commits.

Each becomes one command in the outbox. Replies and outcomes arrive as mail, so requests and tracked messages
open the mailbox, and let them past unread mail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from malamute.client.options import check_name
from malamute.client.session.inbox import Inbox
from malamute.client.session.outbox import Command, Outbox
from malamute.client.session.plain import frames_of, plain
from malamute.client.session.receipts import OutcomeTracking
from malamute.client.session.replies import PendingReplies, PendingRequest
from malamute.client.session.sources import ConsumerSource, Item
from malamute.errors import InvalidValue, TooLarge
from malamute.protocol import messages as wire
from malamute.protocol.batch import Columns, Frame
from malamute.protocol.codec import encode, with_last_fields
from malamute.protocol.limits import Limits
from malamute.protocol.names import is_name

REPLIES_CREDIT = 1000
REPLIES_CREDIT_BYTES = 8 * 1024 * 1024
"""The window of a mailbox that is open for replies only."""

Send = Callable[[str, Sequence[str], Sequence[Frame], Command | None, Mapping[str, Any] | None], None]
"""`Sending.send` or `Sending.enqueue`."""


class Sending:
    """Sending by one session. `limits` are those of the broker."""

    def __init__(self, address: str, outbox: Outbox, inbox: Inbox, pending_replies: PendingReplies) -> None:
        self.limits = Limits()
        self._address = address
        self._outbox = outbox
        self._inbox = inbox
        self._pending_replies = pending_replies

    def publish(
        self,
        stream: str,
        subjects: Sequence[str],
        records: Sequence[Frame],
        command: Command | None = None,
        ttl: int = 0,
        identity: str = "",
    ) -> None:
        """Publish messages as one command; with `command`, confirmed. `ttl` is in milliseconds.

        The broker stores no other command with the same `identity`.
        """
        if command is not None:
            command.count = len(subjects)
        self._carry(wire.Publish, stream, subjects, records, command, ttl, identity)

    def forward(
        self,
        stream: str,
        columns: Columns,
        command: Command,
        link: str,
        generation: int,
        after: str,
        upto: str,
    ) -> None:
        """Publish what a link has read, from one position in its source up to another, confirmed."""
        command.count = len(columns)
        at, senders = (link, generation, after, upto), columns.all_senders()
        self._carry(wire.Forward, stream, columns.subjects, columns.records, command, *at, senders)

    def publish_single(
        self, stream: str, subject: str, record: Frame, command: Command | None, ttl: int = 0
    ) -> None:
        """Publish one message to a stream, with others that wait; with `command`, confirmed.

        `ttl` is in milliseconds, 0 for none.
        """
        self._check(stream, len(record))
        if command is not None:
            command.count = 1
        self._outbox.publish(stream, subject, record, command, ttl)

    def publish_batch(
        self,
        stream: str,
        subjects: Sequence[str],
        records: Sequence[Frame],
        command: Command | None,
        ttl: int = 0,
    ) -> None:
        """Publish the batch of a publisher: a single message joins others that wait.

        `ttl` is in milliseconds, 0 for none.
        """
        if len(subjects) == 1:
            self.publish_single(stream, subjects[0], records[0], command, ttl)
        else:
            self.publish(stream, subjects, records, command, ttl)

    def send(
        self,
        address: str,
        subjects: Sequence[str],
        records: Sequence[Frame],
        command: Command | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Send to a mailbox; with `command`, confirmed. All messages have the same `options`."""
        self.send_batch(address, subjects, records, command, [options] * len(subjects) if options else None)

    def send_batch(
        self,
        address: str,
        subjects: Sequence[str],
        records: Sequence[Frame],
        command: Command | None = None,
        properties: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Send to a mailbox; with `command`, confirmed. Each message has `properties` of its own."""
        self._carry(wire.Send, address, subjects, records, command, properties)

    def enqueue(
        self,
        service: str,
        subjects: Sequence[str],
        records: Sequence[Frame],
        command: Command | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Send requests that want no reply; with `command`, confirmed. All have the same `options`."""
        properties = [{**(options or {}), "no_reply": True}] * len(subjects)
        self._carry(wire.Request, service, subjects, records, command, properties, [])

    def send_tracked(
        self,
        target: str,
        subject: str,
        record: Frame,
        command: Command,
        options: Mapping[str, Any],
        send: Send | None = None,
    ) -> OutcomeTracking:
        """Send one message, confirmed, by `send` or by `enqueue`; the result gets its outcome.

        The tracker may be among the options; otherwise one is generated. Raises `InvalidValue` without an
        address.
        """
        tracking = self._tracking(options, command)
        (send or self.send)(target, [subject], [record], command, {**options, "tracker": tracking.tracker})
        self._pending_replies.track(tracking)
        self._open_mailbox()
        return tracking

    def _tracking(self, options: Mapping[str, Any], command: Command) -> OutcomeTracking:
        if not self._address:
            raise InvalidValue("no outcome without an address: connect with address=NAME")
        return OutcomeTracking(options.get("tracker") or self._pending_replies.new_tracker(), command)

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Let outcomes past unread mail during the block."""
        self._pending_replies.outcomes += 1
        self._inbox.let_past()
        try:
            yield
        finally:
            self._pending_replies.outcomes -= 1
            self._inbox.return_mail()

    def request(
        self,
        service: str,
        subject: str,
        record: Frame,
        *,
        numbered: bool,
        tracked: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> PendingRequest:
        """Send one request. The result collects the replies; `forget` it when they matter no more.

        A `tracked` one has to be numbered, and the result gets its outcome, too. Raises `InvalidValue` for a
        tracked one without an address.
        """
        outbox, replies = self._outbox, self._pending_replies
        if outbox.refusal is not None:
            raise outbox.refusal
        if replies.abandoned:
            self.forget_abandoned()
        size_bytes = len(record)
        self._check(service, size_bytes)
        pending = replies.new_request(service)
        properties = {**(options or {}), "correlation": pending.correlation}
        if tracked:
            pending.tracking = self._tracking(properties, pending.command)
            properties["tracker"] = pending.tracking.tracker
        number = outbox.next_number if numbered else 0
        frames = frames_of(wire.Request, service, number, [subject], [record], [properties], [])
        mailbox, first = self._inbox.mailbox, None
        # Replies received together are acknowledged together, once all are popped.
        if mailbox is not None and mailbox.acks and outbox.ready and not replies.unread:
            first = with_last_fields(frames, mailbox.pop_ranges())
        outbox.submit(pending.command, frames, size_bytes, numbered=numbered, first=first)
        if pending.tracking is not None:
            replies.track(pending.tracking)
        if mailbox is None or mailbox.paused:
            self._open_mailbox()
        if replies.begin(pending) and mailbox is not None and mailbox.outstanding:
            # The reply may be behind unread mail.
            self._inbox.let_past()
        return pending

    def _open_mailbox(self) -> None:
        self._inbox.open_for_replies(REPLIES_CREDIT, REPLIES_CREDIT_BYTES)

    def pop_reply(self, pending: PendingRequest) -> Item:
        """Return the next reply to a request, and acknowledge it: no other client could use it.

        The reply was awaited, so it did not count as held: no credit is due by it.
        """
        mailbox = self._inbox.mailbox
        assert mailbox is not None
        return self._pending_replies.pop(pending, mailbox)

    def forget(self, pending: PendingRequest) -> None:
        """Stop waiting for replies: later ones are acknowledged and dropped."""
        if self._pending_replies.forget(pending):
            while pending.waiting:
                self.pop_reply(pending)
            if self._inbox.mail_unread:
                self._inbox.return_mail()

    def forget_abandoned(self) -> None:
        """Forget the requests whose replies the program has dropped."""
        abandoned = self._pending_replies.abandoned
        while abandoned:
            self.forget(abandoned.popleft())

    def reply(
        self,
        offer: ConsumerSource,
        sequence: int,
        record: Frame,
        command: Command | None = None,
        *,
        final: bool,
    ) -> Command:
        """Reply to a request of an offer; with `command`, confirmed. Return the command. Raises `TooLarge`.

        A final reply completes the request, and carries the credit that is due then.
        """
        if self._outbox.refusal is not None:
            raise self._outbox.refusal
        size_bytes = len(record)
        if size_bytes > self.limits.message_bytes:
            raise self._too_large(size_bytes)
        numbered, command = command is not None, command or Command()
        number = self._outbox.next_number if numbered else 0
        frames = frames_of(wire.Reply, offer.number, number, [sequence], [final], [record], 0, 0)
        first = None
        if final:
            command.completes = (offer.number, sequence)
            offer.finish(sequence, acknowledge=False)
            if grant := self._inbox.grant_due(offer):
                first = with_last_fields(frames, *grant)
        self._outbox.submit(command, frames, size_bytes, numbered=numbered, first=first)
        return command

    def commit(self, stream: str, cursor: str, sequence: int, command: Command, store: str = "") -> None:
        """Set a cursor of a stream behind a sequence, confirmed; of this store, if one is named.

        Raises:
            InvalidName: the name of the cursor is invalid.
            InvalidValue: the sequence is invalid.
        """
        check_name("cursor", cursor)
        frames = encode(plain(wire.Commit(stream, self._outbox.next_number, cursor, sequence, store)))
        self._outbox.submit(command, frames, 0, numbered=True)

    def _carry(
        self,
        kind: type[wire.Message],
        target: str,
        subjects: Sequence[str],
        records: Sequence[Frame],
        command: Command | None,
        *more: Any,
    ) -> None:
        size_bytes = sum(map(len, records))
        self._check(target, size_bytes)
        number = 0 if command is None else self._outbox.next_number
        frames = frames_of(kind, target, number, subjects, records, *more)
        self._outbox.submit(command or Command(), frames, size_bytes, numbered=command is not None)

    def _check(self, target: str, size_bytes: int) -> None:
        if size_bytes > self.limits.message_bytes:
            raise self._too_large(size_bytes)
        if type(target) is not str or not is_name(target):
            check_name("name", target)

    def _too_large(self, size_bytes: int) -> TooLarge:
        return TooLarge(
            f"command of {size_bytes} bytes is too large: expected at most {self.limits.message_bytes}"
        )
