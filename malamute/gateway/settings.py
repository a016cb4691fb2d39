"""What a gateway is started with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

from malamute.client.options import DEFAULT_URL, TIMEOUT_SECONDS

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class GatewaySettings:
    """Where the broker is, who may come, and the limits of requests."""

    broker: str = DEFAULT_URL
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Whom the gateway itself acts as: for its own look at the broker, and for anonymous requests."""
    server_key: str = ""
    """The public key of the broker, or the file that has it: what users bring is sent to it encrypted."""
    anonymous: bool = True
    """Whether a request without credentials is served that comes from this machine to a loopback address."""
    proxies: Sequence[str] = ()
    """The addresses and networks of proxies, from which many users come. Wrong credentials from there count
    against the user whom they are for, and not against the address."""
    hosts: Sequence[str] = LOOPBACK_NAMES
    """The names that a request may have in Host; empty: any. It stops pages that rebind a name of theirs."""
    origins: Sequence[str] = ()
    """Other sites whose pages may use the gateway (CORS)."""
    prefix: str = ""
    """The path of a site that a proxy serves the gateway below, such as /malamute; empty: it has the site."""
    mercure_stream: str = "mercure"
    """The stream that the updates of Mercure's hub are in."""
    timeout_seconds: float = TIMEOUT_SECONDS
    """How long to wait for the broker."""
    body_bytes: int = 16 * 1024 * 1024
    """The most bytes of a request's body."""
    bodies_bytes: int = 128 * 1024 * 1024
    """The most bytes of all bodies that are here at a time; each user has a share of it."""
    body_seconds: float = 30.0
    """How long a request's body may take to come."""
    head_bytes: int = 32 * 1024
    """The most bytes of a request's line and headers."""
    head_seconds: float = 10.0
    """How long a request's line and headers may take to come."""
    connections: int = 0
    """The most connections at a time; 0: as many as the files of the process allow."""
    leases: int = 10_000
    """The most messages that are leased at a time."""
    lease_bytes: int = 256 * 1024 * 1024
    """With so many bytes that are leased nothing more is."""
    requests: int = 10_000
    """The most requests to services whose replies are awaited, or kept."""
    reply_seconds: float = 600.0
    """How long replies to a request are awaited, and then kept."""
    reply_bytes: int = 256 * 1024 * 1024
    """The most bytes of replies that are kept. The oldest that are complete make room for others."""
    page_bytes: int = 8 * 1024 * 1024
    """About how many bytes of messages are in one answer; at least one message is."""
    answers_bytes: int = 256 * 1024 * 1024
    """The most bytes of all large answers that are under way; each user has a share of it."""
    event_bytes: int = 256 * 1024
    """The credit in bytes of a page that follows a stream: about what is kept here for one that is slow."""
    keep_alive_seconds: float = 15.0
    """After how long without an event a comment is sent to a page that follows a stream."""
    restms_definitions: int = 1_000
    """The most feeds, pipes, joins and staged contents of a user in RestMS; a pipe comes with a join."""
    restms_pipes: int = 250
    """The most pipes of RestMS that a user reads at a time."""
    users: int = 200
    """The most sessions with the broker at a time; each user has a share of them."""
    session_followers: int = 50
    """The most answers without end (events, WebSockets) that share a session; one with many regular
    expressions counts more."""
    idle_seconds: float = 60.0
    """After how long an unused session with the broker is closed."""
    user_rate: float = 0.0
    """The most requests a second of a user; 0: any."""
    address_rate: float = 0.0
    """The most requests a second of an address; 0: any."""
    keys: int = 100_000
    """The most values of Idempotency-Key that are remembered."""
    key_seconds: float = 24 * 3600.0
    """For how long they are."""


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
