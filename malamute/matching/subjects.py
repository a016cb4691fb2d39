"""The plain subject families: `all`, `exact` and `prefix`.

Each family is its two functions. All of them are exact, so no match is checked afterwards.

    family   pattern            F2(pattern)     F1(subject)
    all      empty              one term        the same term, always
    exact    a subject          the subject     the subject
    prefix   a beginning        the prefix      its beginnings, of the lengths in use
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from malamute.errors import InvalidSelector
from malamute.matching.bitmap import Bitmap, pack_rows, unpack_rows
from malamute.matching.family import Headers, TermFamily, checked_text, register


class TextFamily(TermFamily):
    """An exact family with texts as terms: its rows are its only tables."""

    def saved(self) -> tuple[Any, list[int]]:
        """Return the terms, and the row of each."""
        rows = dict(self._rows.items())
        return ([*rows], *pack_rows(rows.values())), []

    def restore(self, tables: Any, selectors: Bitmap) -> None:
        """File the rows under their terms."""
        terms, *packed = tables
        "".join(terms)
        self._rows = unpack_rows(terms, packed, selectors)


@register
class All(TextFamily):
    """Every message (AMQP's fanout). The pattern is empty."""

    name = "all"

    @classmethod
    def normalise(cls, pattern: Any) -> str:
        """Return the empty text, also for None. Raises InvalidSelector for any other pattern."""
        if pattern not in ("", None):
            raise InvalidSelector("invalid pattern of family 'all': expected none", 0)
        return ""

    @classmethod
    def matches(cls, pattern: str, subject: str, headers: Headers, sender: str) -> bool:
        """Return True for every message."""
        return True

    def request_terms(self, pattern: str) -> Iterable[str]:
        """Return the one term."""
        return ("",)

    def message_terms(self, subject: str, headers: Headers, sender: str) -> Iterable[str]:
        """Return the one term."""
        return ("",)


@register
class Exact(TextFamily):
    """The subject, letter by letter (AMQP's direct, Xump's EQ)."""

    name = "exact"

    @classmethod
    def normalise(cls, pattern: Any) -> str:
        """Return the pattern if it is text within the limit."""
        return checked_text(cls.name, pattern)

    @classmethod
    def matches(cls, pattern: str, subject: str, headers: Headers, sender: str) -> bool:
        """Return whether pattern and subject are equal."""
        return pattern == subject

    def request_terms(self, pattern: str) -> Iterable[str]:
        """Return the pattern."""
        return (pattern,)

    def message_terms(self, subject: str, headers: Headers, sender: str) -> Iterable[str]:
        """Return the subject."""
        return (subject,)


@register
class Prefix(TextFamily):
    """The beginning of the subject, character by character. The empty prefix matches every subject."""

    name = "prefix"

    def __init__(self) -> None:
        super().__init__()
        self._lengths: Counter[int] = Counter()  # of the prefixes in use

    @classmethod
    def normalise(cls, pattern: Any) -> str:
        """Return the pattern if it is text within the limit."""
        return checked_text(cls.name, pattern)

    @classmethod
    def matches(cls, pattern: str, subject: str, headers: Headers, sender: str) -> bool:
        """Return whether the subject begins with the pattern."""
        return subject.startswith(pattern)

    def add(self, number: int, patterns: Sequence[str]) -> None:
        """File a selector, and count the lengths of its prefixes for F1."""
        super().add(number, patterns)
        self._lengths.update(map(len, patterns))

    def remove(self, number: int, patterns: Sequence[str]) -> None:
        """Undo `add`."""
        super().remove(number, patterns)
        self._lengths -= Counter(map(len, patterns))

    def restore(self, tables: Any, selectors: Bitmap) -> None:
        """File the rows, and count their lengths."""
        super().restore(tables, selectors)
        for prefix, row in self._rows.items():
            self._lengths[len(str(prefix))] += len(row)

    def request_terms(self, pattern: str) -> Iterable[str]:
        """Return the pattern."""
        return (pattern,)

    def message_terms(self, subject: str, headers: Headers, sender: str) -> Iterable[str]:
        """Return the beginnings of the subject, of the lengths in use."""
        characters = len(subject)
        return [subject[:length] for length in self._lengths if length <= characters]
