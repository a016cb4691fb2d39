"""Answers to QUERY: how many bytes of them one session may have under way.

A question of a few bytes may have an answer of megabytes. Questions beyond the limit of a session in one
iteration, or from one that does not read its answers, are refused: it may ask again. An answer that comes
from the store counts as `ASKED_BYTES` until it is there, or as its known size if that is more.
"""

from __future__ import annotations

from collections import Counter

from malamute.core.iteration.effects import Effects
from malamute.core.session.session import Session
from malamute.errors import TryLater
from malamute.protocol.batch import pack
from malamute.protocol.messages import Answer, PackedAnswer

ASKED_BYTES = 64 * 1024
"""Bytes that an answer counts while the store reads it."""


class Answers:
    """The bytes of answers under way of each session."""

    def __init__(self, effects: Effects, bytes_max: int) -> None:
        self._effects = effects
        self._bytes_max = bytes_max
        self.given: Counter[Session] = Counter()
        self._asked: Counter[Session] = Counter()

    def check(self, session: Session) -> None:
        """Raise `TryLater` if a session may ask no more for now."""
        if session.blocked:
            raise TryLater("client does not read: read what was sent, then retry")
        under_way = self.given[session] + self._asked[session]
        if under_way >= self._bytes_max:
            raise TryLater(f"answers of {under_way} bytes are under way to this client: retry later")

    def ask(self, session: Session, size_bytes: int = ASKED_BYTES) -> None:
        """The answer to a session has to come from the store, and may be so large."""
        self._asked[session] += size_bytes

    def asked(self, session: Session, size_bytes: int = ASKED_BYTES) -> None:
        """The store has answered."""
        self._asked[session] -= size_bytes
        if not self._asked[session]:
            del self._asked[session]

    def give(self, session: Session, answer: Answer) -> None:
        """Send an answer at the end of the iteration."""
        value = pack(answer.value)
        self.given[session] += len(value)
        self._effects.send(session.peer, PackedAnswer(answer.ref, value))

    def flush(self) -> None:
        """All that was given has left."""
        self.given.clear()
