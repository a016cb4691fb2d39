"""The stored rule of a link, and its position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from malamute.core.identity.access import Principal
from malamute.matching import Selector
from malamute.protocol.batch import pack, unpack

PAUSED = "paused"


class LinkRule(NamedTuple):
    """The source of a link, its criteria, its target, and the user whose rights it has."""

    urls: Sequence[str]
    stream: str
    into: str
    criteria: Sequence[Any]
    where: str
    start: str
    context: str
    setter: Principal
    generation: int
    paused: bool = False
    stopped: str = ""
    """Why it carries nothing until an operator sets it again."""

    @classmethod
    def parse(cls, value: bytes) -> Self:
        """Return the rule of a packed value. Raises an exception of any kind for anything else."""
        found = cls(*unpack(value)[: len(cls._fields)])
        Selector.parse(found.criteria, found.where)
        return found._replace(setter=Principal.of(found.setter))

    def packed(self) -> bytes:
        """Return the rule as it is stored."""
        value: bytes = pack(tuple(self._replace(setter=self.setter.stored())))  # type: ignore[arg-type]  # as it is stored
        return value

    @property
    def rests(self) -> str:
        """Return the state of a link that carries nothing by its rule; empty for one that may."""
        return "stopped" if self.stopped else PAUSED if self.paused else ""


class LinkPosition(NamedTuple):
    """How far a link of a generation has come in the source: `N@STORE`, or empty before its beginning."""

    generation: int
    at: str = ""
