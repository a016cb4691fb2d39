"""Rules: `["deny"] ACTION{,ACTION} KIND/NAME[/SUBJECT] ["where" EXPRESSION]`.

    publish stream/prices/fx.#                        may publish there, under these subjects
    receive mailbox/{user}                            has the mailbox that is called as the user is
    deny publish stream/prices/fx.internal.#          may not publish these: deny wins over any allow
    subscribe cursor/prices/audit                     may use this cursor of another user
    subscribe stream/patients where ward = '{claim.ward}'     sees these rows, and no others

A rule is the same text in the configuration, on the command line and in a refusal: `parse` and `str` are
inverse, but for spaces and escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import NamedTuple
from urllib.parse import unquote

from malamute.access.template import (
    PLACEHOLDER,
    Values,
    has_placeholder,
    is_literal,
    literal_template,
    parse_template,
)
from malamute.errors import InvalidRule, InvalidSelector
from malamute.matching import parse
from malamute.matching.expression import And, Expression, Matches, Not, Or

_THINGS = ("stream", "mailbox", "service", "client", "broker")

IMPERSONATE = "impersonate"
"""The action of a user who acts as another one."""

CURSOR = "cursor"
"""The kind of cursors. Their rules name the stream, and where others have a subject the cursor."""

ACTIONS: Mapping[str, tuple[str, ...]] = {
    "publish": ("stream",),
    "subscribe": ("stream", CURSOR),
    "link": ("stream",),
    "send": ("mailbox",),
    "receive": ("mailbox",),
    "request": ("service",),
    "offer": ("service",),
    "read": ("bucket",),
    "write": ("bucket",),
    "create": ("stream", "mailbox", "service"),
    "browse": ("mailbox", "service"),
    "view": _THINGS,
    "admin": (*_THINGS, "user", "group", CURSOR),
    IMPERSONATE: ("user",),
}
"""Every action, with the kinds of its resources."""

KINDS = (*_THINGS, "bucket", "user", "group", CURSOR)
ANY = "*"

WITH_SUBJECT = frozenset(("publish", "subscribe", "link", "send", "request", "offer"))
"""The actions that have a subject."""

RULE_CHARACTERS_MAX = 8_192

_WORD = re.compile(r"\S+")
_TEXT = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")
"""Quoted parts of an expression: text in single quotes, names in double ones."""


class AccessRule(NamedTuple):
    """One rule. `name`, `subject` and `where` are templates; an empty subject is any, an empty where all."""

    deny: bool
    actions: tuple[str, ...]
    kind: str
    name: str
    subject: str = ""
    where: str = ""

    @classmethod
    def parse(cls, text: str) -> AccessRule:
        """Read a rule.

        Raises:
            InvalidRule: the text is no rule; the error has the fault and its character, from 0.
        """
        if not isinstance(text, str):
            raise InvalidRule(f"invalid rule {text!r}: expected text")
        if len(text) > RULE_CHARACTERS_MAX:
            raise InvalidRule(f"rule too long: expected at most {RULE_CHARACTERS_MAX} characters")
        try:
            return _parse(cls, text)
        except InvalidRule as error:
            raise InvalidRule(f"invalid rule {text!r}: {error.text}") from None

    def __str__(self) -> str:
        words = ["deny"] if self.deny else []
        words += [",".join(self.actions), "/".join(filter(None, (self.kind, self.name, self.subject)))]
        return " ".join([*words, "where", self.where] if self.where else words)

    @property
    def is_template(self) -> bool:
        """Whether the rule depends on the user."""
        return any(map(has_placeholder, (self.name, self.subject))) or bool(PLACEHOLDER.search(self.where))

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Each action of the rule, with each of its kinds of resources."""
        for action in ACTIONS if ANY in self.actions else self.actions:
            for kind in ACTIONS[action]:
                if self.kind in (kind, ANY):
                    yield action, kind


def _parse(cls: type[AccessRule], text: str) -> AccessRule:
    words = [(found.group(), found.start()) for found in _WORD.finditer(text)]
    deny = bool(words) and words[0][0] == "deny"
    words = words[deny:]
    if len(words) < 2:
        raise InvalidRule("too short: expected ACTION KIND/NAME", len(text))
    actions = _actions(*words[0])
    kind, name, subject = _target(*words[1], actions)
    where = ""
    if len(words) > 2:
        word, position = words[2]
        if word != "where":
            raise InvalidRule(f"unexpected {word!r}: expected 'where' or the end", position)
        where = _where(text, position + len(word), actions, kind)
    return cls(deny, actions, kind, name, subject, where)


