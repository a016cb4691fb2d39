"""The client's view of watched keys: the states that the program has not had, of each key the newest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from malamute.client.session.codecs import JSON
from malamute.client.session.sources import Source
from malamute.client.session.window import Window
from malamute.errors import InvalidValue
from malamute.protocol.messages import Watch


class KeyValue(NamedTuple):
    """The value of a key in a bucket, its revision, and the seconds until it expires, or None."""

    key: str
    value: bytes
    revision: int
    ttl: float | None = None

    @property
    def text(self) -> str:
        """The value as text.

        Raises:
            InvalidValue: the value is not UTF-8.
        """
        try:
            return self.value.decode()
        except UnicodeDecodeError as error:
            raise InvalidValue(f"value of key {self.key!r} is no text: {error}") from error

    def json(self, kind: Any = Any) -> Any:
        """Return the value, which is JSON, as a value of Python; with `kind`, as one of that type.

        Raises:
            InvalidValue: the value is not JSON, or none of this kind.
        """
        try:
            return JSON.decode(self.value, kind)
        except ValueError as error:
            raise InvalidValue(f"value of key {self.key!r}: {error}") from error

    @classmethod
    def of(cls, key: str, row: Sequence[Any] | None) -> KeyValue | None:
        """Return the value of a row `[revision, value, ttl]`; None without one."""
        if row is None or row[1] is None:
            return None
        revision, value, ttl = row
        return cls(key, value, revision, ttl / 1000 if ttl else None)


class WatchSource(Source):
    """Watched keys of a bucket, over reconnects: a state that is known already is not reported again."""

    def __init__(self, number: int, watch: Watch) -> None:
        super().__init__(number, Window(1, 1))
        self._watch = watch
        self._revisions: dict[str, int] = {}
        self.bucket = watch.bucket
        self.waiting: dict[str, KeyValue | None] = {}

    def command(self) -> Watch:
        """Return WATCH."""
        return self._watch

    def restart(self) -> None:
        """Handle a lost connection: the broker sends all states again."""
        self.open = False

    def changed(self, rows: Sequence[Sequence[Any]]) -> None:
        """Take the states of some keys."""
        for key, *row in rows:
            if self._revisions.get(key) != row[0]:
                self._revisions[key] = row[0]
                # Behind the others, as it is newer.
                self.waiting.pop(key, None)
                self.waiting[key] = KeyValue.of(key, row)

    def pop(self) -> tuple[str, KeyValue | None]:
        """Return the state that has waited longest."""
        key = next(iter(self.waiting))
        return key, self.waiting.pop(key)
