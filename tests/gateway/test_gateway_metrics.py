"""Metrics: what is scraped is what the broker says, as OpenMetrics, and no client makes a series."""

from __future__ import annotations

import asyncio
from types import CodeType
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import malamute
import malamute.aio
from malamute.errors import InvalidValue
from malamute.gateway.metrics import STATUS, STORAGE, STREAM
from malamute.protocol.admin import (
    AdminQuery,
    StatusQuery,
    StorageQuery,
    StoredQuery,
    StreamPurge,
    StreamQuery,
)


def _scrape(http: httpx.Client, **params: object) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = http.get("/metrics", params=params)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def _names(found: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> set[str]:
    return {name.removesuffix("_total") for name, _ in found}


def test_every_figure_is_that_of_the_broker(http: httpx.Client, client: malamute.Client) -> None:
    client.publish_batch("weather", ["a"] * 3, [b"x"] * 3)
    client.send("bob", "s", b"12345")
    found = _scrape(http)
    assert {f"malamute_{figure.name}" for figure in (*STATUS, *STORAGE)} < _names(found)
    status, storage = client.query(StatusQuery()), client.query(StorageQuery())
    assert found["malamute_published_messages_total", ()] == status.messages_published >= 3
    assert found["malamute_queue_bytes", ()] == status.queue_bytes > 0
    assert found["malamute_mailboxes", ()] == status.mailboxes == 1
    assert found["malamute_store_size_bytes", ()] == storage.size
    assert found["malamute_gateway_sessions", ()] == 1
    assert found["malamute_queued_messages", (("kind", "mailbox"), ("state", "ready"))] == 1
    assert found["malamute_dead_letters", (("kind", "service"),)] == 0
    assert found["malamute_oldest_message_seconds", (("kind", "mailbox"),)] > 0
    assert found["malamute_commit_seconds_count", ()] > 0
    assert found["malamute_committed_bytes_total", ()] > 0
    assert found["malamute_old_key_connections_total", ()] == status.old_key_connections == 0
    assert found["malamute_iteration_seconds_sum", ()] >= found["malamute_iteration_longest_seconds", ()] > 0
    assert {name for _, labels in found for name, _ in labels} == {
        *("code", "effect", "kind", "limit", "operation", "outcome", "reason", "state")
    }


def test_deliveries_are_counted_by_the_kind_of_where_they_came_from(
    http: httpx.Client, client: malamute.Client
) -> None:
    assert _delivered(_scrape(http)) == {"stream": 0, "mailbox": 0, "service": 0}
    client.send("native", "s", b"x")
    with (
        client.subscribe("weather") as one,
        client.subscribe("weather") as other,
        client.mailbox() as mailbox,
    ):
        client.publish_batch("weather", ["a"] * 3, [b"x"] * 3)
        for subscription in (one, other):
            for _ in range(3):
                subscription.receive(60)
        mailbox.receive(60)
        with client.work("shout") as work:
            client.request("shout", "s", b"x")
            work.receive(60)
    assert _delivered(_scrape(http)) == {"stream": 6, "mailbox": 1, "service": 1}


def _delivered(found: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> dict[str, float]:
    return {
        labels[0][1]: value
        for (name, labels), value in found.items()
        if name == "malamute_delivered_messages_total"
    }


def test_the_oldest_message_is_that_of_all_streams(http: httpx.Client, client: malamute.Client) -> None:
    name = ("malamute_store_first_time_seconds", ())
    assert name not in _scrape(http)
    for stream in ("weather", "alarms"):
        client.publish(stream, "a", b"x", assurance="stored")
    first_times = {row.name: row.first_time / 1e9 for row in client.query(StoredQuery())}
    assert _scrape(http)[name] == pytest.approx(first_times["weather"], abs=1e-6)
    client.change(StreamPurge(stream="weather"))
    assert _scrape(http)[name] == pytest.approx(first_times["alarms"], abs=1e-6)


def test_a_scrape_is_one_query(
    http: httpx.Client, client: malamute.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _noted_queries(monkeypatch)
    _scrape(http)
    assert asked == ["metrics"]


def test_a_broker_that_does_not_know_the_query_for_all_figures_is_asked_for_each(
    http: httpx.Client, client: malamute.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _noted_queries(monkeypatch, unknown="metrics")
    found = _scrape(http)
    assert asked == ["metrics", "status", "totals", "storage"]
    assert {f"malamute_{figure.name}" for figure in STATUS} < _names(found)


def _noted_queries(monkeypatch: pytest.MonkeyPatch, unknown: str = "") -> list[str]:
    """The topics that scrapes ask from now on; the broker refuses one as an older one does.

    The console asks for its charts beside them, in tasks of `watch.py`.
    """
    asked: list[str] = []
    query = malamute.aio.Client.query

    async def noted(self: malamute.aio.Client, value: AdminQuery[Any], **options: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        code: CodeType = getattr(task.get_coro(), "cr_code")  # noqa: B009
        if code.co_filename.endswith("console/watch.py"):
            return await query(self, value, **options)
        asked.append(value.topic)
        if value.topic == unknown:
            raise InvalidValue(f"unknown topic {unknown!r}")
        return await query(self, value, **options)

    monkeypatch.setattr(malamute.aio.Client, "query", noted)
    return asked


def test_what_readers_and_refusals_come_to_is_counted_over_all_streams(
    http: httpx.Client, client: malamute.Client
) -> None:
    client.publish_batch("a", ["s"] * 3, [b"x"] * 3)
    client.change(StreamPurge(stream="a"))
    client.publish_batch("a", ["s"] * 5, [b"x"] * 5)
    assert http.get("/metrics", params={"stream": "invented"}).status_code == 404
    with client.subscribe("a", start="seq:2", credit=1) as slow, client.subscribe("b"):
        slow.receive(60)
        found = _scrape(http)
        assert found["malamute_readers", (("state", "live"),)] == 1
        assert found["malamute_readers", (("state", "replay"),)] == 1
        assert found["malamute_lag_messages", ()] >= 3
        assert ("malamute_lag_seconds", ()) in found
    assert ("malamute_switches_total", (("state", "live"),)) in found
    assert sum(value for (name, _), value in found.items() if name == "malamute_gaps_total") == 1
    assert found["malamute_refusals_total", (("code", "404"),)] == 1


def test_operations_on_keys_of_buckets_are_counted(http: httpx.Client, client: malamute.Client) -> None:
    before = _scrape(http)
    bucket = client.bucket("metrics")
    bucket.put("a", b"1")
    bucket.add("a", 1)
    bucket.get_many(["a", "b"])
    bucket.delete("a")
    after = _scrape(http)
    name = "malamute_key_operations_total"
    counted = [
        after[name, (("operation", what),)] - before[name, (("operation", what),)]
        for what in ("put", "add", "get", "delete", "expired")
    ]
    assert counted == [1, 1, 2, 1, 0]


def test_settlements_are_counted_by_outcome(http: httpx.Client, client: malamute.Client) -> None:
    client.send("native", "s", b"x")
    with client.mailbox(auto_ack=False) as mailbox:
        mailbox.receive(60).ack()
    client.flush()
    assert _scrape(http)["malamute_settlements_total", (("outcome", "acknowledged"),)] == 1


def test_a_stream_that_is_named_is_looked_at(http: httpx.Client, client: malamute.Client) -> None:
    for name in ("weather", 'b"\\\n'.replace("\n", "")):
        client.publish_batch(name, ["a"] * 3, [b"x"] * 3)
    with client.subscribe("weather", credit=1, start="first") as subscription:
        subscription.receive(60)
        found = _scrape(http, stream=["weather", 'b"\\', "weather"])
        details = client.query(StreamQuery(name="weather"))
    assert {f"malamute_{figure.name}" for figure in STREAM} < _names(found)
    labels = (("stream", "weather"),)
    stored = {row.name: row for row in client.query(StoredQuery(stream="weather"))}["weather"]
    assert found["malamute_stream_stored_bytes", labels] == stored.bytes > 0
    assert found["malamute_stream_first_time_seconds", labels] == pytest.approx(stored.first_time / 1e9)
    assert found["malamute_stream_last_sequence", labels] == 3
    assert found["malamute_stream_last_sequence", (("stream", 'b"\\'),)] == 3
    states = {
        state: found["malamute_stream_readers", (("state", state), ("stream", "weather"))]
        for state in ("live", "replay")
    }
    assert sum(states.values()) == len(details.readers) == 1
    assert found["malamute_stream_lag_messages", labels] == max(reader.lag for reader in details.readers)


def test_a_stream_that_is_empty_has_no_oldest_message(http: httpx.Client, client: malamute.Client) -> None:
    client.publish("weather", "a", b"x", assurance="stored")
    name = ("malamute_stream_first_time_seconds", (("stream", "weather"),))
    assert name in _scrape(http, stream="weather")
    client.change(StreamPurge(stream="weather"))
    found = _scrape(http, stream="weather")
    assert name not in found
    assert found["malamute_stream_stored_bytes", (("stream", "weather"),)] == 0


def test_a_stream_that_is_not_there_is_a_problem(http: httpx.Client) -> None:
    answer = http.get("/metrics", params={"stream": "invented"})
    assert (answer.status_code, answer.json()["code"]) == (404, 404)


def test_names_of_clients_are_in_no_label(http: httpx.Client, client: malamute.Client) -> None:
    client.publish("weather", "a", b"x", assurance="stored")
    with client.subscribe("weather", "subject-of-mine"):
        text = http.get("/metrics", params={"stream": "weather"}).text
    assert "native" not in text
    assert "subject-of-mine" not in text


def test_a_link_has_its_state_and_what_it_brought(http: httpx.Client, client: malamute.Client) -> None:
    assert not any(name.startswith("malamute_link_") for name in _names(_scrape(http)))
    given = {"link": "edge", "urls": ["tcp://edge:9999"], "remote": "s", "stream": "linked"}
    generation = client.change("link.set", **given)["generation"]
    edge = (("link", "edge"),)
    assert ("malamute_link_lag_messages", edge) not in _scrape(http)
    told = {"link": "edge", "stream": "linked", "generation": generation, "broker": "ab" * 16}
    client.query("link.report", **told, lag=3, lag_ms=500)
    position = {"after": "", "upto": f"7@{'ab' * 16}"}
    client.change(
        "link.advance", link="edge", stream="linked", generation=generation, **position, gap="expired"
    )
    found = _scrape(http)
    assert found["malamute_links", ()] == found["malamute_link_running", edge] == 1
    assert (found["malamute_link_lag_messages", edge], found["malamute_link_lag_seconds", edge]) == (3, 0.5)
    assert found["malamute_link_received_messages_total", edge] == 0
    assert found["malamute_link_gaps_total", (*edge, ("reason", "expired"))] == 1
