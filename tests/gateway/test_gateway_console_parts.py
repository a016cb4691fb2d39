"""Parts of the console's pages: words, forms, the sampled tail, rates, and faults."""

from __future__ import annotations

import json
import re
import time
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from malamute.client.session.message import Message
from malamute.gateway.console import forms, words
from malamute.gateway.console.changes import ACTS, Said, readers_of
from malamute.gateway.console.consumption import (
    ConsumerSample,
    StoreRoom,
    StreamConsumer,
    overtaken_in,
    trend_of,
)
from malamute.gateway.console.series import POINTS, SAMPLES, SERIES_MAX, SeriesTable, charted
from malamute.gateway.console.stream_pages import TAIL_PER_SECOND, SampledWriter, tree_of
from malamute.gateway.console.symptoms import (
    CRITICAL,
    CURSOR_LAG,
    NAMED_MAX,
    NOTE,
    WARNING,
    of_broker,
    of_cursors,
    of_limits,
    of_queues,
    of_readers,
    of_store,
)
from malamute.gateway.console.watch import Sample, rates
from malamute.protocol.admin import (
    CHANGES,
    BrokerStatus,
    BrokerTotals,
    DurationTotals,
    LimitUsage,
    QueueRow,
    StoredStream,
    StoreUsage,
    StreamCursor,
    SubscriptionRow,
)
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


LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)


JSON = _nested(LEAVES | _nested(LEAVES | _nested(LEAVES)))


def test_a_hint_shows_its_backticks_as_code_and_everything_else_escaped() -> None:
    assert words.marked("`a<b` & `c`") == "<code>a&lt;b</code> &amp; <code>c</code>"
    assert [words.some(number, "mailbox") for number in (0, 1, 2)] == [
        "0 mailboxes",
        "1 mailbox",
        "2 mailboxes",
    ]


@given(JSON, st.sampled_from([None, 3]))
def test_json_is_indented_and_otherwise_the_same(value: Any, indent: int | None) -> None:
    shown = words.pretty(json.dumps(value, indent=indent).encode(), 1_000_000)
    assert (shown.kind, json.loads(shown.text), shown.is_cut) == ("JSON", value, False)
    # Python writes empty ones over two lines only within others that are not.
    assert shown.text == json.dumps(value, indent=2)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'{"a": 1, "a": 2, "n": 12345678901234567890.50}', "JSON"),
        (b"[" * 5_000 + b"]" * 5_000, "text"),
        (b"[1, 2", "text"),
        (b"12", "text"),
        (b"", "text"),
        (b"[" * 900 + b"]" * 900, "JSON"),
        (b"\x00\x01", "hex"),
        (b"\xff" * 10_000, "hex"),
        (b"x" * 2_000, "text"),
    ],
)
def test_a_body_is_shown_by_its_kind_and_never_longer_than_it_may_be(data: bytes, kind: str) -> None:
    for most in (10, 1_000):
        shown = words.pretty(data, most)
        assert shown.kind == kind
        assert len(shown.text) <= (most if kind != "hex" else 2 * most + 80)
    if data.startswith(b'{"a"'):
        assert re.sub(r"\s", "", shown.text) == data.decode().replace(" ", "")


@pytest.mark.parametrize("value", ["C", "1", "true", "null", '"', "a\nb", "", "[1]", 1, 1.5, True, None])
def test_headers_are_read_as_they_were_written(value: Any) -> None:
    assert forms.headers(words.header_lines({"name": value})) == {"name": value}


def test_criteria_are_lines() -> None:
    assert forms.criteria("all\ntemp.*\nprefix a b\n") == [
        ("all", ""),
        ("topic", "temp.*"),
        ("prefix", "a b"),
    ]


def test_every_change_of_the_broker_is_an_act() -> None:
    assert ACTS.keys() == CHANGES.keys()


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("bytes", "64MiB", 64 << 20),
        ("count", "5", 5),
        ("age", "1h", 3600.0),
        ("stream", "rain", "rain"),
    ],
)
def test_a_field_is_read_by_the_type_of_its_argument(field: str, text: str, value: Any) -> None:
    assert readers_of("stream.retain")[field](text) == value


