"""The log of queues and values, and its live entries. Pure: `disk_writer` and `disk_recovery` use the disk.

Theory. Messages of queues are small, many, and mostly short-lived, and thousands of queues may be
touched by one transaction. A table entry for each of them would cost an LMDB call each. Every such call gives
up the interpreter's lock and, beside a busy main thread, waits up to a switch interval to get it back
(measured: 5,000 puts take 1 ms alone and 500 to 3,000 ms beside a busy thread). So the
operations of a transaction go into *blocks* in their order, some hundreds to a block, and no block is
ever changed in place: deleting a message is another entry.

`Log.apply` alone defines the meaning of the log. Recovery calls it for each block that it finds, and `write`
for each block that it has just committed, in order.

An entry is *live* while recovery needs it: a message until it is deleted, with its newest attempts; an
identity until it is forgotten; the newest value of each key of a table. Three entries of each queue are
live: the newest with its `next`, the newest with its `delivered`, and one in front of the latter that makes
the queue. Each block counts its live entries. Blocks leave from the old end only, so a message always leaves
before the entry that deletes it.

- The oldest block is dropped once it has no live entry: empty queues cost no compaction.
- When dead entries take more than half as much as live ones (plus a floor), the oldest block is *compacted*.
  Its live entries are written again at the new end, in front of the entries of the transaction, so that the
  deletions of the transaction follow them. Both sides of the comparison are the same estimate ("weight"),
  so a log of live entries only never counts as wasteful.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from malamute.journal.block_map import Block, BlockMap, Place
from malamute.store.operations import (
    DeleteMessages,
    DeleteQueue,
    DeleteStream,
    DeleteValue,
    ForgetIdentities,
    Key,
    MarkDelivered,
    Operation,
    PutIdentity,
    PutMessages,
    PutValue,
    QueueKind,
    SetAttempts,
    SetCounters,
    Stranded,
)
from malamute.store.tables import OF_STREAMS, ON_CARDS

BLOCK_ENTRIES_MAX = 1024
"""The most entries of a block: the cost of one damaged page, and one step of compaction."""

AWAITED_WRITES = 1_000
"""The writes after which a damaged block is put aside, even if its entries were not stored again."""

ENTRY_WEIGHT, MESSAGE_WEIGHT, NUMBER_WEIGHT = 32, 96, 48
"""Estimated bytes of a dead entry, and overheads of a live message or value and of a live number."""


class QueueIndex:
    """The blocks of the messages of one queue, and of the newest entry for each of its other values.

    `messages` and `attempts` are by sequence, `identities` by name. The attempts of a message have the time
    of its redelivery, or 0; an identity has the time of its expiry. `untils` orders identities by expiry, and
    may have outdated rows. `made_in` is a block that makes the queue in front of `delivered_in`: recovery
    ignores a delivery watermark without a queue.
    """

    __slots__ = (
        "attempts",
        "bytes",
        "delivered",
        "delivered_in",
        "identities",
        "made_in",
        "messages",
        "next",
        "next_in",
        "untils",
    )

    def __init__(self, made_in: Block) -> None:
        self.messages = BlockMap()
        self.attempts: dict[int, tuple[Block, int, int]] = {}
        self.identities: dict[str, tuple[Block, int]] = {}
        self.untils: list[tuple[int, str]] = []
        self.bytes = 0
        self.next = 1
        self.delivered = 0
        self.next_in = made_in
        self.delivered_in: Block | None = None
        self.made_in: Block | None = None


class Log:
    """The index of the log: live entries by block, without the messages themselves."""

    def __init__(self, floor_bytes: int) -> None:
        self.blocks: deque[Block] = deque()
        self.queues: dict[tuple[QueueKind, str], QueueIndex] = {}
        self.values: dict[str, dict[Any, dict[Key, Place]]] = {}
        """The place of the newest value of each key, by table, owner and key."""
        self.bytes = 0
        self.weight = 0
        self.live_weight = 0
        self.number_next = 1
        self.unreadable: set[int] = set()
        self._awaited: dict[int, Stranded] = {}
        """The entries of damaged blocks that are neither stored again nor deleted yet."""
        self._asked: Counter[int] = Counter()
        """The writes that each damaged block has waited for."""
        self._floor_bytes = floor_bytes
        self._places: dict[int, Place] = {}
        self._appliers: dict[type[Any], Any] = {
            PutMessages: self._put_messages,
            DeleteMessages: self._delete_messages,
            MarkDelivered: self._mark_delivered,
            DeleteQueue: self._delete_queue,
            PutValue: self._put_value,
            DeleteValue: self._delete_value,
            DeleteStream: self._delete_stream,
            SetCounters: self._set_counters,
            SetAttempts: self._set_attempts,
            PutIdentity: self._put_identity,
            ForgetIdentities: self._forget_identities,
        }

    def apply(self, number: int, size: int, entries: Sequence[Operation]) -> None:
        """Add a durable block; block numbers ascend."""
        assert number >= self.number_next
        block = Block(number, size)
        block.weight = ENTRY_WEIGHT * sum(map(messages_in, entries))
        self.weight += block.weight
        self.blocks.append(block)
        self.bytes += size
        self.number_next = number + 1
        self._places = {}
        appliers = self._appliers
        for entry in entries:
            appliers[type(entry)](block, entry)

    def skip(self, number: int, size: int, salvaged: Iterable[PutMessages] = ()) -> list[PutMessages]:
        """Add an unreadable block, which is put aside once it is the oldest.

        Returns the `salvaged` messages that no other block has. The other sequences of the block are
        unknown, at most one for each entry. Every queue known so far skips as many sequences, so that none
        is used twice, and counts all its messages as possibly delivered.
        """
        only_here = []
        for put in salvaged:
            queue = self.queues.get((put.kind, put.queue))
            if queue is None or put.first not in queue.messages:
                only_here.append(put)
        self.apply(number, size, only_here)
        self.unreadable.add(number)
        found: dict[tuple[QueueKind, str], list[int]] = {}
        for put in only_here:
            found.setdefault((put.kind, put.queue), []).extend(range(put.first, put.last + 1))
        self._awaited[number] = Stranded(found)
        for queue in self.queues.values():
            self._doubt_deliveries(queue)
            queue.next += BLOCK_ENTRIES_MAX
        return only_here

    def _doubt_deliveries(self, queue: QueueIndex) -> None:
        """Count all messages so far as possibly delivered, including those that an older block excepts."""
        queue.delivered = max(queue.delivered, queue.next - 1)
        for sequence in [sequence for sequence, (_, count, _) in queue.attempts.items() if not count]:
            self._release(queue.attempts.pop(sequence)[0], NUMBER_WEIGHT)

    def mark_suspect(self, number: int) -> Stranded | None:
        """Mark a block as unreadable: it is put aside once it is the oldest.

        Returns its live entries; None if the block is marked already, or has left.
        """
        block = next((block for block in self.blocks if block.number == number), None)
        if block is None or number in self.unreadable:
            return None
        self.unreadable.add(number)
        messages = {name: queue.messages.in_block(block) for name, queue in self.queues.items()}
        values = [
            (table, key) for table, key, place in self.places() if place[0] is block and table not in ON_CARDS
        ]
        identities = {
            name: _identities_in(block, queue, queue.identities) for name, queue in self.queues.items()
        }
        stranded = Stranded(
            {name: held for name, held in messages.items() if held},
            values,
            {name: known for name, known in identities.items() if known},
        )
        self._awaited[number] = stranded
        return stranded

    def is_settled(self, block: Block) -> bool:
        """Return whether a damaged block may be put aside: its live entries are stored again, or deleted.

        A start before that salvages the block once more. The wait ends after `AWAITED_WRITES` calls.
        """
        awaited = self._awaited.get(block.number)
        if awaited is None:
            return True
        left = Stranded(
            {
                name: held
                for name, sequences in awaited.messages.items()
                if (queue := self.queues.get(name)) is not None
                if (held := [s for s in sequences if queue.messages.block_of(s) is block])
            },
            [
                (table, key)
                for table, key in awaited.values
                if table not in OF_STREAMS and self._block_of_value(table, key) is block
            ],
            {
                name: known
                for name, identities in awaited.identities.items()
                if (queue := self.queues.get(name)) is not None
                if (known := _identities_in(block, queue, identities))
            },
        )
        self._asked[block.number] += 1
        if (left.messages or left.values or left.identities) and self._asked[block.number] < AWAITED_WRITES:
            self._awaited[block.number] = left
            return False
        del self._awaited[block.number], self._asked[block.number]
        return True

    def dropped(self, block: Block) -> None:
        """Remove the oldest block, which was deleted on the disk or put aside as unreadable."""
        assert self.blocks.popleft() is block
        assert not block.live or block.number in self.unreadable, "live entries have left"
        self.unreadable.discard(block.number)
        self.bytes -= block.size
        self.weight -= block.weight

    def is_wasteful(self, floor_bytes: int | None = None) -> bool:
        """Return whether dead entries take enough bytes to make compaction worth it."""
        floor = self._floor_bytes if floor_bytes is None else floor_bytes
        return self.weight - self.live_weight > self.live_weight // 2 + floor

    def live_entries(self, block: Block, entries: Iterable[Operation]) -> Iterator[Operation]:
        """Yield the entries that a compaction of this block must write again.

        The attempts of a message follow the message, from any block: recovery ignores attempts without one.
        """
        done: set[tuple[QueueKind, str]] = set()
        for entry in entries:
            if type(entry) is PutMessages:
                yield from self._live_messages(block, entry)
            elif self._block_of(entry) is block:
                yield entry
            name = _queue_of(entry)
            if name and name not in done:
                done.add(name)
                yield from self._counters(block, name)

    def places(self) -> Iterator[tuple[str, Key, Place]]:
        """Yield the table, the key and the place of each newest value."""
        for table, owners in self.values.items():
            for places in owners.values():
                for key, place in places.items():
                    yield table, key, place

    def _block_of_value(self, table: str, key: Key) -> Block | None:
        place = self.values.get(table, {}).get(key[0], {}).get(key)
        return place[0] if place else None

    def counters(self) -> Iterator[SetCounters]:
        """Yield the counters of all queues, to be written again when a damaged block may have had them."""
        for name, queue in self.queues.items():
            yield SetCounters(*name, queue.next, queue.delivered)

    def _block_of(self, entry: Operation) -> Block | None:
        """Return the block of the live entry of this kind for the same key; None without one."""
        place: tuple[Block, *tuple[int, ...]] | None = None
        if isinstance(entry, SetAttempts | PutIdentity):
            queue = self.queues.get((entry.kind, entry.queue))
            if queue is None:
                return None
            if type(entry) is SetAttempts:
                place = queue.attempts.get(entry.sequence)
            elif type(entry) is PutIdentity:
                place = queue.identities.get(entry.identity)
        elif type(entry) is PutValue:
            return self._block_of_value(entry.table, entry.key)
        return place[0] if place else None

    def _live_messages(self, block: Block, entry: PutMessages) -> Iterator[PutMessages | SetAttempts]:
        """Yield the messages of an entry that are live in a block, and their attempts in other blocks."""
        queue = self.queues.get((entry.kind, entry.queue))
        if queue is None:
            return
        messages, attempts, first = queue.messages, queue.attempts, entry.first
        places = range(len(entry.records))
        for live, group in groupby(places, lambda i: messages.block_of(first + i) is block):
            if live:
                run = [*group]
                yield entry.part(run[0], run[-1] + 1)
                for sequence in range(first + run[0], first + run[-1] + 1) if attempts else ():
                    newest = attempts.get(sequence)
                    if newest and newest[0] is not block:
                        yield SetAttempts(entry.kind, entry.queue, sequence, *newest[1:])

    def _counters(self, block: Block, name: tuple[QueueKind, str]) -> Iterator[SetCounters]:
        queue = self.queues.get(name)
        if queue and block in (queue.next_in, queue.delivered_in, queue.made_in):
            yield SetCounters(*name, queue.next, queue.delivered)

    def _queue(self, block: Block, kind: QueueKind, name: str) -> QueueIndex:
        """Return a queue by its name; create it if it does not exist."""
        queue = self.queues.get((kind, name))
        if queue is None:
            self._hold(block, NUMBER_WEIGHT)
            queue = self.queues[kind, name] = QueueIndex(block)
        return queue

    def _put_messages(self, block: Block, entry: PutMessages) -> None:
        queue = self._queue(block, entry.kind, entry.queue)
        sizes = [*map(len, entry.records)]
        # Messages of one size in one block share one place.
        places = self._places
        for size in {*sizes}.difference(places):
            places[size] = (block, size)
        moved = queue.messages.put(entry.first, [*map(places.__getitem__, sizes)])
        self._release_messages(queue, entry.first, entry.last, moved)
        size_bytes = sum(sizes)
        queue.bytes += size_bytes
        self._hold(block, size_bytes + MESSAGE_WEIGHT * len(sizes), len(sizes))
        if entry.last >= queue.next:
            queue.next = entry.last + 1
            if queue.next_in is not block:
                queue.next_in = self._move_number(queue.next_in, block)

    def _delete_messages(self, block: Block, entry: DeleteMessages) -> None:
        queue = self.queues.get((entry.kind, entry.queue))
        if queue is None:
            return
        for first, last in entry.ranges:
            self._release_messages(queue, first, last, queue.messages.pop(first, last))

    def _mark_delivered(self, block: Block, entry: MarkDelivered) -> None:
        queue = self.queues.get((entry.kind, entry.queue))
        if queue and entry.sequence > queue.delivered:
            queue.delivered = entry.sequence
            queue.delivered_in = self._move_number(queue.delivered_in, block)
            if queue.made_in is not queue.next_in:
                queue.made_in = self._move_number(queue.made_in, queue.next_in)

    def _set_attempts(self, block: Block, entry: SetAttempts) -> None:
        queue = self.queues.get((entry.kind, entry.queue))
        if queue and entry.sequence in queue.messages:
            before = queue.attempts.get(entry.sequence)
            block = self._move_number(before and before[0], block)
            queue.attempts[entry.sequence] = block, entry.attempts, entry.due_ns

    def _put_identity(self, block: Block, entry: PutIdentity) -> None:
        queue = self._queue(block, entry.kind, entry.queue)
        before = queue.identities.get(entry.identity)
        if before:
            self._release(before[0], len(entry.identity) + MESSAGE_WEIGHT)
        if before is None or before[1] != entry.until_ns:
            heapq.heappush(queue.untils, (entry.until_ns, entry.identity))
        queue.identities[entry.identity] = block, entry.until_ns
        self._hold(block, len(entry.identity) + MESSAGE_WEIGHT)

    def _forget_identities(self, block: Block, entry: ForgetIdentities) -> None:
        queue = self.queues.get((entry.kind, entry.queue))
        while queue and queue.untils and queue.untils[0][0] <= entry.time_ns:
            until, identity = heapq.heappop(queue.untils)
            place = queue.identities.get(identity)
            if place and place[1] == until:
                del queue.identities[identity]
                self._release(place[0], len(identity) + MESSAGE_WEIGHT)

    def _delete_queue(self, block: Block, entry: DeleteQueue) -> None:
        queue = self.queues.pop((entry.kind, entry.queue), None)
        if queue is None:
            return
        self._release_all(queue, queue.messages.pop_all())
        for attempts_in, _, _ in queue.attempts.values():
            self._release(attempts_in, NUMBER_WEIGHT)
        for identity, (place, _) in queue.identities.items():
            self._release(place, len(identity) + MESSAGE_WEIGHT)
        for number_in in (queue.next_in, queue.delivered_in, queue.made_in):
            if number_in:
                self._release(number_in, NUMBER_WEIGHT)

    def _put_value(self, block: Block, entry: PutValue) -> None:
        table, key, value = entry
        try:
            places = self.values[table][key[0]]
        except KeyError:
            places = self.values.setdefault(table, {}).setdefault(key[0], {})
        if before := places.get(key):
            self._release(*before)
        weight = MESSAGE_WEIGHT + (len(value) if type(value) is bytes else 0)
        places[key] = block, weight
        self._hold(block, weight)

    def _delete_value(self, block: Block, entry: DeleteValue) -> None:
        owners = self.values.get(entry.table, {})
        places = owners.get(entry.key[0], {})
        for key in [*places] if len(entry.key) == 1 else [entry.key]:
            before = places.pop(key, None)
            if before:
                self._release(*before)
        if not places:
            owners.pop(entry.key[0], None)

    def _delete_stream(self, block: Block, entry: DeleteStream) -> None:
        for table in OF_STREAMS:
            for place in self.values.get(table, {}).pop(entry.stream, {}).values():
                self._release(*place)

    def _set_counters(self, block: Block, entry: SetCounters) -> None:
        queue = self._queue(block, entry.kind, entry.queue)
        queue.next = max(queue.next, entry.next)
        queue.delivered = max(queue.delivered, entry.delivered)
        queue.next_in = self._move_number(queue.next_in, block)
        queue.delivered_in = self._move_number(queue.delivered_in, block)
        queue.made_in = self._move_number(queue.made_in, block)

    def _move_number(self, before: Block | None, block: Block) -> Block:
        """Move the live entry of a number from the block before to this one; return this one."""
        if before:
            self._release(before, NUMBER_WEIGHT)
        self._hold(block, NUMBER_WEIGHT)
        return block

    def _release_messages(self, queue: QueueIndex, first: int, last: int, places: Sequence[Place]) -> None:
        """Release the places of the messages of a range, and the attempts of these messages."""
        self._release_all(queue, places)
        if places and queue.attempts:
            for sequence in present(queue.attempts, first, last):
                self._release(queue.attempts.pop(sequence)[0], NUMBER_WEIGHT)

    def _release_all(self, queue: QueueIndex, places: Sequence[Place]) -> None:
        # Neighbors usually share one place.
        for (block, size), group in groupby(places):
            number = len([*group])
            queue.bytes -= size * number
            self._release(block, (size + MESSAGE_WEIGHT) * number, number)

    def _hold(self, block: Block, weight: int, number: int = 1) -> None:
        block.live += number
        block.weight += weight
        self.weight += weight
        self.live_weight += weight

    def _release(self, block: Block, weight: int, number: int = 1) -> None:
        block.live -= number
        self.live_weight -= weight


def _identities_in(block: Block, queue: QueueIndex, among: Iterable[str]) -> list[str]:
    """Return the identities among these that are live in a block."""
    get = queue.identities.get
    return [identity for identity in among if (place := get(identity)) is not None and place[0] is block]


def messages_in(entry: Operation) -> int:
    """Return the size of an entry in entries of a block: its number of messages, or 1."""
    return len(entry.records) if type(entry) is PutMessages else 1


def present(messages: Mapping[int, Any], first: int, last: int) -> list[int]:
    """Return the existing sequences of a range, which may be far wider than the queue."""
    if last - first < len(messages):
        return [sequence for sequence in range(first, last + 1) if sequence in messages]
    return [sequence for sequence in messages if first <= sequence <= last]


def _queue_of(entry: Operation) -> tuple[QueueKind, str] | None:
    if isinstance(entry, PutMessages | MarkDelivered | PutIdentity | SetCounters):
        return entry.kind, entry.queue
    return None
