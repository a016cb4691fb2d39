"""Idempotency keys: a request is carried out once, and what failed may be tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from malamute.errors import InvalidValue, KeyReused, TimedOut, TryLater
from malamute.gateway.idempotency import KEY_BYTES_MAX, IdempotencyKeys

PATIENCE = 60.0


def play(program: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(program())


class Calls:
    """Counts its calls; each waits until it is let go."""

    def __init__(self, error: Exception | None = None) -> None:
        self.count = 0
        self.go = asyncio.Event()
        self._error = error

    async def __call__(self) -> int:
        self.count += 1
        count = self.count
        await self.go.wait()
        if self._error is not None:
            raise self._error
        return count


def test_a_call_that_takes_too_long_goes_on_and_is_not_made_again() -> None:
    async def program() -> None:
        keys, calls = IdempotencyKeys(10, 10.0), Calls()
        for _ in range(2):
            with pytest.raises(TimedOut):
                await keys.once(("k",), b"f", calls, 0)
        calls.go.set()
        assert await keys.once(("k",), b"f", calls, PATIENCE) == 1
        assert await keys.once(("k",), b"f", calls, PATIENCE) == 1
        assert await keys.once(("other", "k"), b"f", calls, PATIENCE) == 2

    play(program)


def test_a_call_that_is_cancelled_goes_on() -> None:
    async def program() -> None:
        keys, calls = IdempotencyKeys(10, 10.0), Calls()
        task = asyncio.create_task(keys.once(("k",), b"f", calls, PATIENCE))
        await asyncio.sleep(0)
        task.cancel()
        calls.go.set()
        assert await keys.once(("k",), b"f", calls, PATIENCE) == 1

    play(program)


def test_what_failed_is_forgotten_and_another_request_is_refused() -> None:
    async def program() -> None:
        keys, calls = IdempotencyKeys(10, 10.0), Calls(TryLater("full"))
        calls.go.set()
        for _ in range(2):
            with pytest.raises(TryLater, match="full"):
                await keys.once(("k",), b"f", calls, PATIENCE)
        assert (calls.count, len(keys)) == (2, 0)
        calls = Calls()
        calls.go.set()
        await keys.once(("k",), b"f", calls, PATIENCE)
        with pytest.raises(KeyReused):
            await keys.once(("k",), b"g", calls, PATIENCE)

    play(program)


def test_as_many_are_kept_as_may_be_and_the_oldest_finished_one_makes_room() -> None:
    async def program() -> None:
        keys, open_calls, calls = IdempotencyKeys(2, 10.0), Calls(), Calls()
        calls.go.set()
        with pytest.raises(TimedOut):
            await keys.once(("open",), b"f", open_calls, 0)
        assert await keys.once(("a",), b"f", calls, PATIENCE) == 1
        assert await keys.once(("b",), b"f", calls, PATIENCE) == 2
        assert len(keys) == 2
        assert await keys.once(("a",), b"f", calls, PATIENCE) == 3
        with pytest.raises(TimedOut):
            await keys.once(("c",), b"f", open_calls, 0)
        with pytest.raises(TryLater, match="2 requests"):
            await keys.once(("d",), b"f", calls, PATIENCE)
        await keys.close()

    play(program)


def test_a_key_is_forgotten_when_its_time_is_over() -> None:
    async def program() -> None:
        now = 0.0
        keys, calls = IdempotencyKeys(10, 10.0, lambda: now), Calls()
        calls.go.set()
        assert await keys.once(("k",), b"f", calls, PATIENCE) == 1
        now = 9.9
        assert await keys.once(("k",), b"f", calls, PATIENCE) == 1
        now = 10.0
        assert await keys.once(("k",), b"f", calls, PATIENCE) == 2

    play(program)


@pytest.mark.parametrize("key", ["", "k" * (KEY_BYTES_MAX + 1), "ä" * (KEY_BYTES_MAX // 2 + 1)])
def test_a_key_has_a_length(key: str) -> None:
    async def program() -> None:
        with pytest.raises(InvalidValue):
            await IdempotencyKeys(10, 10.0).once((key,), b"", Calls(), PATIENCE)

    play(program)
