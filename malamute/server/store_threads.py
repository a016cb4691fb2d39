"""The threads of the store, and the queue of appends for its writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from malamute.core.iteration.effects import Question
from malamute.journal.store import Store
from malamute.server.release import ReleaseGate
from malamute.server.worker import (
    Load,
    ReaderThread,
    Results,
    WriterThread,
    no_configuration,
)
from malamute.store.commit import Append
from malamute.store.operations import Backup

HOLD_SECONDS = 0.005
"""Seconds for which an append that nobody waits for is held, for others to join its commit."""

HELD_MAX = 64
"""Appends that wait so at the most."""


class StoreThreads:
    """The writer of a store, its reader, and the one that copies it."""

    def __init__(
        self,
        store: Store,
        results: Results,
        load: Load = no_configuration,
        release: ReleaseGate | None = None,
    ) -> None:
        self.store = store
        self.writer = WriterThread("malamute-writer", store, results, release)
        self.reader = ReaderThread("malamute-reader", store, results, load, release)
        # A backup takes long, and replay must not wait for it.
        self.copier = ReaderThread("malamute-copier", store, results)
        self.all = (self.writer, self.reader, self.copier)
        self.held_until = 0.0
        """The time until which held appends may wait."""
        self._held: list[Append] = []

    def start(self) -> None:
        """Begin to work."""
        for thread in self.all:
            thread.start()

    @property
    def holds(self) -> bool:
        """Whether something waits to be stored together with more."""
        return bool(self._held)

    def put(self, appends: Sequence[Append], now: float, *, at_once: bool) -> None:
        """Give the writer the held appends, if somebody waits for them or they have waited enough.

        Each transaction takes the interpreter's lock from this thread some dozen times.
        """
        if appends and not self._held:
            self.held_until = now + HOLD_SECONDS
        self._held += appends
        if at_once or now >= self.held_until or len(self._held) > HELD_MAX or any(map(_awaited, appends)):
            for append in self._held:
                self.writer.put(append)
            self._held = []

    def ask(self, question: Question) -> None:
        """Give the reader a question, or the copier if it takes long."""
        (self.copier if isinstance(question, Backup) else self.reader).put(question)

    def finish(self) -> None:
        """End each thread after its queued work; a copy is given up."""
        self.copier.give_up()
        for thread in self.all:
            thread.finish()

    def join(self, *, until: Callable[[], bool], wait_seconds: float) -> None:
        """Wait for the threads to end as long as `until` says so; for the writer in any case."""
        for thread in self.all:
            while thread.is_alive() and (until() or thread is self.writer):
                thread.join(wait_seconds)

    @property
    def is_idle(self) -> bool:
        """Whether all of them have ended: only then may the store be closed."""
        return not any(thread.is_alive() for thread in self.all)


_awaited = attrgetter("awaited")
