"""Names and subjects of rules: topic patterns whose parts may hold `{user}` and `{claim.NAME}`.

A part is `*`, `#`, or text, as in any topic pattern. In the text `%2A` is a literal star, and
so are all other escaped characters. The value of `{user}` is literal text as well: a user with the name `#`
has no further rights by that.

The matching engine has to tell literal stars from wildcards. So a literal part that looks like a wildcard is
*marked*, in the pattern and in the compared text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from malamute.errors import InvalidRule
from malamute.matching import Criterion, Index, Selector
from malamute.matching.pattern import WILDCARDS, Form, fits, forms

PLACEHOLDER = re.compile(r"\{(user|claim\.[\w.-]+)\}")
PLACEHOLDERS = "{user} or {claim.NAME}"

SCANNED_MAX = 16
"""Patterns that are tried one after the other; more are filed in an index, which takes 7 KB."""

CACHED_SUBJECTS = 16
"""Subjects whose result an index caches: decisions are cached elsewhere."""

Values = Mapping[str, str]
"""The values of placeholders: `user`, and `claim.NAME` for each claim."""

_DOT = re.compile(r"\.(?![^{}]*\})")
"""A dot between two parts; those in braces are of a claim's name."""

_ESCAPED = re.compile(r"[\s%*#{}/.,]")
_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_MARK = "\0"

Value = TypeVar("Value")


def parse_template(text: str, position: int) -> str:
    """Return a pattern in its normal form. Raises `InvalidRule` without the rule around it.

    `position` is where it begins in the rule.
    """
    parts = []
    for part in _DOT.split(text):
        parts.append(part if part in WILDCARDS else _literal(part, position))
        position += len(part) + 1
    return ".".join(parts)


def _literal(part: str, position: int) -> str:
    if not part:
        raise InvalidRule("empty part: expected text, * or #", position)
    pieces = []
    for number, piece in enumerate(PLACEHOLDER.split(part)):
        if number % 2:
            pieces.append(f"{{{piece}}}")
            continue
        if wrong := re.search(r"[{}]", piece):
            raise InvalidRule(f"unexpected {wrong.group()!r}: expected {PLACEHOLDERS}", position)
        if wrong := re.search(r"[*#]", piece):
            expected = f"a wildcard to be a whole part, or %{ord(wrong.group()):X}"
            raise InvalidRule(f"invalid part {part!r}: expected {expected}", position)
        pieces.append(_escape(_unquoted(piece, position)))
    return "".join(pieces)


def literal_template(text: str) -> str:
    """Return the template of one literal text."""
    parts = [_escape(part) for part in text.split(".")]
    return ".".join(parts) if all(parts) else _escape(text)


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: quoted(found.group()), text)


def _unquoted(piece: str, position: int) -> str:
    try:
        if not _PERCENT.search(piece):
            return unquote(piece, errors="strict")
    except UnicodeDecodeError:
        pass
    raise InvalidRule(f"invalid escape in {piece!r}: expected %XX, bytes of UTF-8", position)


def quoted(character: str) -> str:
    """Return a character as `%XX`, which `urllib` does not escape if it is plain in an address."""
    return "%2E" if character == "." else quote(character, safe="")


def has_placeholder(text: str) -> bool:
    """Return whether a template depends on the user."""
    return "{" in text


def is_literal(template: str) -> bool:
    """Return whether a template is one text for every user."""
    return not has_placeholder(template) and not {*template.split(".")} & {*WILDCARDS}


def resolve(template: str, values: Values) -> str | None:
    """Return the pattern for a user; None if the user lacks the value of a placeholder.

    An empty pattern would match everything, so the result is None for it as well.
    """
    if not template:
        return template
    parts = []
    for part in _DOT.split(template):
        if part in WILDCARDS:
            parts.append(part)
            continue
        pieces = PLACEHOLDER.split(part)
        for number, piece in enumerate(pieces):
            found = values.get(piece) if number % 2 else unquote(piece)
            if found is None:
                return None
            pieces[number] = found
        parts.append(marked("".join(pieces)))
    return ".".join(parts) or None


def marked(text: str) -> str:
    """Return a name or a subject for comparison: parts that look like wildcards are marked."""
    if "*" not in text and "#" not in text and _MARK not in text:
        return text
    return ".".join(
        _MARK + part if part in WILDCARDS or part.startswith(_MARK) else part for part in text.split(".")
    )


def unmarked(part: str) -> str:
    """Return a literal part without its mark."""
    return part.removeprefix(_MARK)


def is_marked(pattern: str) -> bool:
    """Return whether a pattern has a marked part, which no other module understands."""
    return _MARK in pattern


class PatternRow(NamedTuple, Generic[Value]):
    """A pattern and its value."""

    forms: tuple[Form, ...]
    value: Value


class PatternTable(Generic[Value]):
    """Patterns with values, for the lookup of those that a name or a subject matches."""

    __slots__ = ("_index", "_patterns", "_rows")

    def __init__(self, patterns: Iterable[tuple[str, Value]] = ()) -> None:
        self._patterns = [*patterns]
        self._rows: list[PatternRow[Value]] | None = None
        self._index: Index | None = None

    def add(self, pattern: str, value: Value) -> None:
        """Add a pattern, before the first lookup."""
        self._patterns.append((pattern, value))

    def fitting(self, text: str) -> list[Value]:
        """Return the values of the patterns that a `marked` text matches, in the order of `add`."""
        if self._index is None and len(self._patterns) > SCANNED_MAX:
            self._index = _index_of(self._patterns)
        if self._index is not None:
            found = [number for group in self._index.match(text) for number in group.members.values()]
            return [self._patterns[number][1] for number in sorted(found)]
        if self._rows is None:
            self._rows = [PatternRow(forms("topic", pattern), value) for pattern, value in self._patterns]
        parts = text.split(".")
        return [value for fitted, value in self._rows if any(fits(form, parts) for form in fitted)]


def _index_of(patterns: Iterable[tuple[str, Any]]) -> Index:
    index = Index(cache_size=CACHED_SUBJECTS)
    for number, (pattern, _) in enumerate(patterns):
        index.add(number, Selector((Criterion("topic", pattern),)), number)
    return index
