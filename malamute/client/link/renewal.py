"""The renewal of a client's token: a thread of its own asks the program for another one before it expires.

The program may be busy with a message for longer than its token is valid, and the function that it gave may
wait for a server. So neither is asked for in the thread that uses the client.
"""

from __future__ import annotations

import json
import logging
from base64 import urlsafe_b64decode
from collections.abc import Callable
from math import inf
from threading import Event, Thread
from time import time
from weakref import WeakMethod

from malamute.client.link.credentials import token_of

EARLY_SECONDS = 30.0
"""How long before the expiry another token is asked for; of one that is valid for a short time, a third."""

PAUSE_SECONDS_MIN = 1.0
"""How soon the program is asked again after it had no newer token, or raised an exception."""

AskToken = Callable[[], str]

_log = logging.getLogger("malamute")


def expiry_of(token: str) -> float:
    """Return when a token expires, in seconds since the epoch; infinity if it does not say so."""
    try:
        claims = token.split(".")[1]
        return float(json.loads(urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"])
    except (LookupError, ValueError, TypeError):
        return inf


def pause_before(expires_at: float, now: float) -> float:
    """Return how long to wait until another token is asked for."""
    left = expires_at - now
    return max(PAUSE_SECONDS_MIN, left - min(EARLY_SECONDS, left / 3))


class Renewal(Thread):
    """The thread that gives a driver newer tokens by its `renew`, until it is stopped or nobody has that."""

    def __init__(self, ask: AskToken, token: str, renew: Callable[[str], None]) -> None:
        super().__init__(name="malamute-token", daemon=True)
        self._ask = ask
        self._expires_at = expiry_of(token)
        self._renew = WeakMethod(renew)
        self._stopped = Event()

    def run(self) -> None:
        """Ask for a token each time that the last one is about to expire."""
        while self._expires_at < inf:
            if self._stopped.wait(pause_before(self._expires_at, time())):
                return
            try:
                token = token_of({}, self._ask())
            except Exception as error:
                _log.warning("The program gave no newer token: %s: %s", type(error).__name__, error)
                continue
            renew = self._renew()
            if renew is None:
                return
            if expiry_of(token) > self._expires_at:
                self._expires_at = expiry_of(token)
                renew(token)
            del renew

    def stop(self) -> None:
        """End it, without waiting for the program's function."""
        self._stopped.set()
