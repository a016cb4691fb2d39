"""The order of a table of names, beside a dictionary that is sorted for each look."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malamute.core.iteration.named_table import NamedTable

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


def test_deleted_names_are_forgotten_by_the_next_list() -> None:
    table: NamedTable[int] = NamedTable()
    table["stays"] = 0
    for number in range(1_000):
        table[f"{number}"] = number
    assert table.sort() == 1_001
    for number in range(1_000):
        del table[f"{number}"]
    assert table.sort() == 1_001
    assert table.sort() == 0
    assert table._names == ["stays"]
    assert [*table.after("")] == [0]


@pytest.mark.parametrize("count", [100, 10_000])
def test_a_page_looks_at_its_own_rows_and_sorts_only_new_names(count: int) -> None:
    looks: Counter[str] = Counter()

    class Table(NamedTable[int]):
        def __getitem__(self, name: str) -> int:
            looks["item"] += 1
            return super().__getitem__(name)

    table = Table()
    for number in range(count):
        table[f"{number:05}"] = number
    assert table.sort() == count
    page = [item for item, _ in zip(table.after("00010"), range(5), strict=False)]
    assert page == [11, 12, 13, 14, 15]
    assert looks["item"] <= 6
    assert table.sort() == 0
    del table["00050"]
    assert table.sort() == 0
