"""The guard of a store's calls: closing waits for those under way, and nothing begins behind it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from malamute.errors import StoreError


class CallGuard:
    """Counts the calls under way, so that closing can wait for them."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._under_way = 0
        self._shut = False
        self._closed = False

    def __enter__(self) -> None:
        with self._condition:
            if self._shut:
                self._condition.wait_for(lambda: not self._shut)
            if self._closed:
                raise StoreError("store is closed")
            self._under_way += 1

    def __exit__(self, *exception: object) -> None:
        with self._condition:
            self._under_way -= 1
            if self._closed or self._shut:
                self._condition.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until all calls but the caller's own have ended, and hold off new calls meanwhile."""
        with self._condition:
            self._shut = True
            self._condition.wait_for(lambda: self._under_way == 1)
        try:
            yield
        finally:
            with self._condition:
                self._shut = False
                self._condition.notify_all()

    def close(self) -> bool:
        """Refuse new calls and wait for those under way; return False if the guard was closed before."""
        with self._condition:
            if self._closed:
                return False
            self._closed = True
            self._condition.wait_for(lambda: self._under_way == 0)
            return True