def _actions(text: str, position: int) -> tuple[str, ...]:
    named = text.split(",")
    for action in named:
        if action != ANY and action not in ACTIONS:
            raise InvalidRule(_unknown("action", action, [*ACTIONS, ANY]), position)
        position += len(action) + 1
    return (ANY,) if ANY in named else tuple(action for action in ACTIONS if action in named)


def _target(text: str, position: int, actions: tuple[str, ...]) -> tuple[str, str, str]:
    kind, slash, rest = text.partition("/")
    if kind != ANY and kind not in KINDS:
        raise InvalidRule(_unknown("kind", kind, [*KINDS, ANY]), position)
    for action in actions:
        if ANY not in (action, kind) and kind not in ACTIONS[action]:
            raise InvalidRule(
                f"{action} is nothing to do with a {kind}: expected {', '.join(ACTIONS[action])}", position
            )
    name, second, subject = rest.partition("/")
    if not slash or not name:
        raise InvalidRule(f"no name: expected {kind}/NAME, and {kind}/# for all", position + len(kind))
    name = parse_template(name, position + len(kind) + 1)
    if not second:
        return kind, name, ""
    position += len(text) - len(subject)
    if without := [action for action in actions if action not in WITH_SUBJECT and kind != CURSOR]:
        raise InvalidRule(f"a subject means nothing to {without[0]!r}: expected none", position)
    return kind, name, parse_template(subject, position)


def _where(text: str, position: int, actions: tuple[str, ...], kind: str) -> str:
    if actions != ("subscribe",):
        raise InvalidRule("'where' is for 'subscribe' alone: expected no other action", position)
    if kind == CURSOR:
        raise InvalidRule("'where' says nothing of a cursor: expected none", position)
    written = text[position:]
    if not written.strip():
        raise InvalidRule("no expression: expected one behind 'where'", position)
    try:
        expression = parse(written)
    except InvalidSelector as error:
        words = error.text.removesuffix(f" at position {error.position}")
        raise InvalidRule(words, position + (error.position or 0)) from None
    if any(PLACEHOLDER.search(pattern) for pattern in _patterns(expression)):
        raise InvalidRule("a placeholder in a regular expression: expected '=' or 'prefix'", position)
    return str(expression)


def _patterns(expression: Expression) -> Iterator[str]:
    if isinstance(expression, And | Or):
        for item in expression.items:
            yield from _patterns(item)
    elif isinstance(expression, Not):
        yield from _patterns(expression.item)
    elif isinstance(expression, Matches):
        yield expression.pattern


class Thing(NamedTuple):
    """One resource, and the subject of an action on it; None if no subject is given."""

    kind: str
    name: str
    subject: str | None

    @classmethod
    def parse(cls, action: str, text: str) -> Thing:
        """Read `KIND/NAME[/SUBJECT]` as in a rule, but for patterns and placeholders.

        Raises:
            InvalidRule: the text names no resource, or one without this action.
        """
        rule = AccessRule.parse(f"{action} {text}")
        parts = (rule.name, rule.subject)
        if rule.deny or rule.where or ANY in (rule.kind, *rule.actions) or not all(map(is_literal, parts)):
            raise InvalidRule(f"invalid target {text!r} of {action!r}: expected one action, on one thing")
        if len(rule.actions) > 1:
            raise InvalidRule(f"invalid action {action!r}: expected one")
        return cls(rule.kind, unquote(rule.name), unquote(rule.subject) if rule.subject else None)


def needed_rule(action: str, kind: str, name: str, subject: str = "") -> str:
    """Return the rule that allows one action on one resource, and no more."""
    return f"{action} {'/'.join((kind, *map(literal_template, filter(None, (name, subject)))))}"


def resolve_where(where: str, values: Values) -> str | None:
    """Return the expression for a user; None if the user lacks the value of a placeholder."""
    missing = False

    def value(found: re.Match[str]) -> str:
        nonlocal missing
        given = values.get(found[1])
        missing |= given is None
        return (given or "").replace("'", "''")

    def text(found: re.Match[str]) -> str:
        quoted = found.group()
        return PLACEHOLDER.sub(value, quoted) if quoted.startswith("'") else quoted

    resolved = _TEXT.sub(text, where)
    return None if missing else resolved


def _unknown(kind: str, word: str, known: list[str]) -> str:
    close = get_close_matches(word, known, n=1)
    advice = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known)}"
    return f"unknown {kind} {word!r}: {advice}"
