"""Waiting for changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from malamute.errors import TimedOut


class Signal:
    """Wakes all waiters at a change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Return the event of the next change. Call this before reading the state that may change."""
        return self._event

    def notify(self) -> None:
        """Report a change."""
        self._event.set()
        self._event = asyncio.Event()


async def first_of(signals: Iterable[asyncio.Event], seconds: float) -> None:
    """Wait until one of these has happened. Raises `TimedOut`."""
    tasks: set[asyncio.Task[Any]] = {asyncio.create_task(signal.wait()) for signal in signals}
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise TimedOut(f"nothing has come within {seconds:g} s: send the same request again")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
