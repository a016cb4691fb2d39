"""Expressions over columns: for each message what the expression itself says of it."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from history_files import Sent, write
from hypothesis import example, given
from hypothesis import strategies as st

from malamute.matching import parse
from malamute.matching.expression import Expression, MessageFields, Predicate
from malamute.spark.conditions import _MASKS, Rows
from malamute.spark.match import decoded
from malamute.spark.scan import ExportedHistory, HistoryBounds, read

VALUES: list[Any] = [
    *("", "a", "ab", "b", "é", "1"),
    *(0, 1, -3, 2.5, 1.0, -0.0, 1e300, float("nan"), float("inf")),
    *(2**53, 2**53 + 1, -(2**53) - 1, 2**62 + 1, 2**63 - 1, -(2**63), 2**64 - 1, float(2**53), 2.0**62),
    *(True, False, None),
]
PLACES: list[Any] = [0, 10, 59.9, -33, 90, -90, 180, -180, 179.5, 400, 1e12, "north", None]
SUBJECTS, SENDERS = ("a", "a.b", "ab.c", "1"), ("", "ann", "a")


class Batch:
    """Messages as a row group and as what expressions look at; without words for eight hundred of them."""

    def __init__(self, rows: Rows, messages: list[MessageFields]) -> None:
        self.rows = rows
        self.messages = messages


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Batch:
    """A row group of which the first messages are left out."""
    chance, directory = Random(1), tmp_path_factory.mktemp("history")
    messages = []
    for number in range(1, 801):
        headers = {name: chance.choice(VALUES) for name in ("p", "q", "r") if chance.random() < 0.7}
        headers |= {name: chance.choice(PLACES) for name in ("lat", "lon") if chance.random() < 0.9}
        sent = headers if number % 50 else None
        messages.append(Sent(number, chance.choice(SUBJECTS), headers=sent, sender=chance.choice(SENDERS)))
    write(directory, "s", messages)
    history = ExportedHistory(str(directory), HistoryBounds(first=20))
    [part] = read(history.location, history.pieces, ("subject", "sender", "headers"), history.bounds)
    found = part.batch  # type: ignore[union-attr]
    headers_of = decoded(found.column("headers"))
    kept = messages[19:]
    fields = [MessageFields(m.subject, of, m.sender) for m, of in zip(kept, headers_of, strict=True)]
    return Batch(Rows(found), fields)


def quoted(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "'" + value + "'" if isinstance(value, str) else repr(value)


NAMES = st.sampled_from(["p", "q", "r", "lat", "missing", "subject", "sender"])
WANTED = st.sampled_from([v for v in VALUES if v is not None and v == v and v != float("inf")]).map(quoted)
ORDERED = WANTED.filter(lambda words: words not in ("true", "false"))
NUMBERS = st.tuples(*[st.sampled_from([-2, 0, 1.0, 2**53, 2**53 + 2, 2**62])] * 2).map(sorted)
AREAS = st.sampled_from(
    ["59, 10, 2000", "-90, 0, 500", "-40, 170, 60, -170", "0, 0, 0.5", "-10, -180, 90, 180"]
)
TESTS = st.one_of(
    st.builds("{} {} {}".format, NAMES, st.sampled_from(["=", "!="]), WANTED),
    st.builds("{} {} {}".format, NAMES, st.sampled_from(["<", "<=", ">", ">="]), ORDERED),
    st.builds("{0} between {1[0]!r} and {1[1]!r}".format, NAMES, NUMBERS),
    st.builds("{} in ({})".format, NAMES, st.lists(WANTED, min_size=1, max_size=4).map(", ".join)),
    st.builds("exists {}".format, NAMES),
    st.builds("{} prefix {}".format, NAMES, st.sampled_from(["''", "'a'", "'ab'"])),
    st.builds("{} matches {}".format, NAMES, st.sampled_from(["'^a'", "'b$'", "'.'"])),
    st.builds("within(lat, lon, {})".format, AREAS),
)
EXPRESSIONS = st.recursive(
    TESTS,
    lambda inner: st.one_of(
        st.builds("not ({})".format, inner),
        st.builds("({}) and ({})".format, inner, inner),
        st.builds("({}) or ({})".format, inner, inner),
    ),
    max_leaves=6,
)


@given(words=EXPRESSIONS, step=st.integers(1, 3))
@example(words="p in (1e+300, true)", step=1)
def test_an_expression_means_the_same_over_columns(batch: Batch, words: str, step: int) -> None:
    expression = parse(words)
    asked = np.arange(0, len(batch.messages), step)
    found = batch.rows.holding(expression, asked).tolist()
    assert found == [expression.holds(batch.messages[n]) for n in asked]


def test_every_kind_of_expression_is_known() -> None:
    # By their names, since a class with slots is made twice.
    kinds = {kind.__name__ for kind in (*Expression.__subclasses__(), *Predicate.__subclasses__())}
    assert {kind.__name__ for kind in _MASKS} == kinds - {"Predicate"}
