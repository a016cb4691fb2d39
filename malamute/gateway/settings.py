"""Settings of a gateway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

from malamute.client.options import DEFAULT_URL, TIMEOUT_SECONDS

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class GatewaySettings:
    """The broker, the admitted clients, and the limits of requests."""

    broker: str = DEFAULT_URL
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Credentials of the gateway itself: for its own watch of the broker, and for anonymous requests."""
    server_key: str = ""
    """The public key of the broker, or its file: credentials of users are sent encrypted."""
    anonymous: bool = True
    """Whether requests without credentials are served from this machine to a loopback address."""
    proxies: Sequence[str] = ()
    """The addresses and networks of proxies, from which many users come. Wrong credentials from there count
    against the user whom they are for, and not against the address."""
    hosts: Sequence[str] = LOOPBACK_NAMES
    """Allowed names in Host; empty: any. The check stops DNS rebinding."""
    origins: Sequence[str] = ()
    """Other sites whose pages may use the gateway (CORS)."""
    prefix: str = ""
    """The path of a site below which a proxy serves the gateway, such as /malamute; empty: the whole site."""
    mercure_stream: str = "mercure"
    """The stream of the updates of Mercure's hub."""
    timeout_seconds: float = TIMEOUT_SECONDS
    """Timeout of calls to the broker."""
    body_bytes: int = 16 * 1024 * 1024
    """Maximum bytes of a request body."""
    bodies_bytes: int = 128 * 1024 * 1024
    """Maximum bytes of all request bodies in memory; each user has a share."""
    body_seconds: float = 30.0
    """Time for a request body to arrive."""
    head_bytes: int = 32 * 1024
    """Maximum bytes of a request's line and headers."""
    head_seconds: float = 10.0
    """Time for a request's line and headers to arrive."""
    connections: int = 0
    """Maximum connections; 0: as many as the files of the process allow."""
    leases: int = 10_000
    """Maximum leased messages."""
    lease_bytes: int = 256 * 1024 * 1024
    """Bytes of leased messages at which no more are leased."""
    requests: int = 10_000
    """Maximum requests to services whose replies are awaited, or kept."""
    reply_seconds: float = 600.0
    """Time for which replies to a request are awaited, and then kept."""
    reply_bytes: int = 256 * 1024 * 1024
    """Maximum bytes of kept replies. The oldest complete ones make room for others."""
    page_bytes: int = 8 * 1024 * 1024
    """Approximate bytes of the messages in one answer; at least one message."""
    answers_bytes: int = 256 * 1024 * 1024
    """Maximum bytes of all large answers under way; each user has a share."""
    event_bytes: int = 256 * 1024
    """Credit in bytes of a page that follows a stream: about the memory of a slow page."""
    keep_alive_seconds: float = 15.0
    """Seconds without an event after which a comment is sent to a page that follows a stream."""
    restms_definitions: int = 1_000
    """Maximum feeds, pipes, joins and staged contents of a user in RestMS; a pipe comes with a join."""
    restms_pipes: int = 250
    """Maximum pipes of RestMS that a user reads at a time."""
    users: int = 200
    """Maximum sessions with the broker; each user has a share."""
    session_followers: int = 50
    """Maximum endless answers (events, WebSockets) in a session; one with many regular expressions counts
    more."""
    idle_seconds: float = 60.0
    """Time after which an unused session with the broker is closed."""
    user_rate: float = 0.0
    """Maximum requests per second of a user; 0: any."""
    address_rate: float = 0.0
    """Maximum requests per second of an address; 0: any."""


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
