"""How the store is: whether it takes what it is given, and what of it was found damaged.

A fault of the disk is over when something is stored again. A broker without traffic would never know, so it
stores nothing, once a second, until that succeeds: for the store this is a write like any other. A store
that is full is no fault: it says so to whoever wants more.
"""

from __future__ import annotations

from malamute.core.ready import Turn
from malamute.core.timers import Timers
from malamute.errors import MalamuteError, StorageFull

PROBE_SECONDS = 1.0
"""How often a store that failed is tried."""


class Health:
    """What is known of the store's health. `error` tells why it takes nothing, or is empty."""

    def __init__(self, turn: Turn, timers: Timers) -> None:
        self.error = ""
        self._turn = turn
        self._timers = timers
        self._probing = False

    def stored(self) -> None:
        """Something was stored."""
        self.error = ""

    def unstored(self, error: MalamuteError) -> None:
        """Something could not be stored."""
        if isinstance(error, StorageFull):
            return
        self.error = str(error)
        if not self._probing:
            self._probing = True
            self._timers.at(self._turn.now + PROBE_SECONDS, self._probe)

    def _probe(self) -> None:
        self._probing = False
        if self.error:
            self._turn.when_stored(lambda error: None)
