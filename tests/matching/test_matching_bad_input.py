"""Selectors that cannot be parsed are refused with the place of the fault; a message never raises."""

import pytest

from malamute.errors import InvalidSelector
from malamute.matching import Index, Selector, parse
from malamute.matching.family import PATTERN_CHARACTERS_MAX
from malamute.matching.fields import FIELDS_MAX
from malamute.matching.parser import DEPTH_MAX, EXPRESSION_CHARACTERS_MAX
from malamute.matching.plan import CLAUSES_MAX, plan_of
from malamute.matching.selector import CRITERIA_MAX


@pytest.mark.parametrize(
    ("name", "pattern", "position"),
    [
        ("topic", "", 0),
        ("topic", "a..b", 2),
        ("topic", "a.b.", 4),
        ("topic", "a*", 0),
        ("topic", "forex.e#r.x", 6),
        ("topic-amqp", "a.**", 2),
        ("topic", 7, None),
        ("topic", b"a", None),
        ("topic", None, None),
        ("exact", ["a"], None),
        ("prefix", "x" * (PATTERN_CHARACTERS_MAX + 1), PATTERN_CHARACTERS_MAX),
        ("all", "x", 0),
        ("all", [], 0),
        ("regex", "a(b", 1),
        ("regex", "a[", 1),
        ("regex", "a**", 2),
        ("regex", r"(a)\1", 3),
        ("regex", "ab(?=x)", 2),
        # Python warns of what it may take for something else one day: of no concern to the broker's log.
        ("regex", "[[a](?=x)", 4),
        ("regex", "a{2000}", 1),
        ("regex", "ab\ud800", 2),
        ("nothing", "a", None),
        (["topic"], "a", None),
        ("fields", [], None),
        ("fields", "", None),
        ("fields", 7, None),
        ("fields", {"all": {"a": [[1]]}}, None),
        ("fields", {"a": float("nan")}, None),
        ("fields", [["a", "b", "c"]], None),
        ("fields", [[1, "b"]], None),
        ("fields", [[]], None),
        ("fields", {f"f{n}": None for n in range(FIELDS_MAX + 1)}, None),
        ("fields", {"a": list(range(FIELDS_MAX + 1))}, None),
        ("geo", {"circle": [0, 0]}, None),
        ("geo", {"circle": [91, 0, 1]}, None),
        ("geo", {"circle": [0, 0, -1]}, None),
        ("geo", {"circle": [0, 0, float("inf")]}, None),
        ("geo", {"box": [2, 0, 1, 0]}, None),
        ("geo", {"box": "1234"}, None),
        ("geo", {"square": [0, 0, 1, 1]}, None),
        ("geo", {"circle": [0, 0, 1], "lat": 7}, None),
        ("geo", {}, None),
        ("geo", "circle", None),
        ("geo", [["circle"], [0, 0, 1], "lat", "lon"], None),
    ],
)
def test_a_bad_pattern_is_refused(name, pattern, position):
    with pytest.raises(InvalidSelector) as caught:
        Selector.parse([[name, pattern]])
    assert caught.value.position == position


@pytest.mark.parametrize(
    "criteria", [[], ["topic"], [["topic"]], [["topic", "a", "b"]], [7], [["topic", "a"], None]]
)
def test_bad_criteria_are_refused(criteria):
    with pytest.raises(InvalidSelector):
        Selector.parse(criteria)


def test_too_many_criteria_are_refused():
    criteria = [["topic", f"t{n}"] for n in range(CRITERIA_MAX)]
    assert len(Selector.parse(criteria).criteria) == CRITERIA_MAX
    with pytest.raises(InvalidSelector):
        Selector.parse([*criteria, ["topic", "one.more"]])


def test_an_unknown_family_is_refused_with_what_there_is():
    with pytest.raises(InvalidSelector, match=r"expected .*topic, topic-amqp"):
        Selector.parse([["topics", "a"]])


