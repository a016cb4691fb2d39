"""Mailboxes: durable messages for one recipient, present or absent.

A mailbox is a queue with the name of its owner's address, created by the first message or consumer. The owner
takes everything. Others may consume from it by an offer, whose selector takes senders: a message goes to one
of them all, as a request to one of the workers of a service. So a name that is no address is a mailbox that
consumers share. A session without an address has a private mailbox, for the replies to its requests alone; it
goes with the session. A temporary mailbox goes with its last consumer.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from malamute.core.identity.quotas import QuotaUsages
from malamute.core.queue.enqueue import enqueue
from malamute.core.queue.queue import Queue
from malamute.core.queue.source import QueueSource
from malamute.core.queue.table import QueueTable
from malamute.core.queue.temporary import MailboxUsers
from malamute.core.session.session import Session
from malamute.errors import InUse, MalamuteError, NotFound
from malamute.matching import Criterion, Selector
from malamute.protocol.messages import MAILBOX, Send
from malamute.protocol.names import RESERVED_PREFIX
from malamute.store.tables import TEMPORARY

if TYPE_CHECKING:
    from malamute.core.iteration.recovery import Recovery
    from malamute.core.queue.limits import QueueLimits
    from malamute.store.operations import Recovered, Stranded

BUSY_SECONDS = 1.0
"""Seconds until the next look at a temporary mailbox that a feed or a reply still needs."""

EVERYTHING = Selector((Criterion("all", ""),))


class Mailboxes(QueueTable):
    """All mailboxes by the addresses of their owners."""

    kind = "mailbox"

    def __init__(self, limits: QueueLimits, away_seconds: float) -> None:
        """A temporary mailbox is kept for a lost session for `away_seconds`."""
        super().__init__(limits)
        self._away_seconds = away_seconds

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
            if mailbox.users is not None:
                mailbox.users.join(session.peer)
        return source

    # Temporary mailboxes

    def offered(self, name: str, session: Session, *, temporary: bool) -> Queue:
        """The mailbox for an offer of a session, made if needed. Raises as `get`, or `InUse`."""
        is_new = name not in self.by_name
        mailbox = self.get(name, quotas=session.quotas)
        if temporary and is_new:
            self._make_temporary(mailbox)
        if mailbox.users is not None:
            mailbox.users.join(session.peer)
        elif temporary:
            raise InUse(
                f"the mailbox {name!r} exists and is not temporary: expected another name, or `malamute "
                f"mailbox delete {name}` before"
            )
        return mailbox

    def _make_temporary(self, mailbox: Queue) -> MailboxUsers:
        self.limits.timers.cancel(mailbox.collector)
        mailbox.collector = None
        mailbox.users = MailboxUsers(self.limits, mailbox.name)
        return mailbox.users

    def left(self, mailbox: Queue, session: Session, *, lost: bool) -> None:
        """A consumer has left a temporary mailbox; a session that was `lost` may be resumed."""
        assert mailbox.users is not None
        if any(consumer.session is session for consumer in mailbox.consumers.values()):
            return
        if lost:
            mailbox.users.lose(session.peer, self.limits.effects.now + self._away_seconds)
        else:
            mailbox.users.leave(session.peer)
        self._collect(mailbox)

    def _collect(self, queue: Queue) -> None:
        """Remove a temporary mailbox without users, and look again when one of them is given up."""
        if queue.users is None:
            super()._collect(queue)
            return
        if self.by_name.get(queue.name) is not queue:
            return
        limits, now = self.limits, self.limits.effects.now
        due = queue.users.next_deadline(now)
        if due <= now and (queue.feeds or queue.usage.reserved):
            due = now + BUSY_SECONDS
        if due <= now:
            self.remove(queue)
            limits.flush.note(queue.usage, "collected", 1)
            return
        limits.timers.cancel(queue.collector)
        queue.collector = limits.timers.at(due, partial(self._collect, queue)) if due < inf else None

    def remove(self, queue: Queue) -> None:
        """Remove a mailbox, with all that is in it."""
        super().remove(queue)
        if queue.users is not None:
            queue.users.forget()

    def restore(self, recovered: Recovered, recovery: Recovery) -> None:
        """Take up the mailboxes that the store kept, until `resume`; the temporary ones even if empty."""
        super().restore(recovered, recovery)
        for (name,), peers in recovered.table(TEMPORARY).items():
            recovery.take_up(self.kind, name, self._restore_temporary, name, peers)

    def _restore_temporary(self, name: str, peers: Any) -> None:
        mailbox = self.by_name.get(name) or self._add(name)
        self._make_temporary(mailbox).restore(peers, self.limits.effects.now + self._away_seconds)

    def store_again(self, stranded: Stranded) -> None:
        """Store the values known here once more, if the store has lost them."""
        super().store_again(stranded)
        for (name,) in stranded.keys(TEMPORARY):
            if (mailbox := self.by_name.get(name)) is not None and mailbox.users is not None:
                mailbox.users.store()

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
