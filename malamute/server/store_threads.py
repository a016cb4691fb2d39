"""The threads of one store, and what is to be given to its writer.

Each store has threads of its own: a disk that hangs holds up what is asked of it and stored on it, and
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from malamute.core.iteration.effects import Question
from malamute.errors import MalamuteError
from malamute.journal.store import Store
from malamute.server.worker import (
    Load,
    ReadDone,
    ReaderThread,
    Results,
    WriterThread,
    no_configuration,
)
from malamute.store.commit import Append
from malamute.store.operations import Backup

HOLD_SECONDS = 0.005
"""How long what nobody waits for may wait for more to be stored with it."""

HELD_MAX = 64
"""Appends that wait so at the most."""


class StoreThreads:
    """The writer of a store, its reader, and the one that copies it."""

    def __init__(self, store: Store, results: Results, name: str = "", load: Load = no_configuration) -> None:
        of = f"-{name}" if name else ""
        self.name = name
        self.store = store
        self.writer = WriterThread(f"malamute-writer{of}", store, results, name)
        self.reader = ReaderThread(f"malamute-reader{of}", store, results, load, name)
        # A backup takes long, and replay must not wait for it.
        self.copier = ReaderThread(f"malamute-copier{of}", store, results, of_store=name)
        self.all = (self.writer, self.reader, self.copier)
        self.lost: MalamuteError | None = None
        """Why nothing is stored there any more until the broker starts again.

        Nobody knows what became of what it was given before, so what comes behind that stays as it is, too.
        """
        self.held_until = 0.0
        """Until when what is held may wait."""
        self._results = results
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
        """Give the writer what is to be stored, if somebody waits for it or it has waited enough.

        Each transaction takes the interpreter's lock from this thread some dozen times.
        """
        if self.lost is not None:
            return
        if appends and not self._held:
            self.held_until = now + HOLD_SECONDS
        self._held += appends
        if at_once or now >= self.held_until or len(self._held) > HELD_MAX or any(map(_awaited, appends)):
            for append in self._held:
                self.writer.put(append)
            self._held = []

    def ask(self, question: Question) -> None:
        """Give the reader a question, or the copier if it takes long."""
        if self.lost is not None:
            self._results.put(ReadDone(question, self.lost))
        else:
            (self.copier if isinstance(question, Backup) else self.reader).put(question)

    def finish(self) -> None:
        """Let each end when it has done what it has; a copy is given up."""
        self.copier.give_up()
        for thread in self.all:
            thread.finish()

    def join(self, *, until: Callable[[], bool], wholly: bool, wait_seconds: float) -> None:
        """Wait for the threads to end as long as `until` says so; for the writer in any case if `wholly`."""
        for thread in self.all:
            while thread.is_alive() and (until() or (wholly and thread is self.writer)):
                thread.join(wait_seconds)

    @property
    def is_idle(self) -> bool:
        """Whether all of them have ended: only then may the store be closed."""
        return not any(thread.is_alive() for thread in self.all)


_awaited = attrgetter("awaited")
