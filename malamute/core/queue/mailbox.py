"""Mailboxes: durable messages for one recipient, present or absent.

A mailbox is a queue with the name of its owner's address, created by the first message or consumer. The owner
takes everything. Others may consume from it by an offer, whose selector takes senders: a message goes to one
of them all, as a request to one of the workers of a service. So a name that is no address is a mailbox that
consumers share. A session without an address has a private mailbox, for the replies to its requests alone; it
goes with the session.
"""

from __future__ import annotations

from collections.abc import Iterable

from malamute.core.identity.quotas import QuotaUsages
from malamute.core.queue.enqueue import enqueue
from malamute.core.queue.queue import Queue
from malamute.core.queue.source import QueueSource
from malamute.core.queue.table import QueueTable
from malamute.core.session.session import Session
from malamute.errors import MalamuteError, NotFound
from malamute.matching import Criterion, Selector
from malamute.protocol.messages import MAILBOX, Send
from malamute.protocol.names import RESERVED_PREFIX

EVERYTHING = Selector((Criterion("all", ""),))


class Mailboxes(QueueTable):
    """All mailboxes by the addresses of their owners."""

    kind = "mailbox"

    def get(self, name: str, *, private: bool = False, quotas: QuotaUsages = ()) -> Queue:
        """The mailbox of an address, made if needed; then it counts for these quotas.

        Raises `TryLater` or `QuotaExceeded`, or `NotFound` for a private one.
        """
        mailbox = self.by_name.get(name)
        if mailbox is not None:
            return mailbox
        if name.startswith(RESERVED_PREFIX) and not private:
            raise NotFound(
                f"there is no mailbox {name!r}: expected the name of one, or one without '$' at its beginning"
            )
        # A private one goes with its session, which counts.
        return self.create(name, () if name.startswith(RESERVED_PREFIX) else quotas)

    def send(self, session: Session, message: Send) -> bool:
        """Put messages into a mailbox. Returns whether they are in memory only.

        Raises as `enqueue`, `NotFound`, or `AccessRefused`.
        """
        if not message.address.startswith(RESERVED_PREFIX):
            session.may.require_there("mailbox", message.address, self.by_name)
        mailbox = self.get(message.address, quotas=session.quotas)
        try:
            enqueue(mailbox, session.address, session.address, message, session.quotas)
        except MalamuteError:
            self.drop_unused(mailbox)
            raise
        return mailbox.usage.in_memory

    def source(self, session: Session) -> QueueSource:
        """The mailbox of a session as a source of it, from its first credit on."""
        source = session.sources.get(MAILBOX)
        if not isinstance(source, QueueSource):
            mailbox = self.get(session.mailbox, private=True, quotas=session.quotas)
            source = session.sources[MAILBOX] = QueueSource(session, MAILBOX, mailbox, EVERYTHING)
        return source

    def strays(self, sessions: Iterable[Session]) -> list[Queue]:
        """The private mailboxes of none of these sessions."""
        known = {session.mailbox for session in sessions}
        return [
            mailbox
            for name, mailbox in self.by_name.items()
            if name.startswith(RESERVED_PREFIX) and name not in known
        ]

    def forget(self, session: Session) -> None:
        """Remove the private mailbox of a session that ends or gets an address."""
        mailbox = self.by_name.get(session.mailbox)
        if not session.address and mailbox is not None:
            self.remove(mailbox)
