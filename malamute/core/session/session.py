"""Sessions: the connected clients, their addresses, and the numbers of their finished commands.

A session is one client object, named by the routing id that the client chose, over all connections:

    absent ──HELLO──▶ open ──lost──▶ away ──HELLO──▶ open …      away too long, or BYE ──▶ absent

A new HELLO takes back all that belongs to a connection (subscriptions, offers, credit, deliveries
under way), because frames may have been lost in either direction, and keeps what belongs to the session:
its `Numbers`. A client sends its unanswered commands again with their old numbers, and each is executed
once, in order. That holds over a crash of the broker, because the numbers are stored in the same
transaction as the messages that they numbered.

An address belongs to the session that asked for it last: a program that comes back after a crash must
not wait for its own ghost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

from malamute.core.identity.access import Permissions
from malamute.core.identity.quotas import QuotaUsages, add_all
from malamute.core.iteration.stage import BacklogShare
from malamute.core.iteration.timers import Timer
from malamute.core.session.numbers import Numbers
from malamute.core.session.state import AWAY, SessionState
from malamute.errors import (
    NotFound,
)
from malamute.protocol.fields import Ranges
from malamute.protocol.names import RESERVED_PREFIX

if TYPE_CHECKING:
    from malamute.core.iteration.stage import WhenStored


def session_name(peer: bytes) -> str:
    """A session's name for people. The id stays secret: a peer that knows it could take the session over."""
    return blake2b(peer, digest_size=8).hexdigest()


class SessionSource(Protocol):
    """A source of a session: a subscription, its mailbox or an offer."""

    cost_bytes: int
    """The memory of its selector in bytes."""

    def grant(self, messages: int, size_bytes: int) -> None:
        """Take more credit."""

    def drain(self, held: Ranges, drained: WhenStored) -> None:
        """Take nothing more until there is credit again, and return all messages that are not `held`."""

    def block(self) -> None:
        """The peer takes no more for now."""

    def unblock(self) -> None:
        """The peer takes more again."""

    def cancel(self) -> None:
        """End it."""


class Session(BacklogShare):
    """One client, over all its connections."""

    may: Permissions
    """The principal since its last HELLO, and its permissions."""

    def __init__(self, peer: bytes, numbers: Numbers, now: float) -> None:
        self.peer = peer
        self.numbers = numbers
        self.address = ""
        self.sender = ""
        """The sender of its messages on streams: its address, or the signature of its user."""
        self.proved_user = ""
        """The user that the connection has proved: the one that it is of, or acts as."""
        self.origin = ""
        """The network address of its connection, where that is known."""
        self.software = ""
        self.state: SessionState = AWAY
        self.open = False
        """Whether it is OPEN: `state` alone changes that."""
        self.ending = False
        """Whether it ends for good, so that its client opens no source again."""
        self.blocked = False
        self.review: Callable[[Session], None] | None = None
        """To be called before anything is done for it, as the rules have changed; None once that was done."""
        self.durable = False
        self.doubtful = False
        """Whether newer numbers of it may have been in a part of the store that is damaged.

        Its client has not learned of it yet.
        """
        self.since = now
        self.last_heard = now
        self.sources: dict[int, SessionSource] = {}
        self.selectors = self.selector_bytes = 0
        """The number of its sources with a selector, and their memory."""
        self.holding = 0
        """Deliveries that wait for an ack or a reply."""
        self.sent = self.received = 0
        """Messages that it has sent and that were accepted, and that it was sent."""
        self.quotas: QuotaUsages = ()
        """The quotas that it counts for."""
        self.expiry: Timer | None = None
        """When the token of its user expires, if there is one."""

    @property
    def mailbox(self) -> str:
        """The name of the session's mailbox: its address, or a private one for replies."""
        return self.address or f"{RESERVED_PREFIX}session.{self.ident}"

    @cached_property
    def ident(self) -> str:
        """Its name for people."""
        return session_name(self.peer)

    def count_for(self, quotas: QuotaUsages) -> None:
        """Count for these quotas from now on, with all that it has."""
        has = {
            "sessions": 1,
            "connections": int(self.open),
            "sources": self.selectors,
            "selector_bytes": self.selector_bytes,
        }
        for name, count in has.items():
            add_all(self.quotas, name, -count)
            add_all(quotas, name, count)
        self.quotas = quotas

    def source(self, source_id: int) -> SessionSource:
        """The subscription or consumer with this id. Raises `NotFound`."""
        try:
            return self.sources[source_id]
        except KeyError:
            raise NotFound(f"this session has no source {source_id}") from None
