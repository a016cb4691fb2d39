"""Topic selectors of Mercure as criteria of a subscription: the broker matches them.

A selector is `*`, a topic, or a URI template (RFC 6570), which matches its expansions. A template becomes a
regular expression: each of its expressions is the beginning, the separator and the characters that the table
of its operator has (RFC 6570, appendix A). The expression is short, since a pattern has a limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_UNRESERVED = r"\w.~-"
_ANY = r"]:/?#[@!$&'()*+;=,\w.~-"
_ENCODED = r"%[\dA-Fa-f]{2}"
_CONTINUATION = r"%[89ABab][\dA-Fa-f]"


class _Operator(NamedTuple):
    """The expansion of the variables of an expression."""

    first: str
    separator: str
    named: bool = False
    bare_if_empty: bool = False
    """Whether the name of an empty value stands without `=`."""
    characters: str = _UNRESERVED


_OPERATORS = {
    "": _Operator("", ","),
    "+": _Operator("", ",", characters=_ANY),
    "#": _Operator("#", ",", characters=_ANY),
    ".": _Operator(".", "."),
    "/": _Operator("/", "/"),
    ";": _Operator(";", ";", named=True, bare_if_empty=True),
    "?": _Operator("?", "&", named=True),
    "&": _Operator("&", "&", named=True),
}

_EXPRESSION = re.compile(r"\{([+#./;?&]?)([^{}]*)\}")
_VARIABLE = re.compile(
    r"((?:\w|%[0-9A-Fa-f]{2})(?:\.?(?:\w|%[0-9A-Fa-f]{2}))*)(\*|:[1-9][0-9]{0,3})?", re.ASCII
)


def criteria_of(selectors: Iterable[str]) -> list[tuple[str, str]]:
    """Return criteria that match the topics of any of the selectors."""
    criteria: list[tuple[str, str]] = []
    for selector in selectors:
        if selector == "*":
            return [("all", "")]
        criteria.append(("exact", selector))
        if (expression := regex_of(selector)) is not None:
            criteria.append(("regex", expression))
    return criteria


def regex_of(template: str) -> str | None:
    """Return the regular expression of a URI template's expansions; None for another text."""
    parts: list[str] = []
    position = 0
    for found in _EXPRESSION.finditer(template):
        variables = [_VARIABLE.fullmatch(text) for text in found[2].split(",")]
        literal = template[position : found.start()]
        if not all(variables) or _has_brace(literal):
            return None
        parts.append(re.escape(literal))
        parts.append(_expression(_OPERATORS[found[1]], [v.groups("") for v in variables if v]))
        position = found.end()
    rest = template[position:]
    return None if not parts or _has_brace(rest) else f"^{''.join(parts)}{re.escape(rest)}$"


def _has_brace(literal: str) -> bool:
    return "{" in literal or "}" in literal


def _expression(operator: _Operator, variables: list[tuple[str, ...]]) -> str:
    """Return the pattern of the variables in order, each of which may be undefined."""
    items = [_variable(operator, name, modifier) for name, modifier in variables]
    separator = re.escape(operator.separator)
    beginnings = [
        item + "".join(f"(?:{separator}{other})?" for other in items[number:])
        for number, item in enumerate(items, 1)
    ]
    return f"(?:{re.escape(operator.first)}(?:{'|'.join(beginnings)}))?"


def _variable(operator: _Operator, name: str, modifier: str) -> str:
    unit = f"(?:[{operator.characters}]|{_ENCODED})"
    if modifier == "*":
        # Return the pattern of the items of a list, or the pairs of a map.
        item = _pair(operator, f"{unit}+", f"{unit}*") if operator.named else f"{unit}*(?:={unit}*)?"
        return f"{item}(?:{re.escape(operator.separator)}{item})*"
    if modifier:
        # The prefix counts characters, of which one may be encoded as up to four bytes.
        value = f"(?:[{operator.characters}]|{_ENCODED}(?:{_CONTINUATION}){{0,3}}){{0,{modifier[1:]}}}"
    else:
        # The items of a list are separated by commas.
        value = f"(?:[{operator.characters.replace('-', ',-')}]|{_ENCODED})*"
    return _pair(operator, re.escape(name), value) if operator.named else value


def _pair(operator: _Operator, name: str, value: str) -> str:
    return f"{name}(?:={value})?" if operator.bare_if_empty else f"{name}={value}"
