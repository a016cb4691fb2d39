"""Topics: forms, tables and filter, and how much work they do (WK2-WK11, WK14, WK15)."""

import random

import matching_oracle as oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matching_examples import many_pairs

from malamute.matching import ConstituentTables, Filter, Index, Selector
from malamute.matching import topic as topic_module
from malamute.matching.pattern import fits, forms, subsumes
from malamute.matching.shapes import Shapes, floats

NAIVE = {"topic": oracle.topic, "topic-amqp": oracle.topic_amqp}
PARTS = st.sampled_from(["a", "b", "c", "*", "#", "*"])
PATTERNS = st.lists(PARTS, min_size=1, max_size=6).map(".".join)
SUBJECTS = st.lists(st.sampled_from(["a", "b", "c", "x"]), min_size=1, max_size=7).map(".".join)
DIALECTS = st.sampled_from(["topic", "topic-amqp"])


def tables_of(patterns, dialect="topic-amqp"):
    tables = ConstituentTables()
    for number, pattern in enumerate(patterns):
        tables.add(number, forms(dialect, pattern))
    return tables


def rows_used(tables, subject):
    """The rows that `match` joins by AND for a subject."""
    used = []
    every = tables.rows
    tables.rows = lambda parts: (used.append(row) or row for row in every(parts))
    tables.match(subject.split("."))
    return len(used)


@pytest.mark.parametrize(
    ("dialect", "pattern", "wanted"),
    [
        ("topic", "a.*", {("a", "*"), ("a",)}),
        ("topic", "a.#", {("a", "#")}),
        ("topic", "#.c", {("*", "#", "c")}),
        ("topic", "a.#.*", {("a", "*", "#")}),
        ("topic", "#", {("*", "#")}),
        ("topic", "*", {("*",)}),
        ("topic-amqp", "a.#.*", {("a", "*", "#")}),
        ("topic-amqp", "#.#", {("#",)}),
    ],
)
def test_forms(dialect, pattern, wanted):
    assert set(forms(dialect, pattern)) == wanted


@many_pairs(40)
@given(DIALECTS, PATTERNS, st.lists(SUBJECTS, min_size=20, max_size=20))
def test_a_form_alone_means_what_the_pattern_means(dialect, pattern, subjects):
    for subject in subjects:
        assert any(fits(form, subject.split(".")) for form in forms(dialect, pattern)) == NAIVE[dialect](
            pattern, subject
        )


@many_pairs(40)
@given(
    DIALECTS,
    st.lists(PATTERNS, min_size=10, max_size=20),
    st.lists(SUBJECTS, min_size=20, max_size=30),
    st.data(),
)
def test_constituent_tables_hold_every_match_and_are_exact_without_a_hash(dialect, patterns, subjects, data):
    tables = tables_of(patterns, dialect)
    for number in data.draw(st.sets(st.integers(0, len(patterns) - 1))):
        tables.remove(number, forms(dialect, patterns[number]))
        patterns[number] = None
    for subject in subjects:
        wanted = {n for n, p in enumerate(patterns) if p and NAIVE[dialect](p, subject)}
        got = set(tables.match(subject.split(".")))
        assert wanted <= got
        assert wanted == {n for n in got if "#" not in patterns[n]} | {
            n for n in wanted if "#" in patterns[n]
        }


@many_pairs(40)
@given(
    st.lists(PATTERNS.filter(lambda p: "#" not in p), min_size=1, max_size=20),
    st.lists(SUBJECTS, min_size=20, max_size=20),
)
def test_wk9_the_null_rows_after_the_first_change_nothing(patterns, subjects):
    tables = tables_of(patterns)
    for subject in subjects:
        parts = subject.split(".")
        hits = tables.match(parts)
        for table in tables.printed()[len(parts) :]:
            hits = hits & table.null
        assert hits == tables.match(parts)


def test_wk4_a_topic_with_too_many_parts_is_dropped_with_no_work():
    tables = tables_of(["trade", "forex.eur", "forex.*"])
    assert rows_used(tables, "forex.eur.spot") == 0
    tables.add(3, forms("topic-amqp", "forex.#"))
    assert set(tables.match(["forex", "eur", "spot"])) == {3}


