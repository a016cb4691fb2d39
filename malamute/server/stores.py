"""The stores that have names: how they are opened, and what tells that each is the one it should be.

The broker's own store knows the id of each of them, and each knows the id of the broker's own. So a mount
that is missing, which leaves an empty directory behind, does not become a new empty store, and a directory of
another broker is not written to. Whatever is wrong with one of them, the broker starts without it: its
streams are refused by name, and `malamute broker check` says why.

What a store that is not there may have used of sequences nobody knows. So while there is such a one, new
streams begin where none can have been.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread

import structlog

from malamute.config import STREAMS_SHARE
from malamute.config.sections import StoreTable
from malamute.core.stores import FoundStore
from malamute.errors import MalamuteError, StorageFull, StoreError
from malamute.journal.directory import PAGE, check_private
from malamute.journal.disk import DiskStore
from malamute.journal.memory import MemoryStore
from malamute.journal.store import Store, next_incarnation
from malamute.server.clock import counted
from malamute.store.operations import PutValue, Recovered
from malamute.store.tables import OWN, OWNER, STORES

log = structlog.get_logger("malamute")

OPEN_SECONDS = 30.0
"""How long the broker waits at the start for a store that it knows."""

Opened = tuple[Store, Recovered]


@dataclass
class NamedStores:
    """Those that could be opened, and what was found of each that is configured."""

    open: dict[str, Store] = field(default_factory=dict)
    found: dict[str, FoundStore] = field(default_factory=dict)
    begin: int = 0
    """Behind which sequence new streams begin."""
    unknown: tuple[str, ...] = ()
    """The names of those that the broker had before, and that are not configured any more."""

    def close(self) -> None:
        """Close them."""
        for store in self.open.values():
            store.close()


def open_stores(
    tables: Sequence[StoreTable],
    own: Store,
    recovered: Recovered,
    now: float,
    open_one: Callable[[StoreTable], Store],
) -> NamedStores:
    """Open the stores that are configured, as far as they can be. `own` is the broker's, as `recovered`."""
    known: Mapping[str, bytes] = {name: bytes(ident) for (name,), ident in recovered.table(STORES).items()}
    stores = NamedStores()
    for table in tables:
        found: Recovered | MalamuteError
        try:
            ident = known.get(table.name)
            opening = partial(_opened, table, ident, recovered.broker_id, now, open_one)
            # What a new one needs may take long: the whole of its size is taken from the disk.
            store, found = _patiently(table, opening) if ident else opening()
            if table.kind != "memory" and known.get(table.name) != found.broker_id:
                _remember(table, store, found, own)
            stores.open[table.name] = store
        except (StoreError, StorageFull) as error:
            found = error
        except OSError as error:
            found = StoreError(f"cannot use {table.directory}: {error.strerror}")
        # No look at the disk, which may hang.
        directory = "" if table.directory is None else str(table.directory.absolute())
        stores.found[table.name] = FoundStore(found, table.kind, directory, table.backlog)
    stores.unknown = tuple(name for name in known if name not in stores.found)
    if any(name not in stores.open or not known[name] for name in known):
        stores.begin = next_incarnation(now, max(recovered.incarnations, default=0))
    return stores


def _patiently(table: StoreTable, opening: Callable[[], Opened]) -> Opened:
    """Open one that was there before, or give up: its disk may hang. Raises `StoreError`."""
    opened: Future[Opened] = Future()

    def open_it() -> None:
        try:
            store, found = opening()
        except BaseException as error:  # raised again by whoever waits, if anybody still does
            with suppress(InvalidStateError):
                opened.set_exception(error)
            return
        try:
            opened.set_result((store, found))
        except InvalidStateError:
            store.close()

    Thread(target=open_it, name=f"malamute-opening-{table.name}", daemon=True).start()
    try:
        return opened.result(OPEN_SECONDS)
    except TimeoutError:
        if opened.cancel():
            raise StoreError(f"{table.directory} has not answered for {OPEN_SECONDS:g} s") from None
        return opened.result()


def _remember(table: StoreTable, store: Store, found: Recovered, own: Store) -> None:
    """Have the broker's own store know a new one. Without that it is not used."""
    try:
        own.write([PutValue(STORES, (table.name,), found.broker_id)])
    except BaseException:
        store.close()
        raise


def _opened(
    table: StoreTable,
    known: bytes | None,
    owner: bytes,
    now: float,
    open_one: Callable[[StoreTable], Store],
) -> Opened:
    """Open one of them. Raises what stands against that, as `StoreError` in most cases."""
    if table.kind == "memory":
        store = open_one(table)
        return store, store.recover(now=now)
    assert table.directory is not None, "the configuration is checked"
    check_private(table.directory)
    is_there = (table.directory / "data.mdb").is_file()
    if known and not is_there:
        raise StoreError(
            f"{table.directory} has no store, and had one before: is its disk mounted? "
            f"If it is gone for good, `malamute journal forget-store {table.name}`"
        )
    store = open_one(table)
    try:
        found = store.recover(records_bytes=0, now=now)
        _check(table, known, found, owner)
        if not found.table(OWNER):
            store.write([PutValue(OWNER, OWN, owner)])
    except BaseException:
        store.close()
        raise
    return store, found


def _check(table: StoreTable, known: bytes | None, found: Recovered, owner: bytes) -> None:
    """Raise `StoreError` for a store that is not the one of this name of this broker."""
    of = found.table(OWNER).get(OWN)
    if of is None and (found.streams or found.queues or found.values):
        raise StoreError(
            f"{table.directory} is the data directory of a broker: expected one for a store alone"
        )
    if of is not None and bytes(of) != owner:
        raise StoreError(f"{table.directory} has a store of another broker")
    if known and known != found.broker_id:
        raise StoreError(
            f"{table.directory} has another store than the one that was called {table.name!r}; "
            f"if that one is gone for good, `malamute journal forget-store {table.name}`"
        )


def report_size(store: Store, configured: int, name: str = "") -> None:
    """Report a size that was lowered: the file stays as large as it is."""
    size = store.status().size
    # A size is rounded up to whole pages.
    if size - configured >= PAGE:
        which = {"store": name} if name else {}
        log.warning(
            "the size of the store was lowered: a store never shrinks, and stays as large as it is",
            **which,
            configured=configured,
            size=size,
        )


def open_named(table: StoreTable, *, reads_all: bool = False) -> Store:
    """Open the store that a table of the configuration names, and read all of it first if asked for.

    Raises `StoreError`.
    """
    budget = int(table.size * STREAMS_SHARE)
    if table.kind == "memory":
        store = MemoryStore(size=table.size, streams_budget=budget, broker_id=os.urandom(16), counted=counted)
        # What it had before is gone: as with a copy, what it gives out now is another incarnation.
        store.copied = True
        return store
    disk = DiskStore.open(
        Path(str(table.directory)),
        size=table.size,
        preallocate=table.preallocate,
        streams_budget=budget,
        counted=counted,
        reads_all=reads_all,
    )
    report_size(disk, table.size, table.name)
    return disk