@pytest.mark.parametrize(
    ("topic", "values", "sentence"),
    [
        ("queue.redrive", {"name": "thumbnails", "messages": 2}, "2 dead letters go back to thumbnails"),
        ("queue.redrive", {"name": "bob", "messages": 1}, "1 dead letter goes back to bob"),
        (
            "queue.purge",
            {"kind": "mailbox", "name": "bob", "messages": 3, "dead": True},
            "3 dead letters of the mailbox bob are removed",
        ),
        (
            "stream.purge",
            {"stream": "rain", "first": 5, "last": 4},
            "0 messages of the stream rain are dropped",
        ),
        (
            "queue.delete",
            {
                "kind": "service",
                "name": "print",
                "messages": 4,
                "dead_letters": 1,
                "consumers": 2,
                "feeds": ["f"],
            },
            "The service print is deleted with 4 messages, 1 dead letter, 2 consumers, 1 feed",
        ),
        (
            "stream.retain",
            {"stream": "rain", "bytes": 64 << 20, "count": 5, "age": 3600.0},
            "The stream rain keeps at most 64.0 MiB, 5 messages, 1 h 0 m",
        ),
        ("stream.retain", {"stream": "rain", "count": 0}, "The stream rain keeps all messages"),
        (
            "client.disconnect",
            {"id": "1f", "address": "bob", "holding": 1},
            "The session of bob ends: 1 message in flight returns to its queue",
        ),
        (
            "broker.reload",
            {"changed": [], "waiting_for_restart": ["storage.size"], "loses_right": True},
            "A reload of the configuration changes no option; after a restart storage.size; "
            "your right to reload ends",
        ),
    ],
)
def test_a_confirmation_is_one_sentence_with_the_numbers(
    topic: str, values: dict[str, Any], sentence: str
) -> None:
    assert ACTS[topic].sentence(Said(values)) == sentence


def _columns(first: int, count: int) -> Columns:
    return Columns(first, 1, "", ["s"] * count, [pack_record(None, b"x")] * count)


def test_a_tail_leaves_out_what_nobody_could_read_and_counts_it() -> None:
    writer = SampledWriter(0, "store")
    text = b"".join(writer.parts(_columns(1, TAIL_PER_SECOND + 10)))
    assert text.startswith(b"event: skipped\nid: 10@store\ndata: 10\n\n")
    assert text.count(b"event: ") == 1
    assert text.count(b'"sequence":') == TAIL_PER_SECOND
    assert writer.last == TAIL_PER_SECOND + 10


def test_a_tail_shows_all_that_comes_slowly() -> None:
    writer = SampledWriter(0, "store")
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


def test_figures_over_time_have_common_times_and_names_that_are_there() -> None:
    table = SeriesTable(2)
    table.add(1.0, {"a": (5, 1), "idle": (0, 0)})
    table.add(2.0, {"a": (6, 2), "b": (7, 3), "idle": (0, 0)})
    assert table.of("a") == [[1.0, 5.0, 1.0], [2.0, 6.0, 2.0]]
    assert table.of("b") == [[2.0, 7.0, 3.0]]
    assert table.of("idle") == table.of("none") == []
    assert (table.recent("a", 1), table.recent("b"), table.recent("idle")) == ([6.0], [7.0], [])
    table.add(3.0, {"b": (0, 0)})
    assert (table.of("a"), table.of("b")[-1]) == ([], [3.0, 0.0, 0.0])


def test_figures_over_time_are_limited_in_samples_and_in_names() -> None:
    table = SeriesTable(1)
    for at in range(2 * SAMPLES + 2):
        table.add(at, {"a": (at + 1,)})
    rows = table.of("a")
    assert (len(rows), rows[-1]) == (SAMPLES, [2.0 * SAMPLES + 1, 2.0 * SAMPLES + 2])
    assert len(table._times) == len(table._by_name["a"]) <= 2 * SAMPLES
    table.add(0.0, {str(n): (1,) for n in range(SERIES_MAX + 1)})
    assert len(table._by_name) == SERIES_MAX


