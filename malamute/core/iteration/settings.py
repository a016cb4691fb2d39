"""What the core has to know of the configuration, and how it gets another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from malamute.access import Accounts, Policy
from malamute.protocol.admin import BrokerOption
from malamute.protocol.limits import Limits
from malamute.store.policies import PolicyOf, QueuePolicy, StreamPolicy, StreamPolicyOf


class Settings(NamedTuple):
    """What the core has to know of the configuration. Times are in seconds."""

    limits: Limits = Limits()
    seed: int = 0
    """Where the turns of equals begin: any number of 64 bits."""
    session_expiry: float = 600.0
    probe_interval: float = 0.5
    streams: StreamPolicyOf = lambda stream: StreamPolicy()
    unjournaled: bool = False
    """Whether there may be a stream without a journal."""
    queues: PolicyOf = lambda kind, name: QueuePolicy()
    lifecycle_events: bool = False
    """Whether `$sys` reports what happens to clients, streams, queues and the store."""
    settled_events: bool = False
    """Whether `$sys` reports the history of each queued message."""
    audit: bool = False
    """Whether `$audit` has every administrative change."""
    access: Policy = Policy()
    """The rules of access."""
    accounts: Accounts = Accounts()
    """The users who may log in, as the file of the configuration has them. Nobody changes them."""
    software: str = ""
    backups: str = ""
    """The directory below which backups are made; none if nothing is kept on a disk."""
    options: Sequence[BrokerOption] = ()
    """What the query `options` answers, but for what waits for a restart."""
    facts: Mapping[str, Any] = {}
    """What `status` has beyond what the core knows."""


class ConfigurationLoaded(NamedTuple):
    """A configuration that was read and found good.

    `settings` is what of it a running broker can go by, `changed` the options that differ from what was in
    force, and `waiting` those that wait for the next start.
    """

    settings: Settings
    changed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    edge: Any = None
    """What the edge goes by that gave it to the core."""


class ConfigurationInForce:
    """The configuration that the broker goes by, and what became of the one that was loaded last."""

    def __init__(self, settings: Settings, now: float) -> None:
        self.settings = settings
        self.loaded_at = now
        self.waiting: tuple[str, ...] = ()
        """Options of the configuration that was loaded last, which wait for the next start."""
        self.error = ""
        """Why the configuration that was to be loaded last was refused."""
