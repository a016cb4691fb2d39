"""Faults of the broker's own: unexpected exceptions, their counts and reports.

An exception ends one operation, and no more: a command is refused with error 500, the connection of a session
begins anew, an iteration that could not be completed counts as not stored. Here each is counted and reported
with its cause, by the place in the code that raised it: the first time at once, and then now and then, so
that a peer that finds one cannot fill the log with it.
"""

from __future__ import annotations

from collections.abc import Callable
from traceback import extract_tb, format_exception
from typing import Any

from malamute.errors import InternalError

FAULT = "a fault of the broker's own"
"""The words of the log."""

TELL_SECONDS = 60.0
"""How long a place that was reported is only counted."""

PLACES_MAX = 100
"""Places that are told apart; all others are one."""

TRACEBACK_CHARACTERS = 4_000

Report = Callable[..., None]


class Faults:
    """The faults of one broker, by the place where they were raised."""

    def __init__(self, report: Report) -> None:
        self.count = 0
        self.by_place: dict[str, int] = {}
        self._report = report
        self._told_at: dict[str, float] = {}

    def note(self, what: str, error: BaseException, now: float) -> InternalError:
        """Count a fault met in `what`, and report it. Returns the error that is handed on."""
        place = _place(error)
        if place not in self.by_place and len(self.by_place) >= PLACES_MAX:
            place = "elsewhere"
        self.count += 1
        self.by_place[place] = self.by_place.get(place, 0) + 1
        told_at = self._told_at.get(place)
        if told_at is None or now >= told_at + TELL_SECONDS:
            self._told_at[place] = now
            details: dict[str, Any] = {
                "what": what,
                "place": place,
                "times": self.by_place[place],
                "cause": f"{type(error).__name__}: {error}"[:TRACEBACK_CHARACTERS],
                "traceback": "".join(format_exception(error))[-TRACEBACK_CHARACTERS:],
            }
            self._report(FAULT, **details)
        return InternalError(f"a fault of the broker's own in {what}: {type(error).__name__} at {place}")


def _place(error: BaseException) -> str:
    """Where an exception was raised: the innermost line of ours, or else the innermost."""
    frames = extract_tb(error.__traceback__)
    if not frames:
        return type(error).__name__
    ours = [frame for frame in frames if "malamute" in frame.filename]
    frame = (ours or frames)[-1]
    return f"{'/'.join(frame.filename.split('/')[-2:])}:{frame.lineno}"
