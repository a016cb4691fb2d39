"""Deletion of feeds and pipes, with their dependents."""

from __future__ import annotations

from contextlib import suppress

from malamute.aio import Client
from malamute.errors import MalamuteError, NotFound
from malamute.gateway.restms.definitions import DEFAULT_STREAM, Definition, Join, Pipe, RestFeed
from malamute.gateway.restms.registry import Registry
from malamute.protocol.admin import FeedDelete, QueuePurge, StreamDelete


async def take_away(registry: Registry, client: Client, definition: Definition, timeout: float) -> None:
    """Delete a definition, with its joins and messages. Raises `AccessRefused` where `client` may not.

    `timeout` is in seconds, for each command.
    """
    joins: list[Join] = []
    if isinstance(definition, RestFeed):
        joins = registry.joins_to(definition)
        await unfeed(client, definition.stream, definition.stream, timeout)
        for pipe in {join.pipe for join in joins}:
            await unfeed(client, Pipe(pipe).service, definition.stream, timeout)
        await _purge(client, definition.stream, timeout)
        # A stream with other readers stays, like any other.
        with suppress(MalamuteError):
            await client.change(StreamDelete(stream=definition.stream), timeout=timeout)
    elif isinstance(definition, Pipe):
        joins = registry.joins_of(definition)
        for stream in {stream_of(registry, join) for join in joins}:
            await unfeed(client, definition.service, stream, timeout)
        await _purge(client, definition.service, timeout)
    await registry.remove(definition, *joins)


def stream_of(registry: Registry, join: Join) -> str:
    """Return the stream from which a join selects messages."""
    if join.default:
        return DEFAULT_STREAM
    feed = registry.feed(join.feed) or registry.private(join.feed)
    return feed.stream if isinstance(feed, RestFeed) else join.feed


async def unfeed(client: Client, service: str, stream: str, timeout: float) -> None:
    """Stop feeding a service from a stream, if it is fed. `timeout` is in seconds."""
    with suppress(NotFound):
        await client.change(FeedDelete(source=f"stream/{stream}", feed=service), timeout=timeout)


async def _purge(client: Client, service: str, timeout: float) -> None:
    with suppress(NotFound):
        await client.change(QueuePurge(kind="service", name=service), timeout=timeout)
