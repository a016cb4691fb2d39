"""Quotas: how much of the broker a user may have, or the users of a group together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

USER, GROUP = "user", "group"
"""Whose a quota is."""

Owner = tuple[str, str]
"""The kind and the name of the owner of a quota."""


class Quota(NamedTuple):
    """What one may have. None is no limit beyond those of the broker."""

    connections: int | None = None
    """Sessions that are connected."""
    sessions: int | None = None
    """Sessions, connected or waiting to be resumed."""
    sources: int | None = None
    """Subscriptions and offers."""
    selector_bytes: int | None = None
    """Memory of those and of their selectors, as `limits.session_selector_bytes` counts it."""
    queues: int | None = None
    """Mailboxes and services that were made by what they sent, asked or offered, and are still there."""
    streams: int | None = None
    """Streams that were made by what they published or subscribed to, and are still there."""
    cursors: int | None = None
    """Cursors that are theirs, in all streams."""
    requests: int | None = None
    """Requests that wait for their settlement."""
    queued_bytes: int | None = None
    """Bytes of messages in mailboxes and services that they have sent, and that are not settled."""
    messages_per_second: int | None = None
    """Messages that are published, sent or asked."""
    bytes_per_second: int | None = None
    """Bytes of those, with their headers."""


UNLIMITED = Quota()

RATES = ("messages_per_second", "bytes_per_second")
"""What is counted by time. All else is held, and given back."""

HELD = tuple(name for name in Quota._fields if name not in RATES)


class Quotas(NamedTuple):
    """All quotas: what each user has who has no other, and those of users and of groups by name."""

    each: Quota = UNLIMITED
    users: Mapping[str, Quota] = {}
    groups: Mapping[str, Quota] = {}

    def of(self, owner: Owner) -> Quota:
        """The quota of a user or of a group."""
        kind, name = owner
        return self.users.get(name, self.each) if kind == USER else self.groups.get(name, UNLIMITED)

    def owners(self, user: str, groups: Iterable[str]) -> Iterator[Owner]:
        """The owners of the quotas that a user is under: the user first, then the user's groups."""
        named = [(USER, user), *((GROUP, group) for group in sorted(groups))]
        return (owner for owner in named if self.of(owner) != UNLIMITED)

    @property
    def named(self) -> Iterator[Owner]:
        """Those who have one by their names."""
        yield from ((USER, name) for name in self.users)
        yield from ((GROUP, name) for name in self.groups)


NO_QUOTAS = Quotas()
