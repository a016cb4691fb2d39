"""Where messages come from: every body is unique, so it names the command that brought it.

An `Author` writes the messages of all clients and remembers each. What a broker stores, delivers or confirms
is compared with what was written, never with what the broker thinks.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from malamute.client.session.outbox import Command
from malamute.core.reports.events import EVENTS, SENDER
from malamute.protocol.batch import Frame, pack_record, unpack_record
from malamute.protocol.names import AUDIT

Key = tuple[str, str, int]
"""A queued message: the kind and the name of its queue, and its sequence."""


class Violation(AssertionError):
    """Raised when a promise was broken. `rule` says which, the same words each time."""

    def __init__(self, rule: str, **details: Any) -> None:
        self.rule = rule
        self.details = details
        super().__init__(rule, details)

    def __str__(self) -> str:
        return f"{self.rule}: " + ", ".join(f"{name}={value!r}" for name, value in self.details.items())


class Order:
    """A command as its client gave it: of what kind, where to, and what became of it."""

    __slots__ = (
        "awaited",
        "bodies",
        "command",
        "identity",
        "immediate",
        "kind",
        "numbered",
        "outcome",
        "peer",
        "position",
        "request",
        "target",
        "twice",
    )

    def __init__(self, kind: str, peer: bytes, target: str, *, numbered: bool) -> None:
        self.kind = kind
        self.peer = peer
        self.target = target
        self.numbered = numbered
        self.command: Command | None = None
        self.bodies: list[bytes] = []
        self.outcome: bool | None = None
        """What the broker said: stored, refused, or nothing yet."""
        self.twice = False
        """The session expired before there was an answer: it may be executed a second time."""
        self.request = b""
        """For a reply: the body of the request."""
        self.position = 0
        """For a commit: the sequence."""
        self.identity = ""
        self.immediate = False
        self.awaited = False
        """Whether anybody may have been there for it when it came."""


class Origin:
    """One message as it was written."""

    __slots__ = ("body", "final", "headers", "order", "place", "sender", "subject")

    def __init__(
        self, order: Order, body: bytes, subject: str, sender: str, headers: Mapping[str, Any]
    ) -> None:
        self.order = order
        self.body = body
        self.subject = subject
        self.sender = sender
        self.headers = headers
        self.place = len(order.bodies)
        self.final = False
        order.bodies.append(body)


class Author:
    """Everything that was ever written, by its body."""

    def __init__(self) -> None:
        self.origins: dict[bytes, Origin] = {}
        self._events: dict[tuple[str, str, bytes], Origin] = {}

    def write(self, order: Order, subject: str, sender: str, headers: Mapping[str, Any] = {}) -> bytes:
        """Write one more message of a command. Returns its record."""
        body = b"%s-%d" % (order.kind[:3].encode(), len(self.origins) + 1)
        # Some are long, so that credit in bytes matters.
        body += b"." * (40 * (len(self.origins) % 5 == 0))
        self.origins[body] = Origin(order, body, subject, sender, headers)
        return pack_record(headers, body)

    def origin(self, record: Frame, stream: str = "", subject: str = "") -> Origin:
        """Who wrote a record. Those of the streams of the broker's own are its, and some are alike."""
        if stream in (EVENTS, AUDIT):
            return self._event(stream, subject, bytes(record))
        body = body_of(record)
        if body not in self.origins:
            raise Violation("a message that nobody wrote", body=body)
        return self.origins[body]

    def _event(self, stream: str, subject: str, record: bytes) -> Origin:
        key = stream, subject, record
        if key not in self._events:
            order = Order("publish", b"", stream, numbered=False)
            order.twice = True
            headers = unpack_record(record)[0]
            self._events[key] = Origin(order, record, subject, SENDER, headers)
        return self._events[key]


def mailbox_of(peer: bytes, address: str) -> str:
    """The name of the mailbox of a session."""
    return address or f"$session.{ident_of(peer)}"


def ident_of(peer: bytes) -> str:
    """The name of a session for others."""
    return blake2b(peer, digest_size=8).hexdigest()


def body_of(record: Frame) -> bytes:
    """The body that a record holds; empty for an outcome, which has none."""
    frames = unpack_record(record)[1]
    return bytes(frames[0]) if frames else b""
