"""Reading the records of queued messages, one block at a time.

Theory. The log knows the block of every message. A block is read and checked as a whole, so a fetch takes its
messages block by block, and the blocks read last are cached: a queue that is consumed in order reads each
block once, even in the smallest steps. Blocks never change, and their numbers are not used again while the
process lives, so a cached block is never outdated.

Compaction moves messages to other blocks. The log in memory changes after the commit, so a read transaction
may see an older or a newer state than the log. The messages of a missing block have moved, or were deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from malamute.journal.blocks import decode_records
from malamute.journal.format import Damaged
from malamute.journal.log import Log
from malamute.store.codec import RecordsByQueue
from malamute.store.operations import QueueKind

CACHED_BLOCKS = 2
"""Blocks in the cache: the last one of a fetch, and the last one of a concurrent fetch."""

GetBlock = Callable[[int], bytes | memoryview | None]


class Fetcher:
    """Finds records in the blocks of a log; any thread may call it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._cache: dict[int, RecordsByQueue] = {}

    def fetch(
        self, get_block: GetBlock, kind: QueueKind, queue: str, sequences: Sequence[int]
    ) -> tuple[dict[int, bytes], list[int]]:
        """Return the records found, and the sequences with a missing or unreadable block.

        Messages that the log does not have are in neither.
        """
        found: dict[int, bytes] = {}
        missing: list[int] = []
        for number, wanted in self.blocks(kind, queue, sequences).items():
            records = self._block(get_block, number).get((kind, queue), {})
            try:
                found.update(zip(wanted, [*map(records.__getitem__, wanted)], strict=True))
            except KeyError:
                found |= {sequence: records[sequence] for sequence in wanted if sequence in records}
                missing += [sequence for sequence in wanted if sequence not in records]
        return found, missing

    def blocks(self, kind: QueueKind, queue: str, sequences: Sequence[int]) -> dict[int, list[int]]:
        """Return these messages by the block that holds them."""
        blocks: dict[int, list[int]] = {}
        state = self._log.queues.get((kind, queue))
        if state is not None:
            end = 0
            for block, group in groupby(state.messages.blocks_of(sequences)):
                start, end = end, end + len([*group])
                if block is not None:
                    blocks.setdefault(block.number, []).extend(sequences[start:end])
        return blocks

    def _block(self, get_block: GetBlock, number: int) -> RecordsByQueue:
        """Return the records of a block; none if the block is missing or unreadable."""
        cache = self._cache
        records = cache.get(number)
        if records is None:
            value = get_block(number)
            try:
                records = decode_records(value) if value is not None else {}
            except Damaged:
                records = {}
            if records:
                # A new dictionary, for the sake of other threads.
                self._cache = dict([*cache.items(), (number, records)][-CACHED_BLOCKS:])
        return records
