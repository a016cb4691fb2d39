"""Identities of requests, and the sessions with the broker in which the gateway acts for them.

A session is shared by all requests with the same credentials (and, for a mailbox, the same address). The
first request opens it, so the broker has verified the credentials; an unused session is closed after a while.
Endless answers have sessions of their own, several in each: they must not delay requests, and the broker
limits the subscriptions of a session.

Credentials are no user: one user may have many tokens. The broker names the user when it opens a session;
limits and resources are counted by that user.
"""

from __future__ import annotations

import asyncio
import binascii
import logging
from base64 import b64decode
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from hashlib import blake2b
from itertools import count
from secrets import token_bytes
from time import monotonic
from typing import Any, NamedTuple

import msgspec
from starlette.datastructures import Headers

import malamute.aio
from malamute.client.events import Event, log_event
from malamute.door.addresses import Gateways, network_of
from malamute.door.failures import FAILURE_SECONDS, Failures
from malamute.door.shares import Shares
from malamute.errors import AccessRefused, InvalidValue, LoginNeeded, MalamuteError, TryLater
from malamute.gateway.openings import Openings
from malamute.gateway.settings import GatewaySettings
from malamute.version import __version__

log = logging.getLogger("malamute.gateway")

_SECRET = token_bytes(32)

PROVED_MAX = 10_000
"""Maximum credentials with a remembered user, the most recently used."""

STRANGER_SECONDS = 10.0
"""Time for the broker to verify new credentials: others wait for the place."""

PLACE_SECONDS = 30.0
"""Time to wait for a place in which a session is opened."""

PEER: ContextVar[str] = ContextVar("PEER", default="")
"""The client address of a request."""


USER: ContextVar[str] = ContextVar("USER", default="")
"""The user of the request being served, once the broker has proved it."""


class Identity(NamedTuple):
    """The claimed identity of a request; the broker proves it."""

    user: str = ""
    password: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return f"Identity(user={self.user!r})"

    @property
    def digest(self) -> str:
        """Return a digest that names these credentials without disclosing them."""
        return blake2b("\0".join(self).encode(), digest_size=16, key=_SECRET).hexdigest()


ANONYMOUS = Identity()


class ProvedUser(NamedTuple):
    """Owner of a resource in the gateway: a user proved by the broker, empty for anonymous requests.

    The `claims` of a token count, too: rules may use them. A renewed token has the same owner.
    """

    user: str = ""
    claims: bytes = b""


RENEWED = frozenset(
    ("exp", "iat", "nbf", "jti", "auth_time", "nonce", "at_hash", "c_hash", "sid", "uti", "aio", "rh")
)
"""Claims that differ in a renewed token."""


def _claims_of(identity: Identity) -> dict[str, Any]:
    """Return the claims of a token that the broker has verified; none of other credentials."""
    if not identity.token:
        return {}
    try:
        payload = identity.token.split(".")[1]
        claims: dict[str, Any] = msgspec.json.decode(b64decode(f"{payload}===", altchars=b"-_"))
        return claims if isinstance(claims, dict) else {}
    except (IndexError, ValueError):
        return {}


def _owner_of(identity: Identity, proved: str) -> ProvedUser:
    if identity == ANONYMOUS:
        return ProvedUser()
    claims = {name: value for name, value in _claims_of(identity).items() if name not in RENEWED}
    known = msgspec.json.encode(claims, order="deterministic") if claims else b""
    return ProvedUser(proved or identity.user, blake2b(known, digest_size=16).digest() if known else b"")


def identity_of(headers: Headers, *, anonymous: bool) -> Identity:
    """Return the identity in these headers. Raises `LoginNeeded`."""
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
    """The purpose of a session. `number` is 0 for requests, and counts from 1 for endless answers."""

    identity: Identity
    address: str = ""
    number: int = 0
    signed: bool = False
    """Whether readers see the user as the sender of published messages."""


class _Entry:
    """A session, open or being opened."""

    def __init__(self, opening: asyncio.Task[malamute.aio.Client]) -> None:
        self.opening = opening
        self.owner = ProvedUser()
        self.uses = 0
        self.used_at = monotonic()
        self.listeners: list[Callable[[Event], None]] = []

    def on_event(self, event: Event) -> None:
        log_event(event)
        for listener in self.listeners:
            listener(event)


