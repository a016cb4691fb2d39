"""Buckets and watched keys; the common part of both edges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from malamute.client.link.driver import Driver
from malamute.client.options import Span, check_name, count, patience, text, time_to_live
from malamute.client.session.questions import PendingChange, PendingQuery
from malamute.client.session.watching import KeyValue, WatchSource
from malamute.errors import InvalidValue
from malamute.protocol import messages as wire
from malamute.protocol.fields import ANY_REVISION, Ranges
from malamute.protocol.limits import KEYS_MAX, NUMBER_MAX
from malamute.protocol.texts import shown


class PutWithAck(NamedTuple):
    """The value that an acknowledgement puts into a bucket in its own commit."""

    bucket: str
    key: str
    value: bytes | str
    ttl: Span | None = None

    @classmethod
    def of(cls, put: Any) -> PutWithAck:
        """Return the value of a tuple. Raises `InvalidValue`."""
        if not isinstance(put, tuple) or not 3 <= len(put) <= 4:
            raise InvalidValue(
                f"invalid put {shown(put)}: expected (bucket, key, value) or with a ttl behind"
            )
        found = cls(*put)
        check_name("bucket", found.bucket)
        check_name("key", found.key)
        return found

    def command(self, source: int, ranges: Ranges) -> wire.Put:
        """Return PUT with the acknowledgement of deliveries of a source."""
        value, ttl = value_of(self.value), time_to_live("ttl", self.ttl)
        return wire.Put(1, self.bucket, self.key, value, ttl, source=source, ranges=ranges)


def value_of(value: bytes | bytearray | memoryview | str) -> bytes:
    """Return the value of a key as bytes. Raises `InvalidValue`."""
    if isinstance(value, str):
        return text("value", value).encode(errors="surrogatepass")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidValue(f"invalid value {shown(value)}: expected bytes or text")


def expected(expect: int | None) -> int:
    """Return the expected revision as the protocol has it. Raises `InvalidValue`."""
    return ANY_REVISION if expect is None else count("expect", expect, 0, NUMBER_MAX)


def keys_of(keys: Iterable[str]) -> list[str]:
    """Return keys as a list without duplicates. Raises `InvalidName` or `InvalidValue`."""
    if isinstance(keys, str):
        raise InvalidValue(f"invalid keys {shown(keys)}: expected a list of keys")
    found = [*dict.fromkeys(keys)]
    for key in found:
        check_name("key", key)
    if len(found) > KEYS_MAX:
        raise InvalidValue(f"too many keys: {len(found)}; expected at most {KEYS_MAX}")
    return found


async def change_key(driver: Driver, asking: wire.Put | wire.Delete | wire.Add, timeout: Span | None) -> Any:
    """Make a change of a key, and return its outcome. The number of `asking` is given here."""
    timeout = patience("timeout", timeout)
    driver.check()
    questions = driver.session.questions
    if not questions.may_change:
        await driver.wait_for_broker(lambda: questions.may_change, timeout, "room for one more change")
    return await _answer(driver, questions.change_key(asking), timeout)


async def _answer(driver: Driver, pending: PendingQuery | PendingChange, timeout: Span | None) -> Any:
    try:
        await driver.wait_for_broker(lambda: pending.done, timeout, "no answer about a bucket")
    finally:
        driver.session.questions.abandon(pending)
    if pending.error is not None:
        raise pending.error
    return pending.value


class BucketBase:
    """The keys of one bucket."""

    def __init__(self, driver: Driver, name: str) -> None:
        check_name("bucket", name)
        self._driver = driver
        self._name = name

    @property
    def name(self) -> str:
        """Return the bucket's name."""
        return self._name

    async def _get(self, keys: Iterable[str], timeout: Span | None) -> dict[str, KeyValue]:
        asked, timeout = keys_of(keys), patience("timeout", timeout)
        driver = self._driver
        driver.check()
        if not asked:
            return {}
        rows = await _answer(driver, driver.session.questions.get(self._name, asked), timeout)
        found = (KeyValue.of(key, row) for key, row in zip(asked, rows, strict=True))
        return {entry.key: entry for entry in found if entry is not None}

    async def _put(
        self, key: str, value: bytes | str, ttl: Span | None, expect: int | None, timeout: Span | None
    ) -> int:
        check_name("key", key)
        asking = wire.Put(1, self._name, key, value_of(value), time_to_live("ttl", ttl), expected(expect))
        return int(await change_key(self._driver, asking, timeout))

    async def _delete(self, key: str, expect: int | None, timeout: Span | None) -> bool:
        check_name("key", key)
        return bool(
            await change_key(self._driver, wire.Delete(1, self._name, key, expected(expect)), timeout)
        )

    async def _add(self, key: str, amount: int, ttl: Span | None, timeout: Span | None) -> int:
        check_name("key", key)
        amount = count("amount", amount, -NUMBER_MAX, NUMBER_MAX)
        asking = wire.Add(1, self._name, key, amount, time_to_live("ttl", ttl))
        total, _ = await change_key(self._driver, asking, timeout)
        return int(total)

    async def _watch(self, keys: Iterable[str], timeout: Span | None) -> WatchSource:
        asked, timeout = keys_of(keys), patience("timeout", timeout)
        if not asked:
            raise InvalidValue("no key to watch: expected one or more")
        driver = self._driver
        driver.check()
        inbox = driver.session.inbox
        source = inbox.watch(self._name, asked)
        try:
            await driver.wait_for_broker(lambda: source.open or source.ended, timeout, "no answer")
        except BaseException:
            inbox.cancel(source)
            driver.send()
            raise
        if source.error is not None:
            raise source.error
        return source

    def __repr__(self) -> str:
        return f"<Bucket {self._name!r}>"


class WatchBase:
    """The states of some keys: each at first, and then each newer one that is seen."""

    def __init__(self, driver: Driver, source: WatchSource) -> None:
        self._driver = driver
        self._source = source

    async def _next(self, timeout: Span | None) -> tuple[str, KeyValue | None] | None:
        """Return the next key with its state; None at the end."""
        source, driver = self._source, self._driver
        if source.waiting:
            driver.check_owner()
        else:
            what = f"no change in bucket {source.bucket!r}"
            await driver.wait(lambda: source.waiting or source.ended, timeout, what)
        if source.waiting:
            return source.pop()
        if source.error is not None:
            raise source.error
        return None

    def cancel(self) -> None:
        """Watch no longer. Changes that have come can still be read."""
        driver = self._driver
        driver.check_owner()
        if not self._source.ended and driver.session.error is None:
            driver.session.inbox.cancel(self._source)
            driver.send()
            driver.changed()

    def __repr__(self) -> str:
        return f"<Watch of bucket {self._source.bucket!r} {'cancelled' if self._source.ended else 'open'}>"
