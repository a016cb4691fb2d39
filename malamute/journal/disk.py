"""The store on LMDB.

Theory. One environment with one table (`format` has the keys), one writer, any number of readers. A
write is one LMDB transaction: chunks and the states of their streams, what the ring drops for them,
and the blocks of the log. LMDB writes changed pages to free places, fsyncs, then writes the root and fsyncs
again. So a process or a machine that dies finds either the old root or the new one, and there is
nothing to repair when a store is opened. The environment is always opened with sync on.

What the process keeps in memory (`Ring`, `Log`) changes only after the commit. If a transaction
fails, its `RingTransaction` is forgotten and memory and disk still agree.

The file has its full size from the beginning and the table never needs more. Messages are refused
when they would take the room that was promised to the ring, or a reserve; the reserve is for what
only takes away, since even deleting needs a few fresh pages before it frees any. Chunks are never refused
while older ones can make room.

The threads: LMDB allows one write transaction at a time and a read transaction for each thread.
Each call here begins and ends its own, so nobody pins old pages for longer than one bounded step.
py-lmdb must not be closed under a running call: `CallGuard` counts them, and `close` waits. A write error on
LMDB's root pages breaks the environment: it is closed then, opened anew, and the write is made once more,
while the guard keeps the readers out. Every LMDB call
gives up the interpreter's lock, which is dear beside a busy thread; so few calls matter more than
few bytes (`log` has the figures).
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import lmdb

from malamute.errors import StorageFull, StoreError, StoreLost
from malamute.journal import format as codec
from malamute.journal.backup import Copy
from malamute.journal.block_map import Block
from malamute.journal.blocks import decode_block, salvage, undeleted
from malamute.journal.call_guard import CallGuard
from malamute.journal.chunk_cursor import ChunkCursor, DiskChunkDeleter
from malamute.journal.defects import Defects
from malamute.journal.directory import (
    META_TWIN,
    acquire_lock,
    allocate,
    is_allocated,
    lengthen,
    open_again,
    open_environment,
    put_meta,
    read_meta,
    translated,
    used_bytes,
)
from malamute.journal.fetch import Fetcher
from malamute.journal.format import (
    ASIDE,
    BLOCK,
    CARD,
    CHUNK,
    META,
    QUARANTINE,
    STREAM,
    Damaged,
    StreamMeta,
    key,
)
from malamute.journal.log import Log, messages_in
from malamute.journal.plan import Plan, encode_blocks, make_plan, weight_of
from malamute.journal.readers import oldest_reader
from malamute.journal.ring import Counted, Ring, RingTransaction
from malamute.journal.states import (
    CEILING_STEP,
    Card,
    ValueRepair,
    changed,
    encode_card,
    make_cards,
    newest_lsn,
    read_states,
    settle_by_cards,
    stream_of,
)
from malamute.journal.store import (
    INCARNATIONS_MAX,
    Checked,
    Copied,
    Progress,
    QueueStatus,
    Status,
    checked,
    next_incarnation,
    no_progress,
    stream_state,
)
from malamute.journal.subjects import Collector, SubjectSearch
from malamute.journal.values import Values
from malamute.store.operations import (
    OPENED_AGAIN,
    AppendChunk,
    Damage,
    Defect,
    Frame,
    GapRange,
    Key,
    Operation,
    PutValue,
    QueueKind,
    ReadResult,
    Recovered,
    SubjectTest,
)
from malamute.store.policies import StreamRetention
from malamute.store.tables import CURSORS, OF_STREAMS, RETENTIONS, SESSIONS

STREAMS_SHARE = 0.7
"""The share of the file that streams may fill unless given otherwise."""

STREAMS_SHARE_MAX = 0.85
"""The largest share that streams may be given; the rest is for queues, the reserve and free pages."""

BLOCK_BYTES_MAX = 256 * 1024
"""A block of the log is closed once its records reach this; one larger record still fits."""

COMPACTION_RATIO = 4
"""Bytes of old blocks that a transaction may compact for each byte that it appends."""

VERIFY_STEP_BYTES = 8 * 1024 * 1024
"""What `verify` reads in one transaction."""

SEARCH_STEP_CHUNKS = 256
"""Chunks that a search for subjects looks at in one transaction."""

DROPS_MIN, DROPS_MAX = 16, 32
"""Dead blocks that a transaction drops: fewer are left for later, as the old end of a long log is a place of
its own in the tree. Besides the most, one for each block that it adds."""

RELIEFS_MAX = 3
"""How often old chunks are dropped for the sake of new ones before a write is given up."""

COMPACTIONS_MAX = 16
"""Compactions that are tried before a write is refused for lack of room."""

ASIDE_WORDS = "put aside in the store: `malamute journal repair` moves it out"
STRANDED_WORDS = "what it held is stored again as far as it is in memory; the rest are dead letters"
STATE_WORDS = "its state is written anew with the next message"

READERS_SECONDS = 5.0
"""How often the slots of dead readers are looked for."""

_Transaction = lmdb.Transaction


class _OpenedAgain(StoreError):
    """Raised when a write was not stored, and the environment that it broke was opened anew."""


class DiskStore:
    """A store in a directory. Make one by `DiskStore.open`."""

    def __init__(
        self,
        environment: lmdb.Environment,
        lock: int,
        *,
        size: int,
        streams_budget: int,
        counted: Counted | None,
    ) -> None:
        """Used by `open`; the arguments are checked there."""
        self._environment = environment
        self._lock = lock
        self._calls = CallGuard()
        self._size = size
        self._page_size: int = environment.stat()["psize"]
        self._reserve = max(size // 32, 32 * self._page_size)
        self._block_bytes_max = min(BLOCK_BYTES_MAX, size // 64)
        self._log_floor = min(8 * 1024 * 1024, size // 32)
        self._log: Log | None = None
        self._fetcher = Fetcher(Log(0))
        self._settled = threading.RLock()  # held by a write until memory and disk agree again
        self._failing = False  # the last write met a fault of the disk: the next one must touch it
        self._readers_due = 0.0
        self._collector = Collector()
        self._defects = Defects()
        self._repairs: list[ValueRepair] = []  # damaged values that the next write puts aside
        with environment.begin(buffers=True) as transaction, transaction.cursor() as cursor:
            self._meta = read_meta(transaction)
            states = read_states(cursor)
            self._repairs += states.repairs
            self._check_metas(transaction)
            self._check_aside(cursor)
            self._lsn = newest_lsn(cursor, self._meta.lsn, states)
        for defect in states.defects:
            self._defects.add(defect)
        self._cards = {card.name: card for card in states.cards.values()}
        self._ring = Ring(states.streams, streams_budget, counted)

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        size: int,
        preallocate: bool = True,
        streams_budget: int | None = None,
        counted: Counted | None = None,
        reads_all: bool = False,
        names_process: bool = True,
    ) -> DiskStore:
        """Open the store in `directory`, creating it if needed; its lock names the process if it is to.

        `size` is that of the file in bytes; a larger file that is already there keeps its size. The
        space is allocated at once unless `preallocate` is false. `streams_budget` is what all streams may
        take together, 70 % of the size unless given. `counted` returns seconds that nobody can set: no
        limit by age believes a clock that runs ahead of them (`ring`). With `reads_all`, all of it is read
        first: a page that the disk cannot read is an error then, and would end the process later.

        Raises StoreLocked if another process has it open, StoreTooNew if a newer format is in it,
        StoreCorrupt if it is no store, StorageFull if the disk has no room, StoreError otherwise.
        """
        path = Path(directory)
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = acquire_lock(path, names_process=names_process)
        except OSError as error:
            raise StoreError(f"cannot use {path}: {error.strerror}") from error
        environment = None
        try:
            environment, size = open_environment(path, size, preallocate, reads_all=reads_all)
            if streams_budget is None:
                streams_budget = int(size * STREAMS_SHARE)
            elif streams_budget > size * STREAMS_SHARE_MAX:
                raise StoreError(
                    f"streams_budget {streams_budget} is too large: expected at most 85 % of the size {size}"
                )
            return cls(
                environment,
                lock,
                size=size,
                streams_budget=streams_budget,
                counted=counted,
            )
        except BaseException:
            if environment is not None:
                environment.close()
            os.close(lock)
            raise

    @classmethod
    def open_existing(cls, directory: str | os.PathLike[str], *, reads_all: bool = False) -> DiskStore:
        """Open the store in `directory` as it is, to inspect or to copy it while no broker uses it.

        Raises StoreError if there is none; otherwise as `open` does, and so is `reads_all`.
        """
        if not (Path(directory) / "data.mdb").is_file():
            raise StoreError(f"there is no store in {Path(directory)}")
        return cls.open(directory, size=0, preallocate=False, reads_all=reads_all, names_process=False)

    # --- opening

    def recover(self, *, records_bytes: int | None = None, now: float | None = None) -> Recovered:
        """All that the core needs to go on. Costs the number of streams and of queued messages.

        With `now`, a broker begins on it: another incarnation if it is a copy. No more than `records_bytes`
        bytes of records are brought into memory; None is no limit.
        """
        with self._calls, translated():
            log = Log(self._log_floor)
            values = Values(records_bytes)
            lost: Set[tuple[str, Key]] = set()
            for number, value in self._blocks():
                try:
                    entries = decode_block(value)
                except Damaged as error:
                    salvaged = salvage(value)
                    puts = log.skip(number, len(value), undeleted(salvaged))
                    values.apply_damaged(puts)
                    lost |= {(e.table, e.key) for e in salvaged if type(e) is PutValue and e.table == CURSORS}
                    outcome = f"{error}; {sum(map(messages_in, puts))} messages of it are dead letters"
                    self._defects.add(Defect("block", "", number, number, outcome))
                else:
                    log.apply(number, len(value), entries)
                    values.apply(entries)
            suspect = max([*log.unreadable, *self._quarantined], default=0)
            found, missing = settle_by_cards(
                values.of_tables(log), self._cards.values(), is_suspect=suspect > 0
            )
            lost = missing | {
                (table, key)
                for table, key in lost
                if key[0] not in self._cards and key not in found.get(table, {})
            }
            self._cards = make_cards(found, self._cards)
            for _, (stream, cursor) in sorted(lost):
                name = f"{stream!s} for {cursor!s}"
                self._defects.add(Defect("cursor", name, 0, 0, "its position is lost"))
            self._log = log
            self._fetcher = Fetcher(log)
            self._ring.restore(found.get(RETENTIONS, {}), now)
            is_restored = now is not None and self._meta.copied
            if now is not None and is_restored:
                self._begin_incarnation(now)
            return Recovered(
                broker_id=self._meta.broker_id,
                streams={s.name: stream_state(s) for s in self._ring.streams.values()},
                queues=values.queues(log),
                values=found,
                lost=frozenset(lost),
                doubtful=frozenset(
                    (table, key)
                    for table, key, (block, _) in log.places()
                    if block.number < suspect and (table == CURSORS or table not in OF_STREAMS)
                ),
                defects=tuple(self._defects.pop()),
                incarnations=self._meta.incarnations,
                restored=is_restored,
                refused={card.name: card.notes for card in self._cards.values() if card.refused},
                lsn=self._lsn,
            )

    def _begin_incarnation(self, now: float) -> None:
        queues = (queue.next for queue in self._recovered_log().queues.values())
        used = max([self._ring.used, *self._meta.incarnations, *queues])
        begun = (*self._meta.incarnations, next_incarnation(now, used, self._ring.newest))[-INCARNATIONS_MAX:]
        meta = self._meta._replace(lsn=self._lsn, copied=False, incarnations=begun)
        with self._environment.begin(write=True) as transaction:
            put_meta(transaction, meta)
        self._meta = meta

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """All blocks in order. Called before the first write, so the transaction may be long."""
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            found = cursor.set_range(key(BLOCK))
            while found and cursor.key()[0] == BLOCK:
                yield codec.split_key(cursor.key())[2], cursor.value()
                found = cursor.next()

    def _check_metas(self, transaction: _Transaction) -> None:
        """Have the meta record and its twin repaired where they are not the same."""
        value = codec.encode_meta(self._meta)
        for place in (key(META), META_TWIN):
            found = transaction.get(place)
            if found is None:
                self._repairs.append(ValueRepair(place, None, value))
            elif found is not None and found != value:
                self._repairs.append(ValueRepair(place, bytes(found), value))
                self._defects.add(Defect("meta", "", 0, 0, "it was rebuilt from its twin"))

    def _check_aside(self, cursor: lmdb.Cursor) -> None:
        """Take note of what was damaged before and put aside."""
        self._aside_next = 1
        found = cursor.set_range(key(ASIDE))
        while found and cursor.key()[0] == ASIDE:
            self._aside_next = codec.split_key(cursor.key())[2] + 1
            found = cursor.next()
        if self._aside_next > 1:
            self._defects.add(Defect("aside", "", 1, self._aside_next - 1, ASIDE_WORDS))
        self._quarantined: list[int] = []
        found = cursor.set_range(key(QUARANTINE))
        while found and cursor.key()[0] == QUARANTINE:
            self._quarantined.append(codec.split_key(cursor.key())[2])
            found = cursor.next()
        for number in self._quarantined:
            self._defects.add(Defect("block", "", number, number, ASIDE_WORDS))

    # --- writing

    def write(self, operations: Sequence[Operation]) -> None:
        """Carry out all of the operations in one transaction, fsynced on return; or none of them.

        Raises StorageFull when there is no room, StoreError for other faults of the disk.
        """
        with self._calls:
            self._clear_dead_readers()
            try:
                plan = make_plan(
                    operations, self._collector, self._block_bytes_max, self._lsn + 1, self._ring.era
                )
                try:
                    self._write(plan)
                except _OpenedAgain as again:
                    number = self._environment.info()["last_txnid"]
                    self._defects.add(Defect(OPENED_AGAIN, "", number, number, again.text))
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
            return bool(self._environment.reader_check())

    def _write(self, plan: Plan) -> None:
        if plan.queued or plan.keeping:
            # What is kept of sessions and the like may take the room that messages of queues leave over.
            self._refuse_if_full(plan, self._reserve if plan.queued else 0)
        elif plan.appending and self._room() < plan.added:
            if plan.added > self._size // 2:
                raise StorageFull(
                    f"{plan.added} bytes at once are too many: the whole store has {self._size}"
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
        return not is_allocated(Path(self._environment.path()) / "data.mdb", self._size)

    def _refuse_if_full(self, plan: Plan, left: int) -> None:
        """Refuse what would take the room of the ring, or leave less than `left` bytes beside the reserve.

        What the ring has not filled yet counts as used (and 1/20 more for its unfilled pages), so that
        queues never starve it. Neither does anything else that is kept in the log: no stream loses its
        history to sessions, cursors or identities. While the log can still be compacted, it is.
        """
        log = self._recovered_log()
        promised = max(0, self._ring.budget - self._ring.bytes) * 21 // 20
        for _ in range(COMPACTIONS_MAX):
            if plan.added + promised + left <= self._room():
                return
            if not log.is_wasteful(0) and not self._has_drops(1):
                break
            empty = make_plan((), self._collector, self._block_bytes_max, self._lsn)
            self._transact(empty, floor_bytes=0)
        raise StorageFull(
            f"store is full: {plan.added} bytes do not fit, {self._used()} of {self._size} are used"
        )

    def _relieve(self, added: int) -> None:
        """Drop old chunks when new ones do not fit, though the budget says that they should.

        Chunks of many pages need as many in a row, and a nearly full file may have none. Pages that a
        transaction frees serve the one after the next, so a second transaction follows.
        """
        with self._settled:
            changes = self._ring.begin()
            meta = self._meta._replace(lsn=self._lsn)
            try:
                with self._writing(added) as transaction:
                    with transaction.cursor() as cursor:
                        changes.trim_to(max(0, self._ring.bytes - 2 * added), DiskChunkDeleter(cursor))
                    self._put_states(transaction, changes, self._lsn)
                    put_meta(transaction, meta)
            except BaseException:
                self._ring.abandon()
                raise
            self._ring.commit(changes)
            self._meta = meta
            with self._writing(0) as transaction:
                put_meta(transaction, meta)

    @contextmanager
    def _writing(self, added: int) -> Iterator[_Transaction]:
        """A write transaction.

        LMDB takes a write that was cut short, as on a full disk, for EIO. So the file is asked for room then,
        which raises StorageFull if there is none.
        """
        before, repairs = self._environment.info()["last_txnid"], self._repairs[:]
        try:
            with translated(), self._environment.begin(write=True, buffers=True) as transaction:
                if self._failing:
                    put_meta(transaction, self._meta)
                if repairs:
                    self._put_aside(transaction, repairs)
                yield transaction
        except (StoreError, StorageFull) as error:
            if not self._open_again_if_broken(before, error):
                if getattr(error.__cause__, "code", 0) == errno.EIO:
                    data = Path(self._environment.path()) / "data.mdb"
                    allocate(data, min(self._size, used_bytes(self._environment) + added))
                raise
        if repairs:
            self._aside_next += sum(repair.found is not None for repair in repairs)
            del self._repairs[: len(repairs)]

    def _put_aside(self, transaction: _Transaction, repairs: Sequence[ValueRepair]) -> None:
        """Keep damaged values as they were found, and put in their places what was rebuilt."""
        number = self._aside_next
        for place, found, value in repairs:
            if found is not None:
                transaction.put(key(ASIDE, 0, number), place + found)
                number += 1
            if value is not None:
                transaction.put(place, value)
            else:
                transaction.delete(place)

    def _open_again_if_broken(self, before: int, fault: StoreError | StorageFull) -> bool:
        """Open the environment anew if a commit has broken it. Whether what was committed is there after all.

        LMDB writes the root last, and puts the old one back when that fails. Whichever of them is found, the
        disk may have the other one: so a commit of nothing is made at once, which takes its place. `before`
        is the number of the transaction before the one that failed.
        """
        try:
            with self._environment.begin():
                return False
        except lmdb.PanicError:
            pass
        except lmdb.Error:
            return False
        with self._calls.alone():
            self._environment = open_again(self._environment)
            is_there = bool(self._environment.info()["last_txnid"] > before)
            try:
                with self._environment.begin(write=True) as transaction:
                    put_meta(transaction, self._meta)
            except lmdb.Error as error:
                if is_there:
                    raise StoreLost(f"unknown what is durable after a failed write: {error}") from fault
                # It is broken again. Reading works in one that is new, and each write will try again.
                self._environment = open_again(self._environment)
                raise StoreError(f"cannot write to the disk: {error}") from fault
        if not is_there:
            raise _OpenedAgain(f"the store was opened again: {fault.text}") from fault
        return True

    def _room(self) -> int:
        """Bytes that may be added without touching the reserve."""
        return self._size - self._reserve - self._used()

    def _transact(self, plan: Plan, floor_bytes: int | None = None) -> None:
        log = self._recovered_log()
        changes = self._ring.begin()
        meta = self._meta
        with self._settled:
            try:
                with self._writing(plan.added) as transaction:
                    if plan.streams or self._ring.is_behind():
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
                self._ring.abandon()
                raise
            self._ring.commit(changes)
            self._meta, self._lsn = meta, plan.lsn
            for name in changes.forgotten.keys() - cards.keys():
                self._cards.pop(name, None)
            self._cards |= cards
            for entries, value in blocks:
                log.apply(log.number_next, len(value), entries)
            for block in outgoing.blocks:
                log.dropped(block)

    def _change_streams(self, transaction: _Transaction, changes: RingTransaction, plan: Plan) -> None:
        for operation, value in plan.streams:
            if isinstance(operation, AppendChunk):
                identifier = changes.append(operation, len(value))
                transaction.put(key(CHUNK, identifier, operation.chunk.first), value)
            else:
                changes.apply(operation)
        with transaction.cursor() as cursor:
            changes.trim(DiskChunkDeleter(cursor))
        self._put_states(transaction, changes, plan.lsn)

    def _put_states(self, transaction: _Transaction, changes: RingTransaction, lsn: int) -> None:
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

    def _put_cards(self, transaction: _Transaction, changes: RingTransaction, plan: Plan) -> dict[str, Card]:
        """Store the cards that this transaction changes. Mostly there are none."""
        cards: dict[str, Card] = {}
        for setting in self._ring.clipped(plan.settings, changes.changed):
            name = stream_of(setting)
            before = cards.get(name) or self._cards.get(name) or Card(0, name)
            after = changed(before, setting)
            if after is not before:
                cards[name] = after
        for stream in changes.changed.values():
            card = cards.get(stream.name) or self._cards.get(stream.name) or Card(0, stream.name)
            if card.ceiling < stream.reserved or card.identifier != stream.identifier:
                ceiling = max(card.ceiling, stream.reserved + CEILING_STEP)
                cards[stream.name] = card._replace(ceiling=ceiling)
        self._forget_cards(transaction, changes, cards)
        for name, card in cards.items():
            state = changes.changed.get(name) or self._ring.streams.get(name)
            if state is not None:
                if card.identifier not in (0, state.identifier):
                    transaction.delete(key(CARD, card.identifier))
                cards[name] = card = card._replace(identifier=state.identifier)
                transaction.put(key(CARD, card.identifier), encode_card(card))
        return cards

    def _forget_cards(
        self, transaction: _Transaction, changes: RingTransaction, cards: dict[str, Card]
    ) -> None:
        for name in changes.forgotten:
            card = self._cards.get(name)
            if card is not None and card.identifier:
                transaction.delete(key(CARD, card.identifier))
            if name not in changes.changed:
                cards.pop(name, None)

    def _delete_blocks(self, transaction: _Transaction, plan: Plan, floor_bytes: int | None) -> _Outgoing:
        """Delete old blocks that nothing needs, and the oldest that is worth compacting."""
        log = self._recovered_log()
        outgoing = _Outgoing([], [])
        wasteful = log.is_wasteful(floor_bytes)
        if not (wasteful or log.unreadable or self._has_drops(1 if floor_bytes == 0 else DROPS_MIN)):
            return outgoing
        relieving = floor_bytes == 0
        # A write that would be refused otherwise pays for more, as long as what is moved has its room.
        added = self._reserve // 2 if relieving else COMPACTION_RATIO * sum(len(v) for _, v in plan.blocks)
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
        blocks = self._recovered_log().blocks
        if not blocks or blocks[0].live:
            # So it is after most transactions.
            return False
        dead = [block.size for block in takewhile(lambda block: not block.live, islice(blocks, least))]
        return len(dead) >= least or sum(dead) >= self._block_bytes_max

    def _move(self, transaction: _Transaction, block: Block, moved: list[Operation]) -> bool:
        """Collect what is live in a block; False if the block cannot be read any more."""
        log = self._recovered_log()
        try:
            entries = decode_block(transaction.get(key(BLOCK, 0, block.number), b""))
        except Damaged:
            self._mark_suspect(block.number)
            return False
        moved += log.live_entries(block, entries)
        return True

    def _quarantine(self, transaction: _Transaction, block: Block) -> None:
        value = transaction.get(key(BLOCK, 0, block.number))
        if value is not None:
            transaction.put(key(QUARANTINE, 0, block.number), bytes(value))

    def _recovered_log(self) -> Log:
        assert self._log is not None, "recover() comes before the first write"
        return self._log

    def _used(self) -> int:
        pages = self._environment.stat()
        return self._page_size * (pages["branch_pages"] + pages["leaf_pages"] + pages["overflow_pages"])

    # --- reading

    def read(self, stream: str, start: int, *, bytes_max: int) -> ReadResult:
        """The chunks that hold `start` and what follows, in order, until `bytes_max` is reached."""
        with self._chunk_cursor(stream) as (state, chunks):
            if not state.identifier:
                return ReadResult((), 1)
            chunks.seek_holder(start)
            found = chunks.collect(start, bytes_max)
        self._defects.add_ranges(stream, found)
        return ReadResult(found, state.first)

    def pop_firsts(self) -> Mapping[str, int]:
        """Streams whose oldest messages were dropped since the last call, and their first sequences now."""
        firsts, self._ring.firsts = self._ring.firsts, {}
        return firsts

    def find_time(self, stream: str, time_ns: int) -> int:
        """The first sequence stored at or after a broker time; last + 1 if there is none."""
        with self._chunk_cursor(stream) as (_, chunks):
            return chunks.find_time(time_ns)

    def find_gap(self, stream: str, sequence: int) -> GapRange | None:
        """The gap in which a sequence lies; None if it is stored, or outside of what is kept."""
        with self._chunk_cursor(stream) as (_, chunks):
            return chunks.find_gap(sequence)

    def last_per_subject(
        self, stream: str, *, limit: int, takes: SubjectTest | None = None
    ) -> Mapping[str, int]:
        """The sequence of the last message kept of each subject; of `limit` subjects, newest first.

        Subjects that `takes` refuses are passed over.

        What cannot be read is left out. Reads little more than a range of 4 MiB, and one for each rare
        subject; all of the stream if it was written without subjects.
        """
        search = SubjectSearch(limit, takes)
        start: int | None = None
        while not search.is_done:
            with self._chunk_cursor(stream) as (state, chunks):
                start = state.last if start is None else start
                start = chunks.search(search, start, SEARCH_STEP_CHUNKS)
            if start is None:
                break
        return search.found

    def fetch(self, kind: QueueKind, queue: str, sequences: Sequence[int]) -> Mapping[int, Frame]:
        """The records of stored messages by their sequences, without those that are not there.

        What is damaged is left out, and put aside as recovery does.
        """
        found, missing = self._fetch(kind, queue, sequences)
        if missing:  # damaged, or moved by a commit in between: once more while there is none
            with self._settled:
                again, damaged = self._fetch(kind, queue, missing)
                for number in self._fetcher.blocks(kind, queue, damaged):
                    self._mark_suspect(number)
            found |= again
        return found

    def _mark_suspect(self, number: int) -> None:
        """Take note of a block that turned out to be unreadable. No write is under way, or this is it."""
        stranded = self._recovered_log().mark_suspect(number)
        if stranded is not None:
            self._defects.add(Defect("block", "", number, number, STRANDED_WORDS, stranded))

    def _fetch(
        self, kind: QueueKind, queue: str, sequences: Sequence[int]
    ) -> tuple[dict[int, bytes], list[int]]:
        with self._reading() as transaction:
            return self._fetcher.fetch(
                lambda number: transaction.get(key(BLOCK, 0, number)), kind, queue, sequences
            )

    @contextmanager
    def _chunk_cursor(self, name: str) -> Iterator[tuple[StreamMeta, ChunkCursor]]:
        """A transaction, and in it the state of a stream and a way along its chunks.

        The state in memory is taken first, so that it is never ahead of the transaction. It may be behind:
        a stream that was deleted meanwhile has no state under its identifier, or one without its name.
        """
        known = self._ring.streams.get(name, StreamMeta(0, name))
        with self._reading() as transaction, transaction.cursor() as cursor:
            place = key(STREAM, known.identifier)
            value = transaction.get(place)
            try:
                state = codec.decode_stream(value) if value else None
                if value is None and any(repair.place == place for repair in self._repairs):
                    state = known  # which the next write brings back
            except Damaged:
                # The next write of the stream puts what is known in its place.
                state = known
                self._defects.add(Defect("stream", name, known.first, known.last, STATE_WORDS))
            if state is None or state.name != name:
                state = StreamMeta(known.identifier, name, known.last + 1, known.last)
            yield state, ChunkCursor(cursor, state)

    @contextmanager
    def _reading(self) -> Iterator[_Transaction]:
        with self._calls, translated():
            try:
                transaction = self._environment.begin(buffers=True)
            except lmdb.PanicError:
                transaction = None
            if transaction is not None:
                with transaction:
                    yield transaction
                return
        # The writer has broken the environment, and opens it anew before it lets go.
        with self._settled, self._calls, translated(), self._environment.begin(buffers=True) as transaction:
            yield transaction

    # --- inspecting

    def retention(self, stream: str) -> StreamRetention:
        """What is in force for a stream: set at run time, or else given with its chunks."""
        return self._ring.retention(stream)

    def next_too_old(self, time_ns: int) -> float | None:
        """In how many seconds some stream has messages that are too old."""
        with self._settled:
            return self._ring.next_too_old(time_ns)

    def headers(self, stream: str, start: int, *, count_max: int) -> Sequence[codec.ChunkHeader | Damage]:
        """The headers of the chunks that hold `start` and what follows. The payloads are not read."""
        with self._chunk_cursor(stream) as (_, chunks):
            chunks.seek_holder(start)
            return chunks.headers(start, count_max)

    def status(self) -> Status:
        """How full the store is. Queues and sessions are counted once `recover` was called."""
        with self._calls, translated():
            log = self._log or Log(0)
            oldest = oldest_reader(self._environment)
            return Status(
                lsn=self._lsn,
                size=self._size,
                used=self._used(),
                high_water=used_bytes(self._environment),
                streams_budget=self._ring.budget,
                streams_bytes=self._ring.bytes,
                leaving_bytes=sum(stream.bytes for stream in self._ring.leaving.values()),
                log_bytes=log.bytes,
                log_blocks=len(log.blocks),
                log_unreadable=len(log.unreadable),
                sessions=len(log.values.get(SESSIONS, {})),
                reader_pid=oldest.pid,
                reader_lag=oldest.lag,
                defects=self._defects.known.copy().values(),
                streams=dict(self._ring.streams),
                queues={n: QueueStatus(len(q.messages), q.bytes) for n, q in list(log.queues.items())},
            )

    def pop_defects(self) -> Sequence[Defect]:
        """What was found damaged since the last time, each thing once."""
        return self._defects.pop()

    def verify(self, stream: str | None = None) -> Iterator[Checked]:
        """Read everything, or one stream, in steps of a bounded size, and report each step."""
        for name in [stream] if stream is not None else sorted(self._ring.streams):
            yield from self._verify_stream(name)
        if stream is None:
            yield from self._verify_blocks()

    def _verify_stream(self, name: str) -> Iterator[Checked]:
        start = 0
        while found := self.read(name, start, bytes_max=VERIFY_STEP_BYTES).found:
            yield checked(name, found)
            start = found[-1].last + 1

    def _verify_blocks(self) -> Iterator[Checked]:
        for kind, reason in ((BLOCK, "corrupt"), (QUARANTINE, "quarantined")):
            number = 0
            while step := self._verify_step(kind, number, reason):
                yield step
                number = step.last + 1

    def _verify_step(self, kind: int, number: int, reason: str) -> Checked | None:
        chunks = size = last = 0
        damages = []
        with self._reading() as transaction, transaction.cursor() as cursor:
            found = cursor.set_range(key(kind, 0, number))
            while found and cursor.key()[0] == kind and size < VERIFY_STEP_BYTES:
                last = codec.split_key(cursor.key())[2]
                value = cursor.value()
                chunks, size = chunks + 1, size + len(value)
                if kind == QUARANTINE or not _is_block(value):
                    damages.append(Damage(last, last, reason))
                found = cursor.next()
        return Checked(None, last, chunks, size, damages) if chunks else None

    def backup(self, directory: str | os.PathLike[str], progress: Progress = no_progress) -> Copied:
        """Copy the store, as it is at one moment, into a new directory, while it is in use.

        Raises StoreError if there is a store in `directory` already, StorageFull if there is no room.
        """
        size = self._ring.bytes + (self._log.bytes if self._log else 0)
        with Copy(self._reading, Path(directory), self._size, lambda done: progress(done, size)) as copy:
            return copy.run()

    def close(self) -> None:
        """Release the file and the lock. Waits for calls under way; may be called again."""
        if self._calls.close():
            with suppress(lmdb.Error):  # it is closed already if it could not be opened again
                lengthen(self._environment)
            self._environment.close()
            os.close(self._lock)


class _Outgoing(NamedTuple):
    """The blocks that leave in a transaction, and the entries of them that are written again."""

    blocks: list[Block]
    moved: list[Operation]


def _is_block(value: Any) -> bool:
    try:
        decode_block(value)
    except Damaged:
        return False
    return True
