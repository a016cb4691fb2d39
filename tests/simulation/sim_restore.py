"""Backups: a copy of the store at some moment, which later takes the place of the store.

What was stored after that moment is gone, whoever had it or its confirmation. All books go back with the
store: what streams have of later is dead, and whoever has had it is owed a GAP for that. What has left a
queue since then is back, and may come to whoever has had it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sim_book import Book
    from sim_queues import QueueCopy

    from malamute.journal.memory import MemoryStore


class Backup(NamedTuple):
    """A copy of the store, and what the books say of its moment."""

    store: MemoryStore
    stored: dict[str, set[int]]
    cursors: dict[tuple[str, str], int]
    damaged: set[tuple[str, int]]
    queues: QueueCopy


def back_up(store: MemoryStore, book: Book) -> Backup:
    """Copy the store."""
    stored = {
        stream: {sequence for sequence, place in places.items() if place.stored}
        for stream, places in book.streams.places.items()
    }
    return Backup(
        store.copy(), stored, dict(book.cursors_stored), set(book.streams.damaged), book.queues.copy()
    )


def restore(backup: Backup, book: Book) -> MemoryStore:
    """The store that takes the place of the one that is lost. The broker was killed before."""
    store = backup.store.copy()
    book.cursors_stored = dict(backup.cursors)
    book.streams.restored(store, backup.stored, set(backup.damaged))
    book.queues.restored(backup.queues)
    book.answers.clear()
    for order in book.each_order():
        # Whoever is still to read that it was stored may send it again, and be answered otherwise.
        lost = order.kind == "commit" or (
            order.kind == "publish" and not book.streams.ever_stored.issuperset(order.bodies)
        )
        # What is in the queues was executed, and what came later may be again.
        order.twice |= (order.outcome is True and lost) or order.kind in ("send", "request", "reply")
        if order.outcome is False and order.command is not None and not order.command.done:
            order.outcome = None
    return store
