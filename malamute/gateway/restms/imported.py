"""Streams and used services of the broker as locked feeds."""

from __future__ import annotations

from contextlib import suppress

from malamute.aio import Client
from malamute.errors import AccessRefused, InvalidName, NotFound
from malamute.gateway.restms.definitions import OWN_PREFIX, RestFeed
from malamute.protocol.admin import QueueRow, ServiceQuery, ServicesQuery, StreamQuery, StreamsQuery


def is_own(name: str) -> bool:
    """Return whether a name belongs to the broker or the gateway itself."""
    return name.startswith("$") or name == OWN_PREFIX or name.startswith(f"{OWN_PREFIX}.")


def feed_of(name: str, kind: str) -> RestFeed:
    """Return the feed that stands for a stream or a service."""
    return RestFeed(name, "topic" if kind == "stream" else "rotator", imported=kind)


async def find(client: Client, name: str, timeout: float) -> RestFeed | None:
    """Return the stream or service with a name, as a feed. Without permission to view it does not exist.

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
    """Return all feeds that a user may view. `timeout` is in seconds, for each query."""
    found: dict[str, RestFeed] = {}
    with suppress(AccessRefused):
        for row in await client.query(StreamsQuery(), timeout=timeout):
            found[row.name] = feed_of(row.name, "stream")
    with suppress(AccessRefused):
        for service in filter(_is_used, await client.query(ServicesQuery(), timeout=timeout)):
            found.setdefault(service.name, feed_of(service.name, "service"))
    return [feed for name, feed in found.items() if not is_own(name)]


def _is_used(service: QueueRow) -> bool:
    """Return whether a service is in use: the broker keeps an unused queue for a while."""
    return bool(service.consumers or service.messages)
