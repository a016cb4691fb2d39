"""The shared state of the paths of a gateway: settings, sessions with the broker, leases, requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial

from starlette.requests import HTTPConnection, Request

from malamute.aio import Client, Subscription
from malamute.gateway import bodies
from malamute.gateway.door import BodyRoom
from malamute.gateway.elements import ELEMENT_BYTES
from malamute.gateway.leases import Leases
from malamute.gateway.requests import Requests
from malamute.gateway.restms.service import RestMS
from malamute.gateway.settings import GatewaySettings, is_loopback
from malamute.gateway.shared_events import SharedEventsTable
from malamute.gateway.users import Identity, ProvedUser, Users, identity_of

FORWARDED = frozenset(
    {"forwarded", "via", "cdn-loop", "x-varnish", "akamai-origin-hop", "x-cloud-trace-context"}
)
FORWARDED_PREFIXES = (
    *("x-forwarded", "x-original-", "x-proxy", "x-envoy-", "x-azure-", "x-appengine-", "x-amzn-", "x-arr-"),
    *("cf-", "fly-", "fastly-"),
)
FORWARDED_ENDINGS = ("-ip", "clientip")
"""Headers that proxies add, and how others begin or end: a request with one may come from anywhere."""


def is_local(connection: HTTPConnection) -> bool:
    """Return whether a request was sent by a program of this machine to a loopback address.

    Without the addresses of both ends the request may have come from anywhere.
    """
    ends = (connection.scope.get("client"), connection.scope.get("server"))
    if not all(end and is_loopback(end[0]) for end in ends):
        return False
    return not any(map(_is_of_a_proxy, connection.headers))


def _is_of_a_proxy(name: str) -> bool:
    return name in FORWARDED or name.startswith(FORWARDED_PREFIXES) or name.endswith(FORWARDED_ENDINGS)


class Gateway:
    """A running gateway."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.users = Users(settings)
        self.bodies = BodyRoom(settings)
        self.leases = Leases(settings, self.users)
        self.requests = Requests(settings, self.users)
        self.restms = RestMS(settings, self.users)
        self.shared_events = SharedEventsTable(settings)
        self._followed: set[Subscription] = set()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Run the background tasks, and close everything at the end."""
        async with self.users.run():
            try:
                yield
            finally:
                await self.requests.close()
                await self.leases.close()
                await self.restms.close()
                self.bodies.close()

    @contextmanager
    def follows(self, subscription: Subscription) -> Iterator[None]:
        """Note an endless answer that follows a stream, during the block."""
        self._followed.add(subscription)
        try:
            yield
        finally:
            self._followed.discard(subscription)

    def stop_following(self) -> None:
        """End the endless answers: the gateway is to stop."""
        for subscription in self._followed:
            subscription.cancel()
        self.restms.stop()

    def serves_anonymous(self, connection: HTTPConnection) -> bool:
        """Return whether a request needs no credentials. A remote one does, in spite of the settings."""
        return self.settings.anonymous and is_local(connection)

    def identity(self, connection: HTTPConnection) -> Identity:
        """Return the identity of a request; the console knows it by its cookie. Raises `LoginNeeded`."""
        known: Identity | None = connection.scope.get("malamute.identity")
        return known or identity_of(connection.headers, anonymous=self.serves_anonymous(connection))

    async def owner(self, connection: HTTPConnection) -> ProvedUser:
        """Return the user of a request, as proved by the broker. Raises as `client`."""
        return await self.users.prove(self.identity(connection))

    async def body(self, request: Request) -> bytes:
        """Return the body of a request. Its sender is authenticated before any of it is read.

        Raises as `owner`, and as `BodyRoom.read`.
        """
        owner = await self.owner(request)
        return await self.bodies.read(request, owner.user)

    async def contents(self, request: Request, body: bytes, subject: str | None) -> Sequence[bodies.Content]:
        """Return the messages in a body: counted before any is built. Raises as `bodies.contents`."""
        count = await self.bodies.built(body, partial(bodies.elements_of, request, body))
        self.bodies.take_more(request, count * ELEMENT_BYTES)
        return await self.bodies.built(body, partial(bodies.contents, request, body, subject))

    def session(
        self, connection: HTTPConnection, *, followers: int = 0, signed: bool = False
    ) -> AbstractAsyncContextManager[Client]:
        """Return a client that acts for a request. Raises as `Users.session`, and `LoginNeeded`."""
        return self.users.session(self.identity(connection), followers=followers, signed=signed)


def gateway_of(connection: HTTPConnection) -> Gateway:
    """Return the gateway of a request."""
    gateway: Gateway = connection.app.state.gateway
    return gateway
