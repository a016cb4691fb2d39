"""Buckets of an asyncio program. As in `malamute.client.sync.bucket`, awaited."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from malamute.client.aio.consumers import Opening, Scoped
from malamute.client.link.bucket import BucketBase, WatchBase
from malamute.client.options import Span
from malamute.client.session.watching import KeyValue
from malamute.errors import Closed


class Bucket(BucketBase):
    """Values by key, each with a revision and perhaps a time to live. Made by `Client.bucket`."""

    async def get(self, key: str, *, timeout: Span | None = None) -> KeyValue | None:
        """Return the value of a key, or None if there is no such key."""
        return (await self._get([key], timeout)).get(key)

    async def get_many(self, keys: Iterable[str], *, timeout: Span | None = None) -> dict[str, KeyValue]:
        """Return the values of those keys that are there."""
        return await self._get(keys, timeout)

    async def put(
        self,
        key: str,
        value: bytes | str,
        *,
        ttl: Span | None = None,
        expect: int | None = None,
        timeout: Span | None = None,
    ) -> int:
        """Set a key, and return its new revision. As `malamute.Bucket.put`."""
        return await self._put(key, value, ttl, expect, timeout)

    async def delete(self, key: str, *, expect: int | None = None, timeout: Span | None = None) -> bool:
        """Delete a key. Return whether it was there."""
        return await self._delete(key, expect, timeout)

    async def add(
        self, key: str, amount: int = 1, *, ttl: Span | None = None, timeout: Span | None = None
    ) -> int:
        """Add to a key, and return the sum. As `malamute.Bucket.add`."""
        return await self._add(key, amount, ttl, timeout)

    def watch(
        self, *keys: str, timeout: Span | None = None
    ) -> Opening[KeyWatch, tuple[str, KeyValue | None]]:
        """Watch keys: await it, or use it in `async with` and `async for`. As `malamute.Bucket.watch`."""
        return Opening(self._watching(keys, timeout))

    async def _watching(self, keys: Iterable[str], timeout: Span | None) -> KeyWatch:
        return KeyWatch(self._driver, await self._watch(keys, timeout))


class KeyWatch(WatchBase, Scoped):
    """The states of some keys of a bucket."""

    def __aiter__(self) -> Self:
        """Yield each key with its value, or with None. The iteration stops when the watch is cancelled."""
        return self

    async def __anext__(self) -> tuple[str, KeyValue | None]:
        found = await self._next(None)
        if found is None:
            raise StopAsyncIteration
        return found

    async def receive(self, timeout: Span | None = None) -> tuple[str, KeyValue | None]:
        """Return the next key with its value. `timeout` is in seconds; None waits without end.

        Raises:
            TimedOut: no key changed in time.
            Closed: the watch is cancelled, and no change is left.
        """
        found = await self._next(timeout)
        if found is None:
            raise Closed("watch is cancelled, and no change of it is left: watch again")
        return found
