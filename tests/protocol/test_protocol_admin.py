"""Queries, changes and their answers as values: what travels is what was made."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from depth import DEPTH
from hypothesis import given, settings
from hypothesis import strategies as st

from malamute.core.broker import Core
from malamute.errors import Malformed
from malamute.protocol import admin
from malamute.protocol.admin import CHANGES, QUERIES, Row, Value, decode, encode
from malamute.protocol.admin.topic import answer_of, arguments_of
from malamute.protocol.batch import pack, unpack

ROWS = [
    kind
    for kind in vars(admin).values()
    if isinstance(kind, type) and issubclass(kind, Row) and kind.__struct_fields__
]
LISTS = {topic: kind for topic, kind in QUERIES.items() if get_origin(answer_of(kind)) is list}
AS_LONG_AS_THE_CODE = {"options"}
"""Lists that nothing a client or an operator does makes longer."""

PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**63),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=5),
    bool: st.booleans(),
    bytes: st.binary(max_size=5),
    type(None): st.none(),
    Any: st.integers(0, 9) | st.text(max_size=3),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type."""
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Row):
        hints = get_type_hints(kind)
        return st.fixed_dictionaries(
            {n: values(hint) for n, hint in hints.items() if n in kind.__struct_fields__}
        ).map(lambda given: kind(**given))
    if origin is list:
        return st.lists(values(inner[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(st.text(max_size=3), values(inner[1]), max_size=2)
    if origin is not None and type(None) not in inner and origin.__name__ == "Sequence":
        return st.lists(values(inner[0]), max_size=3)
    if inner:
        return st.one_of(*map(values, inner))
    return PLAIN[kind]


def test_there_are_rows() -> None:
    assert len(ROWS) > 25


@pytest.mark.parametrize("kind", ROWS, ids=lambda kind: kind.__name__)
@settings(max_examples=5 * DEPTH)
@given(data=st.data())
def test_a_row_comes_back_as_it_was(kind: type[Row], data: st.DataObject) -> None:
    row = data.draw(values(kind))
    travelled = unpack(pack(encode(row)))
    assert decode(kind, travelled) == row
    assert decode(kind, {**travelled, "of a newer broker": 1}) == row
    assert decode(kind | None, travelled) == row


@pytest.mark.parametrize("kind", ROWS, ids=lambda kind: kind.__name__)
def test_what_lacks_a_field_is_refused(kind: type[Row]) -> None:
    for value in ({}, [], None, "x"):
        with pytest.raises(Malformed, match="another version"):
            decode(kind, value)


def test_the_package_has_the_types_of_all_its_modules() -> None:
    (folder,) = admin.__path__
    parts = [import_module(f"{admin.__name__}.{file.stem}") for file in Path(folder).glob("[a-z]*.py")]
    types = {kind for part in parts for kind in vars(part).values() if isinstance(kind, type)}
    names = {kind.__name__ for kind in types if issubclass(kind, Value)}
    public = {name for name in names if not name.startswith("_")}
    assert len(public) > 80
    assert public - {*vars(admin)} == set()


def test_every_topic_has_one_handler() -> None:
    commands = Core(0.0).commands
    queries = commands.queries
    assert sorted(QUERIES) == sorted([*queries.at_once, *queries.asking, *queries.telling])
    assert {*CHANGES} == {*commands.changes.makers}


def test_every_list_comes_in_pages() -> None:
    assert {"streams", "stored", "cursors", "feeds", "mailboxes", "services", "clients"} < {*LISTS}
    for topic, kind in LISTS.items():
        if topic in AS_LONG_AS_THE_CODE:
            assert not arguments_of(kind).optional, topic
            continue
        assert "limit" in arguments_of(kind).optional, topic
        (row,) = {*get_args(answer_of(kind))} if topic not in ("services", "clients") else {Row}
        behind = "after" if topic in ("messages", "selectors") else "after_name"
        assert behind in arguments_of(kind).optional, topic
        assert behind == "after" or row is Row or kind.page_key in row.__struct_fields__


def test_a_value_is_frozen_and_made_with_all_that_it_needs() -> None:
    query = QUERIES["stream"].parse({"name": "s"})
    assert repr(query) == "StreamQuery(name='s')"
    assert query == admin.StreamQuery(name="s") != admin.StreamQuery(name="t")
    assert query.as_map() == {"name": "s"}
    with pytest.raises(AttributeError):
        query.name = "t"  # type: ignore[attr-defined]  # that is the point
    made: Any = admin.StreamQuery
    for given_ in ({}, {"name": "s", "other": 1}):
        with pytest.raises(TypeError, match=r"name|other"):
            made(**given_)
    assert isinstance(query, Value)
