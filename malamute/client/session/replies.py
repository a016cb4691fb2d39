"""Replies to requests, and outcomes of sent messages: deliveries in the mailbox that are no mail.

Both are distinguished from mail by a correlation or a tracker that this session has made, and by a property
that only the broker writes, the service that replied or the outcome. Consumers of mail do not see them.

A worker of a service knows the correlations of its requests, and may send any message with them: as mail, or
as the reply of another service to a request of its own. So a reply counts only if it is from the requested
service, and a correlation is made from the name of the service and the secret of the session: no other
service can name one, and none of them reveals the routing id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from malamute.client.session.outbox import Command
from malamute.client.session.receipts import OutcomeTracking
from malamute.client.session.sources import ConsumerSource, Item
from malamute.errors import MalamuteError, TooMany

MARKS_MAX = 1_000
"""Maximum services with remembered marks; others are computed anew."""

UNREAD_MAX = 100
"""Maximum replies that wait here unacknowledged. Further ones are acknowledged on arrival: no other client
could use them, and a program that iterates late, or never, must not fill the broker with delivered replies.
"""

KEPT_MAX = 10_000
KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Maximum replies that wait here in all, and bytes of those that are acknowledged. Beyond them the oldest
request with waiting replies ends with an error: its program has not read them."""

TAKEN_MAX = 1_000
"""Maximum remembered outcomes, as many as the broker sends before they are acknowledged. An older one with a
tracker of the program's own is mail if it is redelivered."""


class PendingRequest:
    """A request to a service, until its final reply, and the replies that wait here.

    `command` has the broker's answer to the request itself, and `tracking`, for a tracked one, its outcome.
    """

    __slots__ = ("command", "complete", "correlation", "last", "service", "tracking", "waiting")

    def __init__(self, service: str, correlation: str) -> None:
        self.service = service
        self.correlation = correlation
        self.command = Command()
        self.tracking: OutcomeTracking | None = None
        self.complete = False
        self.last = 0
        self.waiting: deque[Item] = deque()


