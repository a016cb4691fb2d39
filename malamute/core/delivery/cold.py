"""Records that stay on the disk, and how they come back.

What a queue has to know of a message to deal it out is small and always in memory. Its record is not: one
that has to wait while there is no room for it is let go, as it is on the disk anyway. It is *cold* then.

Who may keep how much needs no list of what to let go: a queue keeps records as long as they take no more
than what is free of the memory of all queues. One alone has half of it, two have a third each, and however
many there are, there is some room for one more. As messages come at the end, the cold ones are those
furthest from their delivery. (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
switches", 1998.)

A cold message is given to a consumer as any other; it is sent when its record was brought. The records that
follow are brought with it, and before they are asked for, a run at a time, since neighbours share a block
of the store: who has credit waits once for a run and not for each message. Records that are on their way out
belong to `Ahead` alone, so a message that was delivered is as cold as before.

A record that cannot be read is an end of its message like any other: the message becomes a dead letter,
without a body.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from malamute.core.delivery.entry import Entry
from malamute.core.ready import Fetch
from malamute.core.storage import Frame, QueueKind

if TYPE_CHECKING:
    from malamute.core.delivery.budget import Budget
    from malamute.core.delivery.queue import Queue

RUN_MESSAGES = 1_000
RUN_BYTES = 1 << 20
"""What is asked for at once, at the most; a single message may be larger."""

TEXTS_MAX = 1_000
"""Subjects of which cold messages share one copy."""

Records = dict[int, Frame]
Awaiting = Callable[[], None]


def runs(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Messages in runs that can be in memory at once."""
    run: list[Entry] = []
    size_bytes = 0
    for entry in entries:
        if run and (len(run) >= RUN_MESSAGES or size_bytes + entry.size > RUN_BYTES):
            yield run
            run, size_bytes = [], 0
        run.append(entry)
        size_bytes += entry.size
    if run:
        yield run


def records_of(kind: QueueKind, queue: str, run: Sequence[Entry]) -> Generator[Fetch, Any, Records]:
    """The records of a run by their sequences, as a step: without those that cannot be read."""
    records = {entry.sequence: entry.record for entry in run if entry.record is not None}
    cold = tuple(entry.sequence for entry in run if entry.cold)
    if cold:
        records |= yield Fetch(kind, queue, cold)
    return records


class HasCold(Protocol):
    """Whoever has messages. `cold` is the part of their bytes that takes no memory."""

    cold: int


class Memory:
    """The memory that the records of all queues share; sizes in bytes.

    `cold` are the bytes of messages that it does not hold, and `ahead` those that were read ahead.
    """

    def __init__(self, budget: Budget) -> None:
        self.cold = 0
        self.ahead = 0
        self._budget = budget
        self._texts: dict[str, str] = {}

    @property
    def free(self) -> int:
        """What nobody has; less than 0 where more came than may stay."""
        budget = self._budget
        return budget.limits.queues_memory_bytes - (budget.bytes - self.cold) - self.ahead

    def count_cold(self, owner: HasCold, size_bytes: int) -> None:
        """So many more bytes, or less if negative, take no memory."""
        owner.cold += size_bytes
        self.cold += size_bytes

    def let_go(self, owner: HasCold, entries: Iterable[Entry], size_bytes: float = inf) -> None:
        """Forget records that are on the disk, until so many bytes less take memory."""
        gone = 0
        same = self._texts.setdefault
        for entry in entries:
            if gone >= size_bytes:
                break
            if entry.record:
                entry.record = None
                entry.subject = same(entry.subject, entry.subject)
                gone += entry.size
        if len(self._texts) > TEXTS_MAX:
            self._texts.clear()
        self.count_cold(owner, gone)


class Ahead:
    """The records of one queue that were brought for their delivery, or are on their way."""

    def __init__(self, queue: Queue) -> None:
        self.records: Records = {}
        self._queue = queue
        self._asked: set[int] = set()
        """Those on their way."""
        self._read_to = 0
        self._awaiting: list[Awaiting] = []
        self._bytes = 0

    def lack(self, entries: Iterable[Entry]) -> list[Entry]:
        """Those of some messages that cannot be sent yet."""
        records = self.records
        return [e for e in entries if e.record is None and e.sequence not in records]

    def take(self, entries: Sequence[Entry]) -> list[Frame]:
        """The records of messages that are sent now."""
        if not self.records:
            return [entry.record or b"" for entry in entries]
        pop = self.records.pop
        brought = [pop(entry.sequence, b"") for entry in entries]
        self._count(-sum(map(len, brought)))
        return [record or entry.record or b"" for record, entry in zip(brought, entries, strict=True)]

    def drop(self, sequences: Iterable[int]) -> None:
        """Forget records that were brought."""
        pop = self.records.pop
        if brought := self.records.keys() & sequences:
            self._count(-sum([len(pop(sequence)) for sequence in brought]))

    def clear(self) -> None:
        """Nobody takes messages any more."""
        self.drop(self.records)
        self._read_to = 0

    def bring(self, entries: Sequence[Entry], then: Awaiting) -> None:
        """Bring records, and what follows them. Then look again: some more may be there, or all."""
        self._awaiting.append(then)
        for run in runs([entry for entry in self.lack(entries) if entry.sequence not in self._asked]):
            self._ask({entry.sequence: entry.bytes for entry in run})
        if entries:
            self._read_to = max(self._read_to, entries[-1].sequence + 1)
        self.read_on()

    def read_on(self) -> None:
        """Bring what comes next, unless enough of it is there or on its way, or there is no room."""
        while self._read_to and self._bytes <= RUN_BYTES // 2:
            following = self._following(min(RUN_BYTES, self._queue.budget.memory.free))
            if not following:
                break
            self._ask(following)

    def _following(self, room: int) -> dict[int, int]:
        """What to bring next, with the sizes."""
        queue, get = self._queue, self._queue.entries.get
        start = self._read_to
        self._read_to = min(start + RUN_MESSAGES, queue.next)
        there = (get(sequence) for sequence in range(start, self._read_to))
        cold = [e for e in there if e is not None and e.record is None and e.where == "waiting"]
        found = {entry.sequence: entry.bytes for entry in queue.dealing.with_consumers(cold)}
        for sequence in found.keys() & (self._asked | self.records.keys()):
            del found[sequence]
        if found and sum(found.values()) > room:
            fits = sum(total <= room for total in accumulate(found.values()))
            self._read_to = [*found][fits]
            found = dict(islice(found.items(), fits))
        return found

    def _ask(self, sizes: dict[int, int]) -> None:
        queue = self._queue
        self._asked |= sizes.keys()
        self._count(sum(sizes.values()))
        queue.turn.ask(Fetch(queue.kind, queue.name, tuple(sizes)), lambda found: self._brought(sizes, found))

    def _brought(self, sizes: dict[int, int], found: Records) -> None:
        queue = self._queue
        entries = queue.entries if queue.consumers else {}
        self._asked -= sizes.keys()
        here = {sequence: record for sequence, record in found.items() if sequence in entries}
        self.records |= here
        self._count(sum(map(len, here.values())) - sum(sizes.values()))
        # Whoever reads ahead may meet what leaves just now; who was given it would know.
        lost = [sequence for sequence in sorted(sizes.keys() - found.keys()) if sequence in entries]
        if damaged := [sequence for sequence in lost if not isinstance(entries[sequence].where, str)]:
            queue.ends.damaged(damaged)
        awaiting, self._awaiting = self._awaiting, []
        for then in awaiting:
            then()

    def _count(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        self._queue.budget.memory.ahead += size_bytes
