"""Topic patterns: the meaning of `*` and `#`, in the two dialects.

A subject is one or more parts, split at the dots and compared letter by letter. A part of a pattern
is a literal, `*` or `#`; a wildcard is a whole part (`a*` is refused, and so is an empty part).

    dialect      `*`        `#`            a final wildcard
    topic        one part   one or more    may also be absent, unless it is the only part
    topic-amqp   one part   zero or more   as anywhere else

`topic` is the dialect of the tables in the seed documents (RFC 003): `forex.*` takes `forex`,
`forex.eur` and not `forex.eur.spot`. `topic-amqp` is AMQP 0-9-1. Requirements, section 3.

Both dialects become *forms*, with the same meaning in both: a form is a sequence of literals, `*`
for exactly one part, and `#` for any number of parts. `topic`'s `#` is written `* #`, and a final
wildcard that may be absent makes a second form without it, unless one form can say both:

    topic a.*     ->  (a *) or (a)          topic a.#    ->  (a #)
    topic #.c     ->  (* # c)               topic a.#.*  ->  (a * #)

Within a run of wildcards the order is irrelevant, so every `*` is moved before the `#`, and there
is one `#` at most. All other modules (shapes, tables, subsumption) know only forms.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby
from typing import Any, Literal

from malamute.errors import InvalidSelector
from malamute.matching.cache import Memo
from malamute.matching.family import checked_text

ONE = "*"
MANY = "#"
WILDCARDS = (ONE, MANY)

Dialect = Literal["topic", "topic-amqp"]
Form = tuple[str, ...]


def checked_pattern(dialect: str, pattern: Any) -> str:
    """Return the pattern if it is well formed; raises InvalidSelector with the position of the fault."""
    text = checked_text(dialect, pattern)
    position = 0
    for part in text.split("."):
        if not part:
            raise InvalidSelector("empty part in a topic pattern: expected text, * or #", position)
        if part not in WILDCARDS and ("*" in part or "#" in part):
            raise InvalidSelector(f"invalid part {part!r}: expected a wildcard to be a whole part", position)
        position += len(part) + 1
    return text


FORMS_CHARACTERS_MAX = 1 << 17
"""Characters of the patterns with cached forms."""


def forms(dialect: Dialect, pattern: str) -> tuple[Form, ...]:
    """Return the forms of a well-formed pattern, one or two; a subject matches if it fits one of them."""
    return _FORMS[dialect, pattern]


def _forms(of: tuple[Dialect, str]) -> tuple[Form, ...]:
    dialect, pattern = of
    parts = tuple(pattern.split("."))
    if dialect == "topic-amqp":
        return (_canonical(parts),)
    body = _one_or_more(parts[:-1])
    final = parts[-1]
    if len(parts) == 1 or final not in WILDCARDS:
        return (_canonical(body + _one_or_more((final,))),)
    if final == MANY:
        return (_canonical((*body, MANY)),)
    if body[-1] == MANY:
        return (_canonical(body),)  # its last part may be absent, and `#` takes any that is there
    return (_canonical((*body, ONE)), _canonical(body))


_FORMS = Memo(_forms, FORMS_CHARACTERS_MAX)


def _one_or_more(parts: Form) -> Form:
    if MANY not in parts:
        return parts
    return tuple(symbol for part in parts for symbol in ((ONE, MANY) if part == MANY else (part,)))


def _canonical(form: Form) -> Form:
    if MANY not in form:
        return form
    symbols: list[str] = []
    for wild, run in groupby(form, WILDCARDS.__contains__):
        part = list(run)
        if wild:
            part = [ONE] * part.count(ONE) + [MANY] * (MANY in part)
        symbols += part
    return tuple(symbols)


def fits(form: Form, parts: list[str]) -> bool:
    """Return whether the parts of a subject fit a form.

    The usual algorithm for patterns with one kind of star: at a mismatch go back to the last `#` and let
    it take one part more. Earlier ones need no second attempt, so len(form) * len(parts) steps are enough.
    """
    at = seen = 0
    star = resume = -1
    while seen < len(parts):
        symbol = form[at] if at < len(form) else None
        if symbol == MANY:
            star, resume = at, seen
            at += 1
        elif symbol in (ONE, parts[seen]):
            at, seen = at + 1, seen + 1
        elif star >= 0:
            resume += 1
            at, seen = star + 1, resume
        else:
            return False
    return all(symbol == MANY for symbol in form[at:])


def subsumes(general: tuple[Form, ...], special: tuple[Form, ...]) -> bool:
    """Return whether every subject that fits `special` fits `general`, too; False is not certain.

    The symbols of the special form are treated as parts: an equal literal, `*` or `#` takes a literal or
    `*`, and only `#` takes `#`.
    """
    return all(any(_covers(wide, narrow) for wide in general) for narrow in special)


def overlaps(one: tuple[Form, ...], other: tuple[Form, ...]) -> bool:
    """Return whether some subject may fit both. True is not certain for empty parts; False is."""
    return any(_meet(left, right) for left in one for right in other)


def _meet(left: Form, right: Form) -> bool:
    # Pairs of places in both forms that one subject can reach.
    seen = {(0, 0)}
    pairs = [(0, 0)]
    while pairs:
        at, place = pairs.pop()
        if at == len(left) and place == len(right):
            return True
        here = left[at] if at < len(left) else None
        there = right[place] if place < len(right) else None
        following = []
        if here == MANY or (there == MANY and here is not None):
            following.append((at + 1, place))
        if there == MANY or (here == MANY and there is not None):
            following.append((at, place + 1))
        if here is not None and there is not None and (here == there or ONE in (here, there)):
            following.append((at + 1, place + 1))
        fresh = [pair for pair in following if pair not in seen]
        seen.update(fresh)
        pairs += fresh
    return False


def expression_of(form: Form, literal: Callable[[str], str] = str) -> str:
    """Return the regular expression of a form, in the syntax of RE2; empty if every subject fits.

    `literal` returns the text of a literal of the form.
    """
    words: list[str] = []
    for place, symbol in enumerate(form):
        if symbol != MANY:
            words.append(r"\." if place and words[-1:] != [_LEADING] else "")
            words.append(_PART if symbol == ONE else re.escape(literal(symbol)))
        elif place:
            words.append(rf"(?:\.{_PART})*")
        elif len(form) > 1:
            words.append(_LEADING)
    return f"(?s)^{''.join(words)}$" if form != (MANY,) else ""


_PART = "[^.]*"
_LEADING = rf"(?:{_PART}\.)*"


def _covers(wide: Form, narrow: Form) -> bool:
    # reach holds every position of `wide` that the symbols so far can have led to.
    def closed(positions: set[int]) -> set[int]:
        for position in sorted(positions):
            while position < len(wide) and wide[position] == MANY:
                position += 1
                positions.add(position)
        return positions

    reach = closed({0})
    for symbol in narrow:
        step = set()
        for position in reach:
            if position < len(wide):
                if wide[position] == MANY:
                    step.add(position)
                elif wide[position] == symbol or (wide[position] == ONE and symbol != MANY):
                    step.add(position + 1)
        reach = closed(step)
    return len(wide) in reach
