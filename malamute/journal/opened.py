"""An open environment of LMDB, and the values of its store that the process keeps in memory.

`Ring`, `Log`, cards and meta record change only after a commit, while `settled` is held. `disk_writer`,
`disk_reader` and `disk_recovery` work on one `OpenedStore`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from malamute.errors import StorageFull, StoreError, StoreLost
from malamute.journal import format as codec
from malamute.journal import pair_record
from malamute.journal.call_guard import CallGuard
from malamute.journal.chunk_cursor import keys_of
from malamute.journal.defects import Defects
from malamute.journal.directory import (
    META_TWIN,
    open_again,
    put_meta,
    read_meta,
    translated,
)
from malamute.journal.fetch import Fetcher
from malamute.journal.format import (
    ASIDE,
    META,
    QUARANTINE,
    key,
)
from malamute.journal.log import Log
from malamute.journal.overlay import NOTHING, Overlay
from malamute.journal.ring import Counted, Ring
from malamute.journal.states import (
    ValueRepair,
    newest_lsn,
    read_states,
)
from malamute.journal.write_ahead import OnAppend
from malamute.journal.write_set import OnCommit
from malamute.store.operations import Defect

ASIDE_WORDS = "put aside in the store: `malamute journal repair` moves it out"
STRANDED_WORDS = "its messages in memory are stored again; the others are dead letters"


class OpenedAgain(StoreError):
    """Raised when a write was not stored, and the environment that it broke was opened anew."""


class OpenedStore:
    """The environment and the values of a store, shared by its writer and its readers."""

    def __init__(
        self,
        environment: lmdb.Environment,
        lock: int,
        size: int,
        budget: int,
        counted: Counted | None,
        on_commit: OnCommit | None = None,
        on_append: OnAppend | None = None,
    ) -> None:
        """Read the states of the streams; `disk_recovery.recover` reads the log."""
        self.environment = environment
        self.path = Path(environment.path())
        self.lock = lock
        self.on_commit = on_commit
        self.on_append = on_append
        self.leaves_pair = False  # the next write takes the record of the pair out
        self.calls = CallGuard()
        self.size = size
        self.page_size: int = environment.stat()["psize"]
        self.reserve = max(size // 32, 32 * self.page_size)
        self.log_floor = min(8 * 1024 * 1024, size // 32)
        self.log: Log | None = None
        self.fetcher = Fetcher(Log(0))
        self.settled = threading.RLock()  # held by a write until memory and disk agree again
        self.behind: Callable[[], Overlay] = lambda: NOTHING  # before a reading (`ahead_writer`)
        self.defects = Defects()
        self.repairs: list[ValueRepair] = []  # damaged values that the next write puts aside
        with environment.begin(buffers=True) as transaction, transaction.cursor() as cursor:
            self.meta = read_meta(transaction)
            self.pair_record = pair_record.read(transaction)
            pair_record.refuse_half(self.pair_record)
            states = read_states(cursor)
            self.repairs += states.repairs
            self._check_metas(transaction)
            self._check_aside(cursor)
            self.lsn = newest_lsn(cursor, self.meta.lsn, states)
        for defect in states.defects:
            self.defects.add(defect)
        self.cards = {card.name: card for card in states.cards.values()}
        self.ring = Ring(states.streams, budget, counted)

    def recovered_log(self) -> Log:
        """Return the log, which is there once `disk_recovery.recover` was called."""
        assert self.log is not None, "recover() comes before the first write"
        return self.log

    def used(self) -> int:
        """Return the bytes of all pages that hold data."""
        pages = self.environment.stat()
        return self.page_size * (pages["branch_pages"] + pages["leaf_pages"] + pages["overflow_pages"])

    def mark_suspect(self, number: int) -> None:
        """Report a block as unreadable. Called by the writer, or while `settled` is held."""
        stranded = self.recovered_log().mark_suspect(number)
        if stranded is not None:
            self.defects.add(Defect("block", "", number, number, STRANDED_WORDS, stranded))

    @contextmanager
    def reading(self) -> Iterator[lmdb.Transaction]:
        """Open a transaction for reading. Raises `StoreError`."""
        with self.calls, translated():
            try:
                transaction = self.environment.begin(buffers=True)
            except lmdb.PanicError:
                transaction = None
            if transaction is not None:
                with transaction:
                    yield transaction
                return
        # The writer has broken the environment, and opens it anew before it releases `settled`.
        with self.settled, self.calls, translated(), self.environment.begin(buffers=True) as transaction:
            yield transaction

    def open_again_if_broken(self, before: int, fault: StoreError | StorageFull) -> bool:
        """Open the environment anew if a commit has broken it. Return whether the commit is stored after all.

        LMDB writes the root last, and restores the old one if that fails. The disk may have the other root
        than the one read, so an empty commit follows at once. `before` is the number of the
        transaction before the failed one.

        Raises `OpenedAgain` if nothing was stored, `StoreError` if the disk refuses another commit, and
        `StoreLost` if the state of the disk is unknown.
        """
        try:
            with self.environment.begin():
                return False
        except lmdb.PanicError:
            pass
        except lmdb.Error:
            return False
        with self.calls.alone():
            self.environment = open_again(self.environment)
            is_there = bool(self.environment.info()["last_txnid"] > before)
            with self.environment.begin(buffers=True) as transaction:
                self.meta = read_meta(transaction)
            try:
                with self.environment.begin(write=True) as transaction:
                    put_meta(transaction, self.meta)
            except lmdb.Error as error:
                if is_there:
                    raise StoreLost(f"unknown what is durable after a failed write: {error}") from fault
                # Broken again: reads work in a new environment, and each write tries again.
                self.environment = open_again(self.environment)
                raise StoreError(f"cannot write to the disk: {error}") from fault
        if not is_there:
            raise OpenedAgain(f"the store was opened again: {fault.text}") from fault
        return True

    def _check_metas(self, transaction: lmdb.Transaction) -> None:
        """Add a repair for the meta record or its twin where they differ."""
        value = codec.encode_meta(self.meta)
        for place in (key(META), META_TWIN):
            found = transaction.get(place)
            if found is None:
                self.repairs.append(ValueRepair(place, None, value))
            elif found is not None and found != value:
                self.repairs.append(ValueRepair(place, bytes(found), value))
                self.defects.add(Defect("meta", "", 0, 0, "it was rebuilt from its twin"))

    def _check_aside(self, cursor: lmdb.Cursor) -> None:
        """Report the values and blocks that were put aside before."""
        aside, self.quarantined = (
            [codec.split_key(place)[2] for place in keys_of(cursor, kind)] for kind in (ASIDE, QUARANTINE)
        )
        self.aside_next = max(aside, default=0) + 1
        if aside:
            self.defects.add(Defect("aside", "", 1, self.aside_next - 1, ASIDE_WORDS))
        for number in self.quarantined:
            self.defects.add(Defect("block", "", number, number, ASIDE_WORDS))
