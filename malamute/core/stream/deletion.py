"""The end of a stream's history: purged under its name, or deleted together with the name.

For the store both are the deletion of a stream. A purge makes another one of the same name, which goes on
with the old numbers, and stores with it once more all that was set for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from malamute.store.operations import DeleteStream, ForgetStream

if TYPE_CHECKING:
    from malamute.core.stream.stream import Stream
    from malamute.core.stream.table import Streams
    from malamute.errors import MalamuteError


def purge(streams: Streams, stream: Stream, purged: Callable[[], None]) -> None:
    """Drop the history. Readers and values of the stream stay."""
    stream.effects.stage.store(DeleteStream(stream.name))
    # A deletion changes the retention, be there one or not: it stands for all that goes with it.
    streams.retentions.rely_on_changes(stream.name.__eq__)
    stream.cursors.store_anew()
    stream.store_maker()
    if stream.retention is not None:
        stream.retain(stream.retention)
    _drop_before(stream, stream.progress.next, purged)


def delete(streams: Streams, stream: Stream, deleted: Callable[[], None]) -> None:
    """Remove a stream without readers, and its values. Messages that come meanwhile are kept.

    Its name is free then; its sequences are never used again.
    """
    last = stream.progress.last
    streams.duplicates.forget(stream)
    first = stream.unreserve()
    stream.effects.stage.store(DeleteStream(stream.name), ForgetStream(stream.name))
    cursors_gone = stream.cursors.delete_all()
    streams.retentions.put(stream.name, None)

    def gone() -> None:
        cursors_gone()
        stream.forgotten(first)
        if stream.retention is None and not stream.changing:
            streams.drop_untouched(stream)
        deleted()

    _drop_before(stream, first, gone)
    streams.free(stream.name, last, first)


def _drop_before(stream: Stream, first: int, dropped: Callable[[], None]) -> None:
    """Call back when this iteration is stored, which drops all messages before a sequence."""

    def stored(error: MalamuteError | None) -> None:
        if error is None:
            stream.progress.first_kept = max(stream.progress.first_kept, first)
            dropped()

    stream.effects.stage.when_stored(stored)
