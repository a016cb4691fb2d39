"""The bench with a second store: streams whose names begin with `x.` are in the store `archive`."""

from __future__ import annotations

from collections import deque

from core_bench import Bench, publish

from malamute.core.broker import Core
from malamute.core.iteration.effects import Question
from malamute.core.stores import FoundStore
from malamute.errors import MalamuteError, StorageFull, StoreError
from malamute.journal.memory import MemoryStore
from malamute.protocol.messages import Error, Hello, Message, Ok, Stored
from malamute.server.worker import ANSWERS
from malamute.store.commit import Append, Committer, Written
from malamute.store.operations import Operation
from malamute.store.policies import StreamPolicy

ARCHIVE = "archive"


class StoresBench(Bench):
    """A broker with its own store and `archive`, whose writers go each at its own pace.

    Unlike the plain bench each has a real `Committer`: what relies on a refused append is refused.
    """

    def __init__(
        self, *, backlog_bytes: int = 32 << 20, audit: bool = False, lifecycle: bool = False
    ) -> None:
        self.archive = MemoryStore(size=1 << 30)
        self.away: MalamuteError | None = None
        self.full = {"": False, ARCHIVE: False}
        self.waiting: dict[str, deque[Append]] = {"": deque(), ARCHIVE: deque()}
        self.written: dict[str, deque[Written]] = {"": deque(), ARCHIVE: deque()}
        self._backlog_bytes = backlog_bytes
        super().__init__(audit=audit, lifecycle=lifecycle)

    def make_core(self) -> Core:
        """A broker on what was stored, and is there."""
        self.settings = self.settings._replace(
            streams=lambda stream: StreamPolicy(store=ARCHIVE if stream.startswith("x.") else "")
        )
        self.committers = {
            "": Committer(lambda operations: self._write("", operations)),
            ARCHIVE: Committer(lambda operations: self._write(ARCHIVE, operations)),
        }
        for queue in (*self.waiting.values(), *self.written.values()):
            queue.clear()
        found = self.away or self.archive.recover(records_bytes=0, now=self.now)
        named = {ARCHIVE: FoundStore(found, backlog_bytes=self._backlog_bytes)}
        return Core(self.now, self.settings, self.store.recover(now=self.now), named)

    def _write(self, name: str, operations: list[Operation]) -> MalamuteError | None:
        if self.full[name]:
            return StorageFull("the disk is full")
        (self.archive if name else self.store).write(operations)
        return None

    def iterate(self) -> None:
        """End the iteration."""
        super().iterate()
        for append in self.appends:
            self.waiting[append.store].append(append)
        self.appends.clear()

    def write(self, name: str, most: int = 1) -> None:
        """Let the writer of a store do the first appends; the core does not know of the outcome yet."""
        waiting = self.waiting[name]
        jobs = [waiting.popleft() for _ in range(min(most, len(waiting)))]
        if jobs:
            self.written[name] += self.committers[name].commit(jobs)

    def report(self, name: str) -> None:
        """Let the core know of the outcome that it was not told yet, the first one."""
        if not self.written[name]:
            return
        written = self.written[name].popleft()
        for token in written.tokens:
            if name:
                self.core.settled_elsewhere(name, token, written.error, self.now)
            elif written.error is None:
                self.core.stored(token, self.now)
            else:
                self.core.store_failed(token, written.error, self.now)
        self.iterate()

    def store_in(self, name: str) -> None:
        """Store all that waits for one of the stores, and report it."""
        while self.waiting[name] or self.written[name]:
            self.write(name)
            self.report(name)

    def read(self) -> None:
        """Do the read that was asked for first."""
        question: Question = self.reads.popleft()
        store = self.archive if getattr(question, "store", "") else self.store
        self.core.answered(question, ANSWERS[type(question)](store, question), self.now)
        self.iterate()

    def settle(self) -> None:
        """Store and read until there is nothing left to do."""
        self.iterate()
        while self._is_busy():
            self.store_in("")
            self.store_in(ARCHIVE)
            self.read_all()
            self.iterate()

    def _is_busy(self) -> bool:
        core = self.core
        waits = [*self.waiting.values(), *self.written.values(), self.reads]
        return any(waits) or bool(core.effects.chores or core.streams.active)

    def put_away(self) -> None:
        """From the next start on the archive cannot be opened."""
        self.away = StoreError("there is no store")


def answers(messages: list[Message]) -> dict[int, str]:
    """What the numbers of commands were answered: `stored`, or the code of the error."""
    found: dict[int, str] = {}
    for message in messages:
        if isinstance(message, Stored):
            for first, last, _ in message.ranges:
                found |= dict.fromkeys(range(first, last + 1), "stored")
        elif isinstance(message, Ok):
            found[message.ref] = "stored"
        elif isinstance(message, Error) and message.ref:
            found[message.ref] = str(message.code)
    return found


__all__ = ["ARCHIVE", "Hello", "StoresBench", "answers", "publish"]
