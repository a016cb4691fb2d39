"""Opening sessions with the broker: proved credentials first, strangers beside them.

The broker needs a while to verify credentials, and as long for made-up ones. So credentials that were proved
before wait for no stranger, and strangers share their places by address. Waiters are limited, too: each has a
connection, and perhaps the beginning of a body.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from malamute.door.shares import Shares
from malamute.errors import TryLater

KNOWN_PLACES = 20
"""Maximum sessions opened at a time for proved credentials."""

PLACES = 4
"""Maximum for strangers. The broker verifies one password after the other, also after a disconnect."""

WAITING_MAX = 200
"""Maximum strangers that wait for a place; each address has a share."""


class Openings:
    """The places in which sessions are opened."""

    def __init__(self) -> None:
        self._known = asyncio.Semaphore(KNOWN_PLACES)
        self._places = Shares(PLACES)
        self._queued = Shares(WAITING_MAX)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def place(self, sender: str, seconds: float, *, known: bool) -> AsyncIterator[None]:
        """Hold a place during the block, for a stranger at this address. Raises `TryLater`."""
        try:
            async with asyncio.timeout(seconds):
                await (self._known.acquire() if known else self._acquire(sender))
        except TimeoutError:
            raise TryLater(f"too many sessions were being opened for {seconds} s") from None
        try:
            yield
        finally:
            if known:
                self._known.release()
            else:
                self._release(sender)

    async def _acquire(self, sender: str) -> None:
        if self._places.take(sender):
            return
        if not self._queued.take(sender):
            raise TryLater(
                f"{self._queued.total} clients wait until their credentials are proved, "
                f"{self._queued.held(sender)} of this address: expected at most {WAITING_MAX}, with a share "
                "for each"
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(sender, deque())
        queue.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._release(sender)
            raise
        finally:
            if turn in queue:
                queue.remove(turn)
            if not queue and self._waiting.get(sender) is queue:
                del self._waiting[sender]
            self._queued.give_back(sender)

    def _release(self, sender: str) -> None:
        self._places.give_back(sender)
        while self._let_in():
            pass

    def _let_in(self) -> bool:
        """Give a place to the address with the fewest; of several, to the one that has waited longest."""
        for other in sorted(self._waiting, key=self._places.held):
            queue = self._waiting[other]
            while queue and queue[0].done():  # the waiter has given up
                queue.popleft()
            if not queue or not self._places.take(other):
                continue
            # This address is now behind the others.
            self._waiting[other] = self._waiting.pop(other)
            queue.popleft().set_result(None)
            return True
        return False
