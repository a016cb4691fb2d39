"""The family `regex`: a regular expression that is found anywhere in the subject.

Expressions come from clients, so they run on RE2 (Cox, "Regular expression matching in the wild",
2010): time in proportion to the text, whatever the pattern, and bounded memory. The price is that
back-references and look-around are refused when subscribing. Anchor with `^` and `$` if need be.

There is no term that a subject could say instead of being tried. So each expression in use is tried once for
each subject that is new ("new address = recompute all", RestMS notes), and the result is kept in the index's
cache with the rest. A stream without such selectors tries nothing.

Each user of an expression holds it compiled, so there is no cache to be too small; the same expression is one
object in the whole process. Its program and its automaton take REGEX_BYTES at the most: where that is not
enough for the automaton, RE2 goes on without one, and where it is not for the program, it is refused.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import re2

from malamute.errors import InvalidSelector
from malamute.matching.bitmap import Bitmap
from malamute.matching.family import Family, Headers, checked_text, register

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True

REGEX_BYTES = 1 << 17
"""What a compiled expression may take."""

_OPTIONS.max_mem = REGEX_BYTES


class Regex:
    """A compiled expression. `found_in` never raises."""

    __slots__ = ("__weakref__", "_search")

    def __init__(self, pattern: str) -> None:
        self._search = re2.compile(pattern, _OPTIONS).search

    def found_in(self, text: str) -> bool:
        """Whether the expression matches somewhere in the text."""
        try:
            return self._search(text) is not None
        except UnicodeEncodeError:  # half a surrogate pair is no text
            return False


_IN_USE: WeakValueDictionary[str, Regex] = WeakValueDictionary()


def compiled(pattern: str) -> Regex:
    """The compiled expression; raises InvalidSelector with the position of the fault."""
    regex = _IN_USE.get(pattern)
    if regex is None:
        regex = _IN_USE[pattern] = _compile(pattern)
    return regex


def _compile(pattern: str) -> Regex:
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
        with warnings.catch_warnings(action="ignore"):
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        position = getattr(error, "pos", None)
        if position is not None:
            return int(position)
    return max(0, pattern.find(reason.rpartition(": ")[2]))


class _Row(NamedTuple):
    """An expression in use, and who uses it."""

    regex: Regex
    numbers: Bitmap


@register
class RegexFamily(Family):
    """A regular expression on the subject, in RE2's syntax."""

    name = "regex"

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}

    @classmethod
    def normalise(cls, pattern: Any) -> str:
        """The pattern itself, when RE2 takes it."""
        text = checked_text(cls.name, pattern)
        compiled(text)
        return text

    @classmethod
    def cost_bytes(cls, patterns: Sequence[str]) -> int:
        """What they take compiled."""
        return REGEX_BYTES * len(patterns)

    @classmethod
    def work_of(cls, patterns: Sequence[str]) -> int:
        """Each is tried."""
        return 4 * len(patterns)

    @classmethod
    def matches(cls, pattern: str, subject: str, headers: Headers, sender: str) -> bool:
        """Whether the expression is found in the subject."""
        return compiled(pattern).found_in(subject)

    def add(self, number: int, patterns: Sequence[str]) -> None:
        """One row for each distinct expression."""
        for pattern in patterns:
            row = self._rows.get(pattern)
            if row is None:
                row = self._rows[pattern] = _Row(compiled(pattern), Bitmap())
            row.numbers.add(number)

    def remove(self, number: int, patterns: Sequence[str]) -> None:
        """Undo `add`."""
        for pattern in patterns:
            row = self._rows.get(pattern)
            if row is not None:
                row.numbers.discard(number)
                if not row.numbers:
                    del self._rows[pattern]

    def rows(self, subject: str, headers: Headers, sender: str) -> list[Bitmap]:
        """Try every expression in use."""
        return [numbers for regex, numbers in self._rows.values() if regex.found_in(subject)]

    @property
    def work(self) -> int:
        """Each of them is tried."""
        return len(self._rows)
