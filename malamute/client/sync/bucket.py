"""Buckets of a blocking program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from malamute.client.link.bucket import BucketBase, WatchBase
from malamute.client.options import Span
from malamute.client.session.watching import KeyValue
from malamute.client.sync.consumers import Scoped
from malamute.client.sync.driver import BlockingDriver
from malamute.errors import Closed


class Bucket(BucketBase):
    """Values by key, each with a revision and perhaps a time to live. Made by `Client.bucket`.

    A call is one round trip; a change is durable when its call returns, unless the broker keeps the bucket in
    memory. `timeout` is in seconds, and None is the client's own. All calls raise `AccessRefused` without the
    right `read` or `write` to the bucket, and `TimedOut` without an answer in time.
    """

    _driver: BlockingDriver

    def get(self, key: str, *, timeout: Span | None = None) -> KeyValue | None:
        """Return the value of a key, or None if there is no such key."""
        return self._driver.run(self._get([key], timeout)).get(key)

    def get_many(self, keys: Iterable[str], *, timeout: Span | None = None) -> dict[str, KeyValue]:
        """Return the values of those keys that are there.

        Raises:
            TooLarge: the values have more than 4 MiB together.
        """
        return self._driver.run(self._get(keys, timeout))

    def put(
        self,
        key: str,
        value: bytes | str,
        *,
        ttl: Span | None = None,
        expect: int | None = None,
        timeout: Span | None = None,
    ) -> int:
        """Set a key, and return its new revision.

        After `ttl` the key expires; without it, never. With `expect`, the key has to have that revision; 0 is
        a key that is not there. The change is made once, in spite of broken connections.

        Raises:
            NotAsExpected: the key has another revision.
            TooLarge: the value has more than 1 MiB.
            TryLater, QuotaExceeded: there is no room for it.
            ConnectionLost: the broker has forgotten this session, and whether it was made is unknown.
        """
        return self._driver.run(self._put(key, value, ttl, expect, timeout))

    def delete(self, key: str, *, expect: int | None = None, timeout: Span | None = None) -> bool:
        """Delete a key. Return whether it was there. Raises as `put`."""
        return self._driver.run(self._delete(key, expect, timeout))

    def add(self, key: str, amount: int = 1, *, ttl: Span | None = None, timeout: Span | None = None) -> int:
        """Add to a key, and return the sum. A key that is not there counts as 0.

        The value is the number in decimal digits. Without `ttl` the expiry of the key stays.

        Raises:
            InvalidValue: the value is no integer, or the sum has more than 64 bits.
        """
        return self._driver.run(self._add(key, amount, ttl, timeout))

    def watch(self, *keys: str, timeout: Span | None = None) -> KeyWatch:
        """Watch keys: an iterator over (key, value), whose value is None for a key that is not there.

        The present state of each key comes first. A reader that is slow gets the newest state of each key,
        and not those in between.
        """
        return KeyWatch(self._driver, self._driver.run(self._watch(keys, timeout)))


class KeyWatch(WatchBase, Scoped):
    """The states of some keys of a bucket. Made by `Bucket.watch`."""

    _driver: BlockingDriver

    def __iter__(self) -> Iterator[tuple[str, KeyValue | None]]:
        """Yield each key with its value, or with None. The iteration stops when the watch is cancelled."""
        while (found := self._driver.run(self._next(None))) is not None:
            yield found

    def receive(self, timeout: Span | None = None) -> tuple[str, KeyValue | None]:
        """Return the next key with its value. `timeout` is in seconds; None waits without end.

        Raises:
            TimedOut: no key changed in time.
            Closed: the watch is cancelled, and no change is left.
        """
        found = self._driver.run(self._next(timeout))
        if found is None:
            raise Closed("watch is cancelled, and no change of it is left: watch again")
        return found

    def cancel(self) -> None:
        """End the watch. Changes that have come can still be read."""
        self._driver.do(super().cancel)
