"""The family `regex`: a regular expression that is found anywhere in the subject.

Expressions come from clients, so they run on RE2 (Cox, "Regular expression matching in the wild",
2010): time in proportion to the text, whatever the pattern, and bounded memory. The price is that
back-references and look-around are refused when subscribing. Anchor with `^` and `$` if need be.

There is no term that a subject could say instead of being tried, so each expression in use is
tried once for each subject that is new ("new address = recompute all", RestMS notes), and the
result is kept in the index's cache with the rest. A stream without such selectors tries nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import re2

from malamute.errors import InvalidSelector
from malamute.matching.bitmap import Bitmap
from malamute.matching.family import Family, Headers, checked_text, discard, register

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True


class Regex:
    """A compiled expression. `found_in` never raises."""

    __slots__ = ("_search",)

    def __init__(self, pattern: str) -> None:
        self._search = re2.compile(pattern, _OPTIONS).search

    def found_in(self, text: str) -> bool:
        """Whether the expression matches somewhere in the text."""
        try:
            return self._search(text) is not None
        except UnicodeEncodeError:  # half a surrogate pair is no text
            return False


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Regex:
    """The compiled expression; raises InvalidSelector with the position of the fault."""
    try:
        return Regex(pattern)
    except UnicodeEncodeError as error:
        raise InvalidSelector("invalid regular expression: not text", error.start) from error
    except re2.error as error:
        words = error.args[0]
        reason = words.decode("utf-8", "replace") if isinstance(words, bytes) else str(words)
        raise InvalidSelector(f"invalid regular expression: {reason}", _position(pattern, reason)) from error


def _position(pattern: str, reason: str) -> int:
    # RE2 names the bad piece and not its place; Python's parser knows the place of most faults.
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        position = getattr(error, "pos", None)
        if position is not None:
            return int(position)
    return max(0, pattern.find(reason.rpartition(": ")[2]))


@register
class RegexFamily(Family):
    """A regular expression on the subject, in RE2's syntax."""

    name = "regex"

    def __init__(self) -> None:
        self._rows: dict[str, Bitmap] = {}

    @classmethod
    def normalise(cls, pattern: Any) -> str:
        """The pattern itself, when RE2 takes it."""
        text = checked_text(cls.name, pattern)
        compiled(text)
        return text

    @classmethod
    def matches(cls, pattern: str, subject: str, headers: Headers, sender: str) -> bool:
        """Whether the expression is found in the subject."""
        return compiled(pattern).found_in(subject)

    def add(self, number: int, patterns: Sequence[str]) -> None:
        """One row for each distinct expression."""
        for pattern in patterns:
            self._rows.setdefault(pattern, Bitmap()).add(number)

    def remove(self, number: int, patterns: Sequence[str]) -> None:
        """Undo `add`."""
        for pattern in patterns:
            discard(self._rows, pattern, number)

    def rows(self, subject: str, headers: Headers, sender: str) -> list[Bitmap]:
        """Try every expression in use."""
        return [row for pattern, row in self._rows.items() if compiled(pattern).found_in(subject)]
