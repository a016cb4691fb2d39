"""The health of a store: whether it accepts appends, and the damage found in it.

A fault of the disk is over when something is stored again. A broker without traffic would never know, so it
stores nothing, once a second, until that succeeds: for the store this is a write like any other. A store
that is full is no fault: it says so to commands that want more room.

Trouble of both kinds is reported by one event for a while, since each report needs a store itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from malamute.core.iteration.effects import Effects
from malamute.core.iteration.timers import Timers
from malamute.errors import MalamuteError, StorageFull
from malamute.store.operations import OPENED_AGAIN, Defect

REPORTED_MAX = 20
"""Damages of a kind that are reported one by one, of those that are found at once."""

PROBE_SECONDS = 1.0
"""How often a store that failed is tried."""

TROUBLE_SECONDS = 10.0
"""How long trouble with the store is reported by one event, and how long none makes it over."""


class Health:
    """The known health of one store.

    `error` is the reason why it takes nothing, or empty. `damages` counts the damaged things found in it.
    """

    def __init__(self, effects: Effects, timers: Timers) -> None:
        self.error = ""
        self.damages = 0
        self.failed_at = 0.0
        """When it has failed last; 0 if that trouble is over."""
        self._effects = effects
        self._timers = timers
        self._probing = False
        self._failures = 0
        self._tell_at = 0.0

    def stored(self) -> None:
        """Something was stored after a failure: if the last one was a while ago, the trouble is over."""
        self.error = ""
        if self._effects.now >= self.failed_at + TROUBLE_SECONDS:
            self.failed_at = 0.0
            self._effects.event("store.recovered", failures=self._failures)
            self._failures = 0

    def store_failed(self, error: MalamuteError) -> None:
        """Something could not be stored: report it, though not every time."""
        now = self._effects.now
        self._failures += 1
        if not self.failed_at or now >= self._tell_at:
            self._tell_at = now + TROUBLE_SECONDS
            details = {"error": str(error), "code": error.code, "failures": self._failures}
            self._effects.event("store.failed", **details)
        self.failed_at = now
        if isinstance(error, StorageFull):
            return
        self.error = str(error)
        if not self._probing:
            self._probing = True
            self._timers.at(now + PROBE_SECONDS, self._probe)

    def damaged(self, defects: Sequence[Defect]) -> None:
        """Something in the store was found damaged: report it, of many alike the first ones."""
        reported = Counter[str]()
        for defect in defects:
            if defect.kind == OPENED_AGAIN:
                self._effects.notice("the store was opened again", reason=defect.outcome)
                self._effects.event("store.opened-again", reason=defect.outcome)
                continue
            self.damages += 1
            reported[defect.kind] += 1
            if reported[defect.kind] <= REPORTED_MAX:
                details = defect._asdict()
                del details["stranded"]
                self._effects.notice("the store is damaged", **details)
                self._effects.event("store.damaged", **details)
        for kind, count in reported.items():
            if count > REPORTED_MAX:
                more = count - REPORTED_MAX
                self._effects.notice("more of the store is damaged", kind=kind, count=more)

    def _probe(self) -> None:
        self._probing = False
        if self.error:
            self._effects.stage.when_stored(lambda error: None)
