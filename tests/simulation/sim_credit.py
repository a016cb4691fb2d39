"""The book of credit: what each peer has granted, and what the broker has sent against it.

A HELLO takes all grants back. Grants count from the moment the broker reads them; what it sends in the same
iteration before WELCOME still belongs to the time before, so each HELLO begins a new page, and WELCOME turns
it.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Any

from sim_origin import Violation

from malamute.errors import AddressTaken, Disconnected, NotFound
from malamute.protocol.batch import Columns
from malamute.protocol.messages import (
    BY_TYPE,
    MAILBOX,
    Ack,
    Cancel,
    Credit,
    Drain,
    Error,
    Hello,
    Message,
    Offer,
    Ok,
    Reply,
    Subscribe,
    Welcome,
)

HELLO, CANCEL = 1, 8
SUBSCRIBE, OFFER = BY_TYPE[Subscribe].opcode, BY_TYPE[Offer].opcode


class Grant:
    """What is left of one source, and the command that began it."""

    __slots__ = ("began", "bytes", "messages", "position")

    def __init__(self, began: Subscribe | Offer | None) -> None:
        self.began = began
        self.messages: float = 0
        self.bytes: float = 0
        self.position: int | None = None
        """Of a subscription: the last sequence that its client was notified of."""
        if began is not None:
            self.add(began.credit, began.credit_bytes)

    def add(self, messages: int, size_bytes: int) -> None:
        """Grant more."""
        self.messages = inf if messages < 0 else self.messages + messages
        self.bytes = inf if size_bytes < 0 else self.bytes + size_bytes

    def move(self, after: int, last: int) -> None:
        """Messages were sent up to a sequence, `after` one that the client knows."""
        if after != self.position:
            raise Violation("a delivery follows on another", after=after, position=self.position)
        self.position = last

    def drain(self) -> None:
        """Nothing is left of it."""
        self.messages = self.bytes = 0

    def take(self, columns: Columns) -> None:
        """Use it up, one message after the other: the bytes may run out with the last one."""
        for subject, record in zip(columns.subjects, columns.records, strict=True):
            if self.messages < 1 or self.bytes <= 0:
                raise Violation("more was sent than granted", messages=self.messages, bytes=self.bytes)
            self.messages -= 1
            self.bytes -= len(subject) + len(record)


Page = dict[int, Grant]


class CreditBook:
    """The grants of every peer."""

    def __init__(self) -> None:
        self._pages: dict[bytes, deque[Page]] = {}

    def died(self) -> None:
        """A new broker knows of no grants."""
        self._pages.clear()

    def received(self, peer: bytes, message: Message) -> None:
        """The broker reads a command."""
        pages = self._pages.get(peer)
        if isinstance(message, Hello):
            self._pages.setdefault(peer, deque([{}])).append({})
        elif pages is None:
            return
        elif isinstance(message, Subscribe | Offer):
            pages[-1].setdefault(message.source, Grant(message))
        elif isinstance(message, Drain):
            if message.source in pages[-1]:
                pages[-1][message.source].drain()
        elif isinstance(message, Credit):
            if message.source == MAILBOX:
                pages[-1].setdefault(MAILBOX, Grant(None))
            if message.source in pages[-1]:
                pages[-1][message.source].add(message.messages, message.bytes)
        elif isinstance(message, Reply | Ack):
            self._piggybacked(pages[-1], message)

    def _piggybacked(self, page: Page, message: Reply | Ack) -> None:
        """What is piggybacked is granted, whatever becomes of the command. No client sends that twice."""
        if message.source in page:
            page[message.source].add(message.credit, message.credit_bytes)

    def sent(self, peer: bytes, message: Message) -> None:
        """The broker sends an answer."""
        pages = self._pages.get(peer)
        if pages is None:
            return
        if isinstance(message, Welcome):
            pages.popleft()
        elif isinstance(message, Error) and message.code in (AddressTaken.code, Disconnected.code):
            pages[0] = {}
        elif isinstance(message, Error) and message.about == HELLO and len(pages) > 1:
            pages.pop()
        elif (isinstance(message, Ok) and message.about == CANCEL) or (
            isinstance(message, Error)
            and message.about in (SUBSCRIBE, OFFER)
            and message.code == NotFound.code
        ):
            # It has ended. One that comes twice is refused, and the first stands.
            pages[0].pop(message.ref, None)

    def grant(self, peer: bytes, source: int) -> Grant:
        """The grant that a delivery goes against."""
        pages = self._pages.get(peer)
        if pages is None or source not in pages[0]:
            raise Violation("a delivery to a source that is not there", peer=peer, source=source)
        return pages[0][source]

    def newest(self, peer: bytes, source: int) -> Grant | None:
        """The grant that a command is about, if there is one."""
        pages = self._pages.get(peer)
        return pages[-1].get(source) if pages else None

    def began(self, peer: bytes, source: int) -> Any:
        """The command that began a source, or None."""
        pages = self._pages.get(peer)
        grant = pages[0].get(source) if pages else None
        return grant.began if grant else None

    def readers(self, stream: str) -> set[tuple[bytes, int]]:
        """The subscriptions to a stream that stand."""
        return {
            (peer, source)
            for peer, pages in self._pages.items()
            for source, grant in pages[-1].items()
            if isinstance(grant.began, Subscribe)
            and grant.began.stream == stream
            and grant.position is not None
        }

    def closed(self, peer: bytes) -> None:
        """The session has ended."""
        self._pages.pop(peer, None)


__all__ = ["Cancel", "CreditBook", "Grant"]
