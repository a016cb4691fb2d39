"""The family `regex`: a regular expression that is found anywhere in the subject.

Expressions come from clients, so they run on RE2 (Cox, "Regular expression matching in the wild",
2010): time in proportion to the text for every pattern, and bounded memory. The price is that
back-references and look-around are refused when subscribing. Anchor with `^` and `$` if need be.

Regular expressions have no terms. So each expression in use is tried once for each new subject ("new address
= recompute all", RestMS notes), and the cache of the index has the results. A stream without such selectors
costs no attempt.

Each user of an expression holds the compiled object, so no cache can be too small; the same expression is one
object in the whole process. Its program and its automaton take at most REGEX_BYTES: if the automaton needs
more, RE2 continues without one; if the program does, the expression is refused.
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
"""The most bytes of a compiled expression."""

_OPTIONS.max_mem = REGEX_BYTES


class Regex:
    """A compiled expression. `found_in` never raises."""

    __slots__ = ("__weakref__", "_search")

    def __init__(self, pattern: str) -> None:
        self._search = re2.compile(pattern, _OPTIONS).search

    def found_in(self, text: str) -> bool:
        """Return whether the expression matches somewhere in the text."""
        try:
            return self._search(text) is not None
        except UnicodeEncodeError:  # half a surrogate pair is no valid text
            return False


_IN_USE: WeakValueDictionary[str, Regex] = WeakValueDictionary()


def compiled(pattern: str) -> Regex:
    """Return the compiled expression; raises InvalidSelector with the position of the fault."""
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
    # RE2 reports the bad piece without its position; Python's parser has the position of most faults.
    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        position = getattr(error, "pos", None)
        if position is not None:
            return int(position)
    return max(0, pattern.find(reason.rpartition(": ")[2]))


class _Row(NamedTuple):
    """An expression in use, and its selectors."""

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
        """Return the pattern if RE2 accepts it."""
        text = checked_text(cls.name, pattern)
        compiled(text)
        return text

    @classmethod
    def cost_bytes(cls, patterns: Sequence[str]) -> int:
        """Return the most bytes of the compiled patterns."""
        return REGEX_BYTES * len(patterns)

    @classmethod
    def work_of(cls, patterns: Sequence[str]) -> int:
        """Return the cost of the patterns: each is tried."""
        return 4 * len(patterns)

    @classmethod
    def matches(cls, pattern: str, subject: str, headers: Headers, sender: str) -> bool:
        """Return whether the expression is found in the subject."""
        return compiled(pattern).found_in(subject)

    def add(self, number: int, patterns: Sequence[str]) -> None:
        """File a selector, with one row for each distinct expression."""
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
        """Return the rows of the expressions that are found in the subject."""
        return [numbers for regex, numbers in self._rows.values() if regex.found_in(subject)]

    @property
    def work(self) -> int:
        """The number of expressions: each is tried."""
        return len(self._rows)
