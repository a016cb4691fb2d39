"""Limits on requests per second of a user and of an address."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from malamute.errors import HttpRefused, LoginNeeded, MalamuteError, TooFast
from malamute.gateway import problems
from malamute.gateway.console.visits import Console
from malamute.gateway.settings import GatewaySettings
from malamute.gateway.state import gateway_of
from malamute.gateway.users import Identity

BURST_SECONDS = 1.0
"""Seconds whose unused requests may be sent at once."""

ROUNDING_SECONDS = 1e-6
"""Times are sums of fractions: a request due now may seem to be due a little later."""

KEYS_MAX = 100_000
"""Maximum users or addresses with a remembered rate: each takes some 200 bytes."""


class RateLimit:
    """A rate per second for each key, with a burst after a pause."""

    def __init__(self, per_second: float, clock: Callable[[], float] = monotonic) -> None:
        self._each_seconds = 1 / per_second
        self._burst_seconds = max(BURST_SECONDS, self._each_seconds)
        self._clock = clock
        self._rested_at: OrderedDict[str, float] = OrderedDict()
        """The time at which a key has all of its burst again, the most recently used key last."""

    def __len__(self) -> int:
        return len(self._rested_at)

    def acquire(self, key: str) -> float:
        """Count one request. Return 0 if it is admitted, else the seconds to wait."""
        now = self._clock()
        rested_at = max(now, self._rested_at.get(key, now)) + self._each_seconds
        if (wait_seconds := rested_at - self._burst_seconds - now) > ROUNDING_SECONDS:
            return wait_seconds
        self._rested_at[key] = rested_at
        self._rested_at.move_to_end(key)
        while len(self._rested_at) > KEYS_MAX:
            self._rested_at.popitem(last=False)
        return 0.0


class RateGuard:
    """ASGI middleware: refuses requests of a user or an address beyond the rate, without reading the body."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings) -> None:
        self._app = app
        self._address = RateLimit(settings.address_rate) if settings.address_rate else None
        self._user = RateLimit(settings.user_rate) if settings.user_rate else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or WebSocket."""
        try:
            if scope["type"] != "lifespan":
                await self._check(HTTPConnection(scope))
        except HttpRefused as error:
            await problems.response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _check(self, connection: HTTPConnection) -> None:
        # The address comes first: a client that guesses passwords is another user each time.
        if self._address is not None and connection.client is not None:
            _take(self._address, connection.client.host, "address")
        if self._user is not None and (user := await _user(connection)):
            _take(self._user, user, "user")


def _take(rate: RateLimit, key: str, whose: str) -> None:
    if wait_seconds := rate.acquire(key):
        raise TooFast(f"too many requests of this {whose}", wait_seconds)


async def _user(connection: HTTPConnection) -> str:
    """Return the user of a request; empty without credentials.

    One user may have many tokens, so the broker is asked. Refused credentials count for themselves alone: the
    endpoint refuses a client that has to log in.
    """
    try:
        identity = _identity(connection)
    except LoginNeeded:
        return ""
    try:
        owner = await gateway_of(connection).users.prove(identity)
    except MalamuteError:
        return f"unproved {identity.digest}"
    return f"user {owner.user}"


def _identity(connection: HTTPConnection) -> Identity:
    """Return the identity of a request; the console knows it by its cookie. Raises `LoginNeeded`."""
    path = connection.url.path
    if path == "/" or path.startswith("/console/"):
        console: Console = connection.app.state.console
        if session := console.sessions.of(connection):
            return session.identity
    return gateway_of(connection).identity(connection)
