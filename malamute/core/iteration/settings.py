"""The settings of the core, from the configuration, and their change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from malamute.access import Accounts, Policy
from malamute.protocol.admin import BrokerOption
from malamute.protocol.limits import Limits
from malamute.store.policies import (
    DURABLE,
    BucketPersistenceOf,
    PolicyOf,
    QueuePolicy,
    StreamPolicy,
    StreamPolicyOf,
)


class Settings(NamedTuple):
    """The settings of the core. Times are in seconds."""

    limits: Limits = Limits()
    seed: int = 0
    """Where the turns of equals begin: any number of 64 bits."""
    session_expiry: float = 600.0
    probe_interval: float = 0.5
    streams: StreamPolicyOf = lambda stream: StreamPolicy()
    unjournaled: bool = False
    """Whether there may be a stream without a journal."""
    queues: PolicyOf = lambda kind, name: QueuePolicy()
    buckets: BucketPersistenceOf = lambda name: DURABLE
    lifecycle_events: bool = False
    """Whether `$sys` reports events of clients, streams, queues and the store."""
    settled_events: bool = False
    """Whether `$sys` reports the history of each queued message."""
    audit: bool = False
    """Whether `$audit` has every administrative change."""
    access: Policy = Policy()
    """The rules of access."""
    accounts: Accounts = Accounts()
    """The accounts of the configuration's file, which are never changed."""
    software: str = ""
    backups: str = ""
    """The directory below which backups are made; none if nothing is kept on a disk."""
    options: Sequence[BrokerOption] = ()
    """The rows of the query `options`, without the mark of options that wait for a restart."""
    urls: Sequence[str] = ()
    """The URLs of the brokers of a pair, for WELCOME."""
    facts: Mapping[str, Any] = {}
    """Fields of `status` from outside the core."""


class ConfigurationLoaded(NamedTuple):
    """A configuration that was read and is valid.

    `settings` is its part for a running broker, `changed` the options that differ from the ones in force, and
    `waiting` those that wait for the next start.
    """

    settings: Settings
    changed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    edge: Any = None
    """The part of the edge, which gave it to the core."""


class ConfigurationInForce:
    """The configuration in force, and the result of the last load."""

    def __init__(self, settings: Settings, now: float) -> None:
        self.settings = settings
        self.loaded_at = now
        self.waiting: tuple[str, ...] = ()
        """Options of the configuration that was loaded last, which wait for the next start."""
        self.error = ""
        """Why the configuration that was to be loaded last was refused."""