class PendingReplies:
    """The replies and outcomes that one session waits for. `secret` is known to the broker alone."""

    def __init__(self, secret: bytes) -> None:
        def mark(service: str) -> str:
            return blake2b(service.encode(), key=secret, digest_size=16, person=b"correlation").hexdigest()

        self._mark = lru_cache(MARKS_MAX)(mark)
        self._trackers = blake2b(key=secret, digest_size=16, person=b"tracker").hexdigest()
        self._next = 1
        self.requests: dict[str, PendingRequest] = {}
        """The requests whose replies are awaited, by correlation."""
        self._trackings: dict[str, OutcomeTracking] = {}
        self._taken: deque[tuple[str, int]] = deque(maxlen=TAKEN_MAX)
        """The last trackers with an outcome, with the sequence of each outcome."""
        self.outcomes = 0
        """Number of present waits for an outcome."""
        self.unread = 0
        """Replies received and not popped yet."""
        self.abandoned: deque[PendingRequest] = deque()
        """Requests whose replies the program has dropped, in any thread, to be forgotten."""
        self._early: dict[int, int] = {}
        """Unread replies that are already acknowledged: the bytes of each by its sequence."""
        self._early_bytes = 0

    def __bool__(self) -> bool:
        """Return whether any reply or outcome is awaited."""
        return bool(self.requests) or self.outcomes > 0

    def new_request(self, service: str) -> PendingRequest:
        """Return a pending request to a service, which counts from `begin` on."""
        number = self._next
        self._next = number + 1
        return PendingRequest(service, f"{self._mark(service)}-{number}")

    def new_tracker(self) -> str:
        """Return a tracker for a message to be sent."""
        self._next += 1
        return f"{self._trackers}-{self._next - 1}"

    def begin(self, pending: PendingRequest) -> bool:
        """Note that the request was sent: replies may be delivered. Return whether it is the only one now."""
        self.requests[pending.correlation] = pending
        return len(self.requests) == 1

    def track(self, tracking: OutcomeTracking) -> None:
        """Note that the message was sent: its outcome may be delivered."""
        self._trackings[tracking.tracker] = tracking

    def pop(self, pending: PendingRequest, mailbox: ConsumerSource) -> Item:
        """Return the next reply to a request, and acknowledge it: no other client could use it."""
        self.unread -= 1
        item = pending.waiting.popleft()
        if item.sequence in self._early:
            self._early_bytes -= self._early.pop(item.sequence)
        else:
            mailbox.finish(item.sequence)
        return item

    def forget(self, pending: PendingRequest) -> bool:
        """Drop a pending request. Return whether its replies were awaited."""
        return self.requests.pop(pending.correlation, None) is not None

    def refused(self, command: Command | None) -> None:
        """Note that the message of this command was refused: it has no outcome."""
        for tracker in [t for t, tracking in self._trackings.items() if tracking.command is command]:
            del self._trackings[tracker]

    def fail(self, error: MalamuteError) -> None:
        """End all waits with an error."""
        for tracking in self._trackings.values():
            tracking.command.error = tracking.command.error or error

    def accept(self, mailbox: ConsumerSource, item: Item) -> bool:
        """Accept an item if it is a reply or an outcome. Return whether it was one."""
        properties = item.properties
        if not properties:
            return False
        if "outcome" in properties:
            # The outcome of a request has the correlation of its replies.
            return self._accept_outcome(mailbox, item, properties)
        service, correlation = properties.get("service"), properties.get("correlation")
        if type(service) is not str or type(correlation) is not str:
            return False
        pending = self.requests.get(correlation)
        if (pending.service != service) if pending else not correlation.startswith(self._mark(service)):
            return False
        if pending is not None and item.attempts > 1 and item.sequence <= pending.last:
            # A reply that still waits here is acknowledged when it is popped. Any other was popped before the
            # connection broke and its acknowledgement was lost.
            taken = not pending.waiting or item.sequence < pending.waiting[0].sequence
            if taken or item.sequence in self._early:
                mailbox.finish(item.sequence)
            return True
        if pending is None:
            # The reply is late.
            mailbox.finish(item.sequence)
            return True
        pending.last = item.sequence
        pending.complete = bool(properties.get("final", True))
        pending.waiting.append(item)
        self.unread += 1
        if self.unread > UNREAD_MAX:
            self._early[item.sequence] = len(item.record)
            self._early_bytes += len(item.record)
            mailbox.finish(item.sequence)
            if self.unread > KEPT_MAX or self._early_bytes > KEPT_BYTES_MAX:
                self._drop_unread(mailbox)
        return True

    def _drop_unread(self, mailbox: ConsumerSource) -> None:
        """End the oldest request with waiting replies: late ones are acknowledged, as after `forget`."""
        pending = next(pending for pending in self.requests.values() if pending.waiting)
        del self.requests[pending.correlation]
        count = len(pending.waiting)
        while pending.waiting:
            self.pop(pending, mailbox)
        pending.command.error = TooMany(
            f"{count} replies to a request to {pending.service!r} were not read and are dropped: read them, "
            "or send with `enqueue` what wants no reply"
        )

    def _accept_outcome(self, mailbox: ConsumerSource, item: Item, properties: Mapping[str, Any]) -> bool:
        tracker = str(properties.get("tracker", ""))
        # A tracker may be in use again by now, for another message.
        taken = item.attempts > 1 and (tracker, item.sequence) in self._taken
        tracking = None if taken else self._trackings.pop(tracker, None)
        if tracking is not None:
            tracking.outcome, tracking.reason = str(properties["outcome"]), str(properties.get("reason", ""))
            self._taken.append((tracker, item.sequence))
        elif not (taken or tracker.startswith(self._trackers)):
            return False
        # A known outcome was popped before its acknowledgement was lost.
        mailbox.finish(item.sequence)
        return True
