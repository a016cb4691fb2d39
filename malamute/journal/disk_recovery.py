"""The start of a store on LMDB: the log is read, and corrected by the cards of the streams.

After a crash the file has the old root or the new one, so no repair is needed. Damaged blocks are salvaged,
and their losses reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from malamute.journal.blocks import decode_block, salvage, undeleted
from malamute.journal.chunk_cursor import values_of
from malamute.journal.directory import translated
from malamute.journal.fetch import Fetcher
from malamute.journal.format import BLOCK, Damaged
from malamute.journal.log import Log, messages_in
from malamute.journal.opened import OpenedStore
from malamute.journal.states import (
    make_cards,
    settle_by_cards,
)
from malamute.journal.store import (
    next_incarnations,
    stream_state,
)
from malamute.journal.values import Values
from malamute.store.operations import (
    Defect,
    Key,
    PutValue,
    Recovered,
)
from malamute.store.tables import CURSORS, OF_STREAMS, RETENTIONS


def recover(store: OpenedStore, *, records_bytes: int | None = None, now: float | None = None) -> Recovered:
    """Read the log, and return the state of the core; the parameters are those of `DiskStore.recover`."""
    with store.calls, translated():
        log = Log(store.log_floor)
        values = Values(records_bytes)
        lost: Set[tuple[str, Key]] = set()
        for number, value in _blocks(store):
            try:
                entries = decode_block(value)
            except Damaged as error:
                salvaged = salvage(value)
                puts = log.skip(number, len(value), undeleted(salvaged))
                values.apply_damaged(puts)
                lost |= {(e.table, e.key) for e in salvaged if type(e) is PutValue and e.table == CURSORS}
                outcome = f"{error}; {sum(map(messages_in, puts))} messages of it are dead letters"
                store.defects.add(Defect("block", "", number, number, outcome))
            else:
                log.apply(number, len(value), entries)
                values.apply(entries)
        suspect = max([*log.unreadable, *store.quarantined], default=0)
        found, missing = settle_by_cards(values.of_tables(log), store.cards.values(), is_suspect=suspect > 0)
        lost = missing | {
            (table, key)
            for table, key in lost
            if key[0] not in store.cards and key not in found.get(table, {})
        }
        store.cards = make_cards(found, store.cards)
        for _, (stream, cursor) in sorted(lost):
            name = f"{stream!s} for {cursor!s}"
            store.defects.add(Defect("cursor", name, 0, 0, "its position is lost"))
        store.log = log
        store.fetcher = Fetcher(log)
        store.ring.restore(found.get(RETENTIONS, {}), now)
        return Recovered(
            broker_id=store.meta.broker_id,
            streams={s.name: stream_state(s) for s in store.ring.streams.values()},
            queues=values.queues(log),
            values=found,
            lost=frozenset(lost),
            doubtful=frozenset(
                (table, key)
                for table, key, (block, _) in log.places()
                if block.number < suspect and (table == CURSORS or table not in OF_STREAMS)
            ),
            defects=tuple(store.defects.pop()),
            incarnations=store.meta.incarnations,
            restored=now is not None and store.meta.copied,
            refused={card.name: card.notes for card in store.cards.values() if card.refused},
            lsn=store.lsn,
        )


def begun_incarnations(store: OpenedStore, now: float) -> tuple[int, ...]:
    """Return the incarnations of a copy on which a broker begins."""
    used = [store.ring.used, *(queue.next for queue in store.recovered_log().queues.values())]
    return next_incarnations(now, store.meta.incarnations, used, store.ring.newest)


def _blocks(store: OpenedStore) -> Iterator[tuple[int, bytes]]:
    """Yield all blocks in order, in one transaction: before the first write it may be long."""
    with store.environment.begin() as transaction, transaction.cursor() as cursor:
        yield from values_of(cursor, BLOCK)
