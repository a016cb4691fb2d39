"""Paging: records that stay on the disk, and how they are paged in.

What a queue has to know of a message to dispatch it is small and always in memory. Its record is not: one
that has to wait while there is no room for it is evicted, as it is on the disk anyway: it is *paged out*.

Who may keep how much needs no list of what to evict: a queue keeps records as long as they take no more
than what is free of the memory of all queues. One alone has half of it, two have a third each, and however
many there are, there is some room for one more. As messages come at the end, those paged out are
furthest from their delivery. (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
switches", 1998.)

A message that is paged out is dispatched as any other, and sent when its record is paged in. The records
that follow are prefetched with it, before they are asked for, a run at a time, since neighbours share a block
of the store: who has credit waits once for a run and not for each message. So a queue that is worked off may
have some runs more than its share.

A record that cannot be read is an end of its message like any other: the message becomes a dead letter,
without a body.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from malamute.core.queue.entry import Entry, bytes_of, size_of
from malamute.core.queue.state import DELIVERED, READY
from malamute.store.operations import FetchRecords, Frame, QueueKind

if TYPE_CHECKING:
    from malamute.core.effects import Effects
    from malamute.core.timers import Timers
    from malamute.errors import MalamuteError
    from malamute.protocol.limits import Limits
    from malamute.store.policies import BaseKind

RUN_MESSAGES = 1_000
RUN_BYTES = 1 << 20
"""What is asked for at once, at the most; a single message may be larger."""

RUNS_AHEAD = 2
"""Runs that are prefetched."""

RETRY_SECONDS = 1.0
"""How long records wait that could not be read for a reason that is not theirs."""

TEXTS_MAX = 1_000
"""Subjects of which messages that are paged out share one copy."""

_sequence = attrgetter("sequence")

Records = dict[int, Frame]
Awaiting = Callable[[], None]


def runs(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Messages in runs that can be in memory at once."""
    run: list[Entry] = []
    size_bytes = 0
    for entry in entries:
        if run and (len(run) >= RUN_MESSAGES or size_bytes + entry.size_bytes > RUN_BYTES):
            yield run
            run, size_bytes = [], 0
        run.append(entry)
        size_bytes += entry.size_bytes
    if run:
        yield run


def records_of(kind: QueueKind, queue: str, run: Sequence[Entry]) -> Generator[FetchRecords, Any, Records]:
    """The records of a run by their sequences, as a step: without those that cannot be read."""
    records = {entry.sequence: entry.record for entry in run if entry.record is not None}
    missing = tuple(entry.sequence for entry in run if entry.paged_out)
    if missing:
        records |= yield FetchRecords(kind, queue, missing)
    return records


class RecordOwner(Protocol):
    """Whoever has messages. `paged_out_bytes` is the part of their bytes that takes no memory."""

    paged_out_bytes: int


class PagedQueue(RecordOwner, Protocol):
    """A queue, as far as its records are read ahead of their delivery."""

    kind: BaseKind
    name: str
    next_sequence: int
    entries: dict[int, Entry]

    @property
    def prefetch_bytes(self) -> int:
        """The bytes of records that it may bring from the disk before they are asked for."""

    def with_consumers(self, entries: list[Entry]) -> list[Entry]:
        """Those of some messages that anybody takes."""


class MemoryLimits(Protocol):
    """How much memory there is for records, and what all messages take."""

    configured: Limits
    bytes: int


class RecordMemory:
    """The memory that the records of all queues share; sizes in bytes.

    `paged_out_bytes` are those of messages that it does not hold, `prefetched_bytes` those on their way here.
    """

    def __init__(self, limits: MemoryLimits) -> None:
        self.paged_out_bytes = 0
        self.prefetched_bytes = 0
        self._limits = limits
        self._texts: dict[str, str] = {}

    @property
    def free_bytes(self) -> int:
        """What nobody has; less than 0 where more came than may stay."""
        limits = self._limits
        return (
            limits.configured.queues_memory_bytes
            - (limits.bytes - self.paged_out_bytes)
            - self.prefetched_bytes
        )

    def count_paged_out(self, owner: RecordOwner, size_bytes: int) -> None:
        """So many more bytes, or less if negative, take no memory."""
        owner.paged_out_bytes += size_bytes
        self.paged_out_bytes += size_bytes

    def evict(self, owner: RecordOwner, entries: Iterable[Entry], size_bytes: float = inf) -> None:
        """Forget records that are on the disk, until so many bytes less take memory."""
        warm = [entry for entry in entries if entry.record]
        gone = size_of(warm)
        if gone > size_bytes:
            totals = [*accumulate(entry.size_bytes for entry in warm)]
            last = bisect_left(totals, size_bytes)
            warm, gone = warm[: last + 1], totals[last]
        same = self._texts.setdefault
        for entry in warm:
            entry.record = None
            entry.subject = same(entry.subject, entry.subject)
        if len(self._texts) > TEXTS_MAX:
            self._texts.clear()
        self.count_paged_out(owner, gone)


