"""The keys that a feed gives its messages, so that consumers of the target compete in order by key."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from malamute.errors import InvalidValue
from malamute.protocol.batch import headers_of
from malamute.protocol.limits import TEXT_BYTES_MAX

if TYPE_CHECKING:
    from malamute.protocol.batch import Columns

SUBJECT, HEADER = "subject", "header"

PARTS_MAX = 255
"""The highest part of a subject that a key may be."""

EXPECTED = (
    f"'subject', a part of it such as 'subject:2', from 1 to {PARTS_MAX}, or a header such as "
    "'header:customer'"
)


class FeedKey(NamedTuple):
    """Where the key of a message comes from: its subject, one part of that, or one of its headers."""

    kind: str
    part: int = 0
    header: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the key of a text.

        Raises:
            InvalidValue: the text is none.
        """
        kind, colon, rest = text.partition(":")
        if kind == SUBJECT and not colon:
            return cls(SUBJECT)
        if kind == SUBJECT and rest.isascii() and rest.isdigit() and 1 <= int(rest[:4]) <= PARTS_MAX:
            return cls(SUBJECT, int(rest[:4]))
        if kind == HEADER and rest:
            return cls(HEADER, header=rest)
        raise InvalidValue(f"invalid key {text!r}: expected {EXPECTED}")

    def of(self, columns: Columns) -> list[str]:
        """Return the key of each message; empty for none."""
        if self.kind == HEADER:
            return [_text(headers.get(self.header)) for headers in headers_of(columns.records)]
        return [_short(self._of_subject(subject)) for subject in columns.subjects]

    def _of_subject(self, subject: str) -> str:
        if not self.part:
            return subject
        parts = subject.split(".", self.part)
        return parts[self.part - 1] if len(parts) >= self.part else ""


def keys_of(text: str, columns: Columns) -> Sequence[str]:
    """Return the key of each message by a stored rule; none for a rule without a key."""
    return FeedKey.parse(text).of(columns) if text else ()


def _text(value: Any) -> str:
    if value is None:
        return ""
    return _short(value if isinstance(value, str) else repr(value))


def _short(value: str) -> str:
    """Return a key within the limit of keys: a longer one is its digest, so that equal ones stay equal."""
    data = value.encode()
    return value if len(data) <= TEXT_BYTES_MAX else blake2b(data, digest_size=16).hexdigest()
