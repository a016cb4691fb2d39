"""Reading the records of queued messages, one block at a time.

Theory. The log knows the block of every message. A block is read and checked as a whole, so the messages of
one fetch are taken block by block, and the blocks read last are kept: a queue that is worked off in
order reads each block once, however small the steps are. Blocks never change, and their numbers are not
used again while the process lives, so what was read stays true.

A reader and the writer: compaction moves messages to other blocks. The log in memory changes after the
commit, so a place may be ahead of a read transaction or behind it. A block that is not where it should be
then says that its messages have moved, or that they are gone.
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
"""Blocks that are kept in memory: where one fetch ends and where the one beside it does."""

GetBlock = Callable[[int], bytes | memoryview | None]


class Fetcher:
    """Finds records in the blocks of a log. May be used by several threads."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._cache: dict[int, RecordsByQueue] = {}

    def fetch(
        self, get_block: GetBlock, kind: QueueKind, queue: str, sequences: Sequence[int]
    ) -> tuple[dict[int, bytes], list[int]]:
        """The records that were found, and the sequences whose blocks are not there or cannot be read.

        What the log does not have is in neither.
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
        """The blocks that hold these messages, and which of them."""
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
        """The records of a block; none if it is not there or cannot be read."""
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