def test_a_chart_has_the_range_that_is_asked_for_in_few_points() -> None:
    now = time.time()
    rows = [(now - 2 * n, float(n)) for n in range(SAMPLES - 1, -1, -1)]
    for minutes in (5, 30):
        times, values = json.loads(charted(rows, minutes))
        assert len(times) == len(values) <= POINTS
        assert now - 60 * minutes <= times[0] < now - 60 * minutes + 60
        assert values[-1] < 30 * minutes / POINTS
    assert charted([], 30) == "[]"


def test_rates_are_differences_and_a_new_broker_has_none_at_first() -> None:
    samples = deque([Sample(10, 0, 0, 0, 0, 0), Sample(12, 100, 10, 0, 5, 1.5), Sample(14, 0, 0, 0, 0, 0)])
    assert [(one.at, one.published, one.settled, one.lag_seconds) for one in rates(samples)] == [
        (12, 50, 5, 1.5)
    ]


@pytest.mark.parametrize(
    ("lags", "trend"),
    [
        ([], "steady"),
        ([0, 0], "steady"),
        ([5, 100], "rising"),
        ([100, 5], "falling"),
        ([100, 101], "steady"),
        ([100_000] * 20 + [103_000] * 10, "rising"),
        ([100_000, 97_000], "falling"),
        ([100_000, 99_000], "steady"),
    ],
)
def test_the_trend_of_a_lag(lags: list[int], trend: str) -> None:
    assert trend_of(lags) == trend


QUEUE = dict.fromkeys(QueueRow.__struct_fields__, 0)


def test_what_is_wrong_with_queues() -> None:
    rows: list[Any] = [
        QueueRow(**{**QUEUE, "name": "print", "ready": 3}),
        QueueRow(**{**QUEUE, "name": "quiet"}),
    ]
    [symptom] = of_queues("service", rows)
    assert (symptom.level, symptom.words) == (WARNING, "3 requests to print wait for a worker")
    assert [*of_queues("mailbox", rows)] == []


def _reader(name: str, lag_seconds: float | None, *lags: int) -> StreamConsumer:
    row = SubscriptionRow(
        **{
            **dict.fromkeys(SubscriptionRow.__struct_fields__, 0),
            "stream": "rain",
            "lag": lags[-1],
            "criteria": [],
        }
    )
    # A reader whose lag is steady is delivered as much as is published.
    trail = tuple(ConsumerSample("replay", lag, number, 2.0 * number) for number, lag in enumerate(lags))
    return StreamConsumer("id", name, "", True, row, lag_seconds, trail)


def test_what_is_wrong_with_readers() -> None:
    behind = [_reader("hal", 90.0, 2000, 1000), _reader("gus", 10.0, 1, 1000)]
    found = [*of_readers([*behind, _reader("ida", 9.0, 5)])]
    assert [(one.level, one.words) for one in found] == [
        (WARNING, "gus is 10 s behind on rain, 1,000 messages, rising"),
        (NOTE, "hal is 1 m 30 s behind on rain, 1,000 messages, falling"),
    ]
    many = [*of_readers(behind * NAMED_MAX)]
    assert [(one.level, one.words) for one in many[NAMED_MAX:]] == [
        (NOTE, f"{NAMED_MAX} more readers are behind")
    ]
    [*_, more] = of_readers([*behind[1:] * (NAMED_MAX + 1), *behind])
    assert (more.level, more.words) == (WARNING, "3 more readers are behind")
    [lost] = of_cursors([StreamCursor(stream="rain", name="c", sequence=None, lag=None)])
    assert (lost.level, lost.words) == (WARNING, "The cursor c of rain is lost: its reader has to begin anew")


