"""Compaction of the log: dead blocks are deleted, and live entries of the oldest blocks are appended again.

Each write deletes old blocks in its own transaction. The bytes that it may move depend on the bytes that it
adds, so compaction costs a constant factor, and needs no thread of its own.
"""

from __future__ import annotations

from itertools import islice, takewhile
from typing import NamedTuple

import lmdb

from malamute.journal.block_map import Block
from malamute.journal.blocks import decode_block
from malamute.journal.format import BLOCK, QUARANTINE, Damaged, key
from malamute.journal.log import Log
from malamute.journal.opened import OpenedStore
from malamute.journal.plan import Plan, weight_of
from malamute.store.operations import Operation

COMPACTION_RATIO = 4
"""Bytes of old blocks that a transaction may compact for each byte that it appends."""

DROPS_MIN, DROPS_MAX = 16, 32
"""Dead blocks that a transaction deletes: fewer wait for a later one, as the old end of a long log is in
pages of its own. Each added block raises the maximum by one."""


class Outgoing(NamedTuple):
    """The blocks that leave in a transaction, and their live entries, which are written again."""

    blocks: list[Block]
    moved: list[Operation]


def delete_blocks(
    transaction: lmdb.Transaction,
    store: OpenedStore,
    plan: Plan,
    block_bytes_max: int,
    floor_bytes: int | None,
) -> Outgoing:
    """Delete dead blocks, and the oldest blocks that are worth compacting.

    With a `floor_bytes` of 0 the write would be refused otherwise: it may move more, as long as the moved
    entries have room in the reserve.
    """
    log = store.recovered_log()
    outgoing = Outgoing([], [])
    is_wasteful, is_relief = log.is_wasteful(floor_bytes), floor_bytes == 0
    if not (is_wasteful or log.unreadable or has_drops(log, 1 if is_relief else DROPS_MIN, block_bytes_max)):
        return outgoing
    added = store.reserve // 2 if is_relief else COMPACTION_RATIO * sum(len(v) for _, v in plan.blocks)
    allowance = max(1, added)
    for block in islice(log.blocks, DROPS_MAX + len(plan.blocks)):
        if block.number in log.unreadable:
            if not log.is_settled(block):
                break
            _quarantine(transaction, block)
            outgoing.moved.extend(log.counters())
        elif block.live:
            before = len(outgoing.moved)
            if not is_wasteful or allowance <= 0 or not _move(transaction, store, block, outgoing.moved):
                break
            allowance -= sum(map(weight_of, outgoing.moved[before:])) if is_relief else block.size
        transaction.delete(key(BLOCK, 0, block.number))
        outgoing.blocks.append(block)
    return outgoing


def has_drops(log: Log, least: int, block_bytes_max: int) -> bool:
    """Return whether `least` of the oldest blocks are dead, or dead blocks have the bytes of a full block."""
    blocks = log.blocks
    if not blocks or blocks[0].live:
        # The usual case after a transaction.
        return False
    dead = [block.size for block in takewhile(lambda block: not block.live, islice(blocks, least))]
    return len(dead) >= least or sum(dead) >= block_bytes_max


def _move(transaction: lmdb.Transaction, store: OpenedStore, block: Block, moved: list[Operation]) -> bool:
    """Add the live entries of a block to `moved`; return False if the block is not readable any more."""
    try:
        entries = decode_block(transaction.get(key(BLOCK, 0, block.number), b""))
    except Damaged:
        store.mark_suspect(block.number)
        return False
    moved += store.recovered_log().live_entries(block, entries)
    return True


def _quarantine(transaction: lmdb.Transaction, block: Block) -> None:
    """Copy a damaged block under a key that recovery does not read."""
    value = transaction.get(key(BLOCK, 0, block.number))
    if value is not None:
        transaction.put(key(QUARANTINE, 0, block.number), bytes(value))
