"""Who sends a request, and the sessions with the broker in which the gateway acts as them.

A session is shared by all requests with the same credentials (and, for a mailbox, the same address). It is
opened with the first of them, and so the broker has looked at the credentials; it is closed when nobody has
used it for a while. Answers without end have sessions of their own, some of them each: they are not to fill
the way of others, and the broker has a limit for the subscriptions of a session.
"""

from __future__ import annotations

import asyncio
import binascii
import logging
from base64 import b64decode
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import blake2b
from itertools import count
from secrets import token_bytes
from time import monotonic
from typing import Any, NamedTuple

import msgspec
from starlette.datastructures import Headers

import malamute.aio
from malamute.client.events import Event, log_event
from malamute.errors import AccessRefused, InvalidValue, LoginNeeded, MalamuteError, TryLater
from malamute.gateway.settings import GatewaySettings
from malamute.version import __version__

log = logging.getLogger("malamute.gateway")

_SECRET = token_bytes(32)

OPENINGS_MAX = 20
"""How many sessions are opened at a time; others wait. Nobody has looked at their credentials yet."""


class Identity(NamedTuple):
    """Who sends a request, as it says; the broker finds out whether that is so."""

    user: str = ""
    password: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return f"Identity(user={self.user!r})"

    @property
    def digest(self) -> str:
        """A name of these credentials that does not tell them."""
        return blake2b("\0".join(self).encode(), digest_size=16, key=_SECRET).hexdigest()


ANONYMOUS = Identity()


def user_of(identity: Identity) -> str:
    """Who somebody is that the broker has let in; empty if nobody says it."""
    if not identity.token:
        return identity.user
    try:
        payload = identity.token.split(".")[1]
        # The broker has checked the token: it has opened a session with it.
        claims = msgspec.json.decode(b64decode(f"{payload}===", altchars=b"-_"), type=dict[str, Any])
    except (IndexError, ValueError):
        return ""
    return str(claims.get("sub", ""))


def identity_of(headers: Headers, *, anonymous: bool) -> Identity:
    """Who sends a request with these headers. Raises `LoginNeeded`."""
    given = headers.getlist("authorization")
    if not given and anonymous:
        return ANONYMOUS
    if len(given) != 1:
        raise LoginNeeded("no credentials: expected one header Authorization")
    scheme, _, rest = given[0].partition(" ")
    read = _SCHEMES.get(scheme.lower())
    if read is None:
        raise LoginNeeded(f"unknown scheme {scheme[:20]!r}: expected Basic or Bearer")
    return read(rest.strip())


