"""The topics of QUERY and CHANGE, from the types of `malamute.protocol.admin`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from malamute.protocol.admin import CHANGES, QUERIES, Row
from malamute.protocol.admin.topic import AdminTopic, answer_of, arguments_of

INTRODUCTION = """\
# Administration

The topics of [QUERY](../protocol.md#query-11) and [CHANGE](../protocol.md#change-15), their
arguments, and the maps that answer them. The types of arguments are those of
[the protocol](../protocol.md#types). In Python each topic is a class:
`client.query(StreamQuery(name="weather"))`.
"""


def page() -> str:
    """Return the page: queries, changes, and the rows of their answers."""
    rows: dict[str, type[Row]] = {}
    parts = [
        INTRODUCTION,
        *_topics("Queries", QUERIES, rows),
        *_topics("Changes", CHANGES, rows),
        "## Answers\n",
    ]
    told: set[str] = set()
    while waiting := sorted(rows.keys() - told):
        for name in waiting:
            parts += _row(rows[name], rows)
            told.add(name)
    return "\n".join(parts) + "\n"


def _topics(
    title: str, kinds: Mapping[str, type[AdminTopic[Any]]], rows: dict[str, type[Row]]
) -> Iterator[str]:
    yield f"## {title}\n\n| topic | class | arguments | meaning | answer |\n|---|---|---|---|---|"
    for topic, kind in kinds.items():
        takes = arguments_of(kind)
        required = [f"`{name}` ({rule.words})" for name, rule in takes.required.items()]
        optional = [f"`{name}` ({rule.words})" for name, rule in takes.optional.items() if name != "dry_run"]
        words = [", ".join(required), "optional " + ", ".join(optional) if optional else ""]
        given = "; ".join(filter(None, words))
        answer = _shown(answer_of(kind), rows)
        yield f"| `{topic}` | `{kind.__name__}` | {given} | {_text(kind)} | {answer} |"
    yield ""


def _row(row: type[Row], rows: dict[str, type[Row]]) -> Iterator[str]:
    yield f"### {row.__name__}\n\n{_text(row)}\n\n| field | type |\n|---|---|"
    for name, kind in get_type_hints(row).items():
        yield f"| `{name}` | {_shown(kind, rows)} |"
    yield ""


def _shown(kind: Any, rows: dict[str, type[Row]]) -> str:
    if isinstance(kind, type) and issubclass(kind, Row):
        rows[kind.__name__] = kind
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if isinstance(kind, UnionType):
        return " or ".join(_shown(one, rows) for one in get_args(kind) if one is not type(None))
    if get_origin(kind) is list:
        return f"list of {_shown(get_args(kind)[0], rows)}"
    if get_origin(kind) is not None and get_args(kind):
        return f"{_name(get_origin(kind))} of {', '.join(_shown(one, rows) for one in get_args(kind))}"
    return _name(kind)


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind)).lower()


def _text(kind: type[Any]) -> str:
    return re.sub(r"\s+", " ", inspect.getdoc(kind) or "")
