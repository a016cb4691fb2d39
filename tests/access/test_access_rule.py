"""The language of rules: what is understood, what is refused and where, and that it is written back."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malamute.access import ACTIONS, AccessRule
from malamute.access.rule import RULE_CHARACTERS_MAX, WITH_SUBJECT, resolve_where
from malamute.access.template import marked, resolve
from malamute.errors import InvalidRule
from malamute.matching import parse


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("publish stream/prices/fx.#", AccessRule(False, ("publish",), "stream", "prices", "fx.#")),
        ("receive mailbox/{user}", AccessRule(False, ("receive",), "mailbox", "{user}")),
        ("deny publish stream/a/b", AccessRule(True, ("publish",), "stream", "a", "b")),
        ("subscribe,publish stream/a", AccessRule(False, ("publish", "subscribe"), "stream", "a")),
        ("view,* */#", AccessRule(False, ("*",), "*", "#")),
        (
            "  request   service/printer.*/bw.*  ",
            AccessRule(False, ("request",), "service", "printer.*", "bw.*"),
        ),
        ("view broker/status", AccessRule(False, ("view",), "broker", "status")),
        ("publish stream/a%2fb%20c%2Ad", AccessRule(False, ("publish",), "stream", "a%2Fb%20c%2Ad")),
        ("publish stream/%61", AccessRule(False, ("publish",), "stream", "a")),
        (
            "subscribe stream/patients where  ward='{claim.ward}'",
            AccessRule(False, ("subscribe",), "stream", "patients", "", "ward = '{claim.ward}'"),
        ),
    ],
)
def test_a_rule_is_understood_and_written_back(text, rule):
    assert AccessRule.parse(text) == rule
    assert AccessRule.parse(str(rule)) == rule


@pytest.mark.parametrize(
    ("text", "words", "position"),
    [
        ("", "too short", 0),
        ("deny", "too short", 4),
        ("publish", "too short", 7),
        ("pubish stream/a", "unknown action 'pubish': did you mean 'publish'?", 0),
        ("deny publish,sned stream/a", "unknown action 'sned': did you mean 'send'?", 13),
        ("publish, stream/a", "unknown action ''", 8),
        ("publish steam/a", "unknown kind 'steam': did you mean 'stream'?", 8),
        ("publish mailbox/a", "publish is nothing to do with a mailbox", 8),
        ("publish,send stream/a", "send is nothing to do with a stream", 13),
        ("publish stream", "no name: expected stream/NAME", 14),
        ("publish stream/", "no name: expected stream/NAME", 14),
        ("publish stream/a/", "empty part", 17),
        ("publish stream/a..b", "empty part", 17),
        ("publish stream/a.b*", "invalid part 'b*': expected a wildcard to be a whole part, or %2A", 17),
        ("publish stream/a/b.c#", "or %23", 19),
        ("publish stream/{user", "unexpected '{': expected {user} or {claim.NAME}", 15),
        ("publish stream/{group}", "unexpected '{'", 15),
        ("publish stream/x.{claim.}", "unexpected '{'", 17),
        ("publish stream/a%2", "invalid escape", 15),
        ("publish stream/%FF", "bytes of UTF-8", 15),
        ("view stream/a/b", "a subject means nothing to 'view'", 14),
        ("* stream/a/b", "a subject means nothing to '*'", 11),
        ("publish stream/a for b", "unexpected 'for': expected 'where' or the end", 17),
        ("publish stream/a where b = 1", "'where' is for 'subscribe' alone", 22),
        ("subscribe stream/a where", "no expression", 24),
        ("subscribe stream/a where b = ", "unexpected 'the end'", 29),
        ("subscribe stream/a where b matches '('", "invalid regular expression", 36),
        ("subscribe stream/a where b matches '{user}'", "a placeholder in a regular expression", 24),
        ("subscribe stream/a where not (c = 1 or b matches '{user}')", "a placeholder", 24),
    ],
)
def test_a_malformed_rule_is_refused_by_what_is_wrong_and_where(text, words, position):
    with pytest.raises(InvalidRule) as refused:
        AccessRule.parse(text)
    assert refused.value.code == 417
    assert words in refused.value.text
    assert f"at position {position}" in refused.value.text
    assert repr(text) in refused.value.text


def test_a_rule_has_a_longest_length():
    longest = "publish stream/" + "a" * (RULE_CHARACTERS_MAX - 15)
    assert AccessRule.parse(longest).name == longest[15:]
    with pytest.raises(InvalidRule, match="rule too long"):
        AccessRule.parse(longest + "a")


def test_what_is_no_text_is_no_rule():
    with pytest.raises(InvalidRule, match="expected text"):
        AccessRule.parse(7)


WILD = ["*", "#", "{user}", "a{claim.x}"]
PARTS = st.one_of(st.sampled_from(WILD), st.text(min_size=1, max_size=5))


def pattern_text(parts):
    return ".".join(part if part in WILD else escaped(part) for part in parts)


def escaped(part):
    return "".join(f"%{byte:02X}" for byte in part.encode("utf-8", "ignore")) or "x"


@given(
    st.booleans(),
    st.sampled_from(sorted(WITH_SUBJECT)),
    st.lists(PARTS, min_size=1, max_size=4),
    st.lists(PARTS, max_size=3),
)
def test_writing_a_rule_and_reading_it_gives_the_same_rule(deny, action, name, subject):
    text = f"{'deny ' * deny}{action} {ACTIONS[action][0]}/{pattern_text(name)}"
    rule = AccessRule.parse(f"{text}/{pattern_text(subject)}" if subject else text)
    assert AccessRule.parse(str(rule)) == rule
    assert str(AccessRule.parse(str(rule))) == str(rule)


@given(st.text())
def test_any_text_is_a_rule_or_is_refused_with_a_number(text):
    with suppress(InvalidRule):
        rule = AccessRule.parse(text)
        assert AccessRule.parse(str(rule)) == rule


@given(st.text())
def test_what_a_placeholder_stands_for_is_one_text_whatever_it_holds(value):
    assert resolve("{user}", {"user": value}) == (marked(value) or None)
    where = resolve_where("a = '{user}' and b = 'x{user}y'", {"user": value})
    assert str(parse(where)) == str(parse(where))
    first, second = parse(where).items
    assert (first.values, second.values) == ((value,), (f"x{value}y",))


def test_only_text_of_an_expression_is_filled_in():
    assert resolve_where("\"{user}\" = 'it''s {user}'", {"user": "o'b"}) == "\"{user}\" = 'it''s o''b'"


def test_what_is_missing_is_missing():
    assert resolve("a.{claim.x}", {"user": "u"}) is None
    assert resolve("{claim.x}", {"claim.x": ""}) is None
    assert resolve("", {}) == ""
    assert resolve_where("a = '{claim.x}'", {}) is None
    assert resolve_where("a = '{x}'", {}) == "a = '{x}'"
