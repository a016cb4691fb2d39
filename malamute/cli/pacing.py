"""Replay at the pace of publishing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from malamute.protocol.time_units import to_seconds

if TYPE_CHECKING:
    from malamute.client.session.message import Message


class Pacer:
    """Yields messages at the intervals of their publishing, `speed` times as fast.

    A slow reader catches up: the times count from the first message, not from the one before.
    """

    def __init__(
        self,
        speed: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._speed = speed
        self._clock = clock
        self._sleep = sleep
        self._first: tuple[int, float] | None = None

    def paced(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Yield each message at its time."""
        for message in messages:
            if self._first is None:
                self._first = message.time_ns, self._clock()
            published_ns, began = self._first
            due = began + to_seconds(message.time_ns - published_ns) / self._speed
            if (left := due - self._clock()) > 0:
                self._sleep(left)
            yield message
