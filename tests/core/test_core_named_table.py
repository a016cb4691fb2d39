"""The order of a table of names, beside a dictionary that is sorted for each look."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malamute.core.iteration.named_table import DELETED_MAX, NamedTable

NAMES = st.text("abc", min_size=1, max_size=3)


@given(st.lists(st.tuples(st.sampled_from(["set", "delete", "list"]), NAMES)))
def test_a_list_is_that_of_a_dictionary_that_is_sorted(steps: list[tuple[str, str]]) -> None:
    table: NamedTable[str] = NamedTable()
    model: dict[str, str] = {}
    for verb, name in steps:
        if verb == "set":
            table[name] = model[name] = name
        elif verb == "delete" and name in model:
            del table[name], model[name]
        elif verb == "list":
            table.sort()
            assert [*table.after(name)] == [other for other in sorted(model) if other > name]
    assert table == model


def test_what_comes_and_goes_is_forgotten_though_nobody_lists_it() -> None:
    table: NamedTable[int] = NamedTable()
    table["stays"] = 0
    for number in range(10 * DELETED_MAX):
        table[f"{number}"] = number
        del table[f"{number}"]
    assert len(table._new) + len(table._names) <= DELETED_MAX + 2
    table.sort()
    assert [*table.after("")] == [0]


@pytest.mark.parametrize("count", [100, 10_000])
def test_only_what_came_is_sorted_again_and_a_page_looks_at_its_own(count: int) -> None:
    looks: Counter[str] = Counter()

    class Table(NamedTable[int]):
        def get(self, name: str, default: int | None = None) -> int | None:  # type: ignore[override]  # one form
            looks["get"] += 1
            return super().get(name, default)

    table = Table()
    for number in range(count):
        table[f"{number:05}"] = number
    assert table.sort() == count
    page = [item for item, _ in zip(table.after("00010"), range(5), strict=False)]
    assert page == [11, 12, 13, 14, 15]
    assert looks["get"] <= 6
    assert table.sort() == 0
    del table["00050"]
    assert table.sort() == 0
