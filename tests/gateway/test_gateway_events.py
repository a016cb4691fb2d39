"""Streams as Server-Sent Events: nothing is lost over a reconnect, gaps stand where they belong."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from running_gateway import WAIT_SECONDS, RunningGateway, gateway_before
from server_events import EVENTS, following, make_stream, messages_of, publish_numbers

import malamute
from malamute.client.events import Gap
from malamute.gateway.events import PART_BYTES, EventWriter
from malamute.protocol.batch import Columns, pack_record
from malamute.testing import Broker, small_config


def test_the_id_of_an_event_is_its_sequence_and_history_turns_into_what_is_new(
    http: httpx.Client, client: malamute.Client
) -> None:
    publish_numbers(client, 1, 3)
    with following(http, params={"start": "seq:2"}) as blocks:
        assert next(blocks) == {"retry": "2000", "id": "1"}
        assert messages_of(blocks, 2) == [(2, "2"), (3, "3")]
        publish_numbers(client, 4, 4)
        assert messages_of(blocks, 1) == [(4, "4")]


def test_a_page_that_comes_again_goes_on_behind_its_last_event(
    http: httpx.Client, client: malamute.Client
) -> None:
    publish_numbers(client, 1, 5)
    with following(http, headers={"last-event-id": "3"}, params={"start": "new"}) as blocks:
        assert messages_of(blocks, 2) == [(4, "4"), (5, "5")]


def test_a_page_that_leaves_before_its_first_event_has_an_id_to_come_again_with(
    http: httpx.Client, client: malamute.Client
) -> None:
    publish_numbers(client, 1, 2)
    with following(http) as blocks:
        position = next(blocks)["id"]
    publish_numbers(client, 3, 4)
    with following(http, headers={"last-event-id": position}) as blocks:
        assert messages_of(blocks, 2) == [(3, "3"), (4, "4")]


@pytest.mark.parametrize("given", ["x", "-1", "1.5", "9223372036854775807"])
def test_an_id_that_is_no_sequence_is_refused(http: httpx.Client, given: str) -> None:
    answer = http.get(EVENTS, headers={"last-event-id": given})
    assert (answer.status_code, answer.json()["code"]) == (400, 416)


def test_what_cannot_be_followed_is_a_problem_and_no_stream(http: httpx.Client) -> None:
    answer = http.get(EVENTS, params={"where": "a ="})
    assert (answer.status_code, answer.json()["code"]) == (400, 415)


@pytest.mark.usefixtures("weather")
def test_a_connection_without_news_is_kept_alive(start: Callable[..., RunningGateway]) -> None:
    with start(keep_alive_seconds=0.01).client() as http, following(http) as blocks:
        next(blocks)
        assert next(blocks) == {"": "nothing new"}


def test_a_page_loses_nothing_over_a_restart_of_the_broker(tmp_path: Path) -> None:
    with (
        Broker(tmp_path) as broker,
        gateway_before(broker) as gateway,
        gateway.client() as http,
        malamute.connect(broker.url, timeout=WAIT_SECONDS) as client,
    ):
        publish_numbers(client, 1, 2)
        with following(http, params={"start": "first"}) as blocks:
            assert messages_of(blocks, 2) == [(1, "1"), (2, "2")]
            broker.restart()
            publish_numbers(client, 3, 4)
            found = messages_of(blocks, 2)
            # Sequences may be left out by a restart, never used again.
            assert [body for _, body in found] == ["3", "4"]
            assert found[0][0] > 2


def _unsent_bytes(gateway: RunningGateway) -> int:
    return sum(one.transport.get_write_buffer_size() for one in gateway.server.server_state.connections)


def test_a_page_that_does_not_read_goes_into_replay_and_loses_nothing(tmp_path: Path) -> None:
    config = small_config()
    with (
        Broker(tmp_path, config=config) as broker,
        gateway_before(broker) as gateway,
        gateway.client() as http,
        malamute.connect(broker.url, timeout=WAIT_SECONDS) as client,
    ):
        make_stream(broker.url)
        with following(http) as blocks:
            next(blocks)
            for first in range(1, 301, 10):
                bodies = [b"%d " % n + b"x" * 60_000 for n in range(first, first + 10)]
                client.publish_batch("weather", ["s"] * 10, bodies)
            details = malamute.protocol.admin.StreamQuery(name="weather")
            while not client.query(details).switches_to_replay:
                pass
            # The system takes megabytes first. Of what it does not take one part is written, and one window
            # is here.
            while not (unsent := _unsent_bytes(gateway)):
                http.get("/live")
            assert unsent < 4 * PART_BYTES
            here = [one._source.waiting for one in gateway.state._followed]
            assert sum(here) * 60_000 <= 2 * gateway.state.settings.event_bytes
            found = messages_of(blocks, 300)
        assert [sequence for sequence, _ in found] == [*range(1, 301)]
        assert [int(body.split()[0]) for _, body in found] == [*range(1, 301)]


@pytest.mark.usefixtures("weather")
def test_who_follows_is_let_go_when_the_gateway_stops(start: Callable[..., RunningGateway]) -> None:
    gateway = start()
    with gateway.client() as http, following(http) as blocks:
        next(blocks)
        gateway.stop()
        assert [*blocks] == []


@pytest.mark.usefixtures("weather")
def test_a_subscription_ends_with_the_page_that_follows(
    gateway: RunningGateway, http: httpx.Client, client: malamute.Client
) -> None:
    ended = threading.Event()
    with client.subscribe("$sys", "subscription.cancelled.#", "client.#") as _, following(http) as blocks:
        next(blocks)
        assert len(gateway.state._followed) == 1
        ended.set()
    # The next request comes behind the end of the one before on the loop of the gateway.
    while gateway.state._followed:
        http.get("/live")


def _columns(*sequences: int) -> Columns:
    size = len(sequences)
    return Columns(list(sequences), 0, "", ["s"] * size, [pack_record(None, b"x")] * size)


def _ids(parts: Iterator[bytes]) -> list[str]:
    return [
        line.replace("event: ", "")
        for line in b"".join(parts).decode().splitlines()
        if line.startswith(("id:", "event:"))
    ]


def test_gaps_stand_between_the_messages_where_they_belong() -> None:
    writer = EventWriter(0)
    gaps = [Gap("weather", 3, 5, "overwritten"), Gap("weather", 8, 9, "restart")]
    writer.gaps.note(SimpleNamespace(gaps=2, recent_gaps=gaps))  # type: ignore[arg-type]
    assert _ids(writer.parts(_columns(1, 2))) == ["id: 1", "id: 2"]
    assert _ids(writer.parts(_columns(6, 7))) == ["gap", "id: 5", "id: 6", "id: 7"]
    assert _ids(writer.parts(None)) == ["gap", "id: 9"]
    taken_back = Gap("weather", 6, 9, "taken-back")
    writer.gaps.note(SimpleNamespace(gaps=3, recent_gaps=[*gaps, taken_back]))  # type: ignore[arg-type]
    assert _ids(writer.parts(None)) == ["gap"]


def test_a_message_that_cannot_be_read_is_a_gap_and_not_the_end() -> None:
    writer = EventWriter(0)
    columns = Columns(
        [1, 2, 3], 0, "", ["s"] * 3, [pack_record(None, b"x"), b"\xc1", pack_record(None, b"y")]
    )
    written = b"".join(writer.parts(columns))
    assert _ids(iter([written])) == ["id: 1", "gap", "id: 2", "id: 3"]
    assert b'{"first":2,"last":2,"reason":"malformed"}' in written


def test_a_gap_of_the_ring_is_an_event_with_its_range_and_reason(tmp_path: Path) -> None:
    config = replace(small_config())
    with (
        Broker(tmp_path, config=config) as broker,
        gateway_before(broker) as gateway,
        gateway.client() as http,
        malamute.connect(broker.url, timeout=WAIT_SECONDS) as client,
    ):
        publish_numbers(client, 1, 3)
        client.change(malamute.protocol.admin.StreamPurge(stream="weather"))
        publish_numbers(client, 4, 4)
        with following(http, headers={"last-event-id": "1"}) as blocks:
            found = [block for block in islice(blocks, 3)]
        assert found[0]["id"] == "1"
        assert (found[1]["event"], found[1]["id"]) == ("gap", "3")
        assert json.loads(found[1]["data"]) | {"reason": ""} == {"first": 2, "last": 3, "reason": ""}
        assert found[2]["id"] == "4"
