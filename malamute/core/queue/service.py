"""Services: durable requests, shared by the workers that offer to do them.

An offer is a consumer of the service's queue: it names the subjects that it can do, and its credit says
how many requests it is ready for. A request stays in the queue until the worker has completed it, by its
final reply or by an ack; if the worker is lost before, it goes to another one. Each reply is put into
the mailbox of the requester, in the same transaction that removes the request, so the requester may go
away and collect it later, and no crash leaves a request both done and undone.

Work that was taken on can always be ended. A requester must have room for an answer; the answer itself, the
final reply, is never refused for want of room, as it takes the place of its request. So a mailbox may go past
its limits by the final replies to requests that were accepted while it had room, and all queues together have
no more messages for it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from malamute.core.queue.consumer import Consumer
from malamute.core.queue.enqueue import enqueue
from malamute.core.queue.entry import ASKED, ENTRY_BYTES, Entry, size_of
from malamute.core.queue.limits import QueueLimits
from malamute.core.queue.mailbox import Mailboxes
from malamute.core.queue.options import is_address
from malamute.core.queue.queue import Queue
from malamute.core.queue.source import QueueSource
from malamute.core.queue.table import QueueTable
from malamute.core.session.session import Session
from malamute.errors import MalamuteError, NotFound, NotOutstanding, TryLater
from malamute.protocol.messages import Reply, Request
from malamute.protocol.names import RESERVED_PREFIX

Post = tuple[Queue, list[Entry]]
"""Replies that go to one mailbox."""


class Services(QueueTable):
    """All services by name."""

    kind = "service"

    def __init__(self, limits: QueueLimits, mailboxes: Mailboxes) -> None:
        super().__init__(limits)
        self.mailboxes = mailboxes

    def await_replies(self, requesters: Container[str]) -> None:
        """Create the mailboxes of these requesters for the replies to queued requests."""
        for queue in self.by_name.values():
            for entry in queue.entries.values():
                if entry.sender in requesters:
                    self.mailboxes.get_or_create(entry.sender)

    def request(self, session: Session, message: Request) -> bool:
        """Enqueue requests. Returns whether they are in memory only.

        Raises as `enqueue`, or `AccessRefused`, for the mailbox of a reply too.
        """
        requesters = _requesters(session, message)
        for name in requesters:
            if name != session.mailbox:
                session.may.require("send", "mailbox", name, message.subjects)
                session.may.require_there("mailbox", name, self.mailboxes.by_name)
        session.may.require_there("service", message.service, self.by_name)
        queue = self.get(message.service, quotas=session.quotas)
        mailboxes = self.mailboxes.by_name
        absent = [name for name in requesters if name not in mailboxes]
        try:
            for name in requesters:
                # The replies need a place that is there before the first of them.
                self._check_answerable(self.mailboxes.get(name, private=True, quotas=session.quotas))
            enqueue(queue, session.address, session.mailbox, message, session.quotas)
        except MalamuteError:
            for name in absent:
                if mailbox := mailboxes.get(name):
                    self.mailboxes.drop_unused(mailbox)
            self.drop_unused(queue)
            raise
        return queue.usage.in_memory

    def _check_answerable(self, mailbox: Queue) -> None:
        """Raise `TryLater` if a mailbox is full: a reply to a request would have no room."""
        try:
            self.limits.check_queue(mailbox.usage, 1, ENTRY_BYTES)
        except TryLater as error:
            raise TryLater(f"no space for the reply: {error.text}") from None

    def reply(self, session: Session, message: Reply) -> bool:
        """Pass replies on, and complete the requests whose final reply is among them.

        Returns whether all of that is in memory only.

        Raises `NotFound`, `NotOutstanding` or, if some are not final, `TryLater`; then none was passed on.
        """
        offer = session.source(message.source)
        if not isinstance(offer, QueueSource) or offer.queue.kind != "service":
            raise NotFound(f"source {message.source} is not an offer to work for a service")
        requests = [_outstanding(offer.consumer, sequence) for sequence in message.sequences]
        finals = [s for s, final in zip(message.sequences, message.finals, strict=True) if final]
        if len(set(finals)) < len(finals):
            raise NotOutstanding("two final replies to one request: expected one")
        posts = self._posts(session, offer.queue.name, requests, message)
        self._check_room(posts)
        # A tracked request ends with its outcome stored, and its reply with it, or does not end. So does each
        # if the memory could not hold replies that the disk does not take.
        in_memory = offer.queue.usage.in_memory and all(mailbox.usage.in_memory for mailbox, _ in posts)
        bound = not in_memory and (
            message.number > 0 or bool(offer.queue.settlement.tracked(finals)) or self.limits.short_of_memory
        )
        # A reply to a request that the store knows is stored with its removal.
        unwritten = offer.queue.unwritten.entries
        plain = not (bound or message.number) and (
            offer.queue.usage.in_memory or all(s in unwritten for s in finals)
        )
        for mailbox, messages in posts:
            mailbox.put(messages, confirmed=bound, reserved=True, plain=plain)
        if finals:
            offer.complete(finals, bound=bound)
        return in_memory

    def _check_room(self, posts: Sequence[Post]) -> None:
        """Raise `TryLater` unless there is room for the replies that are not final.

        A mailbox in memory has no room for final ones either: nothing else would bound it.
        """
        all_partial: list[Entry] = []
        for mailbox, replies in posts:
            in_memory = mailbox.usage.in_memory
            partial = [reply for reply in replies if in_memory or not _is_final(reply)]
            if partial:
                self.limits.check_queue(mailbox.usage, len(partial), size_of(partial))
                all_partial += partial
        if all_partial:
            self.limits.check_all(len(all_partial), size_of(all_partial))

    def _posts(self, session: Session, service: str, requests: Sequence[Entry], reply: Reply) -> list[Post]:
        """The replies by the mailboxes that they go to, each ready to be put there."""
        time_ns = self.limits.effects.time_ns
        posts: dict[str, Post] = {}
        for request, final, record in zip(requests, reply.finals, reply.records, strict=True):
            asked = request.properties or {}
            if "source" in asked or asked.get("no_reply"):
                # Of a feed's request, too: its sender published a message, and waits for no reply.
                continue
            name = asked.get("reply_to", request.sender)
            if name.startswith(RESERVED_PREFIX) and name not in self.mailboxes.by_name:
                # The requester had no address and its session is over: nobody can ask for this reply.
                continue
            mailbox = self.mailboxes.get_or_create(name)
            messages = posts.setdefault(mailbox.name, (mailbox, []))[1]
            about = {"correlation": asked["correlation"]} if "correlation" in asked else {}
            properties = {**about, "service": asked.get(ASKED, service), "final": final}
            sequence = mailbox.next_sequence + len(messages)
            messages.append(Entry((sequence, time_ns, session.address, request.subject, record, properties)))
        return list(posts.values())


def _outstanding(offer: Consumer, sequence: int) -> Entry:
    entry = offer.outstanding.get(sequence)
    if entry is None:
        raise NotOutstanding(f"request {sequence} is not outstanding here")
    return entry


def _is_final(reply: Entry) -> bool:
    return bool(reply.properties and reply.properties["final"])


def _requesters(session: Session, message: Request) -> list[str]:
    """The names of the mailboxes that the replies to requests go to, each once."""
    awaited = [asked or {} for asked in message.properties or [None] if not (asked and asked.get("no_reply"))]
    named = [asked["reply_to"] for asked in awaited if "reply_to" in asked]
    return list(dict.fromkeys([*([session.mailbox] if awaited else []), *filter(is_address, named)]))