@pytest.mark.parametrize(
    ("lag_seconds", "lags", "level"),
    [
        (200.0, (1000, 1000), WARNING),
        (200.0, (1000, 2000), WARNING),
        (200.0, (2000, 1000), NOTE),
        (59.0, (1000, 1000), NOTE),
        (60.0, (1000, 1000), WARNING),
        (599.0, (1000, 1000), WARNING),
        (600.0, (1000, 1000), CRITICAL),
        (600.0, (2000, 1000), NOTE),
        (10.0, (1000, 2000), WARNING),
        # The seconds of a reader that was sent nothing yet are unknown.
        (0.0, (9_999, 9_999), None),
        (0.0, (10_000, 10_000), NOTE),
        (None, (100_000, 100_000), WARNING),
        (None, (1_000_000, 1_000_000), CRITICAL),
        (9.9, (1_000_000, 1_000_000), None),
    ],
)
def test_a_reader_is_an_alarm_by_its_lag_and_by_how_that_changes(
    lag_seconds: float | None, lags: tuple[int, ...], level: str | None
) -> None:
    assert [one.level for one in of_readers([_reader("gus", lag_seconds, *lags)])] == (
        [level] if level else []
    )


def _stalled(lag: int, looks: int) -> StreamConsumer:
    reader = _reader("gus", 20.0, *[lag] * looks)
    return reader._replace(trail=tuple(look._replace(delivered=7) for look in reader.trail))


def test_a_reader_that_stands_still_behind_is_stalled_and_never_steady() -> None:
    assert [_stalled(1000, looks).trend for looks in (1, 2, 50)] == ["", "stalled", "stalled"]
    assert _stalled(0, 50).trend == "steady"
    assert _reader("gus", 20.0, 1000, 1000).trend == "steady"
    found = [*of_readers([_stalled(1000, 1)]), *of_readers([_stalled(1000, 2)])]
    assert [(one.level, one.words) for one in found] == [
        (NOTE, "gus is 20 s behind on rain, 1,000 messages"),
        (WARNING, "gus is 20 s behind on rain, 1,000 messages, stalled"),
    ]


STORED = {**dict.fromkeys(StoredStream.__struct_fields__, 0), "name": "rain", "count": 1000, "bytes": 10_000}


@pytest.mark.parametrize(
    ("retention", "lags", "room", "seconds"),
    [
        # The lag grows by 5 messages in a second, and a message has 10 bytes.
        ({"retain_count": 1000}, (490, 500), None, 100.0),
        ({"retain_bytes": 6000}, (490, 500), None, 20.0),
        ({"retain_bytes": 6000, "retain_count": 1000}, (490, 500), None, 20.0),
        ({"retain_count": 100}, (490, 500), None, 0.0),
        ({"retain_age": 60.0}, (500, 500), None, 50.0),
        ({"retain_count": 1000}, (500, 500), None, None),
        ({"retain_count": 1000}, (500, 490), None, None),
        ({"retain_age": 60.0}, (500, 490), None, None),
        ({}, (490, 500), None, None),
        ({}, (490, 500), StoreRoom(30.0, 100.0), 120.0),
        ({}, (490, 500), StoreRoom(float("inf"), 100.0), None),
        ({}, (500, 500), StoreRoom(0.0, 100.0), None),
        ({"retain_count": 1000}, (500,), None, None),
        ({"retain_count": 1000, "count": 0}, (490, 500), None, None),
    ],
)
def test_the_time_until_retention_overtakes_a_reader(
    retention: dict[str, Any], lags: tuple[int, ...], room: StoreRoom | None, seconds: float | None
) -> None:
    trail = _reader("gus", 10.0, *lags).trail
    assert overtaken_in(trail, 10.0, StoredStream(**{**STORED, **retention}), room) == seconds


@pytest.mark.parametrize(
    ("left", "level", "words"),
    [
        (None, NOTE, "steady"),
        (7 * 3600.0, NOTE, "steady"),
        (3600.0, WARNING, "steady; retention overtakes it in 1 h 0 m"),
        (599.0, CRITICAL, "steady; retention overtakes it in 9 m 59 s"),
        (0.0, CRITICAL, "steady; retention overtakes it now"),
    ],
)
def test_a_reader_that_retention_overtakes_soon_is_an_alarm(
    left: float | None, level: str, words: str
) -> None:
    [symptom] = of_readers([_reader("gus", 20.0, 1000, 1000)._replace(overtaken_seconds=left)])
    assert (symptom.level, symptom.words.partition("messages, ")[2]) == (level, words)


