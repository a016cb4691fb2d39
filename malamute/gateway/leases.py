"""Messages of mailboxes and requests to services that HTTP clients hold: leased until settled.

A lease is a delivery of the broker, held by a session of its user. The lease ends when the message is
settled, or recalled by the broker, as after its ack timeout; the message is redelivered then. The session
lasts as long as it has a lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from time import monotonic
from typing import Any, NamedTuple

from malamute.aio import Client, Mailbox, Work
from malamute.client.events import Event, Recalled
from malamute.client.session.message import Mail
from malamute.door.shares import share_of
from malamute.errors import NotOutstanding, TimedOut, TooMany
from malamute.gateway.bodies import UNREADABLE, is_readable
from malamute.gateway.settings import GatewaySettings
from malamute.gateway.users import Identity, ProvedUser, Users


class LeasedQueue(NamedTuple):
    """The owner and the queue of leases: a mailbox, read by its owner or shared, or a service."""

    owner: ProvedUser
    kind: str
    name: str
    shared: bool = False

    @property
    def is_owned(self) -> bool:
        """Whether the queue is a mailbox read by its owner, the client with that address."""
        return self.kind == "mailbox" and not self.shared


def lease_of(message: Mail) -> str:
    """Return the name of a lease. A redelivery has another one."""
    return f"{message.sequence}-{message.attempts}"


class _Holder:
    """The session that holds the leases of one queue."""

    def __init__(self, queue: LeasedQueue, recalled: Callable[[_Holder], None]) -> None:
        self.queue = queue
        self._recalled = recalled
        self.stack = AsyncExitStack()
        self.client: Client | None = None
        self.opened = asyncio.Lock()
        self.uses = 0
        self.messages: dict[str, Mail] = {}
        self.over: dict[str, Callable[[], None]] = {}
        """Callbacks for the end of a lease, by its name."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, Recalled) and event.queue == self.queue.name:
            taken = {*event.sequences}
            for lease in [name for name, mail in self.messages.items() if mail.sequence in taken]:
                # The client would not hand out a message again that it takes for held.
                asyncio.get_running_loop().call_soon(self.messages[lease].release)
                self.drop(lease)
            self._recalled(self)

    async def end(self) -> None:
        """Forget the leases: the session has ended, and the broker has recalled all its messages."""
        self.messages.clear()
        self.over.clear()
        self.client = None
        await self.stack.aclose()

    def drop(self, lease: str) -> None:
        del self.messages[lease]
        self.over.pop(lease)()


