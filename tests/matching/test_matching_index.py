"""The index itself: groups, numbers, cache, families in use, families from outside, explanations."""

import gc
import sys
import tracemalloc
from pathlib import Path

import pytest
from depth import NIGHT

from malamute.errors import InvalidSelector
from malamute.matching import (
    FAMILIES,
    Family,
    Index,
    Selector,
    TermFamily,
    conditions,
    family,
    load_plugins,
    register,
)
from malamute.matching import index as index_module
from malamute.matching.cache import SubjectCache
from malamute.matching.expression import Expression, OneOf
from malamute.matching.regex import Regex, RegexFamily

PACKAGE = str(Path(index_module.__file__).parents[1])


def topic(*patterns, where=""):
    return Selector.parse([["topic", pattern] for pattern in patterns], where)


def keys(groups):
    return [key for group in groups for key in group.members]


@pytest.fixture
def registry(monkeypatch):
    """A registry that may be added to."""
    monkeypatch.setattr(family, "FAMILIES", dict(FAMILIES))


# Groups and numbers.


def test_rq7_identical_selectors_share_one_group_and_one_number():
    index = Index()
    for key in range(10_000):
        index.add(key, topic(f"t{key % 100}.*"), value=-key)
    assert len(index) == 100
    assert sorted(group.number for group in index.groups()) == list(range(100))
    (group,) = index.match("t7.x")
    assert list(group.members.items())[:2] == [(7, -7), (107, -107)]
    assert len(group.members) == 100


def test_rq7_repeated_selectors_take_no_more_work_and_only_the_memory_of_their_members():
    """Counted: calls of functions to match, and bytes that were allocated."""
    calls, sizes = [], []
    selectors = [topic(f"t{number}.*", f"a.t{number}.#") for number in range(100)]
    for members in (100, 10_000):
        tracemalloc.start()
        index = Index()
        for key in range(members):
            index.add(key, selectors[key % 100])
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        calls.append(_calls(lambda index=index: [index.match(f"a.t{n}.{n}") for n in range(200)]))
    assert calls[0] == calls[1] > 200
    assert sizes[0] < sizes[1] < sizes[0] + 9_900 * 200


MAINTAINED = {
    "exact": lambda n: (("exact", f"a.b{n}"), ""),
    "prefix": lambda n: (("prefix", f"a.b{n:05}"), ""),
    "topic": lambda n: (("topic", f"a.*.b{n}"), ""),
    "topic-amqp": lambda n: (("topic-amqp", f"a.b{n}.#"), ""),
    "fields": lambda n: (("fields", {"all": {"unit": f"u{n}", "level": 3}}), ""),
    "a condition": lambda n: (("all", ""), f"unit = 'u{n}'"),
    "regex": lambda n: (("regex", f"^a.b{n}$"), ""),
}
"""By the family: the criterion and the condition of the selector with a number."""


@pytest.mark.parametrize("family", MAINTAINED)
def test_zn21_look_ups_and_changes_cost_the_same_whatever_the_number_of_selectors(family):
    """Counted, in calls of functions. Each regular expression is tried for each new subject: that grows."""
    looked_up, changed = [], []
    for size in (20, 400):
        index = Index()
        for number in range(size):
            index.add(number, _maintained(family, number))
        headers = {"unit": "u7", "level": 3, "other": 1}
        subject = {"topic": "a.x.b7", "topic-amqp": "a.b7.x", "prefix": "a.b00007.x"}.get(family, "a.b7")
        index.match("warm.up", headers)
        looked_up.append(_calls(lambda index=index, s=subject, h=headers: index.match(s, h)))
        assert keys(index.match(subject, headers)) == [7]
        old, new = (_maintained(family, number) for number in (3, 7_777))
        # The cache of patterns has two generations, and a new one begins with any of them.
        for selector in (old, new, old, new):
            Index().add("a look", selector)
        changed.append(_calls(lambda index=index, new=new: (index.modify(3, new), index.remove(3))))
    assert changed[0] == changed[1]
    assert (looked_up[0] == looked_up[1]) is (family != "regex")
    assert looked_up[1] < (20 * 400 if family == "regex" else 100)


def _maintained(family, number):
    criterion, where = MAINTAINED[family](number)
    return Selector.parse([criterion], where)


