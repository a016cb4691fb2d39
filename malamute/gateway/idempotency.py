"""Requests with an Idempotency-Key: a repeated request gets the answer to the first one.

The answers are kept in the memory of the gateway. After a restart the keys of messages are read from their
stream: see `stored_keys`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from malamute.errors import InvalidValue, KeyReused, TimedOut, TryLater

Result = TypeVar("Result")

KEY_BYTES_MAX = 255


class _Known(NamedTuple):
    fingerprint: bytes
    task: asyncio.Task[Any]
    since: float


class IdempotencyKeys:
    """The keys that were used, up to `most` of them, for `seconds`."""

    def __init__(self, most: int, seconds: float, clock: Callable[[], float] = monotonic) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._known: OrderedDict[Hashable, _Known] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    async def once(
        self,
        key: tuple[str, ...],
        fingerprint: bytes,
        make: Callable[[], Coroutine[Any, Any, Result]],
        timeout: float,
    ) -> Result:
        """Return the result of `make`, called once for a key by any number of calls.

        The last part of the key is from the client, the others are its owner. A call that was cancelled, or
        took longer than `timeout` seconds, continues, and the next one with its key waits for the same
        result. Failed calls are forgotten.

        Raises:
            InvalidValue: the key is empty or too long.
            KeyReused: the key was used with another fingerprint.
            TimedOut: the result did not come in time.
            TryLater: there are as many unfinished keys as there may be.
        """
        if not 0 < len(key[-1].encode()) <= KEY_BYTES_MAX:
            raise InvalidValue(f"invalid Idempotency-Key: expected 1 to {KEY_BYTES_MAX} bytes")
        self._forget_old()
        known = self._known.get(key)
        if known is None:
            self._make_room()
            known = self._known[key] = _Known(fingerprint, asyncio.create_task(make()), self._clock())
            known.task.add_done_callback(lambda task: self._finished(key, task))
        elif known.fingerprint != fingerprint:
            raise KeyReused(f"Idempotency-Key {key[-1]!r} was used for another request")
        done, _ = await asyncio.wait({known.task}, timeout=timeout)
        if not done:
            raise TimedOut(f"no confirmation within {timeout} s; the same request with its key waits for it")
        result: Result = known.task.result()
        return result

    def _finished(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._known.pop(key, None)

    def _forget_old(self) -> None:
        oldest = self._clock() - self._seconds
        while self._known:
            key, known = next(iter(self._known.items()))
            if known.since > oldest or not known.task.done():
                return
            del self._known[key]

    def _make_room(self) -> None:
        if len(self._known) < self._most:
            return
        key = next((key for key, known in self._known.items() if known.task.done()), None)
        if key is None:
            raise TryLater(f"{self._most} requests with an Idempotency-Key are unfinished")
        del self._known[key]

    async def close(self) -> None:
        """Cancel unfinished calls."""
        tasks = [known.task for known in self._known.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
