"""Buckets: what keys they have, all together."""

from __future__ import annotations

from malamute.protocol.admin.topic import PagedQuery
from malamute.protocol.admin.value import Row


class BucketRow(Row):
    """A bucket: its keys, the memory that they take, and the sources that watch some of them."""

    name: str
    persistence: str
    keys: int
    bytes: int
    watches: int


class BucketsQuery(PagedQuery[list[BucketRow]]):
    """All buckets."""

    topic = "buckets"
    page_key = "name"
