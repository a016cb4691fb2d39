"""The numbers of selectors at their places, which are given when they are first listed.

A number is a selector's own as long as that is there. Nothing of this costs those who never ask.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from malamute.protocol.names import Place

PLACES_MAX = 1_000
"""Places whose numbers are remembered, before those are forgotten that have no selector any more."""


class SelectorNumbers:
    """The numbers of selectors, by their places."""

    def __init__(self) -> None:
        self._given: dict[Place, WeakKeyDictionary[Any, int]] = {}
        self._last: dict[Place, int] = {}

    def of(self, place: Place, selectors: list[Any]) -> dict[int, Any]:
        """The selectors of a place by their numbers, in order."""
        if len(self._given) >= PLACES_MAX:
            self._given = {place: given for place, given in self._given.items() if given}
            self._last = {place: self._last[place] for place in self._given}
        given = self._given.setdefault(place, WeakKeyDictionary())
        for selector in selectors:
            if selector not in given:
                given[selector] = self._last[place] = self._last.get(place, 0) + 1
        return dict(sorted((given[selector], selector) for selector in selectors))
