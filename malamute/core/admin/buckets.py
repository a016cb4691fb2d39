"""Queries about buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from malamute.core.admin.pages import page_of
from malamute.protocol.admin import BucketRow, BucketsQuery
from malamute.store.policies import DURABLE, MEMORY

if TYPE_CHECKING:
    from malamute.core.bucket.table import Buckets
    from malamute.core.iteration.effects import Effects


def buckets(effects: Effects, buckets: Buckets, query: BucketsQuery) -> list[BucketRow]:
    """Return the buckets by name."""
    return [
        BucketRow(
            name=bucket.name,
            persistence=MEMORY if bucket.in_memory else DURABLE,
            keys=len(bucket.keys),
            bytes=bucket.keys.bytes,
            watches=bucket.watches,
        )
        for bucket in page_of(effects, buckets.by_name, query.after_name, query.limit)
    ]
