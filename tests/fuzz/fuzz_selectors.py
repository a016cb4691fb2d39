"""What subscribers and administrators write: expressions, criteria, saved indexes, rules of access.

A line begins with what it is, so that a change of one leaves the others as they are:

    w price > 1             an expression          t topic a.b.#         a criterion of a family
    j ["fields", {"a": 1}]  a criterion            =                     the next selector
    m a.b<tab>{"a": 1}<tab>ann                     a message
"""

from __future__ import annotations

import json
import struct
from typing import Any
from zlib import crc32

from malamute.access import AccessRule, Policy
from malamute.access.rule import Thing
from malamute.errors import AccessRefused, InvalidRule, InvalidSelector, InvalidValue
from malamute.matching import CompiledSelector, Index, Selector, message_test, parse, parse_normal
from malamute.matching.expression import MessageFields
from malamute.matching.index import reason_of

MESSAGES = [
    ("a.b", {"n": 1, "lat": 59.9, "lon": 10.7}, "ann"),
    ("", {}, ""),
    ("x", {"a": "b", "n": True, "price": -0.5}, "bob"),
]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _check_place(error: InvalidSelector | InvalidRule, size: int) -> None:
    assert error.position is None or 0 <= error.position <= size


def expression(data: bytes) -> None:
    """An expression has one form, and means the same compiled and as a tree; or it is refused."""
    where, *headers = _text(data).split("\n", 1)
    try:
        found = parse(where)
    except InvalidSelector as error:
        _check_place(error, len(where))
        return
    assert parse(str(found)) == found == parse_normal(str(found))
    test = message_test(found)
    given = _json(headers[0]) if headers else None
    more = [("s", given, "")] if isinstance(given, dict) else []
    for message in (*MESSAGES, *more):
        fields = MessageFields(*message)
        assert found.holds(fields) == test(fields) == (not found.failure(fields))


def selectors(data: bytes) -> None:
    """Criteria are refused or normal; the index, each selector by itself, and what was saved agree."""
    asked: list[tuple[list[Any], str]] = [([], "")]
    messages = [*MESSAGES]
    for line in _text(data).split("\n")[:60]:
        kind, rest = line[:1], line[2:]
        if kind == "w":
            asked[-1] = (asked[-1][0], rest)
        elif kind == "t":
            asked[-1][0].append([*rest.split(" ", 1)])
        elif kind == "j":
            asked[-1][0].append(_json(rest))
        elif kind == "=":
            asked.append(([], ""))
        elif kind == "m":
            subject, headers, sender = (*rest.split("\t", 2), "", "")[:3]
            given = _json(headers)
            messages.append((subject, given if isinstance(given, dict) else {}, sender))
    index, added = Index(), {}
    for key, (criteria, where) in enumerate(asked):
        try:
            selector = Selector.parse(criteria, where)
        except InvalidSelector:
            continue
        assert Selector.parse([*map(list, selector.criteria)], selector.where) == selector
        assert selector.work >= 0 < selector.cost_bytes
        index.add(key, selector)
        added[key] = selector
    _check_index(index, added, messages)


def _check_index(index: Index, added: dict[int, Selector], messages: list[Any]) -> None:
    loaded = Index.load(index.save())
    columns = [*map(list, zip(*messages, strict=True))]
    batch = index.match_many(*columns)
    wanted = []
    for place, message in enumerate(messages):
        expected = {key for key, selector in added.items() if not reason_of(selector, *message)}
        wanted.append(expected)
        for found in (index.match(*message), loaded.match(*message), batch[place]):
            assert {key for group in found for key in group.members} == expected, message
    assert not index.failures
    assert not loaded.failures

    def failed(family: str, error: Exception) -> None:
        raise AssertionError(family) from error

    for key, selector in added.items():
        compiled = CompiledSelector(selector, failed)
        places = compiled.places(columns[0], columns[2], lambda asked: [columns[1][at] for at in asked])
        assert places == [place for place, keys in enumerate(wanted) if key in keys]
    for key in added:
        index.remove(key)
    assert not len(index)


def saved_index(data: bytes) -> None:
    """Bytes with a right checksum are an index, which never raises, or are refused."""
    for value in (data, struct.pack("<4sHxxIQ", b"MLMI", 1, crc32(data), len(data)) + data):
        try:
            index = Index.load(value)
        except InvalidValue:
            continue
        for message in MESSAGES:
            index.match(*message)


def rule(data: bytes) -> None:
    """A rule reads back as it was written, and decides; or it is refused with a place in it."""
    lines = _text(data).split("\n")
    rules = []
    for line in lines[:8]:
        try:
            found = AccessRule.parse(line)
        except InvalidRule as error:
            _check_place(error, len(line))
            continue
        assert AccessRule.parse(str(found)) == found
        rules.append(found)
    for line in lines[:8]:
        try:
            thing = Thing.parse("publish", line)
        except InvalidRule:
            continue
        assert thing.kind == "stream"
    policy = Policy(rules)
    for user, claims in (("ann", (("ward", "7'"), ("a.b", "*"))), ("#", ()), ("a.*", ())):
        grants = policy.grants(user, ("all",), claims)
        for action, kind in {pair for each in rules for pair in each.pairs()}:
            for name in ("s", "a.b", "$sys", "*", user):
                scope = grants.scope(action, kind, name)
                scope.decide()
                scope.decide("a.b")
                if action == "subscribe":
                    _narrow(scope)


def _narrow(scope: Any) -> None:
    asked = Selector.parse([["topic", "a.#"], ["exact", "b"], ["regex", "x"]], "n = 1")
    try:
        narrow = scope.narrow(asked)
    except AccessRefused:
        return
    for message in MESSAGES:
        assert reason_of(asked, *message) or not reason_of(asked, *message)
        # It never takes more than was asked for.
        assert reason_of(narrow, *message) or not reason_of(asked, *message)
