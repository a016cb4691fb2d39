"""The store: its use, its part of each stream, and backups."""

from __future__ import annotations

from typing import Any

from malamute.protocol.admin.topic import AdminChange, AdminQuery, PagedQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Address, Path


class StoreDamage(Row):
    """A part of the store that is damaged: a range of sequences, or of numbers of blocks."""

    kind: str
    name: str
    first: int
    last: int
    outcome: str


class StoreUsage(Row):
    """The usage of the store. The oldest reader of its directory is `reader_lag` transactions behind.

    `lsn` is the number of the newest transaction. `first_time` is the time of the oldest message of any
    stream, in nanoseconds since the epoch, 0 without a message. The broker's own streams do not count: the
    audit log stays when others have to leave.
    """

    size: int
    used: int
    high_water: int
    streams_budget: int
    streams_bytes: int
    leaving_bytes: int
    log_bytes: int
    log_blocks: int
    log_unreadable: int
    sessions: int
    reader_pid: int
    reader_lag: int
    lsn: int
    damages: list[StoreDamage]
    first_time: int = 0


class StorageQuery(AdminQuery[StoreUsage]):
    """The usage of the store."""

    topic = "storage"


class StoredStream(Row):
    """The stored part of a stream, and its retention; 0 is no limit. `retain_age` is in seconds.

    `first_time` and `last_time` are nanoseconds since the epoch. `retain_source` is the
    origin of the retention: `run time` if set for the stream, `rule` and a pattern of the configuration, the
    name of an option, or `default`.
    """

    identifier: int
    name: str
    first: int
    last: int
    reserved: int
    bytes: int
    count: int
    chunks: int
    first_time: int
    last_time: int
    retain_bytes: int
    retain_count: int
    retain_age: float
    retain_source: str = ""


class StoredQuery(PagedQuery[list[StoredStream]]):
    """The stored part of each stream, or of one."""

    topic = "stored"
    page_key = "name"

    stream: Address = ""


class BackupMade(Row):
    """The directory of a backup, and the counts of its contents; None if it was only planned."""

    directory: str
    streams: int | None = None
    chunks: int | None = None
    bytes: int | None = None
    blocks: int | None = None
    damages: list[Any] | None = None


class JournalBackup(AdminChange[BackupMade]):
    """Copy the store into a new directory below that of the backups, while the broker runs."""

    topic = "journal.backup"

    directory: Path
