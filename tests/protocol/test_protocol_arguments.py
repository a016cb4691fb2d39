"""The arguments of QUERY and CHANGE: what a rule allows passes the door, and nothing else does."""

from __future__ import annotations

from math import inf, nan
from typing import Annotated, Any, get_origin

import pytest
import wire_strategies as wire
from depth import DEPTH
from hypothesis import given, settings
from hypothesis import strategies as st

from malamute.errors import InvalidName, InvalidValue
from malamute.protocol import fields, limits
from malamute.protocol.admin.topic import SECRET, Arguments
from malamute.protocol.fields import Rule, rule_of

TOPICS = wire.ARGUMENTS
USED = {rule for takes in TOPICS.values() for rule in takes.rules.values()}

ALL_RULES = {
    rule_of(hint)
    for name, hint in vars(fields).items()
    if get_origin(hint) is Annotated and not name.startswith("_")
}


def test_every_rule_has_a_strategy_and_every_argument_words_for_a_wrong_one() -> None:
    assert {rule.words for rule in ALL_RULES} == {*wire.BY_WORDS, *wire.COLUMNS}
    assert all(rule.expected for rule in USED)


@pytest.mark.parametrize("key", TOPICS, ids=lambda key: f"{key[0].__name__}-{key[1]}")
@settings(max_examples=10 * DEPTH)
@given(data=st.data())
def test_what_a_topic_takes_passes(key: Any, data: st.DataObject) -> None:
    TOPICS[key].check(key[1], data.draw(wire.arguments(TOPICS[key])))


BAD: tuple[Any, ...] = (
    inf,
    -inf,
    nan,
    1e300,
    -1,
    -0.5,
    2**63,
    2**64 - 1,
    None,
    b"x",
    "\0",
    "/a\0b",
    "x" * 5_000,
    [],
    [1, "a"],
    [0],
    [-1],
    [2**63],
    [nan],
    [True],
    [1] * (limits.BATCH_MESSAGES_MAX + 1),
    [["all", ""]] * (limits.CRITERIA_MAX + 1),
    [["all"]],
    [[1, ""]],
    {"a": [1]},
    {"a": {}},
    {"a": b"x"},
    {str(place): 1 for place in range(limits.HEADERS_MAX + 1)},
)


@pytest.mark.parametrize("key", TOPICS, ids=lambda key: f"{key[0].__name__}-{key[1]}")
def test_what_no_rule_allows_is_refused_with_its_name_and_what_was_expected(key: Any) -> None:
    for name, rule in TOPICS[key].rules.items():
        refuses(key, name, rule)


def refuses(key: Any, name: str, rule: Rule) -> None:
    topic, takes, refused = key[1], TOPICS[key], 0
    for value in BAD:
        if rule.holds(value):
            continue
        with pytest.raises((InvalidValue, InvalidName)) as raised:
            takes.check(topic, {name: value})
        assert f"invalid {name}" in raised.value.text
        assert rule.expected in raised.value.text
        assert len(raised.value.text) < 500
        if name in SECRET:
            assert repr(value)[:5] not in raised.value.text
        refused += 1
    assert refused >= len(BAD) - 4


@pytest.mark.parametrize("value", [inf, -inf, nan, 1e300, -1, -0.001, limits.AGE_SECONDS_MAX + 1, True, "1"])
def test_an_age_is_finite_and_within_its_range(value: Any) -> None:
    assert not rule_of(fields.AgeSeconds).holds(value)


def test_what_is_needed_is_asked_for_and_what_is_unknown_is_reported() -> None:
    takes = Arguments({"stream": rule_of(fields.Name)}, {"dead": rule_of(fields.Boolean)})
    with pytest.raises(InvalidValue, match="missing argument 'stream' of x: expected a name"):
        takes.check("x", {"dead": True})
    with pytest.raises(InvalidValue, match="unknown argument 'colour' of x: expected stream, dead"):
        takes.check("x", {"stream": "s", "colour": 1})
    with pytest.raises(InvalidName, match=r"x: invalid stream '': expected a name"):
        takes.check("x", {"stream": ""})
    with pytest.raises(InvalidValue):
        takes.check("x", {"stream": 5})
    takes.check("x", {"stream": "s"})
