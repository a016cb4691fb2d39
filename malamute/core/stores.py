"""The stores that have names: what the broker knows of each, for the start and for its operators.

A store that hangs answers nothing. So nobody waits for one of them to learn how full it is: each is asked
every few seconds, and what it has said last is what is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from malamute.core.iteration.health import Health
from malamute.core.iteration.stage import NamedStage
from malamute.core.stream.store import StreamStore, StreamStores
from malamute.errors import Failed, InternalError, MalamuteError
from malamute.protocol.admin import NamedStoreRow, StoreUsage
from malamute.store.operations import Recovered, StoreStats

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.timers import Timers

MEASURE_SECONDS = 10.0
"""How often each is asked how full it is."""

HUNG_SECONDS = 30.0
"""After how long without an outcome of what was handed to it a store is said to hang."""


class FoundStore(NamedTuple):
    """A store with a name as it was found at the start: what it has kept, or why it could not be opened."""

    recovered: Recovered | MalamuteError
    kind: str = "lmdb"
    directory: str = ""
    backlog_bytes: int = 32 << 20


class NamedStore:
    """One of them. If it could not be opened, `away` says why, and it has neither stage nor health."""

    def __init__(self, name: str, found: FoundStore, effects: Effects, timers: Timers) -> None:
        self.name = name
        self.found = found
        self.away = ""
        self.lost = ""
        """Why it takes nothing until the broker starts again, though it was there."""
        self.usage: StoreUsage | None = None
        """What it has said last of how full it is."""
        self._effects = effects
        self._timers = timers
        if isinstance(found.recovered, MalamuteError):
            self.away = found.recovered.text
            return
        self.stage = effects.stages[name] = NamedStage(name, effects.now, found.backlog_bytes, effects.fault)
        self.health = Health(effects, timers, self.stage)
        self._measure()

    def settle(self, token: int, error: MalamuteError | None) -> None:
        """What `token` names is durable there, or failed."""
        self.stage.now = self._effects.now
        if error is None:
            self.stage.settle(token, None)
            if self.health.failed_at:
                self.health.stored()
        else:
            self.stage.settle(token, error if isinstance(error, Failed) else InternalError(str(error)))
            self.health.store_failed(error)

    def row(self) -> NamedStoreRow:
        """How it is, for people."""
        usage = self.usage
        return NamedStoreRow(
            name=self.name,
            kind=self.found.kind,
            directory=self.found.directory,
            error=self.error,
            used=usage.used if usage else 0,
            size=usage.size if usage else 0,
            lsn=usage.lsn if usage else 0,
            streams_bytes=usage.streams_bytes if usage else 0,
            streams_budget=usage.streams_budget if usage else 0,
            backlog_bytes=0 if self.away else self.stage.backlog_bytes,
            committed_bytes=0 if self.away else self.stage.committed_bytes,
            damages=0 if self.away else self.health.damages,
        )

    @property
    def can_be_copied(self) -> bool:
        """Whether it is on a disk that is well."""
        return self.found.kind != "memory" and not self.error

    @property
    def error(self) -> str:
        """Why it takes nothing, or nothing for now; empty if it does."""
        if self.away:
            return f"it could not be opened: {self.away}"
        if self.lost:
            return self.lost
        waits = self.stage.waits_seconds
        if not self.health.error and waits > HUNG_SECONDS:
            return f"it has not answered for {waits:.0f} s"
        return self.health.error

    def _measure(self) -> None:
        self._effects.ask(StoreStats(self.name), self._measured, lambda error: self._again())

    def _measured(self, usage: StoreUsage) -> None:
        self.usage = usage
        self._again()

    def _again(self) -> None:
        self._timers.at(self._effects.now + MEASURE_SECONDS, self._measure)


def stream_stores(
    own: StreamStore, named: Mapping[str, NamedStore], effects: Effects, timers: Timers, begin: int
) -> StreamStores:
    """What the streams need of all stores. New streams begin behind `begin`."""
    there: dict[str, StreamStore] = {}
    for name, store in named.items():
        if isinstance(store.found.recovered, Recovered):
            incarnations = store.found.recovered.incarnations
            there[name] = StreamStore(effects, timers, store.stage, incarnations, begin)
    return StreamStores(own, there, {name: store.away for name, store in named.items() if store.away})