def _calls(work):
    """How many functions of the package a work calls, and how many they call that are built in.

    The work of the standard library in between is not the index's: `issubclass` asks all subclasses again
    once anybody, of this thread or another, has registered a class anywhere.
    """
    count = 0

    def seen(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call") and frame.f_code.co_filename.startswith(PACKAGE)

    # A collection calls whoever has asked to be notified of it.
    gc.collect()
    gc.disable()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def test_selectors_are_normalised():
    one = Selector.parse([["topic", "a"], ["exact", "b"], ["topic", "a"]], "x=1 AND  y in ('b','a')")
    two = Selector.parse([("exact", "b"), ("topic", "a")], "(x = 1.0) and y in ('a', 'b', 'a')")
    assert one == two
    assert one.where == "x = 1 and y in ('a', 'b')"
    assert Selector.parse(one.criteria, one.where) == one
    listed = [[name, pattern] for name, pattern in one.criteria]  # as msgpack gives it back
    assert Selector.parse(listed, one.where) == one


def test_normal_patterns_come_back_from_lists():
    pairs = [
        ["fields", {"any": {"b": [2, "x", True], "a": None}}],
        ["geo", {"box": [-1, 170, 1, -170]}],
        ["all", None],
    ]
    selector = Selector.parse(pairs)

    def listed(value):
        return [listed(item) for item in value] if isinstance(value, tuple) else value

    assert Selector.parse([listed(tuple(criterion)) for criterion in selector.criteria]) == selector


def test_one_and_true_are_two_things():
    index = Index()
    index.add("one", Selector.parse([["fields", {"a": 1}]]))
    index.add("true", Selector.parse([["fields", {"a": True}]]))
    index.add("where", Selector.parse([["all", ""]], "a = true or a = 0"))
    index.add("either", Selector.parse([["all", ""]], "a = true or a = 1"))
    assert sorted(keys(index.match("s", {"a": 1}))) == ["either", "one"]
    assert sorted(keys(index.match("s", {"a": True}))) == ["either", "true", "where"]
    assert sorted(keys(index.match("s", {"a": False}))) == []
    assert sorted(keys(index.match("s", {"a": 0.0}))) == ["where"]


def test_add3_several_matching_criteria_are_one_hit():
    index = Index()
    index.add("k", Selector.parse([["topic", "a.*"], ["prefix", "a"], ["fields", "x=1"], ["exact", "a.b"]]))
    index.add("j", Selector.parse([["fields", "x=1"]]))
    assert keys(index.match("a.b", {"x": "1"})) == ["k", "j"]
    assert keys(index.match("z", {"x": "1"})) == ["k", "j"]
    assert keys(index.match("a.b")) == ["k"]


def test_freed_numbers_are_given_again_lowest_first():
    index = Index()
    for number in range(4):
        assert index.add(number, topic(f"t{number}")).number == number
    index.remove(2)
    index.remove(0)
    assert index.add("x", topic("x")).number == 0
    assert index.add("y", topic("y")).number == 2
    assert index.add("z", topic("z")).number == 4


def test_keys_are_unique_and_must_be_known():
    index = Index()
    index.add("k", topic("a"))
    with pytest.raises(KeyError):
        index.add("k", topic("b"))
    for change in (index.remove, lambda key: index.modify(key, topic("b"))):
        with pytest.raises(KeyError):
            change("unknown")
    assert "k" in index
    assert keys(index.match("a")) == ["k"]


def test_modify_keeps_the_value_and_moves_the_subscriber():
    index = Index()
    index.add("k", topic("a"), value="v")
    index.add("j", topic("a"))
    group = index.modify("k", topic("b"))
    assert group.members == {"k": "v"}
    assert keys(index.match("a")) == ["j"]
    assert keys(index.match("b")) == ["k"]
    assert index.modify("k", topic("b")) is group


# The version, the cache, and results that are one object.


def test_the_version_rises_with_the_set_of_selectors_only():
    index = Index()
    index.add("k", topic("a"))
    version = index.version
    index.add("j", topic("a"))
    assert index.version == version
    index.remove("j")
    assert index.version == version
    index.remove("k")
    assert index.version > version


def test_rq11_a_seen_subject_meets_a_later_selector():
    index = Index()
    index.add("k", topic("a.*"))
    assert keys(index.match("a.b")) == ["k"]
    index.add("j", topic("a.b"))
    assert keys(index.match("a.b")) == ["k", "j"]
    index.remove("k")
    assert keys(index.match("a.b")) == ["j"]


@pytest.mark.parametrize("where", ["", "price > 0"])
def test_equal_results_are_the_same_object(where):
    index = Index()
    index.add("k", topic("a.*", where=where))
    index.add("j", topic("*.b", where=where))
    headers = {"price": 1}
    assert index.match("a.x", headers) is index.match("a.y", headers)
    assert index.match("a.b", headers) is index.match("a.b", headers)
    assert index.match_many(["a.x", "a.b"], [headers] * 2)[0] is index.match("a.y", headers)


def test_a_batch_is_matched_as_its_messages_are():
    index = Index()
    index.add("k", topic("a", where="sender = 'ann' or x = 1"))
    subjects, headers, senders = ["a", "a", "b"], [{"x": 1}, {}, {"x": 1}], ["", "ann", "ann"]
    batch = index.match_many(subjects, headers, senders)
    assert batch == [index.match(*message) for message in zip(subjects, headers, senders, strict=True)]
    assert list(map(keys, batch)) == [["k"], ["k"], []]
    assert index.match_many(["a", "b"]) == [(), ()]
    with pytest.raises(ValueError, match="argument"):
        index.match_many(["a", "b"], [{}])


def test_wk2_add1_subjects_beyond_the_cache_keep_no_more_than_it_may_hold():
    index = Index(cache_size=100)
    index.add("k", topic("a.*"))
    index.add("j", topic("b.*", where="x = 1"))
    for number in range(2_000):
        index.match(f"a.{number}", {"x": 1})
    assert index._partial_of.held <= 100
    index.remove("j")
    for number in range(2_000):
        index.match(f"a.{number}")
        index.match("a.often")
    assert index._groups_of.held <= 100
    assert len(index._results) == 1
    assert len(index._unconditional._families["topic"]._shapes._plans) == 1


def test_many_different_results_are_forgotten_together(monkeypatch):
    monkeypatch.setattr(index_module, "RESULTS_MAX", 50)
    index = Index()
    for number in range(100):
        index.add(number, topic(f"t{number}"))
    for number in range(100):
        assert keys(index.match(f"t{number}")) == [number]
        assert len(index._results) <= 50


def test_the_cache_computes_an_often_used_subject_once():
    computed = []
    cache = SubjectCache(lambda subject: computed.append(subject) or subject, 10)
    for number in range(100):
        assert cache["often"] == "often"
        assert cache[str(number)] == str(number)
        assert cache.held <= 10
    assert computed.count("often") == 1
    cache.forget()
    assert cache.held == 0


# Families in use, and conditions.


def test_zn23_only_families_in_use_are_run(monkeypatch):
    """Neither is an expression tried where there is none, nor is its family asked."""
    tried, asked, rows = [], [], RegexFamily.rows
    monkeypatch.setattr(Regex, "found_in", lambda self, text: tried.append(text) or True)
    monkeypatch.setattr(
        RegexFamily, "rows", lambda self, subject, *rest: asked.append(subject) or rows(self, subject, *rest)
    )
    index = Index()
    index.add("k", topic("a.*"))
    index.match("a.b")
    assert tried == asked == []
    index.add("r", Selector.parse([["regex", "^a"]]))
    assert keys(index.match("a.b")) == ["k", "r"]
    index.match("a.b")
    assert tried == asked == ["a.b"]  # once for a subject
    index.remove("r")
    index.match("a.c")
    assert tried == asked == ["a.b"]


def test_needs_headers_follows_the_selectors_in_use():
    index = Index()
    index.add("k", topic("a"))
    index.add("s", topic("a", where="subject prefix 'a'"))
    assert not index.needs_headers
    assert keys(index.match("a")) == ["k", "s"]
    for key, selector in enumerate(
        [
            Selector.parse([["fields", "x"]]),
            topic("a", where="x = 1"),
            topic("a", where="sender = 'ann'"),
            Selector.parse([["geo", {"circle": [0, 0, 1]}]], "subject = 'a'"),
        ]
    ):
        index.add(key, selector)
        assert index.needs_headers
        index.remove(key)
        assert not index.needs_headers


def test_xu3_rq14_the_exact_check_is_called_only_for_hits(monkeypatch):
    checked = []
    compiled = conditions.message_test

    def watched(expression):
        test = compiled(expression)
        return lambda message: checked.append(str(expression)) or test(message)

    monkeypatch.setattr(conditions, "message_test", watched)
    index = Index()
    for number in range(100):
        index.add(number, topic(f"t{number}", where=f"symbol = 'S{number}' and not note = 'x'"))
    assert keys(index.match("t7", {"symbol": "S7"})) == [7]
    assert keys(index.match("t7", {"symbol": "S8"})) == []
    assert keys(index.match("other", {"symbol": "S8"})) == []
    assert checked == ["symbol = 'S7' and not note = 'x'"]


def test_a_range_over_many_selectors_evaluates_none(monkeypatch):
    monkeypatch.setattr(Expression, "holds", None)
    monkeypatch.setattr(OneOf, "accepts", None)
    index = Index()
    for number in range(10_000 if NIGHT else 2_000):
        index.add(number, Selector.parse([["all", ""]], f"price > {number} and price < {number + 3}"))
    assert keys(index.match("s", {"price": 1_000.5})) == [998, 999, 1_000]
    assert index.match("s", {"price": "1000"}) == ()
    assert index.match("s", {}) == ()


# Explanations.


def test_explain_names_the_first_criterion_that_failed():
    index = Index()
    index.add("yes", topic("a.*"))
    index.add("topic", topic("b.*"))
    index.add("where", topic("a.*", where="unit = 'C' and price > 10"))
    index.add("fields", Selector.parse([["fields", "urgent"]]))
    reasons = {
        keys([e.group])[0]: (e.matched, e.reason) for e in index.explain("a.b", {"unit": "C", "price": 3})
    }
    assert reasons == {
        "yes": (True, ""),
        "topic": (False, "topic 'b.*' does not match 'a.b'"),
        "where": (False, "where: price > 10: price is 3"),
        "fields": (False, "fields: exists urgent: urgent is absent"),
    }


# Families from outside.


class Suffix(TermFamily):
    name = "suffix"

    @classmethod
    def normalise(cls, pattern):
        if pattern == "bad":
            raise RuntimeError("no")
        return pattern

    @classmethod
    def matches(cls, pattern, subject, headers, sender):
        return subject.endswith(pattern)

    def request_terms(self, pattern):
        if pattern == "later":
            raise RuntimeError("later")
        return [pattern[-1:]]

    def message_terms(self, subject, headers, sender):
        if subject == "boom":
            raise RuntimeError("boom")
        return [subject[-1:]]

    exact = False


@pytest.mark.usefixtures("registry")
def test_xu1_a_family_registers_by_name():
    assert register(Suffix) is Suffix
    assert register(Suffix) is Suffix
    index = Index()
    index.add("k", Selector.parse([["suffix", "bc"], ["topic", "x"]]))
    index.add("j", Selector.parse([["suffix", "c"]]))
    assert keys(index.match("abc")) == ["k", "j"]
    assert keys(index.match("xxc")) == ["j"]  # the terms only say perhaps, and k was checked
    assert keys(index.match("x")) == ["k"]
    index.remove("k")
    assert keys(index.match("abc")) == ["j"]


@pytest.mark.usefixtures("registry")
def test_a_name_is_given_once():
    register(Suffix)
    with pytest.raises(ValueError, match="already"):
        register(type("Other", (Suffix,), {}))


@pytest.mark.usefixtures("registry")
def test_a_family_that_raises_hits_nothing_and_is_reported():
    register(Suffix)
    reported = []
    index = Index(on_failure=lambda name, error: reported.append((name, str(error))))
    index.add("k", Selector.parse([["suffix", "m"]]))
    index.add("t", topic("boom"))
    assert keys(index.match("boom")) == ["t"]
    index.add("u", topic("other"))
    assert keys(index.match("boom")) == ["t"]
    assert index.failures == {"suffix": 2}
    assert reported == [("suffix", "boom")] * 2


@pytest.mark.usefixtures("registry")
def test_a_family_that_raises_while_adding_refuses_the_selector_and_leaves_nothing():
    register(Suffix)
    with pytest.raises(InvalidSelector, match=r"pattern refused by family '\w+': no"):
        Selector.parse([["suffix", "bad"]])
    index = Index()
    index.add("t", topic("a"))
    with pytest.raises(InvalidSelector, match="later"):
        index.add("k", Selector.parse([["topic", "a.b"], ["suffix", "later"]]))
    assert len(index) == 1
    assert "k" not in index
    assert index.match("a.b") == ()
    assert index.add("n", topic("n")).number == 1
    with pytest.raises(InvalidSelector, match="later"):
        index.modify("n", Selector.parse([["suffix", "later"]]))
    assert keys(index.match("n")) == ["n"]


@pytest.mark.usefixtures("registry")
def test_plugins_are_found_through_entry_points(monkeypatch):
    class Entry:
        load = staticmethod(lambda: Suffix)

    monkeypatch.setattr(family, "entry_points", lambda group: [Entry] if group == "malamute.families" else [])
    assert load_plugins() == ["suffix"]
    assert issubclass(family.FAMILIES["suffix"], Family)
