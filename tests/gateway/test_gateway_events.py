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
from malamute.errors import InvalidValue
from malamute.gateway.events import PART_BYTES, EventWriter, start_behind
from malamute.protocol.batch import Columns, pack_record
from malamute.testing import Broker, small_config

STORE = "11" * 16


def ids(*sequences: str, store: str = STORE) -> list[str]:
    """The lines of the ids that these sequences have."""
    return [f"id: {sequence}@{store}" for sequence in sequences]


def test_the_id_of_an_event_is_its_sequence_and_history_turns_into_what_is_new(
    http: httpx.Client, client: malamute.Client
) -> None:
    publish_numbers(client, 1, 3)
    with following(http, params={"start": "seq:2"}) as blocks:
        assert next(blocks) == {"retry": "2000", "id": f"1@{client.store}"}
        assert messages_of(blocks, 2) == [(2, "2"), (3, "3")]
        publish_numbers(client, 4, 4)
        assert messages_of(blocks, 1) == [(4, "4")]


def test_a_page_that_comes_again_goes_on_behind_its_last_event(
    http: httpx.Client, client: malamute.Client
) -> None:
    publish_numbers(client, 1, 5)
    with following(http, headers={"last-event-id": "3"}, params={"start": "new"}) as blocks:
        assert messages_of(blocks, 2) == [(4, "4"), (5, "5")]


@pytest.mark.parametrize("last", [3, 99])
def test_a_last_event_of_another_store_is_a_gap_and_everything_comes(
    http: httpx.Client, client: malamute.Client, last: int
) -> None:
    publish_numbers(client, 1, 5)
    headers = {"last-event-id": f"{last}@" + "ee" * 16}
    with following(http, headers=headers, params={"start": "new"}) as blocks:
        assert next(blocks)["id"] == f"0@{client.store}"
        gap = next(blocks)
        assert (gap["event"], gap["id"]) == ("gap", f"0@{client.store}")
        fields = {"first": 1, "last": 0, "reason": "another-store", "store": client.store}
        assert json.loads(gap["data"]) == fields
        assert messages_of(blocks, 5) == [(number, str(number)) for number in range(1, 6)]


def test_the_next_page_of_another_store_begins_with_its_first_message(
    http: httpx.Client, client: malamute.Client
) -> None:
    publish_numbers(client, 1, 5)
    address = EVENTS.replace("events", "messages")
    first = http.get(address, params={"limit": 2}).json()
    following_page = http.get(first["next"]).json()
    assert [row["sequence"] for row in following_page["messages"]] == [3, 4]
    assert following_page["gaps"] == []
    elsewhere = http.get(first["next"].replace(client.store, "ee" * 16)).json()
    assert [row["sequence"] for row in elsewhere["messages"]] == [1, 2]
    assert [gap["reason"] for gap in elsewhere["gaps"]] == ["another-store"]


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
    writer = EventWriter(0, STORE)
    gaps = [(2, Gap("weather", 3, 5, "overwritten")), (4, Gap("weather", 8, 9, "restart"))]
    assert _ids(_written(writer, gaps, 2, _columns(1, 2))) == ids("1", "2")
    assert _ids(_written(writer, gaps, 4, _columns(6, 7))) == ["gap", *ids("5", "6", "7")]
    assert _ids(_written(writer, gaps, 4, None)) == ["gap", *ids("9")]
    gaps.append((4, Gap("weather", 6, 9, "taken-back")))
    assert _ids(_written(writer, gaps, 4, None)) == ["gap"]


def test_sequences_count_in_another_store_behind_the_gap_that_says_so() -> None:
    """Messages of the old store that still wait keep their ids, though the gap is known."""
    writer = EventWriter(0, STORE)
    other = "22" * 16
    gaps = [(2, Gap("weather", 1, 0, "another-store", other))]
    assert _ids(_written(writer, gaps, 2, _columns(8, 9))) == ids("8", "9")
    assert writer.start == f"after:9@{STORE}"
    assert _ids(_written(writer, gaps, 4, _columns(1, 2))) == ["gap", *ids("0", "1", "2", store=other)]
    assert writer.start == f"after:2@{other}"


def _written(
    writer: EventWriter, gaps: list[tuple[int, Gap]], popped: int, columns: Columns | None
) -> Iterator[bytes]:
    subscription = SimpleNamespace(gaps=len(gaps), placed_gaps=gaps, popped=popped)
    writer.gaps.note(subscription, columns)  # type: ignore[arg-type]
    return writer.parts(columns)


@pytest.mark.parametrize(
    ("event_id", "start"), [("0", "seq:1"), ("41", "seq:42"), (f"41@{STORE}", f"after:41@{STORE}")]
)
def test_the_last_event_is_where_a_page_goes_on(event_id: str, start: str) -> None:
    assert start_behind(event_id) == start


@pytest.mark.parametrize("event_id", ["", "x", "-1", "\u0664", str(2**63 - 1), "4@", f"4@{STORE[1:]}"])
def test_a_last_event_that_is_none_is_refused(event_id: str) -> None:
    with pytest.raises(InvalidValue, match="Last-Event-ID"):
        start_behind(event_id)


def test_a_message_that_cannot_be_read_is_a_gap_and_not_the_end() -> None:
    writer = EventWriter(0, STORE)
    columns = Columns(
        [1, 2, 3], 0, "", ["s"] * 3, [pack_record(None, b"x"), b"\xc1", pack_record(None, b"y")]
    )
    written = b"".join(writer.parts(columns))
    assert _ids(iter([written])) == [*ids("1"), "gap", *ids("2", "3")]
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
        assert found[0]["id"] == f"1@{client.store}"
        assert (found[1]["event"], found[1]["id"]) == ("gap", f"3@{client.store}")
        assert json.loads(found[1]["data"]) | {"reason": ""} == {"first": 2, "last": 3, "reason": ""}
        assert found[2]["id"] == f"4@{client.store}"
