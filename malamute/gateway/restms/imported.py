"""What the broker has as feeds: its streams, and the services that are in use. They are locked."""

from __future__ import annotations

from contextlib import suppress

from malamute.aio import Client
from malamute.errors import AccessRefused, InvalidName, NotFound
from malamute.gateway.restms.definitions import OWN_PREFIX, RestFeed
from malamute.protocol.admin import QueueRow, ServiceQuery, ServicesQuery, StreamQuery, StreamsQuery


def is_own(name: str) -> bool:
    """Whether a name is the broker's or the gateway's own."""
    return name.startswith("$") or name == OWN_PREFIX or name.startswith(f"{OWN_PREFIX}.")


def feed_of(name: str, kind: str) -> RestFeed:
    """The feed that a stream or a service is."""
    return RestFeed(name, "topic" if kind == "stream" else "rotator", imported=kind)


async def find(client: Client, name: str, timeout: float) -> RestFeed | None:
    """The stream or the service with a name, as a feed. What a user must not view is not there for that user.

    `timeout` is in seconds.
    """
    if is_own(name):
        return None
    with suppress(NotFound, AccessRefused, InvalidName):
        await client.query(StreamQuery(name=name), timeout=timeout)
        return feed_of(name, "stream")
    with suppress(NotFound, AccessRefused, InvalidName):
        service = await client.query(ServiceQuery(name=name), timeout=timeout)
        return feed_of(name, "service") if _is_used(service) else None
    return None


async def find_all(client: Client, timeout: float) -> list[RestFeed]:
    """All that a user may see. `timeout` is in seconds, for each query."""
    found: dict[str, RestFeed] = {}
    with suppress(AccessRefused):
        for row in await client.query(StreamsQuery(), timeout=timeout):
            found[row.name] = feed_of(row.name, "stream")
    with suppress(AccessRefused):
        for service in filter(_is_used, await client.query(ServicesQuery(), timeout=timeout)):
            found.setdefault(service.name, feed_of(service.name, "service"))
    return [feed for name, feed in found.items() if not is_own(name)]


def _is_used(service: QueueRow) -> bool:
    """Whether a service is one still: the broker keeps the queue for a while when nobody uses it."""
    return bool(service.consumers or service.messages)
