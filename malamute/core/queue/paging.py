"""Paging: records that stay on the disk, and how they are paged in.

The part of a message that dispatch needs is small and always in memory. Its record is not: while there is no
room for it, it is evicted, as it is on the disk anyway: the message is *paged out*.

No list of evictions is needed: a queue keeps records as long as they take no more than the free part of the
memory of all queues. One alone has half of it, two have a third each, and however many there are, there is
some room for one more. As messages come at the end, those paged out are furthest from their delivery.
(Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998.)

A message that is paged out is dispatched as any other, and sent when its record is paged in. The records
that follow are prefetched with it, before they are asked for, a run at a time, since neighbours share a block
of the store: a consumer with credit waits once for a run and not for each message. So a queue that is worked
off may have some runs more than its share.

A record that cannot be read is an end of its message like any other: the message becomes a dead letter,
without a body.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from malamute.core.queue.entry import Entries, Entry, bytes_of, size_of
from malamute.core.queue.state import AT_REST, DELIVERED, READY
from malamute.store.operations import FetchRecords, Frame, QueueKind

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.timers import Timers
    from malamute.core.queue.consumer import Consumer
    from malamute.core.queue.limits import RecordMemory
    from malamute.core.queue.usage import QueueUsage
    from malamute.errors import MalamuteError

RUN_MESSAGES = 1_000
RUN_BYTES = 1 << 20
"""Bytes requested at once; a single message may be larger."""

RUNS_AHEAD = 2
"""Runs that are prefetched."""

RETRY_SECONDS = 1.0
"""How long records wait that could not be read for a reason that is not theirs."""

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


class Prefetch:
    """The records of one queue that are on their way to memory, for their delivery."""

    def __init__(
        self,
        effects: Effects,
        timers: Timers,
        memory: RecordMemory,
        usage: QueueUsage,
        entries: Entries,
        consumers: Mapping[int, Consumer],
        wanted: Callable[[list[Entry]], list[Entry]],
        *,
        lost: Callable[[list[int]], None],
    ) -> None:
        """`wanted` returns those of some messages that any consumer takes.

        `lost` is called with messages of consumers whose records cannot be read.
        """
        self._effects = effects
        self._timers = timers
        self._memory = memory
        self._usage = usage
        self._entries = entries
        self._consumers = consumers
        self._wanted = wanted
        self._lost = lost
        self._reading: list[Sequence[Entry]] = []
        """Runs on their way."""
        self._starts: deque[int] = deque()
        """Where runs begin that were read ahead, and of which nothing was delivered yet."""
        self.read_to = 0
        """Nothing from here on was asked for; 0 while nobody takes messages that are paged out."""
        self._awaiting: list[Awaiting] = []

    @property
    def room_bytes(self) -> int:
        """The bytes that it may bring before they are asked for; less than 0 if too many are here."""
        memory, usage = self._memory, self._usage
        # A record that enters this memory is no longer free for all: it counts twice.
        share = min(2 * (RUNS_AHEAD + 1) * RUN_BYTES, memory.free_bytes)
        return (share - memory.excess_bytes(usage)) // 2

    def page_in(self, entries: Sequence[Entry], then: Awaiting) -> None:
        """Page in records, and prefetch the following ones. Then look again: more may be there, or all."""
        self._awaiting.append(then)
        asked = set(chain.from_iterable(self._reading))
        for run in runs([entry for entry in entries if entry not in asked]):
            self._ask(run)
        last = max(map(_sequence, entries))
        self.read_to = max(self.read_to, last + 1)
        self.advance(last)

    def advance(self, sequence: int) -> None:
        """Prefetch the messages after the last delivery, as far as there is room."""
        starts = self._starts
        while starts and starts[0] <= sequence:
            starts.popleft()
        while self.read_to and len(starts) < RUNS_AHEAD and (run := self._next_run()):
            starts.append(run[0].sequence)
            self._ask(run)

    def evict(self, sequences: Sequence[int], size_bytes: int) -> None:
        """Evict so many bytes of the records of messages that are on the disk, the last messages first.

        Messages that are about to be sent keep theirs. The memory is free for all queues, this one included.
        """
        get = self._entries.get
        idle = [e for s in reversed(sequences) if (e := get(s)) is not None and e.state in AT_REST]
        if len(idle) < len(sequences):
            unsent = {entry.sequence for consumer in self._consumers.values() for entry in consumer.unsent}
            here = [e for s in sequences if s not in unsent and (e := get(s)) is not None]
            idle += [entry for entry in here if entry.state == DELIVERED]
        self._memory.evict(self._usage, idle, size_bytes)

    def _next_run(self) -> list[Entry]:
        """Return the messages to prefetch next."""
        start, room = self.read_to, min(RUN_BYTES, self.room_bytes)
        if room <= 0:
            return []
        self.read_to = min(start + RUN_MESSAGES, max(start, self._entries.end))
        there = map(self._entries.get, range(start, self.read_to))
        missing = [e for e in there if e is not None and e.record is None and e.state == READY]
        found = self._wanted(missing)
        if bytes_of(found) > room:
            fits = sum(total <= room for total in accumulate(entry.bytes for entry in found))
            self.read_to = found[fits].sequence
            del found[fits:]
        return found

    def _ask(self, run: Sequence[Entry]) -> None:
        usage, memory, size_bytes = self._usage, self._memory, bytes_of(run)
        self._reading.append(run)
        memory.prefetched_bytes += size_bytes

        def brought(records: Records) -> None:
            memory.prefetched_bytes -= size_bytes
            self._reading.remove(run)
            self._paged_in(run, records)

        def failed(error: MalamuteError) -> None:
            # The records are on the disk, and are requested again.
            memory.prefetched_bytes -= size_bytes
            self._reading.remove(run)
            self._timers.at(self._effects.now + RETRY_SECONDS, lambda: self._retry(run))

        self._effects.ask(FetchRecords(usage.kind, usage.name, tuple(map(_sequence, run))), brought, failed)

    def _retry(self, run: Sequence[Entry]) -> None:
        if here := [e for e in run if e.record is None and e.sequence in self._entries]:
            self._ask(here)
        else:
            # All have left meanwhile, and the messages assigned with them may be sent.
            self._look_again()

    def _paged_in(self, run: Sequence[Entry], records: Records) -> None:
        # Some may have left meanwhile, or have come with another run.
        here = [entry for entry in run if entry.record is None and entry.sequence in self._entries]
        back = here if len(records) == len(run) else [e for e in here if e.sequence in records]
        for entry in back:
            entry.record = records[entry.sequence]
        self._memory.count_paged_out(self._usage, -size_of(back))
        if len(back) < len(here):
            # A prefetched message may be leaving the store just now; only an assigned one is lost.
            lost = [e.sequence for e in here if e.record is None and e.state == DELIVERED]
            if lost:
                self._lost(sorted(lost))
        self._look_again()

    def _look_again(self) -> None:
        awaiting, self._awaiting = self._awaiting, []
        for then in awaiting:
            then()

    def clear(self) -> None:
        """Stop prefetching: no consumer is left."""
        self.read_to = 0
        self._starts.clear()
        self._awaiting.clear()
