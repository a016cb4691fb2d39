"""Streams over HTTP: what is posted is durable and exact, pages have all, and errors say what to do."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from damaged_messages import publish_damaged

import malamute
from malamute.protocol.admin import StreamPurge, StreamsQuery
from malamute.protocol.limits import BATCH_MESSAGES_MAX
from malamute.testing import Broker

WEATHER = "/v1/streams/weather/messages"


def _held(client: malamute.Client, stream: str, count: int) -> list[tuple[Any, ...]]:
    with client.subscribe(stream, start="first") as subscription:
        found = [subscription.receive() for _ in range(count)]
    return [(m.sequence, m.subject, m.body, m.headers) for m in found]


def test_one_message_is_published_as_it_is_and_confirmed(http: httpx.Client, client: malamute.Client) -> None:
    headers = {"content-type": "text/plain", "malamute-header-unit": "celsius", "user-agent": "x"}
    answer = http.post(WEATHER, params={"subject": "temp.oslo"}, content=b"\x00-3.5\xff", headers=headers)
    assert (answer.status_code, answer.json()) == (201, {"count": 1, "first": 1, "last": 1})
    expected = {"unit": "celsius", "content-type": "text/plain"}
    assert _held(client, "weather", 1) == [(1, "temp.oslo", b"\x00-3.5\xff", expected)]


def test_a_message_without_a_subject_is_refused_and_the_empty_one_is_said(
    http: httpx.Client, client: malamute.Client
) -> None:
    lines = {"content-type": "application/x-ndjson"}
    for content, headers in ((b"plain", {}), (b"", {}), (b'{"subject": "a"}\n{}\n', lines)):
        answer = http.post(WEATHER, content=content, headers=headers)
        _refused(answer, 400, 416)
        assert "?subject=temp.oslo" in answer.json()["detail"]
    assert "weather" not in [row.name for row in client.query(StreamsQuery())]
    assert http.post(WEATHER, params={"subject": ""}, content=b"said").status_code == 201
    assert [(subject, body) for _, subject, body, _ in _held(client, "weather", 1)] == [("", b"said")]


@pytest.mark.parametrize("path", ["messages", "events"])
def test_what_only_reads_makes_no_stream(http: httpx.Client, client: malamute.Client, path: str) -> None:
    answer = http.get(f"/v1/streams/none/{path}")
    assert (answer.status_code, answer.json()["code"]) == (404, 404)
    assert "publish to it, or create it, first" in answer.json()["detail"]
    assert "none" not in [row.name for row in client.query(StreamsQuery())]


def test_messages_that_expired_stand_in_the_gaps_of_a_page(http: httpx.Client) -> None:
    for ttl in (0.001, 0.001, 3600):
        assert http.post(WEATHER, params={"subject": "", "ttl": ttl}, content=b"x").status_code == 201
    end = time.monotonic() + 2
    while not (page := http.get(WEATHER, params={"start": "seq:1"}).json())["gaps"]:
        assert time.monotonic() < end
    assert [message["sequence"] for message in page["messages"]] == [3]
    assert page["gaps"] == [{"first": 1, "last": 2, "reason": "expired"}]
    _refused(http.post(WEATHER, params={"subject": "", "ttl": 0}, content=b"x"), 400, 416)


def test_lines_are_published_as_one_command_in_their_order(
    http: httpx.Client, client: malamute.Client
) -> None:
    lines = [
        {"subject": "a", "body": "ä", "headers": {"n": 1, "x": 1.5, "t": True, "none": None, "s": "text"}},
        {"body_base64": base64.b64encode(b"\xff\x00").decode()},
        {"subject": "c"},
    ]
    content = "\n".join(map(json.dumps, lines)) + "\n"
    answer = http.post(
        WEATHER, params={"subject": "b"}, content=content, headers={"content-type": "application/x-ndjson"}
    )
    assert (answer.status_code, answer.json()) == (201, {"count": 3, "first": 1, "last": 3})
    assert _held(client, "weather", 3) == [
        (1, "a", "ä".encode(), lines[0]["headers"]),
        (2, "b", b"\xff\x00", {}),
        (3, "c", b"", {}),
    ]


def test_a_batch_may_have_as_many_lines_as_a_command_and_not_one_more(http: httpx.Client) -> None:
    headers = {"content-type": "application/x-ndjson"}
    answer = http.post(f"{WEATHER}?subject=", content=b"{}\n" * BATCH_MESSAGES_MAX, headers=headers)
    assert (answer.status_code, answer.json()["count"]) == (201, BATCH_MESSAGES_MAX)
    for content in (b"{}\n" * (BATCH_MESSAGES_MAX + 1), b"{}\n" * BATCH_MESSAGES_MAX + b"{}"):
        _refused(http.post(WEATHER, content=content, headers=headers), 413, 413)


EVENT = {"specversion": "1.0", "id": "7", "source": "/s", "type": "org.example.temp", "place": "Oslo"}
EVENT_HEADERS = {f"ce-{name}": value for name, value in EVENT.items()}


@pytest.mark.parametrize(
    ("given", "body", "content_type"),
    [
        ({"data": {"t": [1, "ä"]}}, '{"t":[1,"ä"]}'.encode(), "application/json"),
        ({"data": "words"}, b'"words"', "application/json"),
        ({"data": "words", "datacontenttype": "text/plain"}, b"words", "text/plain"),
        ({"data_base64": "/wA=", "datacontenttype": "image/x"}, b"\xff\x00", "image/x"),
        ({}, b"", "application/json"),
    ],
)
def test_a_structured_cloud_event_is_the_same_message_alone_and_in_a_batch(
    http: httpx.Client, client: malamute.Client, given: dict[str, Any], body: bytes, content_type: str
) -> None:
    event = json.dumps({**EVENT, **given}, ensure_ascii=False, separators=(",", ":"))
    for content, kind in (
        (event, "application/cloudevents"),
        (f"[{event}]", "application/cloudevents-batch"),
    ):
        headers = {"content-type": f"{kind}+json; charset=utf-8"}
        assert http.post(WEATHER, content=content, headers=headers).status_code == 201
    expected = {**EVENT_HEADERS, "content-type": content_type}
    assert _held(client, "weather", 2) == [
        (1, "org.example.temp", body, expected),
        (2, "org.example.temp", body, expected),
    ]


def test_a_binary_cloud_event_keeps_its_attributes_as_headers(
    http: httpx.Client, client: malamute.Client
) -> None:
    headers = {**EVENT_HEADERS, "content-type": "text/plain"}
    assert http.post(WEATHER, content=b"x", headers=headers).status_code == 201
    assert http.post(WEATHER, params={"subject": "s"}, content=b"x", headers=headers).status_code == 201
    assert _held(client, "weather", 2) == [(1, "org.example.temp", b"x", headers), (2, "s", b"x", headers)]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),
        # As senders of earlier drafts write it.
        (r'"Euro \"%E2%82%AC\" \\"', 'Euro "€" \\'),
        ("%2520", "%20"),
        ("100%", "100%"),
    ],
)
def test_an_attribute_is_the_same_in_a_header_and_in_json(
    http: httpx.Client, client: malamute.Client, written: str, value: str
) -> None:
    http.post(WEATHER, content=b"", headers={**EVENT_HEADERS, "ce-subject": written}).raise_for_status()
    structured = {"content-type": "application/cloudevents+json"}
    http.post(WEATHER, json={**EVENT, "subject": value}, headers=structured).raise_for_status()
    found = [headers for _, _, _, headers in _held(client, "weather", 2)]
    assert [headers["ce-subject"] for headers in found] == [value, value]


def test_an_attribute_that_is_null_is_not_there(http: httpx.Client, client: malamute.Client) -> None:
    headers = {"content-type": "application/cloudevents+json"}
    http.post(WEATHER, json={**EVENT, "subject": None}, headers=headers).raise_for_status()
    assert _held(client, "weather", 1)[0][3] == {**EVENT_HEADERS, "content-type": "application/json"}
    _refused(http.post(WEATHER, json={**EVENT, "id": None}, headers=headers), 400, 416)


@pytest.mark.parametrize("name", ["id", "subject"])
def test_an_attribute_that_is_no_utf_8_is_refused(http: httpx.Client, name: str) -> None:
    _refused(http.post(WEATHER, content=b"", headers={**EVENT_HEADERS, f"ce-{name}": "%ff"}), 400, 416)


def test_text_in_headers_is_utf_8_or_latin_1(http: httpx.Client, client: malamute.Client) -> None:
    sent = {
        "Zürich".encode(): "Zürich",
        "天気 \U0001f600".encode(): "天気 \U0001f600",
        # Older clients send Latin-1; such bytes are no UTF-8.
        "Zürich".encode("latin-1"): "Zürich",
        b"100%": "100%",
        b"a%20b": "a%20b",
    }
    for raw in sent:
        headers = [(b"Malamute-Header-city", raw), (b"content-type", b"text/plain; name=" + raw)]
        assert http.post(f"{WEATHER}?subject=", content=b"", headers=headers).status_code == 201
    with client.subscribe("weather", start="first") as found:
        messages = [found.receive(60) for _ in sent]
    assert [message.headers["city"] for message in messages] == [*sent.values()]
    assert [m.headers["content-type"].removeprefix("text/plain; name=") for m in messages] == [*sent.values()]


def test_attributes_of_events_are_percent_encoded_or_raw(http: httpx.Client, client: malamute.Client) -> None:
    sent = {"Zürich".encode(): "Zürich", b"Z%C3%BCrich": "Zürich", b'"Z%C3%BCrich \\"a\\""': 'Zürich "a"'}
    for raw in sent:
        headers = [(name.encode(), value.encode()) for name, value in EVENT_HEADERS.items()]
        assert http.post(WEATHER, content=b"", headers=[*headers, (b"ce-city", raw)]).status_code == 201
    with client.subscribe("weather", start="first") as found:
        assert [found.receive(60).headers["ce-city"] for _ in sent] == [*sent.values()]


def test_a_key_with_other_letters_is_the_same_however_it_is_sent(http: httpx.Client) -> None:
    answers = [
        http.post(f"{WEATHER}?subject=", content=b"x", headers=[(b"idempotency-key", raw)]).json()["first"]
        for raw in ("ä".encode(), "ä".encode("latin-1"), "ö".encode())
    ]
    assert answers == [1, 1, 2]


@pytest.mark.parametrize(
    "event",
    [
        {**EVENT, "specversion": "0.3"},
        {name: value for name, value in EVENT.items() if name != "id"},
        {**EVENT, "source": ""},
        {**EVENT, "type": 7},
        {**EVENT, "data": 1, "data_base64": ""},
    ],
)
def test_what_is_no_cloud_event_is_refused(http: httpx.Client, event: dict[str, Any]) -> None:
    headers = {"content-type": "application/cloudevents+json"}
    _refused(http.post(WEATHER, json=event, headers=headers), 400, 416)


def _refused(answer: httpx.Response, status: int, code: int) -> dict[str, Any]:
    problem = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["type"] == f"/v1/problems/{code}"
    assert problem["title"]
    assert problem["detail"]
    return dict(problem)


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"", 400, 416),
        (b"[1]", 400, 400),
        (b"{", 400, 400),
        (b'{"body": "\xff"}', 400, 400),
        (b'{"body": "\\ud800"}', 400, 400),
        (b'{"body": 1}', 400, 400),
        (b'{"unknown": 1}', 400, 400),
        (b'{"headers": {"a": [1]}}', 400, 400),
        (b'{"headers": {"a": 1e999}}', 400, 400),
        (b'{"body": "a", "body_base64": "YQ=="}', 400, 416),
        (b'{"body_base64": "?"}', 400, 400),
        (b"[" * 100_000, 400, 400),
        (b'{"subject": "%s"}' % (b"x" * 256), 413, 413),
    ],
)
def test_a_bad_line_is_refused_and_nothing_of_the_batch_is_published(
    http: httpx.Client, content: bytes, status: int, code: int
) -> None:
    body = b"{}\n" + content + b"\n" if content else b"\n"
    lines = {"content-type": "application/x-ndjson"}
    _refused(http.post(f"{WEATHER}?subject=", content=body, headers=lines), status, code)
    assert http.get(WEATHER).status_code == 404


@pytest.mark.parametrize(
    ("path", "params", "status", "code"),
    [
        (WEATHER, {"limit": "0"}, 400, 416),
        (WEATHER, {"limit": "1001"}, 400, 416),
        (WEATHER, {"limit": "many"}, 400, 416),
        (WEATHER, [("limit", "1"), ("limit", "2")], 400, 416),
        (WEATHER, {"start": "yesterday"}, 400, 416),
        (WEATHER, {"unknown": "1"}, 400, 416),
        (WEATHER, {"where": "a ="}, 400, 415),
        (WEATHER, {"criteria": "[1]"}, 400, 415),
        (WEATHER, {"criteria": "["}, 400, 415),
        (WEATHER, {"pattern": "x" * 1025}, 413, 413),
        (WEATHER, {"family": "unheard-of", "pattern": "x"}, 400, 415),
        ("/v1/streams/%00/messages", {}, 400, 414),
        (f"/v1/streams/{'x' * 256}/messages", {}, 400, 414),
        ("/v1/streams/%ff/messages", {}, 400, 400),
        ("/v1/streams/a/letters", {}, 404, 901),
        ("/v1/streams/a/messages/", {}, 404, 901),
        ("/v1/problems/1", {}, 404, 404),
    ],
)
def test_bad_requests_are_problems_with_a_number(
    http: httpx.Client, weather: None, path: str, params: Any, status: int, code: int
) -> None:
    _refused(http.get(path, params=params), status, code)


def test_a_method_that_a_path_does_not_have_is_answered_with_those_that_it_has(http: httpx.Client) -> None:
    answer = http.delete(WEATHER)
    _refused(answer, 405, 902)
    assert answer.headers["allow"] == "GET, HEAD, POST"


def test_the_type_of_a_problem_leads_to_its_explanation(http: httpx.Client) -> None:
    problem = http.get(WEATHER, params={"limit": "0"}).json()
    explained = http.get(problem["type"]).json()
    assert {explained[name] == problem[name] for name in ("title", "hint", "code", "status")} == {True}


def test_names_may_have_any_character_that_a_stream_may_have(
    http: httpx.Client, client: malamute.Client
) -> None:
    name = "a/b ä?#%2F"
    path = "/v1/streams/a%2Fb%20%C3%A4%3F%23%252F/messages"
    assert http.post(f"{path}?subject=", content=b"x").status_code == 201
    assert _held(client, name, 1) == [(1, "", b"x", {})]
    assert len(http.get(path).json()["messages"]) == 1


def _publish(client: malamute.Client, count: int, stream: str = "weather") -> None:
    client.publish_batch(
        stream,
        [("even" if n % 2 == 0 else "odd") for n in range(1, count + 1)],
        [str(n).encode() for n in range(1, count + 1)],
        [{"n": n} for n in range(1, count + 1)],
    )


@pytest.mark.parametrize("limit", [1, 3, 10, 11, 1000])
def test_following_the_pages_gives_every_message_once_in_order(
    http: httpx.Client, client: malamute.Client, limit: int
) -> None:
    _publish(client, 10)
    link, found = f"{WEATHER}?limit={limit}", []
    while link:
        page = http.get(link)
        found += page.json()["messages"]
        assert len(page.json()["messages"]) <= limit
        assert page.headers.get("link") == (
            f'<{page.json()["next"]}>; rel="next"' if page.json()["next"] else None
        )
        link = page.json()["next"]
    assert [(m["sequence"], m["body"], m["headers"]) for m in found] == [
        (n, str(n), {"n": n}) for n in range(1, 11)
    ]


def test_a_page_ends_by_its_bytes_too(start: Callable[..., Any], client: malamute.Client) -> None:
    _publish(client, 40)
    with start(page_bytes=8).client() as http:
        link, sizes = WEATHER, []
        while link:
            page = http.get(link).json()
            sizes.append(len(page["messages"]))
            link = page["next"]
    assert sum(sizes) == 40
    assert max(sizes) < 40


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"pattern": "even"}, [2, 4, 6, 8, 10]),
        ({"pattern": ["even", "odd"], "start": "seq:9"}, [9, 10]),
        ({"pattern": "ev", "family": "prefix", "where": "n > 6"}, [8, 10]),
        ({"criteria": '[["fields", {"n": 3}], ["exact", "none"]]'}, [3]),
        ({"pattern": "none"}, []),
        ({"start": "new"}, []),
        ({"start": "last"}, [10]),
        ({"start": "last-per-subject"}, [9, 10]),
        ({"start": "seq:11"}, []),
        ({"start": "seq:1000"}, []),
        ({"start": "since:1h"}, [*range(1, 11)]),
    ],
)
def test_a_page_has_what_its_criteria_select(
    http: httpx.Client, client: malamute.Client, params: dict[str, Any], expected: list[int]
) -> None:
    _publish(client, 10)
    page = http.get(WEATHER, params=params).json()
    assert [message["sequence"] for message in page["messages"]] == expected
    assert page["next"] is None


def test_a_page_can_be_lines(http: httpx.Client, client: malamute.Client) -> None:
    client.publish("weather", "s", b"\xff", {"a": "ä"}, assurance="stored")
    client.publish("weather", "s", b"2", assurance="stored")
    answer = http.get(WEATHER, headers={"accept": "application/x-ndjson"}, params={"limit": 1})
    assert answer.headers["content-type"] == "application/x-ndjson"
    [message] = map(json.loads, answer.text.splitlines())
    assert message.pop("time").endswith("Z")
    assert message == {
        "sequence": 1,
        "sender": "native",
        "subject": "s",
        "headers": {"a": "ä"},
        "body_base64": "/w==",
    }
    following = http.get(WEATHER, params={"limit": 1}).json()["next"]
    assert answer.headers["link"] == f'<{following}>; rel="next"'


def test_what_a_page_has_not_is_told_as_gaps(
    http: httpx.Client, client: malamute.Client, broker: Broker
) -> None:
    client.publish("weather", "s", b"0", assurance="stored")
    client.change(StreamPurge(stream="weather"))
    publish_damaged(broker.url, "weather")
    page = http.get(WEATHER, params={"start": "seq:1"}).json()
    assert [(m["sequence"], m["body"]) for m in page["messages"]] == [(2, "1"), (4, "3")]
    purged, damaged = page["gaps"]
    assert (purged["first"], purged["last"]) == (1, 1)
    assert damaged == {"first": 3, "last": 3, "reason": "malformed"}
    only = http.get(WEATHER, params={"start": "seq:3", "limit": 1}).json()
    assert (only["messages"], only["gaps"]) == ([], [damaged])
    assert http.get(only["next"]).json()["messages"] == page["messages"][1:]
    lines = http.get(WEATHER, params={"start": "seq:2"}, headers={"accept": "application/x-ndjson"}).text
    assert [json.loads(line).keys() & {"gap", "body"} for line in lines.splitlines()] == [
        {"gap"},
        {"body"},
        {"body"},
    ]


def test_a_repeated_request_with_its_key_is_published_once(http: httpx.Client) -> None:
    headers = {"idempotency-key": "k1"}
    answers = [http.post(f"{WEATHER}?subject=", content=b"x", headers=headers) for _ in range(3)]
    assert {(answer.status_code, answer.text) for answer in answers} == {(201, answers[0].text)}
    assert len(http.get(WEATHER).json()["messages"]) == 1
    assert http.post("/v1/streams/other/messages?subject=a", content=b"y", headers=headers).status_code == 201
    _refused(http.post(f"{WEATHER}?subject=", content=b"y", headers=headers), 422, 907)
    _refused(http.post(f"{WEATHER}?subject=", content=b"x", headers={"idempotency-key": "k" * 256}), 400, 414)
    _refused(http.post(f"{WEATHER}?subject=", content=b"x", headers={"idempotency-key": ""}), 400, 414)
    assert (
        http.post(f"{WEATHER}?subject=", content=b"x", headers={"idempotency-key": "k" * 255}).status_code
        == 201
    )
