"""Values that no selector tells apart are matched once, and what is remembered of them is bounded."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from malamute.matching import FAMILIES, CacheBudget, Index, Selector, TermFamily
from malamute.matching.classes import ATTRIBUTES_MAX, Classes
from malamute.matching.index import GROUPS_FOUND, MESSAGE_WORK, MESSAGES_KNOWN


def where(text: str) -> Selector:
    return Selector.parse([["all", ""]], text)


def index_of(*selectors: Selector, **options: Any) -> Index:
    index = Index(**options)
    for key, selector in enumerate(selectors):
        index.add(key, selector)
    return index


def matched(index: Index, headers: list[dict[str, Any]]) -> list[list[Any]]:
    found = index.match_many(["s"] * len(headers), headers)
    return [sorted(key for group in groups for key in group.members) for groups in found]


def spent(index: Index, headers: list[dict[str, Any]]) -> int:
    index.pop_spent()
    found = index.match_many(["s"] * len(headers), headers)
    # Less what is spent on messages that are known.
    return index.pop_spent() - len(headers) // MESSAGES_KNOWN - sum(map(len, found)) // GROUPS_FOUND


def test_a_thousand_prices_between_two_thresholds_are_matched_once():
    index = index_of(where("price > 100"), where("price > 200"))
    index.match("s")
    prices = [{"price": 100 + (n + 1) / 11} for n in range(1000)]
    assert spent(index, prices) == MESSAGE_WORK
    assert spent(index, prices) == 0
    assert spent(index, [{"price": 200}, {"price": 201}, {"price": 200.0}]) == 2 * MESSAGE_WORK
    assert matched(index, [{"price": 100}, {"price": 101}, {"price": 200}, {"price": 201}]) == [
        [],
        [0],
        [0],
        [0, 1],
    ]


def test_texts_that_nobody_asks_for_are_one_class():
    index = index_of(where("symbol = 'B'"), where("symbol prefix 'X'"))
    index.match("s")
    assert spent(index, [{"symbol": f"C{n}"} for n in range(100)]) == MESSAGE_WORK
    assert matched(index, [{"symbol": "B"}, {"symbol": "X"}, {"symbol": "Xa"}, {"symbol": "Y"}]) == [
        [0],
        [1],
        [1],
        [],
    ]


def test_values_that_python_takes_for_equal_are_told_apart_as_expressions_do():
    index = index_of(where("a = 1"), where("a = true"), where("a >= 0"), where("exists a"), where("a = '1'"))
    values = [1, True, 1.0, False, 0, "1", None, float("nan")]
    assert matched(index, [{"a": value} for value in values]) == [
        [0, 2, 3],
        [1, 3],
        [0, 2, 3],
        [3],
        [2, 3],
        [3, 4],
        [3],
        [3],
    ]
    assert matched(index, [{}]) == [[]]


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize("value", [[1], {"b": 1}, Level.HIGH], ids=repr)
def test_a_value_of_no_class_is_matched_by_itself(value: Any):
    index = index_of(where("exists a"), where("a = 3"))
    assert matched(index, [{"a": 3}, {"a": value}]) == [[0, 1], [0, 1] if value == 3 else [0]]


def test_there_are_classes_up_to_four_attributes_and_not_for_one_more():
    classes = Classes()
    for place in range(ATTRIBUTES_MAX):
        classes.add(where(f"a{place} = 'x'"))
    assert classes.of(["s"], [{}], [""]) is not None
    more = where("another = 'x'")
    classes.add(more)
    assert classes.of(["s"], [{}], [""]) is None
    classes.remove(more)
    assert classes.of(["s"], [{}], [""]) is not None


class Shoe(TermFamily):
    """A family from outside that looks at headers."""

    name = "test-shoe"
    needs_headers = True

    @classmethod
    def normalise(cls, pattern):
        return pattern

    @classmethod
    def matches(cls, pattern, subject, headers, sender):
        return headers.get("shoe") == pattern

    def request_terms(self, pattern):
        return [pattern]

    def message_terms(self, subject, headers, sender):
        return [headers.get("shoe")]


def test_a_family_from_outside_sees_every_message(monkeypatch):
    monkeypatch.setitem(FAMILIES, Shoe.name, Shoe)
    index = index_of(where("a = 'x'"), Selector.parse([["test-shoe", 41]]))
    assert matched(index, [{"shoe": 40}, {"shoe": 41}, {"a": "x", "shoe": 41}, {"a": "x"}]) == [
        [],
        [1],
        [0, 1],
        [0],
    ]
    index.remove(1)
    assert matched(index, [{"a": "x"}]) == [[0]]
    assert spent(index, [{"a": "x", "shoe": n} for n in range(10)]) == 0


def test_what_is_remembered_has_as_many_entries_as_the_cache_and_not_one_more():
    index = index_of(where("a matches 'x'"), cache_size=10)
    most = 0
    for n in range(25):
        matched(index, [{"a": f"text {n}"}])
        most = max(most, len(index._known))
    assert most == 10


def test_what_is_remembered_of_long_texts_counts_for_the_budget():
    budget = CacheBudget(1_000_000)
    index = index_of(where("a matches 'x'"), caches=budget)
    for n in range(100):
        matched(index, [{"a": f"{n}" * 20_000}])
        assert budget.used_bytes <= 1_100_000
        assert sum(len(key[1]) for key in index._known) <= 1_100_000


def test_senders_and_subjects_are_attributes_like_others():
    index = index_of(where("sender = 'ann'"), where("subject prefix 'b' and exists a"))
    found = index.match_many(["a", "b", "b"], [{}, {"a": 1}, {}], ["ann", "", "bob"])
    assert [[key for group in groups for key in group.members] for groups in found] == [[0], [1], []]