def test_wk6_values_that_no_subscription_names_add_no_row():
    """Neither to the tables nor to an index, at any place, whether others have the value elsewhere or not."""
    patterns = ["trade", "forex.eur", "forex.*"]
    tables, index = tables_of(patterns), Index()
    for number, pattern in enumerate(patterns):
        index.add(number, Selector.parse([["topic-amqp", pattern]]))
    shapes = index._unconditional._families["topic-amqp"]._shapes
    rows = [set(table.literals) for table in tables.printed()], sum(map(len, shapes._tables.values()))
    assert rows == ([{"forex", "trade"}, {"eur"}], 3)
    assert set(tables.match(["forex", "jpy"])) == {2}
    for number in range(20_000):
        for subject, wanted in ((f"forex.v{number}", {2}), (f"v{number}.eur", set()), (f"v{number}", set())):
            assert set(tables.match(subject.split("."))) == wanted
            assert {group.number for group in index.match(subject)} == wanted
    for subject, wanted in (("forex.trade", {2}), ("eur.forex", set()), ("forex.forex", {2})):
        assert set(tables.match(subject.split("."))) == wanted
    assert rows == ([set(t.literals) for t in tables.printed()], sum(map(len, shapes._tables.values())))


def test_wk7_at_most_as_many_rows_as_the_longest_subscription_has_parts():
    tables = tables_of(["a.b.c.d", "a.*.c", "*.b", "a"])
    for subject in ("a", "a.b", "a.b.c", "a.b.c.d", "x.b.c"):
        assert rows_used(tables, subject) <= 4


def test_wk8_the_work_stops_when_nothing_is_left():
    assert rows_used(tables_of(["forex.eur.spot", "forex.*.late"]), "trade.eur.spot") == 1


def test_wk10_one_long_topic_does_not_slow_the_short_ones():
    patterns = [".".join(f"p{n}" for n in range(100)), "forex.eur.spot", "forex.*.late", "*.usd.spot"]
    tables = tables_of(patterns)
    assert rows_used(tables, "forex.eur.spot") == 4
    assert set(tables.match(["forex", "eur", "spot"])) == {1}


# Shapes.


class CountingDict(dict):
    """A table that counts its look-ups."""

    looked_up = 0

    def get(self, *key):
        CountingDict.looked_up += 1
        return super().get(*key)


def test_rq5_the_number_of_look_ups_does_not_depend_on_the_number_of_selectors():
    counts = []
    for size in (10, 10_000):
        shapes = Shapes()
        shapes._tables = {}
        for number in range(size):
            pattern = ("{0}.*", "*.{0}", "{0}.b.*", "{0}.#", "{0}.x.{0}")[number % 5].format(f"v{number}")
            for form in forms("topic", pattern):
                shapes.add(number, form)
        shapes._tables = {shape: CountingDict(rows) for shape, rows in shapes._tables.items()}
        shapes._plans = {}
        CountingDict.looked_up = 0
        shapes.rows(["v1", "b", "c"])
        counts.append(CountingDict.looked_up)
    assert counts[0] == counts[1] == 3


def test_more_shapes_than_the_limit_go_to_the_constituent_tables(monkeypatch):
    monkeypatch.setattr(topic_module, "SHAPES_MAX", 3)
    chance = random.Random(3)
    patterns = sorted(
        {".".join(chance.choice("ab**#") for _ in range(chance.randint(1, 6))) for _ in range(200)}
    )
    index = Index()
    for key, pattern in enumerate(patterns):
        index.add(key, Selector.parse([["topic", pattern], ["topic", pattern + ".z"]]))
    family = index._unconditional._families["topic"]
    assert family._tabled
    held = dict(enumerate(patterns))
    for _ in range(2):
        for _ in range(300):
            subject = ".".join(chance.choice("abz") for _ in range(chance.randint(1, 7)))
            wanted = {
                k for k, p in held.items() if oracle.topic(p, subject) or oracle.topic(p + ".z", subject)
            }
            assert {key for group in index.match(subject) for key in group.members} == wanted
        for key in list(held)[::2]:
            index.remove(key)
            del held[key]
    for key in held:
        index.remove(key)
    assert not family._tables
    assert family._tables.parts_max == 0
    assert not len(family._shapes)


