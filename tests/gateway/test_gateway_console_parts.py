"""What pages of the console are made of: words, forms, the sampled tail, rates, and what is wrong."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from malamute.client.session.message import Message
from malamute.errors import InvalidValue
from malamute.gateway.console import forms, words
from malamute.gateway.console.changes import ACTS
from malamute.gateway.console.consumption import trend_of
from malamute.gateway.console.stream_pages import TAIL_PER_SECOND, SampledWriter, tree_of
from malamute.gateway.console.symptoms import CRITICAL, WARNING, of_queues, of_store
from malamute.gateway.console.watch import Sample, rates
from malamute.protocol.admin import CHANGES, QueueRow, StoreUsage
from malamute.protocol.batch import Columns, pack_record


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (12.34, "12.3"), (1234.5, "1,234"), (100_000, "100,000")],
)
def test_a_count(value: float | None, text: str) -> None:
    assert words.count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.0, "0 s"), (0.02, "20 ms"), (1.5, "1.5 s"), (61, "1 m 1 s"), (90_061, "1 d 1 h")],
)
def test_a_span(seconds: float | None, text: str) -> None:
    assert words.span(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(1023, "1,023 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB"), (4 << 50, "4,096 TiB")]
)
def test_a_size(size: int, text: str) -> None:
    assert words.size(size) == text


@pytest.mark.parametrize("value", ["C", "1", "true", "null", '"', "a\nb", "", "[1]", 1, 1.5, True, None])
def test_headers_are_read_as_they_were_written(value: Any) -> None:
    assert forms.headers(words.header_lines({"name": value})) == {"name": value}


@pytest.mark.parametrize(("text", "size"), [("64MiB", 64 << 20), ("1.5 KiB", 1536), ("0", 0)])
def test_a_size_is_read(text: str, size: int) -> None:
    assert forms.size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1 week", "1e9"])
def test_what_is_no_quantity(text: str) -> None:
    for read in (forms.size, forms.duration):
        with pytest.raises(InvalidValue, match="invalid quantity"):
            read(text)


def test_criteria_are_lines() -> None:
    assert forms.criteria("all\ntemp.*\nprefix a b\n") == [
        ("all", ""),
        ("topic", "temp.*"),
        ("prefix", "a b"),
    ]


def test_every_act_is_a_change_of_the_broker_with_fields_that_it_has() -> None:
    assert ACTS.keys() == CHANGES.keys()
    for topic, act in ACTS.items():
        rules = CHANGES[topic].rules
        assert act.fields.keys() <= rules.required.keys() | rules.optional.keys()
        assert rules.required.keys() <= act.fields.keys()


def _columns(first: int, count: int) -> Columns:
    return Columns(first, 1, "", ["s"] * count, [pack_record(None, b"x")] * count)


def test_a_tail_leaves_out_what_nobody_could_read_and_counts_it() -> None:
    writer = SampledWriter(0)
    text = b"".join(writer.parts(_columns(1, TAIL_PER_SECOND + 10)))
    assert text.startswith(b"event: skipped\nid: 10\ndata: 10\n\n")
    assert text.count(b"event: ") == 1
    assert text.count(b'"sequence":') == TAIL_PER_SECOND
    assert writer.last == TAIL_PER_SECOND + 10


def test_a_tail_shows_all_that_comes_slowly() -> None:
    writer = SampledWriter(0)
    text = b"".join(part for first in range(1, 11) for part in writer.parts(_columns(first, 1)))
    assert text.count(b'"sequence":') == 10
    assert b"skipped" not in text


def test_subjects_are_a_tree() -> None:
    record = pack_record(None, b"x")
    tree = tree_of(Message(n, 1, "", subject, record) for n, subject in enumerate(("b.x", "a", "b"), 1))
    assert [*tree.below] == ["a", "b"]
    assert tree.subjects == 3
    assert tree.below["b"].message is not None
    assert tree.below["b"].subjects == 2
    assert [*tree.below["b"].below] == ["x"]


def test_rates_are_differences_and_a_new_broker_has_none_at_first() -> None:
    samples = deque([Sample(10, 0, 0, 0, 0, 0), Sample(12, 100, 10, 0, 5, 1.5), Sample(14, 0, 0, 0, 0, 0)])
    assert [(one.at, one.published, one.settled, one.lag_seconds) for one in rates(samples)] == [
        (12, 50, 5, 1.5)
    ]


@pytest.mark.parametrize(
    ("lags", "trend"),
    [([], "steady"), ([0, 0], "steady"), ([5, 100], "rising"), ([100, 5], "falling"), ([100, 101], "steady")],
)
def test_the_trend_of_a_lag(lags: list[int], trend: str) -> None:
    assert trend_of(lags) == trend


QUEUE = dict.fromkeys(QueueRow._defaults, 0)


def test_what_is_wrong_with_queues() -> None:
    rows: list[Any] = [
        QueueRow(**{**QUEUE, "name": "print", "waiting": 3}),
        QueueRow(**{**QUEUE, "name": "quiet"}),
    ]
    [symptom] = of_queues("service", rows)
    assert (symptom.level, symptom.words) == (WARNING, "3 requests to print wait, and nobody works for it")
    assert [*of_queues("mailbox", rows)] == []


@pytest.mark.parametrize(("used", "levels"), [(79, []), (80, [WARNING]), (95, [CRITICAL])])
def test_a_store_that_is_filling_up(used: int, levels: list[str]) -> None:
    usage = StoreUsage(**{**dict.fromkeys(StoreUsage._defaults, 0), "used": used, "size": 100, "damages": []})
    assert [symptom.level for symptom in of_store(usage)] == levels
