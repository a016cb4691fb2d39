"""Values that the store keeps by name: the new ones, and the old ones if the disk refuses these.

A change is seen at once by the next commands, in the order in which it is stored. When the outcome of the
last change of a name is known, its value is the newest that the disk has taken.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from malamute.core.iteration.stage import StoreStage
    from malamute.errors import MalamuteError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Pending(Generic[V]):
    """The changes of one name that the disk has not answered."""

    __slots__ = ("count", "stored", "token")

    def __init__(self, stored: V | None) -> None:
        self.count = 0
        self.stored = stored
        self.token = 0
        """The append that has the last of them."""


class StoredValues(dict[K, V]):
    """The stored values of one kind. Values of the store itself are set as in any dict."""

    __slots__ = ("_pending", "_stage")

    def __init__(self, stage: StoreStage) -> None:
        super().__init__()
        self._stage = stage
        self._pending: dict[K, _Pending[V]] = {}

    def put(self, name: K, value: V | None) -> None:
        """Change a value, or remove it with None. The caller stores it in the same iteration."""
        stage = self._stage
        pending = self._pending.get(name)
        if pending is None:
            pending = self._pending[name] = _Pending(self.get(name))
        pending.count += 1
        pending.token = stage.token
        self._become(name, value)
        stage.when_stored(lambda error: self._settled(name, value, pending, error), awaited=False)

    def durable(self, name: K) -> V | None:
        """Return the newest value that the disk has, for a value of which changes may be under way."""
        pending = self._pending.get(name)
        return self.get(name) if pending is None else pending.stored

    def is_changing(self, name: K) -> bool:
        """Return whether a change of a value is under way to the disk."""
        return name in self._pending

    @property
    def changing(self) -> bool:
        """Return whether a change of any value is under way."""
        return bool(self._pending)

    def rely_on(self, name: K) -> None:
        """Store this iteration only if the last change of a value is stored, if one is under way."""
        if (pending := self._pending.get(name)) is not None:
            self._stage.rely_on(pending.token)

    def rely_on_changes(self, concerned: Callable[[K], bool]) -> None:
        """Store this iteration only if the changes of these names are stored that are under way.

        For a caller that stores all values anew in place of the disk's: refused changes must not be stored
        with that, nor refused removals.
        """
        for name, pending in self._pending.items():
            if concerned(name):
                self._stage.rely_on(pending.token)

    def _settled(self, name: K, value: V | None, pending: _Pending[V], error: MalamuteError | None) -> None:
        pending.count -= 1
        if error is None:
            pending.stored = value
        if not pending.count:
            del self._pending[name]
            self._become(name, pending.stored)

    def _become(self, name: K, value: V | None) -> None:
        if value is None:
            self.pop(name, None)
        else:
            self[name] = value