class Prefetch:
    """The records of one queue that are on their way to memory, for their delivery."""

    def __init__(
        self,
        effects: Effects,
        timers: Timers,
        memory: RecordMemory,
        queue: PagedQueue,
        lost: Callable[[list[int]], None],
    ) -> None:
        """`lost` is called with messages of consumers whose records cannot be read."""
        self._effects = effects
        self._timers = timers
        self._memory = memory
        self._queue = queue
        self._lost = lost
        self._reading: list[Sequence[Entry]] = []
        """Runs on their way."""
        self._starts: deque[int] = deque()
        """Where runs begin that were read ahead, and of which nothing was delivered yet."""
        self.read_to = 0
        """Nothing from here on was asked for; 0 while nobody takes messages that are paged out."""
        self._awaiting: list[Awaiting] = []

    def page_in(self, entries: Sequence[Entry], then: Awaiting) -> None:
        """Bring records, and what follows them. Then look again: some more may be there, or all."""
        self._awaiting.append(then)
        asked = set(chain.from_iterable(self._reading))
        for run in runs([entry for entry in entries if entry not in asked]):
            self._ask(run)
        last = max(map(_sequence, entries))
        self.read_to = max(self.read_to, last + 1)
        self.advance(last)

    def advance(self, sequence: int) -> None:
        """The delivery has come this far: bring what comes next, as far as there is room."""
        starts = self._starts
        while starts and starts[0] <= sequence:
            starts.popleft()
        while self.read_to and len(starts) < RUNS_AHEAD and (run := self._next_run()):
            starts.append(run[0].sequence)
            self._ask(run)

    def _next_run(self) -> list[Entry]:
        """What to bring next."""
        queue = self._queue
        start, room = self.read_to, min(RUN_BYTES, queue.prefetch_bytes)
        if room <= 0:
            return []
        self.read_to = min(start + RUN_MESSAGES, queue.next_sequence)
        there = map(queue.entries.get, range(start, self.read_to))
        missing = [e for e in there if e is not None and e.record is None and e.state == READY]
        found = queue.with_consumers(missing)
        if bytes_of(found) > room:
            fits = sum(total <= room for total in accumulate(entry.bytes for entry in found))
            self.read_to = found[fits].sequence
            del found[fits:]
        return found

    def _ask(self, run: Sequence[Entry]) -> None:
        queue, memory, size_bytes = self._queue, self._memory, bytes_of(run)
        self._reading.append(run)
        memory.prefetched_bytes += size_bytes

        def brought(records: Records) -> None:
            memory.prefetched_bytes -= size_bytes
            self._reading.remove(run)
            self._paged_in(run, records)

        def failed(error: MalamuteError) -> None:
            # They are on the disk, and are asked for again.
            memory.prefetched_bytes -= size_bytes
            self._reading.remove(run)
            self._timers.at(self._effects.now + RETRY_SECONDS, lambda: self._retry(run))

        self._effects.ask(FetchRecords(queue.kind, queue.name, tuple(map(_sequence, run))), brought, failed)

    def _retry(self, run: Sequence[Entry]) -> None:
        if here := [e for e in run if e.record is None and e.sequence in self._queue.entries]:
            self._ask(here)

    def _paged_in(self, run: Sequence[Entry], records: Records) -> None:
        queue = self._queue
        # Some may have left meanwhile, or have come with another run.
        here = [entry for entry in run if entry.record is None and entry.sequence in queue.entries]
        back = here if len(records) == len(run) else [e for e in here if e.sequence in records]
        for entry in back:
            entry.record = records[entry.sequence]
        self._memory.count_paged_out(queue, -size_of(back))
        if len(back) < len(here):
            # Whoever reads ahead may meet what leaves just now; who was given it would know.
            lost = [e.sequence for e in here if e.record is None and e.state == DELIVERED]
            if lost:
                self._lost(sorted(lost))
        awaiting, self._awaiting = self._awaiting, []
        for then in awaiting:
            then()

    def clear(self) -> None:
        """Nobody takes messages any more."""
        self.read_to = 0
        self._starts.clear()
        self._awaiting.clear()