class Users:
    """The sessions with the broker, by identity. To be used within `run`."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._entries: OrderedDict[SessionKey, _Entry] = OrderedDict()
        self._accepted: dict[SessionKey, str] = {}
        """Accepted credentials and their users; others take no place."""
        self._shares = Shares(settings.users)
        self._openings = Openings()
        self._failures = Failures(Gateways(settings.proxies))
        self._proved: OrderedDict[str, ProvedUser] = OrderedDict()
        """Users by the digests of their credentials."""

    def __len__(self) -> int:
        return len(self._accepted)

    async def prove(self, identity: Identity) -> ProvedUser:
        """Return the user of these credentials. Raises as `session`."""
        async with self.session(identity):
            return self._proved.get(identity.digest) or _owner_of(identity, "")

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Close idle sessions during the block, and all sessions at its end."""
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
        """Close sessions unused since `before`, a time of `monotonic`."""
        for key, entry in [*self._entries.items()]:
            if not entry.uses and entry.used_at <= before and self._entries.get(key) is entry:
                await self._close(self._remove(key))

    def _remove(self, key: SessionKey) -> _Entry:
        if (user := self._accepted.pop(key, None)) is not None:
            self._shares.give_back(user)
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
        """Return a client with these credentials, during the block. `listener` is called with its events.

        Messages of a `signed` client have its user as the sender, stamped by the broker.

        `followers` is 0 for a request; an endless answer counts as at least 1, by its load on the session.

        Raises:
            LoginNeeded: the broker refuses the credentials.
            TryLater: the limit of sessions is reached, and all are in use.
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
            # Other requests may wait for the same session: a cancelled one must not cancel it.
            opening = entry.opening
            client = opening.result() if opening.done() else await asyncio.shield(opening)
            client.on_event = entry.on_event
            USER.set(self._accepted.get(key, ""))
            yield client
        finally:
            entry.uses -= uses
            entry.used_at = monotonic()
            if listener is not None:
                entry.listeners.remove(listener)

    async def _entry(self, key: SessionKey) -> _Entry:
        # Another request may have opened the session meanwhile.
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
        """Return the first session for endless answers with room for `followers` more, or an empty one."""
        for number in count(1):
            key = SessionKey(identity, number=number)
            entry = self._entries.get(key)
            if entry is None or not entry.uses or entry.uses + followers <= self._settings.session_followers:
                return key
        raise AssertionError("there are numbers enough")

    async def _open(self, key: SessionKey) -> malamute.aio.Client:
        seconds = self._settings.timeout_seconds
        sender, digest = PEER.get(), key.identity.digest
        known = key.identity == ANONYMOUS or digest in self._proved
        if not known and self._failures.too_many(sender, monotonic(), key.identity.user or None):
            raise _wait_to_log_in()
        if not known:
            seconds = min(seconds, STRANGER_SECONDS)
        async with self._openings.place(_sender(sender), PLACE_SECONDS, known=known):
            try:
                client = await self._connect(key, seconds)
            except LoginNeeded:
                self._failures.add(sender, monotonic(), key.identity.user or None)
                self._proved.pop(digest, None)
                raise
        owner = self._proved[digest] = _owner_of(key.identity, client.user)
        self._proved.move_to_end(digest)
        if len(self._proved) > PROVED_MAX:
            self._proved.popitem(last=False)
        try:
            await self._accept(key, owner.user)
        except BaseException:
            await client.close()
            raise
        return client

    async def _accept(self, key: SessionKey, user: str) -> None:
        """Reserve a place for an open session: one of the same user before others. Raises `TryLater`."""
        while not self._shares.take(user):
            unused = [one for one in self._accepted if not self._entries[one].uses]
            idle = sorted(unused, key=lambda one: self._accepted[one] != user)
            if not idle:
                raise TryLater(
                    f"{len(self._accepted)} sessions are in use: expected at most {self._settings.users}, "
                    f"and a share for each user; this one has {self._shares.held(user)}"
                )
            await self._close(self._remove(idle[0]))
        self._accepted[key] = user

    async def _connect(self, key: SessionKey, seconds: float) -> malamute.aio.Client:
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
                timeout=seconds,
                software=f"malamute-gateway/{__version__}",
                **options,
            )
        except InvalidValue as error:
            raise LoginNeeded(f"invalid credentials: {error.text}") from None
        except AccessRefused as error:
            if key.address:
                raise
            raise LoginNeeded(f"the broker refuses these credentials: {error.text}") from None


def _wait_to_log_in() -> LoginNeeded:
    error = LoginNeeded(
        f"too many wrong credentials came from there: expected right ones in {FAILURE_SECONDS:.0f} s"
    )
    error.retry_after = FAILURE_SECONDS
    return error


def _sender(address: str) -> str:
    """Return the unit that shares places of strangers: an address, or the network of one customer."""
    return network_of(address).hex() or address


def _is_over(entry: _Entry) -> bool:
    """Return whether the session could not be opened, or has ended."""
    if not entry.opening.done():
        return False
    return entry.opening.cancelled() or entry.opening.exception() is not None or entry.opening.result().ended