def test_rq14_a_false_positive_of_the_rows_is_not_delivered():
    index = Index()
    index.add("floating", Selector.parse([["topic", "a.#.b.#.c"]]))
    assert floats(forms("topic", "a.#.b.#.c")[0])
    family = index._unconditional._families["topic"]
    assert family._shapes.rows(["a", "x", "y", "z", "c"])
    assert index.match("a.x.y.z.c") == ()
    assert index.match("a.x.b.z.c") != ()


# The filter.


@many_pairs(30)
@given(DIALECTS, st.lists(PATTERNS, max_size=20), st.lists(SUBJECTS, min_size=20, max_size=30), st.booleans())
def test_wk11_a_filter_says_whether_there_is_any_match(dialect, patterns, subjects, wildcards_first):
    wanted = Filter(patterns, dialect, wildcards_first)
    for subject in subjects:
        assert wanted.matches(subject) == any(NAIVE[dialect](p, subject) for p in patterns)
    for pattern in list(dict.fromkeys(patterns))[::2]:
        wanted.remove(pattern)
        patterns = [p for p in patterns if p != pattern]
    for subject in subjects:
        assert wanted.matches(subject) == any(NAIVE[dialect](p, subject) for p in patterns)


@many_pairs(50)
@given(DIALECTS, PATTERNS, PATTERNS, st.lists(SUBJECTS, min_size=20, max_size=20))
def test_subsumption_is_never_claimed_wrongly(dialect, general, special, subjects):
    if subsumes(forms(dialect, general), forms(dialect, special)):
        for subject in subjects:
            assert NAIVE[dialect](general, subject) or not NAIVE[dialect](special, subject)


@pytest.mark.parametrize(
    ("general", "special"),
    [("forex.*", "forex.eur"), ("#", "a.b.c"), ("a.#", "a.*.c"), ("a.*", "a"), ("*.b", "a.b")],
)
def test_subsumption_is_found(general, special):
    assert subsumes(forms("topic", general), forms("topic", special))
    assert not subsumes(forms("topic", special), forms("topic", general))


def test_wk14_a_subsumed_pattern_does_not_grow_the_filter_and_comes_back():
    wanted = Filter(["forex.*"])
    wanted.add("forex.eur")
    assert wanted.kept == ["forex.*"]
    wanted.remove("forex.*")
    assert wanted.kept == ["forex.eur"]
    assert wanted.matches("forex.eur")
    assert not wanted.matches("forex.usd")


def words_examined(wanted, subjects):
    count = 0
    real = Filter._word

    def counted(self, rows, index):
        nonlocal count
        count += 1
        return real(self, rows, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Filter, "_word", counted)
        results = [wanted.matches(subject) for subject in subjects]
    return count, results


def test_wk11_one_word_is_enough_when_the_first_bit_hits():
    patterns = ["a.*.*"] + [f"b{n}.c.d" for n in range(1_000)]
    assert words_examined(Filter(patterns), ["a.b.c"]) == (1, [True])


def test_wk15_patterns_with_more_wildcards_first_need_fewer_words():
    chance = random.Random(15)
    patterns = [f"a{n % 50}.b{n}.c{n % 7}" for n in range(1_000)] + [f"a{n}.*.*" for n in range(40)]
    subjects = [
        f"a{chance.randrange(60)}.b{chance.randrange(1_200)}.c{chance.randrange(7)}" for _ in range(300)
    ]
    plain, without = words_examined(Filter(patterns, wildcards_first=False), subjects)
    sorted_, with_ = words_examined(Filter(patterns, wildcards_first=True), subjects)
    assert with_ == without
    assert sorted_ < plain / 2


def test_patterns_of_a_filter_are_checked():
    with pytest.raises(Exception, match="whole part"):
        Filter(["a*"])
    with pytest.raises(KeyError):
        Filter().remove("a")
    assert not Filter().matches("a")
