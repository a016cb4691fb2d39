"""The stored rule of a feed, and its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

from malamute.core.feed.key import FeedKey
from malamute.core.identity.access import ANONYMOUS, Principal
from malamute.errors import NotFound
from malamute.matching import Selector
from malamute.protocol.batch import pack, unpack
from malamute.protocol.fields import FEED_PREFIX
from malamute.protocol.names import Place
from malamute.store.operations import DeleteValue, PutValue
from malamute.store.tables import CURSORS, FEEDS, QUEUE_FEEDS


class FeedName(NamedTuple):
    """The identity of a feed: its source, and its name there."""

    source: Place
    name: str

    @property
    def cursor(self) -> str:
        """The name of its cursor, if its source is a stream."""
        return FEED_PREFIX + self.name

    def __str__(self) -> str:
        return f"{self.name} from {self.source}"

    def put(self, value: bytes) -> PutValue:
        """Return the operation that stores its rule."""
        return PutValue(*self._key, value)

    def delete(self) -> Iterator[DeleteValue]:
        """Return the operations that delete it, and its position if it has one."""
        yield DeleteValue(*self._key)
        if self.source.kind == "stream":
            yield DeleteValue(CURSORS, (self.source.name, self.cursor))

    @property
    def _key(self) -> tuple[str, tuple[str, ...]]:
        kind, name = self.source
        return (FEEDS, (name, self.name)) if kind == "stream" else (QUEUE_FEEDS, (kind, name, self.name))

    @classmethod
    def of(cls, table: str, key: Sequence[Any]) -> Self:
        """That of a rule in the store."""
        return cls(Place(*key[:2]) if table == QUEUE_FEEDS else Place("stream", key[0]), key[-1])

    @property
    def missing(self) -> NotFound:
        """The error for a feed that is not there."""
        return NotFound(f"there is no feed {self.name!r} from {self.source}")


class FeedRule(NamedTuple):
    """The criteria of a feed, its target, and the user whose rights it has.

    The user is unknown for a feed stored by an earlier version.
    """

    criteria: Sequence[Any]
    where: str
    setter: Principal = ANONYMOUS
    """The principal that has set it: it acts with those rights."""
    stopped: str = ""
    """Why it takes nothing until an operator sets it again: those rights have ended."""
    began: Sequence[int] = ()
    """Where it began in the past: the position, and the last sequence of the stream then."""
    target: Place = Place("stream", "")
    operation: str = "copy"
    when: str = "match"
    enabled: bool = True
    key: str = ""
    """The key of each message at the target, as `FeedKey.parse` takes it; empty for none."""

    @classmethod
    def parse(cls, name: str, value: bytes) -> Self:
        """Return the rule of a packed value. An earlier version knew only feeds to services.

        One had a field more.
        """
        criteria, where, *others = unpack(value)
        found = cls(criteria, where, *others[: len(cls._fields) - 2])
        if found.key:
            FeedKey.parse(found.key)
        if found.setter is not ANONYMOUS:
            found = found._replace(setter=Principal.of(found.setter))
        target = Place.parse(others[3]) if len(others) > 3 else Place("service", name)
        return found._replace(target=target)

    def packed(self) -> bytes:
        """The rule as it is stored."""
        plain = self._replace(setter=self.setter.stored(), target=str(self.target))  # type: ignore[arg-type]  # as it is stored
        value: bytes = pack(tuple(plain))
        return value

    def shown(self, name: FeedName, working: str) -> dict[str, Any]:
        """The fields of a row about the feed, which is `working` like that unless it rests."""
        state = working if self.active else "stopped" if self.stopped else "disabled"
        return {
            "source": str(name.source),
            "feed": name.name,
            "target": str(self.target),
            "operation": self.operation,
            "when": self.when,
            "key": self.key,
            "criteria": [[*criterion] for criterion in self.selector.criteria],
            "where": self.where,
            "state": state,
            "user": self.setter.user,
            "reason": self.stopped,
        }

    @property
    def selector(self) -> Selector:
        """Return its selector. Raises `InvalidSelector` for a plug-in family that is missing."""
        return Selector.parse(self.criteria, self.where)

    @property
    def moves(self) -> bool:
        """Whether its messages leave the source."""
        return self.operation == "move"

    @property
    def active(self) -> bool:
        """Whether it takes anything."""
        return self.enabled and not self.stopped