class Leases:
    """The leases of a gateway, by their queues."""

    def __init__(self, settings: GatewaySettings, users: Users) -> None:
        self._settings = settings
        self._users = users
        self._holders: dict[LeasedQueue, _Holder] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return sum(len(holder.messages) for holder in self._holders.values())

    @property
    def size_bytes(self) -> int:
        """Bytes of leased messages."""
        return _bytes_of(self._holders.values())

    def _room(self, user: str) -> int:
        """Return how many messages more a user may lease. Raises `TooMany` if that is none.

        A user may hold at most as much as stays free for the others.
        """
        own = [holder for holder in self._holders.values() if holder.queue.owner.user == user]
        count = sum(len(holder.messages) for holder in own)
        most = self._settings.leases
        room = share_of(most, len(self), count, named=bool(user))
        if room < 1:
            raise TooMany(
                f"{len(self)} messages are leased: expected at most {most}, and a share for each user; "
                f"this one has {count}"
            )
        size_bytes, own_bytes, most = self.size_bytes, _bytes_of(own), self._settings.lease_bytes
        if share_of(most, size_bytes, own_bytes, named=bool(user)) < 1:
            raise TooMany(
                f"{size_bytes} bytes are leased: expected less than {most}, and a share for each user; "
                f"this one has {own_bytes}"
            )
        return room

    async def _enter(self, queue: LeasedQueue, identity: Identity) -> tuple[_Holder, Client]:
        holder = self._holders.setdefault(queue, _Holder(queue, self._recalled))
        holder.uses += 1
        try:
            async with holder.opened:
                if holder.client is not None and holder.client.ended:
                    await holder.end()
                if holder.client is None:
                    address = queue.name if queue.is_owned else ""
                    session = self._users.session(identity, address, holder.on_event)
                    holder.client = await holder.stack.enter_async_context(session)
                return holder, holder.client
        except BaseException:
            await self._leave(holder)
            raise

    async def _leave(self, holder: _Holder) -> None:
        holder.uses -= 1
        if not (holder.uses or holder.messages):
            self._holders.pop(holder.queue, None)
            await holder.stack.aclose()

    def _recalled(self, holder: _Holder) -> None:
        """Close the session of a holder without leases."""
        holder.uses += 1
        task = asyncio.create_task(self._leave(holder))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def take(
        self, queue: LeasedQueue, identity: Identity, limit: int, wait_seconds: float, patterns: list[str]
    ) -> list[Mail]:
        """Lease up to `limit` messages: the available ones, after waiting for at least one.

        Raises:
            TooMany: the limit of leased messages or bytes is reached.
            MalamuteError: the broker refuses the lease.
        """
        room = self._room(queue.owner.user)
        holder, client = await self._enter(queue, identity)
        try:
            take = self._take_mail if queue.is_owned else self._take_offered
            return await take(holder, client, min(limit, room), wait_seconds, patterns)
        finally:
            await self._leave(holder)

    async def _take_mail(
        self, holder: _Holder, client: Client, limit: int, wait_seconds: float, patterns: list[str]
    ) -> list[Mail]:
        credit = limit + len(holder.messages)
        async with client.mailbox(auto_ack=False, credit=credit) as mailbox:
            found = await _received(mailbox, limit, wait_seconds)
        for mail in found:
            holder.messages[lease_of(mail)] = mail
            holder.over[lease_of(mail)] = _nothing
        return found

    async def _take_offered(
        self, holder: _Holder, client: Client, limit: int, wait_seconds: float, patterns: list[str]
    ) -> list[Mail]:
        name = holder.queue.name
        consumer: Mailbox | Work
        if holder.queue.shared:
            consumer = await client.consume(name, *patterns, auto_ack=False, credit=limit)
        else:
            consumer = await client.work(name, *patterns, credit=limit)
        try:
            found = await _received(consumer, limit, wait_seconds)
        except BaseException:
            consumer.cancel()
            raise
        # The consumer holds the messages until they are settled; no more are to be delivered.
        consumer.drain()
        left = {lease_of(message) for message in found}
        if not found:
            consumer.cancel()

        def settled(lease: str) -> Callable[[], None]:
            def over() -> None:
                left.discard(lease)
                if not left:
                    consumer.cancel()

            return over

        for message in found:
            holder.messages[lease_of(message)] = message
            holder.over[lease_of(message)] = settled(lease_of(message))
        return found

    async def settle(
        self, queue: LeasedQueue, lease: str, do: Callable[[Any], Awaitable[bool]], timeout: float
    ) -> None:
        """Settle the message of a lease with `do`, which returns whether the lease is over.

        Returns after the broker's confirmation; `timeout` is in seconds. Raises `NotOutstanding` for an
        unknown lease.
        """
        holder = self._holder_of(queue, lease)
        client = None if holder is None else holder.client
        if holder is None or client is None or client.ended:
            raise NotOutstanding(f"there is no lease {lease[:50]!r} of {queue.kind} {queue.name!r}")
        holder.uses += 1
        try:
            message = holder.messages[lease]
            is_over = await do(message)
            await client.flush(timeout)
            if is_over and lease in holder.messages:
                holder.drop(lease)
        finally:
            await self._leave(holder)

    def _holder_of(self, queue: LeasedQueue, lease: str) -> _Holder | None:
        """Return the holder of a lease of a queue, whether its mailbox is shared or not."""
        holders = (self._holders.get(queue._replace(shared=shared)) for shared in (False, True))
        return next((one for one in holders if one is not None and lease in one.messages), None)

    async def close(self) -> None:
        """Return all leased messages to the broker, by closing their sessions."""
        for holder in self._holders.values():
            await holder.stack.aclose()
        self._holders.clear()


def _bytes_of(holders: Iterable[_Holder]) -> int:
    leased = (mail for holder in holders for mail in holder.messages.values())
    return sum(len(frame) for mail in leased for frame in mail.frames)


def _nothing() -> None:
    """Messages of mailboxes are settled one by one."""


async def _received(consumer: Any, limit: int, wait_seconds: float) -> list[Mail]:
    found: list[Mail] = []
    until = monotonic() + wait_seconds
    try:
        while len(found) < limit and (consumer.waiting or not found):
            mail = await consumer.receive(0 if found else max(0, until - monotonic()))
            if is_readable(mail):
                found.append(mail)
            else:
                # No answer could carry this message, nor the messages leased with it.
                mail.reject(UNREADABLE)
    except TimedOut:
        pass
    return found