def test_a_pattern_at_the_limit_is_taken():
    Selector.parse([["prefix", "x" * PATTERN_CHARACTERS_MAX]])


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("price >", 7),
        ("price > > 1", 8),
        ("price", 5),
        ("= 1", 0),
        ("a = 1 b = 2", 6),
        ("a = 1 and", 9),
        ("(a = 1", 6),
        ("a = 1)", 5),
        ("a = 'x", 4),
        ('a = "x"', 4),
        ('"a = 1', 0),
        ("a = 1 & b = 2", 6),
        ("a in ()", 6),
        ("a in (1 2)", 8),
        ("a in 1", 5),
        ("a between 1 or 2", 12),
        ("a between 1 and 'b'", 16),
        ("a > true", 4),
        ("a prefix 1", 9),
        ("a matches 'x('", 12),
        ("a matches 'x(?=y)'", 12),
        ("a matches '[[a](?=y)'", 15),
        ("exists 1", 7),
        ("exists (a", 9),
        ("within(lat, lon)", 6),
        ("within(lat, lon, 1, 2)", 6),
        ("within(lat, lon, 95, 2, 3)", 6),
        ("within(lat, 1, 2, 3)", 12),
        ("a = 1e999", 4),
        ("a = 12x", 4),
        ("and = 1", 0),
        ("a not = = 1", 8),
        ("(" * (DEPTH_MAX + 1) + "a = 1" + ")" * (DEPTH_MAX + 1), DEPTH_MAX),
        ("not " * (DEPTH_MAX + 1) + "a = 1", DEPTH_MAX * 4),
        ("a = '" + "x" * EXPRESSION_CHARACTERS_MAX + "'", EXPRESSION_CHARACTERS_MAX),
    ],
)
def test_a_bad_expression_is_refused_with_its_place(text, position):
    with pytest.raises(InvalidSelector) as caught:
        Selector.parse([["all", ""]], text)
    assert caught.value.position == position


@pytest.mark.parametrize("where", [None, 7, b"a = 1"])
def test_an_expression_is_text(where):
    with pytest.raises(InvalidSelector):
        Selector.parse([["all", ""]], where)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("PRICE > 1 AND NOT b<>2", "PRICE > 1 and not b != 2"),
        ("'x' = 1", None),
        ("\"content type\" = 'it''s'", "\"content type\" = 'it''s'"),
        ("\"subject\" = 'a' and subject = 'b'", "\"subject\" = 'a' and subject = 'b'"),
        ('"in" exists', None),
        ("exists(a) or (b = -1.50 or c = +2)", "exists a or b = -1.5 or c = 2"),
        ("a not in (1, 2) and x-y.z prefix ''", "not a in (1, 2) and x-y.z prefix ''"),
        ("(a = 1 or b = 2) and c = 3", "(a = 1 or b = 2) and c = 3"),
        ("not (a = 1 and b = 2)", "not (a = 1 and b = 2)"),
        ("not not a = true", "a = true"),
        ("within(lat, lon, 59.9, 10.75, 50)", "within(lat, lon, 59.9, 10.75, 50)"),
        ("a = 1 and a = 1", "a = 1"),
    ],
)
def test_the_written_form(text, written):
    if written is None:
        with pytest.raises(InvalidSelector):
            parse(text)
    else:
        assert str(parse(text)) == written


@pytest.mark.parametrize(
    "headers",
    [
        {"a": [1], "b": {"x": 1}, "lat": "x", "lon": None},
        {"a": float("nan"), "b": float("inf"), "lat": float("inf"), "lon": float("nan")},
        {"a": b"bytes", "b": "\ud800", "lat": 2**80, "lon": 2**80},
        {"a": object(), "lat": True, "lon": False},
        {1: 2, None: 3},
    ],
)
def test_a_message_never_raises(headers):
    index = Index()
    selectors = [
        Selector.parse([["fields", {"a": 1}], ["geo", {"circle": [0, 0, 1]}]]),
        Selector.parse([["regex", "x"]], "a > 1 or b < 'x' or a != 3 or b matches 'q' or b prefix 'q'"),
        Selector.parse([["all", ""]], "within(lat, lon, 0, 0, 1) and a between 1 and 2 and sender = 'x'"),
    ]
    for key, selector in enumerate(selectors):
        index.add(key, selector)
    for subject in ("", ".", "x" * 10_000, "." * 1_000, "\ud800", "a.*.#"):
        matched = {e.group.number for e in index.explain(subject, headers, "someone") if e.matched}
        assert matched <= {1}
    assert not index.failures


def test_an_expression_with_too_many_alternatives_is_checked_instead_of_expanded():
    text = " and ".join(f"(a{n} = 'x' or b{n} = 'y')" for n in range(20))
    plan = plan_of(parse(text))
    assert len(plan.clauses) <= CLAUSES_MAX
    assert not plan.exact
    index = Index()
    index.add("k", Selector.parse([["all", ""]], text))
    headers = {f"{'ab'[n % 2]}{n}": "xy"[n % 2] for n in range(20)}
    assert index.match("s", headers) != ()
    assert index.match("s", {**headers, "a0": "z"}) == ()
    wide = " or ".join(f"a{n} = 'x' and b = 'y'" for n in range(150))
    index.add("wide", Selector.parse([["all", ""]], wide))
    assert index.match("s", {"a7": "x", "b": "y"}) != ()