@pytest.mark.parametrize(("lag", "named"), [(CURSOR_LAG - 1, False), (CURSOR_LAG, True)])
def test_a_cursor_that_is_far_behind_is_named_whether_anybody_reads_by_it_or_not(
    lag: int, named: bool
) -> None:
    found = [*of_cursors([StreamCursor(stream="rain", name="c", sequence=1, lag=lag)])]
    assert [(one.level, one.words) for one in found] == [
        (WARNING, "The cursor c of rain is 10,000 messages behind")
    ] * named


@pytest.mark.parametrize(("used", "level"), [(89, None), (90, WARNING), (99, WARNING), (100, CRITICAL)])
def test_a_limit_that_is_nearly_used_up_is_named(used: int, level: str | None) -> None:
    limits = [
        LimitUsage(name="queue_messages", used=used, limit=100, where="mailbox bob"),
        LimitUsage(name="caches_bytes", used=100, limit=100, refuses=False),
    ]
    durations = DurationTotals(count=0, seconds=0.0, longest_seconds=0.0)
    totals = BrokerTotals(
        iterations=durations, commits=durations, committed_bytes=0, settlements={}, queues=[], limits=limits
    )
    assert [(one.level, one.words) for one in of_limits(totals)] == (
        [(level, f"mailbox bob: {used} of 100 (limit queue_messages)")] if level else []
    )
    [*_, refused] = of_limits(replace(totals, refused_lately=2))
    assert refused.words == "2 commands were refused for want of room in the last minute or two"


def test_a_subject_that_comes_again_is_counted_once_with_its_last_message() -> None:
    record = pack_record(None, b"x")
    tree = tree_of(Message(n, 1, "", subject, record) for n, subject in enumerate(("a.b", "a.c", "a.b"), 1))
    assert (tree.subjects, tree.below["a"].subjects) == (2, 2)
    last = tree.below["a"].below["b"].message
    assert last is not None
    assert last.sequence == 3


WELL: dict[str, Any] = {
    **dict.fromkeys(BrokerStatus.__struct_fields__, 0),
    **dict.fromkeys(("store_error", "config_error"), ""),
    "waiting_for_restart": [],
}


@pytest.mark.parametrize(
    ("field", "value", "level", "words"),
    [
        ("store_error", "no space left", CRITICAL, "The store is not writable: no space left"),
        ("damages", 2, WARNING, "2 parts of the store are damaged"),
        ("faults", 1, WARNING, "1 faults of the broker's own since it started: its log has them"),
        ("not_recovered", 3, WARNING, "3 records of the store were not recovered"),
        (
            "config_error",
            "no such option",
            WARNING,
            "The configuration that was read last was refused: no such option",
        ),
        ("dead_excess", 4, WARNING, "4 dead letters exceed a lowered limit: the next dead letter drops them"),
        (
            "waiting_for_restart",
            ["storage.size"],
            NOTE,
            "Changed, and waiting for a restart: storage.size",
        ),
        ("quotas_exceeded", 5, NOTE, "Quotas have refused 5 commands since the broker started"),
    ],
)
def test_what_is_wrong_with_the_broker(field: str, value: Any, level: str, words: str) -> None:
    assert [*of_broker(BrokerStatus(**WELL))] == []
    [symptom] = of_broker(BrokerStatus(**{**WELL, field: value}))
    assert (symptom.level, symptom.words) == (level, words)


@pytest.mark.parametrize(("used", "levels"), [(79, []), (80, [WARNING]), (95, [CRITICAL])])
def test_a_store_that_is_filling_up(used: int, levels: list[str]) -> None:
    usage = StoreUsage(
        **{**dict.fromkeys(StoreUsage.__struct_fields__, 0), "used": used, "size": 100, "damages": []}
    )
    assert [symptom.level for symptom in of_store(usage)] == levels