def _basic(text: str) -> Identity:
    try:
        user, colon, password = b64decode(text, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = ""
    if not colon or not user:
        raise LoginNeeded("invalid credentials: expected user:password in base64") from None
    return Identity(user, password)


def _bearer(text: str) -> Identity:
    if not text:
        raise LoginNeeded("no token: expected one behind Bearer")
    return Identity(token=text)


_SCHEMES: dict[str, Callable[[str], Identity]] = {"basic": _basic, "bearer": _bearer}


class SessionKey(NamedTuple):
    """What a session is for. `number` is 0 for requests, and counts from 1 for answers without end."""

    identity: Identity
    address: str = ""
    number: int = 0
    signed: bool = False
    """Whether readers see its user as the sender of what it publishes."""


class _Entry:
    """A session, or one that is being opened."""

    def __init__(self, opening: asyncio.Task[malamute.aio.Client]) -> None:
        self.opening = opening
        self.uses = 0
        self.used_at = monotonic()
        self.listeners: list[Callable[[Event], None]] = []

    def on_event(self, event: Event) -> None:
        log_event(event)
        for listener in self.listeners:
            listener(event)


class Users:
    """The sessions with the broker, by whom they belong to. To be used within `run`."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._entries: OrderedDict[SessionKey, _Entry] = OrderedDict()
        self._accepted: set[SessionKey] = set()
        """Those whose credentials the broker has accepted. Others take no place, and nobody's."""
        self._openings = asyncio.Semaphore(OPENINGS_MAX)

    def __len__(self) -> int:
        return len(self._accepted)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Close what is idle while the block runs, and all of it at its end."""
        sweeping = asyncio.create_task(self._sweep())
        try:
            yield
        finally:
            sweeping.cancel()
            await asyncio.gather(*(self._close(self._remove(key)) for key in [*self._entries]))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._settings.idle_seconds / 2)
            await self.close_idle(monotonic() - self._settings.idle_seconds)

    async def close_idle(self, before: float) -> None:
        """Close what nobody has used since `before`, a time of `monotonic`."""
        for key, entry in [*self._entries.items()]:
            if not entry.uses and entry.used_at <= before and self._entries.get(key) is entry:
                await self._close(self._remove(key))

    def _remove(self, key: SessionKey) -> _Entry:
        self._accepted.discard(key)
        return self._entries.pop(key)

    async def _close(self, entry: _Entry) -> None:
        entry.opening.cancel()
        with suppress(asyncio.CancelledError, MalamuteError):
            client = await entry.opening
            await client.close()

    @asynccontextmanager
    async def session(
        self,
        identity: Identity,
        address: str = "",
        listener: Callable[[Event], None] | None = None,
        *,
        followers: int = 0,
        signed: bool = False,
    ) -> AsyncIterator[malamute.aio.Client]:
        """A client of these credentials, for as long as the block runs. `listener` is called with its events.

        What a `signed` one publishes has its user as the sender, stamped by the broker.

        For an answer without end, `followers` is for how many such answers it counts, by what it takes of the
        session; for others it is 0.

        Raises:
            LoginNeeded: the broker does not accept the credentials.
            TryLater: there are as many sessions as there may be, and all are in use.
            MalamuteError: the broker cannot be reached.

        """
        key = SessionKey(identity, address, signed=signed)
        if followers:
            key = self._endless(identity, followers)
        entry = await self._entry(key)
        self._entries.move_to_end(key)
        uses = followers or 1
        entry.uses += uses
        if listener is not None:
            entry.listeners.append(listener)
        try:
            # Others may wait for the same one: who leaves takes it from nobody.
            opening = entry.opening
            client = opening.result() if opening.done() else await asyncio.shield(opening)
            client.on_event = entry.on_event
            yield client
        finally:
            entry.uses -= uses
            entry.used_at = monotonic()
            if listener is not None:
                entry.listeners.remove(listener)

    async def _entry(self, key: SessionKey) -> _Entry:
        # Whenever it has waited, somebody else may have opened it.
        while (found := self._entries.get(key)) is not None and _is_over(found):
            await self._close(self._remove(key))
        if found is not None:
            return found
        entry = self._entries[key] = _Entry(asyncio.create_task(self._open(key)))

        def opened(task: asyncio.Task[malamute.aio.Client]) -> None:
            if (task.cancelled() or task.exception()) and self._entries.get(key) is entry:
                self._remove(key)

        entry.opening.add_done_callback(opened)
        return entry

    def _endless(self, identity: Identity, followers: int) -> SessionKey:
        """The first session for answers without end that has room for so many more, or is empty."""
        for number in count(1):
            key = SessionKey(identity, number=number)
            entry = self._entries.get(key)
            if entry is None or not entry.uses or entry.uses + followers <= self._settings.session_followers:
                return key
        raise AssertionError("there are numbers enough")

    async def _open(self, key: SessionKey) -> malamute.aio.Client:
        seconds = self._settings.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._openings.acquire()
        except TimeoutError:
            raise TryLater(f"{OPENINGS_MAX} sessions were being opened for {seconds} s") from None
        try:
            client = await self._connect(key)
        finally:
            self._openings.release()
        try:
            await self._accept(key)
        except BaseException:
            await client.close()
            raise
        return client

    async def _accept(self, key: SessionKey) -> None:
        """Take a place for a session that was opened. Raises `TryLater`."""
        while len(self._accepted) >= self._settings.users:
            unused = (one for one, entry in self._entries.items() if not entry.uses)
            idle = next((one for one in unused if one in self._accepted), None)
            if idle is None:
                raise TryLater(
                    f"{len(self._accepted)} sessions are in use: expected at most {self._settings.users}"
                )
            await self._close(self._remove(idle))
        self._accepted.add(key)

    async def _connect(self, key: SessionKey) -> malamute.aio.Client:
        settings, identity = self._settings, key.identity
        options: dict[str, Any] = {"user": identity.user, "password": identity.password}
        if identity.token:
            options = {"token": identity.token}
        options["server_key"] = settings.server_key
        if identity == ANONYMOUS:
            options = dict(settings.credentials)
        try:
            return await malamute.aio.connect(
                settings.broker,
                address=key.address,
                signed=key.signed,
                timeout=settings.timeout_seconds,
                software=f"malamute-gateway/{__version__}",
                **options,
            )
        except InvalidValue as error:
            raise LoginNeeded(f"invalid credentials: {error.text}") from None
        except AccessRefused as error:
            if key.address:
                raise
            raise LoginNeeded(f"the broker refuses these credentials: {error.text}") from None


def _is_over(entry: _Entry) -> bool:
    """Whether it could not be opened, or has ended."""
    if not entry.opening.done():
        return False
    return entry.opening.cancelled() or entry.opening.exception() is not None or entry.opening.result().ended
