"""Quotas: how much of the broker a user may have, or the users of a group together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

USER, GROUP = "user", "group"
"""The kinds of owners of a quota."""

Owner = tuple[str, str]
"""The kind and the name of the owner of a quota."""


class Quota(NamedTuple):
    """The limits of one owner. None is no limit beyond those of the broker."""

    connections: int | None = None
    """Sessions that are connected."""
    sessions: int | None = None
    """Sessions, connected or waiting to be resumed."""
    sources: int | None = None
    """Subscriptions and offers."""
    selector_bytes: int | None = None
    """Memory of sources with their selectors, as the limit `session_selector_bytes` counts it."""
    queues: int | None = None
    """Existing mailboxes and services that the owner has created by messages, requests or offers."""
    streams: int | None = None
    """Existing streams that the owner has created by publishing or subscribing."""
    cursors: int | None = None
    """Cursors of the owner, in all streams."""
    requests: int | None = None
    """Requests that wait for their settlement."""
    queued_bytes: int | None = None
    """Bytes of unsettled messages of the owner in mailboxes and services."""
    bucket_keys: int | None = None
    """Keys in buckets that the owner was the last to put."""
    bucket_bytes: int | None = None
    """Memory of these keys with their values, as the limit `buckets_bytes` counts it."""
    messages_per_second: int | None = None
    """Messages published and sent, and requests."""
    bytes_per_second: int | None = None
    """Bytes of these messages, with their headers."""


UNLIMITED = Quota()

RATES = ("messages_per_second", "bytes_per_second")
"""Quotas of a rate. All others count held resources."""

HELD = tuple(name for name in Quota._fields if name not in RATES)


class Quotas(NamedTuple):
    """All quotas: the default of each user, and those of users and of groups by name."""

    each: Quota = UNLIMITED
    users: Mapping[str, Quota] = {}
    groups: Mapping[str, Quota] = {}

    def of(self, owner: Owner) -> Quota:
        """Return the quota of a user or of a group."""
        kind, name = owner
        return self.users.get(name, self.each) if kind == USER else self.groups.get(name, UNLIMITED)

    def owners(self, user: str, groups: Iterable[str]) -> Iterator[Owner]:
        """Return the owners of the quotas of a user: the user first, then the user's groups."""
        named = [(USER, user), *((GROUP, group) for group in sorted(groups))]
        return (owner for owner in named if self.of(owner) != UNLIMITED)

    @property
    def named(self) -> Iterator[Owner]:
        """The owners with a quota by their names."""
        yield from ((USER, name) for name in self.users)
        yield from ((GROUP, name) for name in self.groups)


NO_QUOTAS = Quotas()
