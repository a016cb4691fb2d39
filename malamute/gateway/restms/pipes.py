"""Readers of pipes: messages of a pipe's service, and of the shared feeds it is joined to.

While a pipe is read, the gateway is a worker of its service, as the user who reads: it holds delivered
messages, and acknowledges deleted ones. Messages that are not deleted are not lost: when the pipe is not read
for a while, or the gateway stops, they return to the broker.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from time import monotonic, time_ns
from typing import Any

from malamute.aio import Client, Request, Work
from malamute.client.events import Connected, Event, Recalled
from malamute.client.session.message import Mail
from malamute.door.shares import share_of
from malamute.errors import AccessRefused, MalamuteError, NoSuchResource, NotFound, TooMany
from malamute.gateway.bodies import UNREADABLE, is_readable
from malamute.gateway.restms.definitions import Pipe
from malamute.gateway.restms.signals import Signal
from malamute.gateway.settings import GatewaySettings
from malamute.gateway.users import Identity, ProvedUser, Users

OWN = "0"
"""The source of messages from the pipe's own service."""

NEXT = "next"
"""The source in the name of the next message, before its arrival."""

ACK_TIMEOUT_SECONDS = 30 * 86_400.0
"""Ack timeout of messages in a pipe. RestMS has none, and the broker needs one."""

CREDIT_BYTES = 1024 * 1024
READERS_MAX = 1000
IDLE_SECONDS = 300.0
DELETED_MAX = 1000
"""Number of recently deleted messages with a remembered name."""


class PipeReader:
    """A pipe that is read. Messages are named by source and sequence, and kept in order of arrival."""

    def __init__(self, pipe: Pipe, identity: Identity, owner: ProvedUser, credit: int) -> None:
        self.pipe = pipe
        self.owner = owner
        self.identity = identity
        self.changed = Signal()
        self.changed_ns = 0
        self.over = False
        self.uses = 0
        self.used_at = monotonic()
        self.held: dict[str, Mail] = {}
        self._credit = credit
        self._arrived = 0
        self._epoch = secrets.token_hex(4)
        self._names: OrderedDict[int, str] = OrderedDict()
        """Names of messages by the numbers of their arrival, with deleted ones."""
        self._works: dict[str, tuple[Work, asyncio.Task[None]]] = {}
        self._services: dict[str, str] = {}
        """Services by the sources of their messages."""
        self._client: Client | None = None
        self._stack = AsyncExitStack()

    async def open(self, users: Users, timeout: float) -> None:
        """Start to work for the pipe's service, within `timeout` seconds. Raises the broker's refusal."""
        session = users.session(self.identity, listener=self._on_event, followers=1)
        try:
            self._client = await self._stack.enter_async_context(session)
            await self._offer(OWN, self.pipe.service, self._credit)
            await self._client.flush(timeout)
        except BaseException:
            await self.close()
            raise

    async def join(self, shared: Mapping[str, str]) -> None:
        """Consume these services, given by the names of their joins, and no others beside the pipe's own.

        A service that the user may no longer work for is left out: its join does not block the pipe.
        """
        for source in [*self._works]:
            if source != OWN and source not in shared:
                await self._leave(source)
        for source, service in shared.items():
            with suppress(AccessRefused):
                await self.take(source, service)

    async def take(self, source: str, service: str) -> None:
        """Consume a service, unless it is consumed already. Raises the broker's refusal."""
        if source not in self._works:
            await self._offer(source, service, min(self._credit, 10))

    async def _offer(self, source: str, service: str, credit: int) -> None:
        assert self._client is not None
        work = await self._client.work(
            service, credit=credit, credit_bytes=CREDIT_BYTES, ack_timeout=ACK_TIMEOUT_SECONDS
        )
        self._services[source] = service
        self._works[source] = work, asyncio.create_task(self._consume(source, work))

    async def _consume(self, source: str, work: Work) -> None:
        try:
            async for mail in work:
                if not is_readable(mail):
                    # The pipe could not be shown with this message, so no client would learn the name to
                    # delete it by.
                    mail.reject(UNREADABLE)
                    continue
                self._arrived += 1
                name = f"{source}.{mail.sequence}"
                self.held[name] = mail
                self._names[self._arrived] = name
                while len(self._names) > len(self.held) + DELETED_MAX:
                    self._names.popitem(last=False)
                self._note()
        except MalamuteError:
            # The permission was withdrawn, or the session has ended: the next request starts anew.
            pass
        if source in self._works:
            self.end()

    def _note(self) -> None:
        self.changed_ns = time_ns()
        self.changed.notify()

    def end(self) -> None:
        """End the waits for messages."""
        self.over = True
        self._note()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Recalled) and event.queue in self._services.values():
            self.end()
        if isinstance(event, Connected) and not event.resumed:
            self.end()

    async def _leave(self, source: str) -> None:
        work, task = self._works.pop(source)
        del self._services[source]
        for name in [name for name in self.held if name.startswith(f"{source}.")]:
            with suppress(MalamuteError):
                self.held.pop(name).release()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        work.cancel()

    async def close(self) -> None:
        """Return held messages to the broker."""
        self.end()
        for source in [*self._works]:
            await self._leave(source)
        await self._stack.aclose()

    @property
    def next_name(self) -> str:
        """Return the name of the next message, before its arrival."""
        return f"{NEXT}.{self._epoch}.{self._arrived + 1}"

    def name_of(self, name: str) -> str | None:
        """Return the name of a message by source; None before its arrival.

        Raises:
            NotFound: the name is of another reader, or was deleted long ago.
        """
        source, _, rest = name.partition(".")
        if source != NEXT:
            return name
        epoch, _, number = rest.partition(".")
        if epoch != self._epoch or not (number.isascii() and number.isdigit()) or len(number) > 18:
            raise self._unknown(name)
        if int(number) > self._arrived:
            return None
        if (found := self._names.get(int(number))) is None:
            raise self._unknown(name)
        return found

    def find(self, name: str) -> Mail | None:
        """Return a held message; None before its arrival. Raises `NotFound`."""
        found = self.name_of(name)
        if found is None:
            return None
        if found not in self.held:
            raise self._unknown(name)
        return self.held[found]

    async def delete(self, name: str, timeout: float) -> None:
        """Delete a message, and all older ones, at the broker too.

        `timeout` is in seconds. Raises `NotFound`, and `NoSuchResource` for one that has not arrived.
        """
        found = self.name_of(name)
        if found is None:
            raise NoSuchResource(f"there is no message {name[:50]!r} yet: it is still to come")
        if found not in self.held:
            if found not in self._names.values():
                raise self._unknown(name)
            return
        names = [*self.held]
        for older in names[: names.index(found) + 1]:
            self.held.pop(older).ack()
        self._note()
        assert self._client is not None
        await self._client.flush(timeout)

    async def reply(self, name: str, body: bytes, headers: Mapping[str, Any]) -> bool:
        """Send the reply to a held native request, which settles it; return False for another message."""
        mail = self.held.get(name)
        if not isinstance(mail, Request) or mail.correlation is None:
            return False
        await mail.reply(body, headers)
        self.held.pop(name, None)
        self._note()
        return True

    def _unknown(self, name: str) -> NotFound:
        return NotFound(f"there is no message {name[:50]!r} in pipe {self.pipe.name!r}: read the pipe again")


