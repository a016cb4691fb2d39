"""The stores that streams are in: the broker's own, and those that have names.

A stream is in the store where it was found at the start; one that is new is in the store that the rules of
the start name for it. So a rule that is changed moves nothing. The broker's own streams, and those without a
journal, are always in the store that has no name.

A store that could not be opened is *away*. Nobody knows which streams it has, so a name that the rules give
to it is refused as long as it is: a stream made elsewhere would be another one under the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from malamute.core.iteration.effects import Effects
from malamute.core.iteration.stage import StoreStage
from malamute.core.iteration.timers import Timers
from malamute.core.stream.ageing import Ageing
from malamute.core.stream.deleted import DeletedStreams
from malamute.errors import StoreAway
from malamute.protocol.names import RESERVED_PREFIX
from malamute.store.policies import StreamPolicy


class StreamStore:
    """What the streams of one store have in common."""

    def __init__(
        self, effects: Effects, timers: Timers, stage: StoreStage, incarnations: Sequence[int], floor: int = 0
    ) -> None:
        """New streams begin behind `floor`, and behind what the store has for that itself."""
        self.stage = stage
        self.ageing = Ageing(effects, timers, stage)
        self.deleted = DeletedStreams(stage)
        self.incarnations = incarnations
        self.incarnation = incarnations[-1] if incarnations else 0
        self.floor = floor
        """The highest sequence of all streams that were deleted there. New ones begin behind it."""


class StreamStores:
    """All stores, and which of them a new stream is in."""

    def __init__(
        self,
        own: StreamStore,
        named: Mapping[str, StreamStore],
        away: Mapping[str, str],
    ) -> None:
        """`away` has the reason for each that could not be opened."""
        self.own = own
        self.named = [*named.values()]
        """Those that have names and are there."""
        self._by_name = named
        self._away = away

    def of_new(self, name: str, policy: StreamPolicy) -> StreamStore:
        """The store for a new stream. Raises `StoreAway`."""
        if not policy.store or not policy.journal or name.startswith(RESERVED_PREFIX):
            return self.own
        if policy.store in self._away:
            raise StoreAway(
                f"stream {name!r} is in the store {policy.store!r}, which could not be opened: "
                f"{self._away[policy.store]}"
            )
        return self._by_name[policy.store]
