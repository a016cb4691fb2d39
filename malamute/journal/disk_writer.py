"""The writer of a store on LMDB: groups of operations, each in one transaction.

Messages are refused when they would take the room that was promised to the ring, or a reserve; the reserve is
for deletions, which need a few fresh pages before they free any. Chunks are never refused while older ones
can make room.

If a transaction fails, its `RingTransaction` is forgotten, and memory and disk still agree. A write error on
LMDB's root pages breaks the environment: it is closed then, opened anew, and the write is repeated once,
while `CallGuard` keeps the readers out.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, takewhile
from pathlib import Path
from typing import NamedTuple

import lmdb

from malamute.errors import StorageFull, StoreError
from malamute.journal import format as codec
from malamute.journal.block_map import Block
from malamute.journal.blocks import decode_block
from malamute.journal.chunk_cursor import DiskChunkDeleter
from malamute.journal.directory import (
    allocate,
    is_allocated,
    put_meta,
    translated,
    used_bytes,
)
from malamute.journal.format import (
    ASIDE,
    BLOCK,
    CARD,
    CHUNK,
    QUARANTINE,
    STREAM,
    Damaged,
    key,
)
from malamute.journal.opened import OpenedAgain, OpenedStore
from malamute.journal.plan import Plan, encode_blocks, make_plan, weight_of
from malamute.journal.ring import RingTransaction
from malamute.journal.states import (
    CEILING_STEP,
    Card,
    ValueRepair,
    changed,
    encode_card,
    stream_of,
)
from malamute.journal.subjects import Collector
from malamute.store.operations import (
    OPENED_AGAIN,
    AppendChunk,
    Defect,
    Operation,
)

BLOCK_BYTES_MAX = 256 * 1024
"""A block of the log is closed once its records reach this; one larger record still fits."""

COMPACTION_RATIO = 4
"""Bytes of old blocks that a transaction may compact for each byte that it appends."""

DROPS_MIN, DROPS_MAX = 16, 32
"""Dead blocks that a transaction drops: fewer are left for later, as the old end of a long log is a place of
its own in the tree. Besides the most, one for each block that it adds."""

RELIEFS_MAX = 3
"""How often old chunks are dropped for the sake of new ones before a write is given up."""

COMPACTIONS_MAX = 16
"""Compactions that are tried before a write is refused for lack of room."""

READERS_SECONDS = 5.0
"""How often the slots of dead readers are looked for."""


class DiskWriter:
    """The writer of an opened store; one thread at a time calls it, after `disk_recovery.recover`."""

    def __init__(self, store: OpenedStore) -> None:
        self._store = store
        self._block_bytes_max = min(BLOCK_BYTES_MAX, store.size // 64)
        self._collector = Collector()
        self._failing = False  # the last write met a fault of the disk: the next one must touch it
        self._readers_due = 0.0

    def write(self, operations: Sequence[Operation]) -> None:
        """Carry out all of the operations in one transaction, fsynced on return; or none of them.

        Raises StorageFull when there is no room, StoreError for other faults of the disk.
        """
        with self._store.calls:
            self._clear_dead_readers()
            try:
                plan = make_plan(
                    operations,
                    self._collector,
                    self._block_bytes_max,
                    self._store.lsn + 1,
                    self._store.ring.era,
                )
                try:
                    self._write(plan)
                except OpenedAgain as again:
                    number = self._store.environment.info()["last_txnid"]
                    self._store.defects.add(Defect(OPENED_AGAIN, "", number, number, again.text))
                    self._write(plan)
                except StorageFull:
                    if not self._clear_dead_readers(now=True):
                        raise
                    self._write(plan)
            except BaseException as error:
                self._failing = isinstance(error, StoreError)
                self._collector.clear()
                raise
            self._failing = False

    def _clear_dead_readers(self, *, now: bool = False) -> bool:
        """Free the pages that readers pin who were killed; now and then, or `now`. Whether there were any."""
        if not now and time.monotonic() < self._readers_due:
            return False
        self._readers_due = time.monotonic() + READERS_SECONDS
        with translated():
            return bool(self._store.environment.reader_check())

    def _write(self, plan: Plan) -> None:
        if plan.queued or plan.keeping:
            # What is kept of sessions and the like may take the room that messages of queues leave over.
            self._refuse_if_full(plan, self._store.reserve if plan.queued else 0)
        elif plan.appending and self._room() < plan.added:
            if plan.added > self._store.size // 2:
                raise StorageFull(
                    f"{plan.added} bytes at once are too many: the whole store has {self._store.size}"
                )
            self._relieve(plan.added)
        for _ in range(RELIEFS_MAX if plan.appending else 0):
            try:
                self._transact(plan)
                return
            except StorageFull as fault:
                if not self._is_relievable(fault):
                    raise
            if not self._clear_dead_readers(now=True):
                self._relieve(plan.added)
        self._transact(plan)

    def _is_relievable(self, fault: StorageFull) -> bool:
        """Whether old chunks that leave make room for what found none.

        They do where the file is full, or has to stay as large as it is. They do not where the disk refuses
        to write into a file that has all its room: no history is dropped for that.
        """
        if isinstance(fault.__cause__, lmdb.MapFullError):
            return True
        return not is_allocated(Path(self._store.environment.path()) / "data.mdb", self._store.size)

    def _refuse_if_full(self, plan: Plan, left: int) -> None:
        """Refuse what would take the room of the ring, or leave less than `left` bytes beside the reserve.

        What the ring has not filled yet counts as used (and 1/20 more for its unfilled pages), so that
        queues never starve it. Neither does anything else that is kept in the log: no stream loses its
        history to sessions, cursors or identities. While the log can still be compacted, it is.
        """
        log = self._store.recovered_log()
        promised = max(0, self._store.ring.budget - self._store.ring.bytes) * 21 // 20
        for _ in range(COMPACTIONS_MAX):
            if plan.added + promised + left <= self._room():
                return
            if not log.is_wasteful(0) and not self._has_drops(1):
                break
            empty = make_plan((), self._collector, self._block_bytes_max, self._store.lsn)
            self._transact(empty, floor_bytes=0)
        used, size = self._store.used(), self._store.size
        raise StorageFull(f"store is full: {plan.added} bytes do not fit, {used} of {size} are used")

    def _relieve(self, added: int) -> None:
        """Drop old chunks when new ones do not fit, though the budget says that they should.

        Chunks of many pages need as many in a row, and a nearly full file may have none. Pages that a
        transaction frees serve the one after the next, so a second transaction follows.
        """
        with self._store.settled:
            changes = self._store.ring.begin()
            meta = self._store.meta._replace(lsn=self._store.lsn)
            try:
                with self._writing(added) as transaction:
                    with transaction.cursor() as cursor:
                        changes.trim_to(max(0, self._store.ring.bytes - 2 * added), DiskChunkDeleter(cursor))
                    self._put_states(transaction, changes, self._store.lsn)
                    put_meta(transaction, meta)
            except BaseException:
                self._store.ring.abandon()
                raise
            self._store.ring.commit(changes)
            self._store.meta = meta
            with self._writing(0) as transaction:
                put_meta(transaction, meta)

    @contextmanager
    def _writing(self, added: int) -> Iterator[lmdb.Transaction]:
        """A write transaction.

        LMDB takes a write that was cut short, as on a full disk, for EIO. So the file is asked for room then,
        which raises StorageFull if there is none.
        """
        before, repairs = self._store.environment.info()["last_txnid"], self._store.repairs[:]
        try:
            with translated(), self._store.environment.begin(write=True, buffers=True) as transaction:
                if self._failing:
                    put_meta(transaction, self._store.meta)
                if repairs:
                    self._put_aside(transaction, repairs)
                yield transaction
        except (StoreError, StorageFull) as error:
            if not self._store.open_again_if_broken(before, error):
                if getattr(error.__cause__, "code", 0) == errno.EIO:
                    data = Path(self._store.environment.path()) / "data.mdb"
                    allocate(data, min(self._store.size, used_bytes(self._store.environment) + added))
                raise
        if repairs:
            self._store.aside_next += sum(repair.found is not None for repair in repairs)
            del self._store.repairs[: len(repairs)]

    def _put_aside(self, transaction: lmdb.Transaction, repairs: Sequence[ValueRepair]) -> None:
        """Keep damaged values as they were found, and put in their places what was rebuilt."""
        number = self._store.aside_next
        for place, found, value in repairs:
            if found is not None:
                transaction.put(key(ASIDE, 0, number), place + found)
                number += 1
            if value is not None:
                transaction.put(place, value)
            else:
                transaction.delete(place)

    def _room(self) -> int:
        """Bytes that may be added without touching the reserve."""
        return self._store.size - self._store.reserve - self._store.used()

    def _transact(self, plan: Plan, floor_bytes: int | None = None) -> None:
        log = self._store.recovered_log()
        changes = self._store.ring.begin()
        meta = self._store.meta
        with self._store.settled:
            try:
                with self._writing(plan.added) as transaction:
                    if plan.streams or self._store.ring.is_behind():
                        self._change_streams(transaction, changes, plan)
                    cards = self._put_cards(transaction, changes, plan)
                    outgoing = self._delete_blocks(transaction, plan, floor_bytes)
                    moved = encode_blocks(outgoing.moved, self._block_bytes_max, plan.lsn)
                    blocks = [*moved, *plan.blocks]
                    for number, (_, value) in enumerate(blocks, log.number_next):
                        transaction.put(key(BLOCK, 0, number), value)
                    if not blocks and not changes.changed and meta.lsn < plan.lsn:
                        # Whatever else says how far the log sequence numbers are may have left.
                        meta = meta._replace(lsn=plan.lsn)
                        put_meta(transaction, meta)
            except BaseException:
                self._store.ring.abandon()
                raise
            self._store.ring.commit(changes)
            self._store.meta, self._store.lsn = meta, plan.lsn
            for name in changes.forgotten.keys() - cards.keys():
                self._store.cards.pop(name, None)
            self._store.cards |= cards
            for entries, value in blocks:
                log.apply(log.number_next, len(value), entries)
            for block in outgoing.blocks:
                log.dropped(block)

    def _change_streams(self, transaction: lmdb.Transaction, changes: RingTransaction, plan: Plan) -> None:
        for operation, value in plan.streams:
            if isinstance(operation, AppendChunk):
                identifier = changes.append(operation, len(value))
                transaction.put(key(CHUNK, identifier, operation.chunk.first), value)
            else:
                changes.apply(operation)
        with transaction.cursor() as cursor:
            changes.trim(DiskChunkDeleter(cursor))
        self._put_states(transaction, changes, plan.lsn)

    def _put_states(self, transaction: lmdb.Transaction, changes: RingTransaction, lsn: int) -> None:
        for stream in changes.changed.values():
            transaction.put(key(STREAM, stream.identifier), codec.encode_stream(stream, lsn))
        for stream in changes.changed_leaving():
            if stream.chunks:
                transaction.put(key(STREAM, stream.identifier), codec.encode_stream(stream, lsn))
            else:
                transaction.delete(key(STREAM, stream.identifier))
        for before in changes.forgotten.values():
            if before is not None and before.identifier not in changes.leaving:
                transaction.delete(key(STREAM, before.identifier))

    def _put_cards(
        self, transaction: lmdb.Transaction, changes: RingTransaction, plan: Plan
    ) -> dict[str, Card]:
        """Store the cards that this transaction changes. Mostly there are none."""
        cards: dict[str, Card] = {}
        for setting in self._store.ring.clipped(plan.settings, changes.changed):
            name = stream_of(setting)
            before = cards.get(name) or self._store.cards.get(name) or Card(0, name)
            after = changed(before, setting)
            if after is not before:
                cards[name] = after
        for stream in changes.changed.values():
            card = cards.get(stream.name) or self._store.cards.get(stream.name) or Card(0, stream.name)
            if card.ceiling < stream.reserved or card.identifier != stream.identifier:
                ceiling = max(card.ceiling, stream.reserved + CEILING_STEP)
                cards[stream.name] = card._replace(ceiling=ceiling)
        self._forget_cards(transaction, changes, cards)
        for name, card in cards.items():
            state = changes.changed.get(name) or self._store.ring.streams.get(name)
            if state is not None:
                if card.identifier not in (0, state.identifier):
                    transaction.delete(key(CARD, card.identifier))
                cards[name] = card = card._replace(identifier=state.identifier)
                transaction.put(key(CARD, card.identifier), encode_card(card))
        return cards

    def _forget_cards(
        self, transaction: lmdb.Transaction, changes: RingTransaction, cards: dict[str, Card]
    ) -> None:
        for name in changes.forgotten:
            card = self._store.cards.get(name)
            if card is not None and card.identifier:
                transaction.delete(key(CARD, card.identifier))
            if name not in changes.changed:
                cards.pop(name, None)

    def _delete_blocks(self, transaction: lmdb.Transaction, plan: Plan, floor_bytes: int | None) -> _Outgoing:
        """Delete old blocks that nothing needs, and the oldest that is worth compacting."""
        log = self._store.recovered_log()
        outgoing = _Outgoing([], [])
        wasteful = log.is_wasteful(floor_bytes)
        if not (wasteful or log.unreadable or self._has_drops(1 if floor_bytes == 0 else DROPS_MIN)):
            return outgoing
        relieving = floor_bytes == 0
        # A write that would be refused otherwise pays for more, as long as what is moved has its room.
        added = (
            self._store.reserve // 2 if relieving else COMPACTION_RATIO * sum(len(v) for _, v in plan.blocks)
        )
        allowance = max(1, added)
        for block in islice(log.blocks, DROPS_MAX + len(plan.blocks)):
            if block.number in log.unreadable:
                if not log.is_settled(block):
                    break
                self._quarantine(transaction, block)
                outgoing.moved.extend(log.counters())
            elif block.live:
                before = len(outgoing.moved)
                if not wasteful or allowance <= 0 or not self._move(transaction, block, outgoing.moved):
                    break
                allowance -= sum(map(weight_of, outgoing.moved[before:])) if relieving else block.size
            transaction.delete(key(BLOCK, 0, block.number))
            outgoing.blocks.append(block)
        return outgoing

    def _has_drops(self, least: int) -> bool:
        """Whether so many of the oldest blocks can be dropped, or as many bytes as a block may have."""
        blocks = self._store.recovered_log().blocks
        if not blocks or blocks[0].live:
            # So it is after most transactions.
            return False
        dead = [block.size for block in takewhile(lambda block: not block.live, islice(blocks, least))]
        return len(dead) >= least or sum(dead) >= self._block_bytes_max

    def _move(self, transaction: lmdb.Transaction, block: Block, moved: list[Operation]) -> bool:
        """Collect what is live in a block; False if the block cannot be read any more."""
        log = self._store.recovered_log()
        try:
            entries = decode_block(transaction.get(key(BLOCK, 0, block.number), b""))
        except Damaged:
            self._store.mark_suspect(block.number)
            return False
        moved += log.live_entries(block, entries)
        return True

    def _quarantine(self, transaction: lmdb.Transaction, block: Block) -> None:
        value = transaction.get(key(BLOCK, 0, block.number))
        if value is not None:
            transaction.put(key(QUARANTINE, 0, block.number), bytes(value))


class _Outgoing(NamedTuple):
    """The blocks that leave in a transaction, and the entries of them that are written again."""

    blocks: list[Block]
    moved: list[Operation]