class PipeReaders:
    """The readers of pipes."""

    def __init__(self, settings: GatewaySettings, users: Users) -> None:
        self._settings = settings
        self._users = users
        self._readers: dict[str, PipeReader] = {}
        self._opening: dict[str, asyncio.Lock] = {}

    def __len__(self) -> int:
        return len(self._opening)

    def find(self, pipe: Pipe) -> PipeReader | None:
        """Return the reader of a pipe, if there is one."""
        reader = self._readers.get(pipe.name)
        return None if reader is None or reader.over else reader

    async def get(
        self, pipe: Pipe, identity: Identity, credit: int, shared: Callable[[], Mapping[str, str]]
    ) -> PipeReader:
        """Return the reader of a pipe. `shared` are the services of shared feeds that it is joined to.

        Raises:
            AccessRefused: the broker refuses, or another user reads the pipe.
            TooMany: the limit of read pipes is reached.
        """
        lock = self._opening.setdefault(pipe.name, asyncio.Lock())
        async with lock:
            owner = await self._users.prove(identity)
            reader = self._readers.get(pipe.name)
            if reader is not None and reader.over:
                await self.drop(pipe)
                reader = None
            if reader is None:
                self._check_room(owner)
                reader = PipeReader(pipe, identity, owner, credit)
                await reader.open(self._users, self._settings.timeout_seconds)
                self._readers[pipe.name] = reader
            elif reader.owner != owner:
                raise AccessRefused(f"the pipe {pipe.name!r} is read by somebody else")
            reader.used_at = monotonic()
            await reader.join(shared())
        return reader

    async def drop_idle(self, before: float) -> None:
        """End the readers unused since `before`, a time of `monotonic`."""
        for reader in [*self._readers.values()]:
            if not reader.uses and reader.used_at <= before:
                await self.drop(reader.pipe)

    def end(self) -> None:
        """End all waits for messages."""
        for reader in self._readers.values():
            reader.end()

    def _check_room(self, owner: ProvedUser) -> None:
        own = sum(one.owner.user == owner.user for one in self._readers.values())
        if share_of(READERS_MAX, len(self._readers), own, named=bool(owner.user)) < 1:
            raise TooMany(
                f"{len(self._readers)} pipes are read: expected at most {READERS_MAX}, and a share for each "
                f"user; this one has {own}"
            )
        if own >= (most := self._settings.restms_pipes):
            raise TooMany(
                f"{own} pipes are read by this user: expected at most {most}; unused readers end in "
                f"{IDLE_SECONDS:.0f} s"
            )

    async def drop(self, pipe: Pipe) -> None:
        """End the reader of a pipe."""
        if (reader := self._readers.pop(pipe.name, None)) is not None:
            await reader.close()
        if (lock := self._opening.get(pipe.name)) is not None and not lock.locked():
            del self._opening[pipe.name]

    async def close(self) -> None:
        """End all readers."""
        for reader in [*self._readers.values()]:
            await self.drop(reader.pipe)
