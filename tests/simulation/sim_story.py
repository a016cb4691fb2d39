"""The story: the books, and beside them in words what the broker reads and sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sim_book import Book
from sim_clock import Wall
from sim_machine import AUDITOR
from sim_origin import body_of

from malamute.journal.memory import MemoryStore
from malamute.protocol.messages import Delivery, Message, Welcome
from malamute.store.policies import QueuePolicy


class Story(Book):
    """A book that tells what is written into it, if anybody listens."""

    def __init__(
        self,
        store: MemoryStore,
        has_failed: Callable[[], bool],
        policy: QueuePolicy,
        wall: Wall,
        log: Callable[[str], None] | None,
        *,
        audit: bool = False,
        unconfirmed: int = 0,
    ) -> None:
        super().__init__(store, has_failed, policy, wall, audit=audit, unconfirmed=unconfirmed)
        self._log = log

    def received(self, peer: bytes, message: Message) -> None:
        """The broker is about to read a command."""
        if self._log is not None:
            self._log(f"    {_name(peer)} -> {_shown(message)}")
        super().received(peer, message)

    def sends(self, sends: Sequence[tuple[bytes, Message]], blocked: frozenset[bytes]) -> None:
        """The broker sends messages, in this order."""
        if self._log is not None:
            for peer, message in sends:
                self._log(f"    {_name(peer)} <- {_shown(message)}")
        super().sends(sends, blocked)


def _name(peer: bytes) -> str:
    if peer == AUDITOR:
        return "auditor"
    return f"{peer[1]}.{peer[2] * 256 + peer[3]}" if peer[0] else peer.hex()


def _shown(message: Message) -> str:
    """A message in few words."""
    name, fields = type(message).__name__.upper(), message._asdict()
    if isinstance(message, Welcome):
        return f"{name} resumed={message.resumed}"
    if isinstance(message, Delivery):
        rows = [(row[0], body_of(row[4]), row[5]) for row in message.part.columns.rows()]
        return f"{name} {message.source} after {message.after}: {rows}"
    return f"{name} " + ", ".join(f"{k}={v!r}" for k, v in fields.items() if k != "records")
