"""What comes as mail and is none: replies to our requests, and the outcomes of what we sent.

Both are told from mail by what they answer, a correlation or a tracker that this session has made, and go to
whoever waits for them. They are not seen by those who take mail.
"""

from __future__ import annotations

from collections import deque

from malamute.client.outbox import Command
from malamute.client.receipts import Tracking
from malamute.client.sources import Item, QueueSource
from malamute.errors import MalamuteError


class Exchange:
    """A request and the replies to it.

    `command` tells whether the request itself was taken, and `tracking`, if it is tracked, how it ended.
    """

    __slots__ = ("command", "complete", "correlation", "last", "tracking", "waiting")

    def __init__(self, correlation: str) -> None:
        self.correlation = correlation
        self.command = Command()
        self.tracking: Tracking | None = None
        self.complete = False
        self.last = 0
        self.waiting: deque[Item] = deque()


class Awaited:
    """The replies and outcomes that one session waits for. `mark` begins all correlations of its own."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._next = 1
        self._exchanges: dict[str, Exchange] = {}
        self._trackings: dict[str, Tracking] = {}
        self.outcomes = 0
        """How many wait for an outcome at this moment."""

    def __bool__(self) -> bool:
        """Whether anybody waits for something at this moment."""
        return bool(self._exchanges) or self.outcomes > 0

    def new_exchange(self) -> Exchange:
        """An exchange for a request that is about to be made."""
        return Exchange(f"{self._mark}{self._number()}")

    def new_tracker(self) -> str:
        """A tracker for a message that is about to be sent."""
        return f"{self._mark}t{self._number()}"

    def _number(self) -> int:
        number = self._next
        self._next += 1
        return number

    def begin(self, exchange: Exchange) -> bool:
        """The request was made: replies may come. Returns whether it is the only one now."""
        self._exchanges[exchange.correlation] = exchange
        return len(self._exchanges) == 1

    def track(self, tracking: Tracking) -> None:
        """The message was sent: its outcome may come."""
        self._trackings[tracking.tracker] = tracking

    def forget(self, exchange: Exchange) -> bool:
        """Nobody waits for this exchange any more. Returns whether somebody did."""
        return self._exchanges.pop(exchange.correlation, None) is not None

    def refused(self, command: Command | None) -> None:
        """What a command was to send was refused: no outcome will come."""
        for tracker in [t for t, tracking in self._trackings.items() if tracking.command is command]:
            del self._trackings[tracker]

    def fail(self, error: MalamuteError) -> None:
        """Nothing will come any more."""
        for tracking in self._trackings.values():
            tracking.command.error = tracking.command.error or error

    def take(self, mailbox: QueueSource, item: Item) -> bool:
        """Take what came if it is a reply or an outcome. Returns whether it was."""
        return self._take_reply(mailbox, item) or self._take_outcome(mailbox, item)

    def _take_reply(self, mailbox: QueueSource, item: Item) -> bool:
        properties = item.properties or {}
        correlation = properties.get("correlation")
        if not isinstance(correlation, str) or not correlation.startswith(self._mark):
            return False
        if "outcome" in properties:
            # That of a request has the correlation of its replies.
            return False
        exchange = self._exchanges.get(correlation)
        if exchange is None or (item.attempts > 1 and item.sequence <= exchange.last):
            # Late, or taken already before the connection broke and the acknowledgement was lost.
            mailbox.finish(item.sequence)
            return True
        exchange.last = item.sequence
        exchange.complete = bool(item.properties and item.properties.get("final", True))
        exchange.waiting.append(item)
        return True

    def _take_outcome(self, mailbox: QueueSource, item: Item) -> bool:
        properties = item.properties or {}
        tracking = (
            self._trackings.pop(properties.get("tracker", ""), None) if "outcome" in properties else None
        )
        if tracking is None:
            return False
        tracking.outcome, tracking.reason = str(properties["outcome"]), str(properties.get("reason", ""))
        mailbox.finish(item.sequence)
        return True
