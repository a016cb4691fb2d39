"""The arguments of QUERY and CHANGE: what each may hold, checked before anything looks at it.

A topic names its arguments, each with a `Rule` like those of the fields of commands: type, range, finiteness
and length, those of the items of a list too. `Arguments.check` is the only door. What passes it needs no
second look, so a handler asks only whether what is named exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple, get_args

from malamute.errors import InvalidName, InvalidValue
from malamute.protocol import limits
from malamute.protocol.batch import are_headers
from malamute.protocol.messages import ADDRESS, NAME, Rule
from malamute.protocol.names import PLACE_FORM, Kind, is_name
from malamute.protocol.texts import shown

MESSAGE_STATES = ("unstored", "waiting", "delayed", "outstanding", "settling", "dead")
"""What the state of a queued message may be."""

FEED_PREFIX = "$feed/"
"""What the name of a feed has before it where it is that of a cursor."""

OPERATIONS = ("copy", "move")
"""What a feed may do with a message."""

WHENS = ("match", "overflow", "default")
"""When a feed takes what meets its criteria: always, if no consumer of its queue has credit for it, or if no
other feed of its source takes it."""


def _is_text(value: Any, bytes_max: int) -> bool:
    return type(value) is str and len(value.encode()) <= bytes_max


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value) and 0 <= value <= limits.AGE_SECONDS_MAX


def _is_path(value: Any) -> bool:
    return _is_text(value, limits.PATH_BYTES_MAX) and value != "" and "\0" not in value


def _are_few_headers(value: Any) -> bool:
    return type(value) is dict and len(value) <= limits.HEADERS_MAX and are_headers(value)


def _is_place(value: Any) -> bool:
    kind, _, name = value.partition("/") if type(value) is str else ("", "", "")
    return kind in get_args(Kind) and is_name(name)


def _is_feed(value: Any) -> bool:
    return type(value) is str and value != "" and is_name(FEED_PREFIX + value)


def _are_names(value: Any) -> bool:
    return type(value) is list and len(value) <= limits.GROUPS_MAX and all(map(NAME.holds, value))


def _are_rules(value: Any) -> bool:
    fits = type(value) is list and len(value) <= limits.RULES_MAX
    return fits and all(_is_text(text, limits.RULE_BYTES_MAX) for text in value)


SECONDS = Rule("seconds", _is_seconds)
ROWS = Rule("rows", lambda value: type(value) is int and 1 <= value <= limits.ROWS_MAX)
SUBJECT = Rule(
    "subject", lambda value: _is_text(value, limits.SUBJECT_BYTES_MAX), bytes_max=limits.SUBJECT_BYTES_MAX
)
PATH = Rule("path", _is_path, bytes_max=limits.PATH_BYTES_MAX)
STATE = Rule("state", lambda value: value == "" or value in MESSAGE_STATES)
HEADERS = Rule("headers", _are_few_headers)
NAMES = Rule("names", _are_names, limits.GROUPS_MAX, limits.NAME_BYTES_MAX)
RULES = Rule("rules", _are_rules, limits.RULES_MAX, limits.RULE_BYTES_MAX)
PASSWORD = Rule(
    "password hash", lambda value: _is_text(value, limits.TEXT_BYTES_MAX), bytes_max=limits.TEXT_BYTES_MAX
)
PLACE = Rule("place", _is_place, bytes_max=len("mailbox/") + limits.NAME_BYTES_MAX)
FEED = Rule("feed", _is_feed, bytes_max=limits.NAME_BYTES_MAX - len(FEED_PREFIX))
OPERATION = Rule("operation", lambda value: value in OPERATIONS)
WHEN = Rule("when", lambda value: value in WHENS)
UID = Rule("uid", lambda value: type(value) is int and 0 <= value <= limits.UID_MAX)

SECRET = frozenset({"password"})
"""The names of arguments that are in no error, no log and no audit, whatever topic they were given to."""

EXPECTED = {
    "seconds": f"a finite number from 0 to {limits.AGE_SECONDS_MAX}",
    "rows": f"an integer from 1 to {limits.ROWS_MAX}",
    "number": f"an integer from 0 to {limits.NUMBER_MAX}",
    "sequence": f"an integer from 1 to {limits.NUMBER_MAX}",
    "sequences": f"a list of 1 to {limits.BATCH_MESSAGES_MAX} integers from 1 to {limits.NUMBER_MAX}",
    "criteria": f"a list of 1 to {limits.CRITERIA_MAX} pairs [family, pattern]",
    "boolean": "true or false",
    "subject": f"text of at most {limits.SUBJECT_BYTES_MAX} bytes",
    "words": f"text of at most {limits.TEXT_BYTES_MAX} bytes",
    "long text": f"text of at most {limits.WHERE_BYTES_MAX} bytes",
    "name": f"a name: text of 1 to {limits.NAME_BYTES_MAX} bytes with no control characters",
    "address": f"a name, or empty: text of at most {limits.NAME_BYTES_MAX} bytes with no control characters",
    "path": f"a path of 1 to {limits.PATH_BYTES_MAX} bytes without NUL",
    "kind": "'mailbox' or 'service'",
    "names": f"a list of at most {limits.GROUPS_MAX} names",
    "rules": f"a list of at most {limits.RULES_MAX} texts of at most {limits.RULE_BYTES_MAX} bytes",
    "password hash": f"a password as `malamute user` hashes it: at most {limits.TEXT_BYTES_MAX} bytes",
    "place": PLACE_FORM,
    "feed": f"text of 1 to {limits.NAME_BYTES_MAX - len(FEED_PREFIX)} bytes with no control characters",
    "operation": f"one of {', '.join(OPERATIONS)}",
    "when": f"one of {', '.join(WHENS)}",
    "uid": f"an integer from 0 to {limits.UID_MAX}",
    "binary": "bytes",
    "state": f"one of {', '.join(MESSAGE_STATES)}",
    "headers": f"a map of at most {limits.HEADERS_MAX} texts to a str, int, float, bool or nil each",
}
"""What each type of argument may hold, for the error about a wrong one."""


class Arguments(NamedTuple):
    """What a topic takes: the arguments that it needs, and those that may be left out."""

    required: Mapping[str, Rule] = {}
    optional: Mapping[str, Rule] = {}

    @property
    def rules(self) -> dict[str, Rule]:
        """The rule of each argument."""
        return {**self.required, **self.optional}

    def check(self, topic: str, given: Mapping[str, Any]) -> None:
        """Raise `InvalidValue` or, for what breaks the rule for names, `InvalidName`."""
        for name, value in given.items():
            rule = self.required.get(name) or self.optional.get(name)
            if rule is None:
                raise InvalidValue(f"unknown argument {shown(name)} of {topic}: expected {self._known()}")
            if not rule.holds(value):
                fault = (
                    InvalidName
                    if rule in (NAME, ADDRESS, FEED, PLACE) and type(value) is str
                    else InvalidValue
                )
                words = name if name in SECRET else f"{name} {shown(value)}"
                raise fault(f"{topic}: invalid {words}: expected {EXPECTED[rule.words]}")
        for name, rule in self.required.items():
            if name not in given:
                raise InvalidValue(f"missing argument {name!r} of {topic}: expected {EXPECTED[rule.words]}")

    def _known(self) -> str:
        return ", ".join(self.rules) or "none"
