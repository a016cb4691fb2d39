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
from pathlib import Path
from typing import Any

import lmdb

from malamute.errors import StorageFull, StoreError, StoreLost
from malamute.journal import format as codec
from malamute.journal import pair_record
from malamute.journal.chunk_cursor import DiskChunkDeleter, chunks_in
from malamute.journal.compaction import delete_blocks, has_drops
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
    STREAM,
    key,
)
from malamute.journal.message_deletion import replace_chunks
from malamute.journal.opened import OpenedAgain, OpenedStore
from malamute.journal.plan import Plan, encode_blocks, make_plan
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
from malamute.journal.write_set import Recorder, WriteSet
from malamute.store.operations import (
    OPENED_AGAIN,
    AppendChunk,
    Defect,
    DeleteStreamMessages,
    Operation,
)

BLOCK_BYTES_MAX = 256 * 1024
"""The size of records at which a block of the log is closed; one larger record still fits."""

RELIEFS_MAX = 3
"""Attempts to drop old chunks in favor of new ones before a write is refused."""

COMPACTIONS_MAX = 16
"""Compactions that are tried before a write is refused for lack of room."""

READERS_SECONDS = 5.0
"""Seconds between two searches for the slots of dead readers."""


class DiskWriter:
    """The writer of an opened store; one thread at a time calls it, after `disk_recovery.recover`."""

    def __init__(self, store: OpenedStore) -> None:
        self._store = store
        self._block_bytes_max = min(BLOCK_BYTES_MAX, store.size // 64)
        self._collector = Collector()
        self._failing = False  # the last write met a fault of the disk: the next one must touch it
        self._readers_due = 0.0

    def write(
        self,
        operations: Sequence[Operation],
        *,
        numbers: int = 1,
        takes_over: bool = False,
        is_promised: bool = False,
    ) -> None:
        """Carry out all of the operations in one transaction, fsynced on return; or none of them.

        The transaction counts so many log sequence `numbers`. One that `takes_over` has all that is in the
        write-ahead log; room that `is_promised` was found before.

        Raises StorageFull when there is no room, StoreError for other faults of the disk.
        """
        store = self._store
        with store.calls:
            self._clear_dead_readers()
            try:
                plan = make_plan(
                    operations,
                    self._collector,
                    self._block_bytes_max,
                    store.lsn + numbers,
                    store.ring.era,
                )
                plan = plan._replace(takes_over=takes_over)
                if is_promised:
                    plan = plan._replace(queued=False, keeping=False)
                try:
                    self._write(plan)
                except OpenedAgain as again:
                    number = store.environment.info()["last_txnid"]
                    store.defects.add(Defect(OPENED_AGAIN, "", number, number, again.text))
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

    def spare(self) -> int:
        """Return the bytes that may be added without touching the reserve or the room of the ring."""
        with self._store.calls:
            return self._room() - self._store.reserve - self._promised()

    def announce_log(self) -> bool:
        """Have the format stored that knows the write-ahead log; return False if the disk refuses it.

        Otherwise an older version would miss the log. Raises StoreLost.
        """
        store = self._store
        if store.meta.version == codec.STORE_VERSION:
            return True
        try:
            self.put_meta(version=codec.STORE_VERSION)
        except StoreLost:
            raise
        except (StoreError, StorageFull):
            return False
        return True

    def put_meta(self, **changes: Any) -> None:
        """Store a changed meta record. Raises: StorageFull, StoreError."""
        with self._store.calls:
            self._put_meta(**changes)

    def _put_meta(self, **changes: Any) -> None:
        store = self._store
        with store.settled:
            lsn = store.lsn + 1
            meta = store.meta._replace(lsn=lsn, **changes)
            with self._writing(0, lsn) as transaction:
                put_meta(transaction, meta)
            store.meta, store.lsn = meta, lsn

    def _clear_dead_readers(self, *, now: bool = False) -> bool:
        """Free the pages pinned by killed readers, from time to time or `now`; return whether any were."""
        if not now and time.monotonic() < self._readers_due:
            return False
        self._readers_due = time.monotonic() + READERS_SECONDS
        with translated():
            return bool(self._store.environment.reader_check())

    def _write(self, plan: Plan) -> None:
        if plan.queued or plan.keeping:
            # Sessions, cursors and identities may take the room that messages of queues leave over.
            self._refuse_if_full(plan, self._store.reserve if plan.queued else 0)
        elif plan.appending and self._room() < plan.added:
            if plan.added > self._store.size // 2:
                raise StorageFull(
                    f"{plan.added} bytes at once are too many: the whole store has {self._store.size}"
                )
            self._relieve(plan)
        for _ in range(RELIEFS_MAX if plan.appending else 0):
            try:
                self._transact(plan)
                return
            except StorageFull as fault:
                if not self._is_relievable(fault):
                    raise
            if not self._clear_dead_readers(now=True):
                self._relieve(plan)
        self._transact(plan)

    def _is_relievable(self, fault: StorageFull) -> bool:
        """Return whether dropping old chunks makes room for a write that found none.

        Room is made where the file is full, or may not grow; none where the disk refuses to write into a
        file that has all its room. No history is dropped in that case.
        """
        if isinstance(fault.__cause__, lmdb.MapFullError):
            return True
        return not is_allocated(Path(self._store.environment.path()) / "data.mdb", self._store.size)

    def _refuse_if_full(self, plan: Plan, left: int) -> None:
        """Refuse a write that takes the room of the ring, or leaves less than `left` bytes of room.

        The unfilled part of the ring counts as used (and 1/20 more for its unfilled pages): no stream loses
        its history to queues, sessions, cursors or identities. The log is compacted as long as that helps.
        """
        log = self._store.recovered_log()
        promised = self._promised()
        for _ in range(COMPACTIONS_MAX):
            if plan.added + promised + left <= self._room():
                return
            if not log.is_wasteful(0) and not has_drops(log, 1, self._block_bytes_max):
                break
            empty = make_plan((), self._collector, self._block_bytes_max, plan.lsn)
            self._transact(empty, floor_bytes=0)
        used, size = self._store.used(), self._store.size
        raise StorageFull(f"store is full: {plan.added} bytes do not fit, {used} of {size} are used")

    def _relieve(self, plan: Plan) -> None:
        """Drop old chunks when new ones do not fit, though the budget says that they should.

        Chunks of many pages need as many in a row, and a nearly full file may have none. Pages that a
        transaction frees serve the one after the next, so a second transaction follows.
        """
        added, store = plan.added, self._store
        with store.settled:
            changes = store.ring.begin()
            # The records of the write-ahead log have the numbers before that of the plan.
            lsn = max(plan.lsn, store.lsn + 1)
            meta = store.meta._replace(lsn=lsn)
            try:
                with self._writing(added, lsn) as transaction:
                    with transaction.cursor() as cursor:
                        changes.trim_to(max(0, store.ring.bytes - 2 * added), DiskChunkDeleter(cursor))
                    self._put_states(transaction, changes, lsn)
                    put_meta(transaction, meta)
            except BaseException:
                store.ring.abandon()
                raise
            store.ring.commit(changes)
            store.meta, store.lsn = meta, lsn
            self._put_meta()

    @contextmanager
    def _writing(self, added: int, lsn: int) -> Iterator[lmdb.Transaction]:
        """Begin the write transaction of a number, in which damaged values are put aside.

        LMDB reports a write that was cut short, as on a full disk, as EIO. Room for the file is allocated in
        that case, which raises StorageFull if there is none.
        """
        store = self._store
        before, repairs = store.environment.info()["last_txnid"], store.repairs[:]
        recorder: Recorder | None = None
        try:
            with translated(), store.environment.begin(write=True, buffers=True) as begun:
                transaction: Any = begun
                if store.on_commit is not None:
                    transaction = recorder = Recorder(begun)
                if store.leaves_pair:
                    pair_record.remove(begun)
                if self._failing:
                    put_meta(transaction, store.meta)
                if repairs:
                    self._put_aside(transaction, repairs)
                yield transaction
        except (StoreError, StorageFull) as error:
            if not store.open_again_if_broken(before, error):
                if getattr(error.__cause__, "code", 0) == errno.EIO:
                    data = Path(store.environment.path()) / "data.mdb"
                    allocate(data, min(store.size, used_bytes(store.environment) + added))
                raise
        if repairs:
            store.aside_next += sum(repair.found is not None for repair in repairs)
            del store.repairs[: len(repairs)]
        if recorder is not None and store.on_commit is not None:
            store.on_commit(WriteSet(store.meta.broker_id, store.lsn, lsn, recorder.changes))

    def _put_aside(self, transaction: lmdb.Transaction, repairs: Sequence[ValueRepair]) -> None:
        """Copy damaged values under keys of their own, and put the rebuilt values in their places."""
        number = self._store.aside_next
        for place, found, value in repairs:
            if found is not None:
                transaction.put(key(ASIDE, 0, number), place + found)
                number += 1
            if value is not None:
                transaction.put(place, value)
            else:
                transaction.delete(place)

    def _promised(self) -> int:
        """Return the bytes that the unfilled part of the ring counts for."""
        return max(0, self._store.ring.budget - self._store.ring.bytes) * 21 // 20

    def _room(self) -> int:
        """Return the bytes that may be added without touching the reserve."""
        return self._store.size - self._store.reserve - self._store.used()

    def _transact(self, plan: Plan, floor_bytes: int | None = None) -> None:
        """Carry out a plan in one transaction; memory follows once the transaction is durable."""
        store = self._store
        if plan.lsn <= store.lsn:  # another transaction made room for this one
            plan = plan.renumbered(store.lsn + 1)
        log, ring, meta = store.recovered_log(), store.ring, store.meta
        changes = ring.begin()
        with store.settled:
            try:
                with self._writing(plan.added, plan.lsn) as transaction:
                    if plan.streams or ring.is_behind():
                        self._change_streams(transaction, changes, plan)
                    cards = self._put_cards(transaction, changes, plan)
                    outgoing = delete_blocks(transaction, store, plan, self._block_bytes_max, floor_bytes)
                    moved = encode_blocks(outgoing.moved, self._block_bytes_max, plan.lsn)
                    blocks = [*moved, *plan.blocks]
                    for number, (_, value) in enumerate(blocks, log.number_next):
                        transaction.put(key(BLOCK, 0, number), value)
                    if plan.takes_over:
                        meta = meta._replace(lsn=plan.lsn, taken=plan.lsn)
                        put_meta(transaction, meta)
                    elif not blocks and not changes.changed and meta.lsn < plan.lsn:
                        # Other values with the newest log sequence number may have left.
                        meta = meta._replace(lsn=plan.lsn)
                        put_meta(transaction, meta)
            except BaseException:
                ring.abandon()
                raise
            ring.commit(changes)
            store.meta, store.lsn = meta, plan.lsn
            for name in changes.forgotten.keys() - cards.keys():
                store.cards.pop(name, None)
            store.cards |= cards
            for entries, value in blocks:
                log.apply(log.number_next, len(value), entries)
            for block in outgoing.blocks:
                log.dropped(block)

    def _change_streams(self, transaction: lmdb.Transaction, changes: RingTransaction, plan: Plan) -> None:
        for operation, value in plan.streams:
            if isinstance(operation, AppendChunk):
                identifier = changes.append(operation, len(value))
                transaction.put(key(CHUNK, identifier, operation.chunk.first), value)
            elif isinstance(operation, DeleteStreamMessages):
                self._delete_messages(transaction, changes, operation)
            else:
                changes.apply(operation)
        with transaction.cursor() as cursor:
            changes.trim(DiskChunkDeleter(cursor))
        self._put_states(transaction, changes, plan.lsn)

    def _delete_messages(
        self, transaction: lmdb.Transaction, changes: RingTransaction, operation: DeleteStreamMessages
    ) -> None:
        stream = changes.stream(operation.stream)
        if stream is None:
            return
        with transaction.cursor() as cursor:
            replacement = replace_chunks(chunks_in(cursor, stream, operation.ranges), operation.ranges)
        for first in replacement.dropped:
            transaction.delete(key(CHUNK, stream.identifier, first))
        for first, value in replacement.put:
            transaction.put(key(CHUNK, stream.identifier, first), value)
        changes.replace(stream, replacement)

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
        known, ring = self._store.cards, self._store.ring
        for setting in ring.clipped(plan.settings, changes.changed):
            name = stream_of(setting)
            before = cards.get(name) or known.get(name) or Card(0, name)
            after = changed(before, setting)
            if after is not before:
                cards[name] = after
        for stream in changes.changed.values():
            card = cards.get(stream.name) or known.get(stream.name) or Card(0, stream.name)
            if card.ceiling < stream.reserved or card.identifier != stream.identifier:
                ceiling = max(card.ceiling, stream.reserved + CEILING_STEP)
                cards[stream.name] = card._replace(ceiling=ceiling)
        self._forget_cards(transaction, changes, cards)
        for name, card in cards.items():
            state = changes.changed.get(name) or ring.streams.get(name)
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
