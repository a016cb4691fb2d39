"""Administration over HTTP: every query and change of the broker, with the rights of the user."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_gateway import WAIT_SECONDS, RunningGateway, gateway_before, wait_for_dead
from secured_gateway import secured_gateway

import malamute
from malamute.gateway.admin import ENDPOINTS, PATH
from malamute.gateway.bodies import to_json
from malamute.protocol.admin import CHANGES, QUERIES, encode
from malamute.testing import Broker

QUEUE = {"kind": "mailbox", "name": "eve"}
LINK = {"link": "edge", "stream": "copy"}
FEED = {"source": "stream/rain", "feed": "f"}

ASKED: dict[str, dict[str, Any]] = {
    "stream": {"name": "rain"},
    "explain": {"stream": "rain", "subject": "a.b", "headers": '{"n": 1}'},
    "demand": {"stream": "rain"},
    "service": {"name": "stitch"},
    "mailbox": {"name": "eve"},
    "client": {"id": "eve"},
    "feed": FEED,
    "link": {"link": "edge"},
    "link.origin": {"stream": "rain"},
    "link.report": {**LINK, "generation": 1},
    "selector": {"source": "stream/rain"},
    "access": {"user": "eve", "action": "publish", "target": "stream/rain"},
    "selectors": {"source": "stream/rain"},
    "messages": QUEUE,
    "message": {**QUEUE, "sequence": 1, "dead": True},
}
"""The arguments of queries that need some."""

CHANGED: dict[str, dict[str, Any]] = {
    "stream.create": {"stream": "new", "count": 5},
    "stream.retain": {"stream": "rain", "age": 60.5},
    "stream.purge": {"stream": "rain"},
    "stream.delete-messages": {"stream": "rain", "subject": "a.*"},
    "stream.delete": {"stream": "rain", "cascade": True},
    "cursor.set": {"stream": "rain", "cursor": "c", "start": "first"},
    "cursor.delete": {"stream": "rain", "cursor": "c"},
    "feed.set": {**FEED, "target": "service/stitch", "criteria": [["topic", "a.*"]]},
    "feed.enable": FEED,
    "feed.disable": FEED,
    "feed.delete": FEED,
    "link.set": {**LINK, "urls": ["tcp://edge:9999"], "remote": "rain"},
    "link.pause": LINK,
    "link.resume": LINK,
    "link.advance": {**LINK, "generation": 1, "after": "", "upto": f"1@{'ab' * 16}"},
    "link.stop": {**LINK, "generation": 1, "reason": "r"},
    "link.remove": LINK,
    "queue.redrive": {**QUEUE, "sequences": [1], "body": base64.b64encode(b"\xff mended").decode()},
    "queue.set": {**QUEUE, "attempts": 3, "backoff": [1, 2.5]},
    "queue.purge": {**QUEUE, "dead": True},
    "queue.delete": {"kind": "service", "name": "stitch", "cascade": True},
    "client.disconnect": {"id": "eve"},
    "broker.reload": {},
    "journal.backup": {"directory": "monday"},
    "group.add": {"name": "g", "access_rules": []},
    "group.set": {"name": "none", "access_rules": []},
    "group.remove": {"name": "none"},
    "user.add": {"name": "carl", "password": "orange"},
    "user.set": {"name": "none", "disabled": True},
    "user.remove": {"name": "none"},
}
"""The arguments of every change."""

REFUSED = {
    "broker.reload": "no configuration",
    "journal.backup": "",
    **dict.fromkeys(("group.set", "group.remove", "user.set", "user.remove"), "none"),
    "link.advance": "generation",
    "link.stop": "generation",
}
"""Changes that this broker refuses, and a word of the reason."""


@pytest.fixture(scope="module")
def running() -> Iterator[RunningGateway]:
    """A gateway in front of a broker with one of everything."""
    with (
        Broker() as broker,
        gateway_before(broker) as gateway,
        malamute.connect(broker.url, address="eve", timeout=WAIT_SECONDS) as eve,
        eve.subscribe("rain", "a.*"),
        eve.work("stitch"),
    ):
        eve.publish("rain", "a.b", b"\xff", assurance="stored")
        eve.change("feed.set", **FEED, target="service/stitch")
        eve.change("link.set", **LINK, urls=["tcp://edge:9999"], remote="rain")
        eve.change("cursor.set", stream="rain", cursor="c", start="first")
        eve.send("eve", "s", b"\xff")
        eve.receive(timeout=WAIT_SECONDS).reject("no room")
        wait_for_dead(eve, "eve", 1)
        yield gateway


@pytest.fixture
def http(running: RunningGateway) -> Iterator[httpx.Client]:
    with running.client() as client:
        yield client


def test_every_query_and_every_change_of_the_core_has_a_path_in_the_description(http: httpx.Client) -> None:
    described = http.get("/v1/openapi.json").json()
    paths = {
        (method, path.removeprefix(PATH))
        for path, methods in described["paths"].items()
        if path.startswith(PATH)
        for method in methods
    }
    assert paths == {("get", topic) for topic in QUERIES} | {("post", topic) for topic in CHANGES}
    schemas = described["components"]["schemas"]
    for route in ENDPOINTS:
        operation = described["paths"][route.path][route.method.lower()]
        answer = json.dumps(operation["responses"]["200"]["content"]["application/json"]["schema"])
        body = json.dumps(operation.get("requestBody", {}))
        for name in (part.partition('"')[0] for part in (answer + body).split("#/components/schemas/")[1:]):
            assert schemas[name]["type"] == "object", name
        if route.method == "POST":
            assert CHANGES[route.path.removeprefix(PATH)].__name__ in body


@pytest.mark.parametrize("topic", QUERIES)
def test_a_query_is_answered_as_by_the_broker(
    running: RunningGateway, http: httpx.Client, topic: str
) -> None:
    arguments = dict(ASKED.get(topic, {}))
    if topic == "selector":
        [row, *_] = http.get(f"{PATH}selectors", params={"source": "stream/rain"}).json()
        arguments["number"] = row["number"]
    answer = http.get(f"{PATH}{topic}", params=arguments)
    assert answer.status_code == 200, answer.text
    given = {**arguments, "headers": {"n": 1}} if "headers" in arguments else arguments
    with malamute.connect(running.state.settings.broker, timeout=WAIT_SECONDS) as client:
        native = json.loads(to_json(encode(client.query(QUERIES[topic].parse(given)))))
    found = answer.json()
    if isinstance(native, list):
        # The client that asks is among the clients.
        native, found = (
            [{*row} for row in rows if "malamute-python" not in str(row)] for rows in (native, found)
        )
        assert found == native
    else:
        assert found.keys() == native.keys()


def test_the_body_of_a_message_is_in_base64(http: httpx.Client) -> None:
    [row] = http.get(f"{PATH}messages", params={**QUEUE, "dead": True}).json()
    assert (row["subject"], base64.b64decode(row["body"])) == ("s", b"\xff")


def test_every_change_has_arguments_here() -> None:
    assert CHANGED.keys() == CHANGES.keys()


def _state(http: httpx.Client) -> list[dict[str, Any]]:
    """The state, without the stream of events and values that pass with time."""
    lists = ("streams", "cursors", "feeds", "mailboxes", "services", "groups", "users")
    rows = [row for path in lists for row in http.get(f"{PATH}{path}").json() if row.get("name") != "$sys"]
    return [{name: row[name] for name in row if "rate" not in name and "age" not in name} for row in rows]


@pytest.mark.parametrize("topic", CHANGES)
def test_a_dry_run_of_a_change_has_its_outcome_and_changes_nothing(http: httpx.Client, topic: str) -> None:
    before = _state(http)
    answer = http.post(f"{PATH}{topic}", json={**CHANGED[topic], "dry_run": True})
    if topic in REFUSED:
        assert answer.status_code in (400, 404, 412, 500), answer.text
        assert REFUSED[topic] in answer.json()["detail"]
    else:
        assert answer.status_code == 200, answer.text
        named = ("stream", "cursor", "feed", "kind", "name", "directory")
        for name in CHANGED[topic].keys() & named:
            assert CHANGED[topic][name] in answer.json()[name]
    assert _state(http) == before


def test_a_change_is_made(running: RunningGateway, http: httpx.Client) -> None:
    with malamute.connect(running.state.settings.broker, address="ned", timeout=WAIT_SECONDS) as ned:
        ned.send("ned", "s", b"broken")
        ned.receive(timeout=WAIT_SECONDS).reject("no room")
        wait_for_dead(ned, "ned", 1)
        redrive = {**CHANGED["queue.redrive"], "name": "ned"}
        assert http.post(f"{PATH}queue.redrive", json=redrive).json() == {
            "kind": "mailbox",
            "name": "ned",
            "messages": 1,
        }
        assert ned.receive(timeout=WAIT_SECONDS).body == b"\xff mended"


@pytest.mark.parametrize(
    ("path", "body", "kind", "status", "words"),
    [
        ("stream.purge", b'{"stream": "rain"', "application/json", 400, "invalid JSON"),
        ("stream.purge", b"[]", "application/json", 400, "invalid JSON"),
        ("stream.purge", b'{"stream": "rain"}', "text/plain", 415, "expected application/json"),
        ("stream.purge", b"{}", "application/json", 400, "missing argument 'stream'"),
        ("stream.purge", b'{"stream": 5}', "application/json", 400, "invalid stream 5"),
        ("stream.purge", b'{"stream": "s", "x": 1}', "application/json", 400, "unknown argument 'x'"),
        ("queue.redrive", b'{"body": "*"}', "application/json", 400, "expected base64"),
        ("user.add", b'{"name": "c", "password": 5}', "application/json", 400, "invalid password"),
        ("user.add", b'{"name": "c", "password": "%s"}' % (b"x" * 1025), "application/json", 400, "password"),
        ("stream.purge", b"[" * 300_000, "application/json", 413, "too many elements"),
    ],
)
def test_a_change_that_is_malformed_is_refused(
    http: httpx.Client, path: str, body: bytes, kind: str, status: int, words: str
) -> None:
    answer = http.post(f"{PATH}{path}", content=body, headers={"content-type": kind})
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text
    assert "xxxx" not in answer.text


def test_headers_of_a_query_are_an_object(http: httpx.Client) -> None:
    for headers in ("[1]", "{", "[" * 5_000):
        answer = http.get(f"{PATH}explain", params={"stream": "rain", "headers": headers})
        assert (answer.status_code, answer.json()["code"]) == (400, 416), answer.text


def test_the_broker_decides_and_a_password_is_hashed(tmp_path: Path) -> None:
    rules = ("view,create,publish,admin stream/{user}", "view broker/streams", "admin user/carl")
    with secured_gateway(tmp_path, {"ann": "geheim", "bob": "secret"}, rules) as gateway:
        with gateway.client() as nobody, gateway.client(auth=("ann", "geheim")) as ann:
            assert nobody.get(f"{PATH}streams").status_code == 401
            assert nobody.post(f"{PATH}stream.create", json={"stream": "ann"}).status_code == 401
            assert ann.post(f"{PATH}stream.create", json={"stream": "ann"}).status_code == 200
            assert ann.get(f"{PATH}stream", params={"name": "ann"}).json()["name"] == "ann"
            assert ann.get(f"{PATH}status").status_code == 403
            added = ann.post(f"{PATH}user.add", json={"name": "carl", "password": "orange"})
            assert (added.status_code, "orange" in added.text) == (200, False)
        with gateway.client(auth=("bob", "secret")) as bob:
            for topic, status in (("stream.purge", 403), ("stream.delete", 403)):
                assert bob.post(f"{PATH}{topic}", json={"stream": "ann"}).status_code == status
            assert bob.get(f"{PATH}stream", params={"name": "ann"}).status_code == 403
        with gateway.client(auth=("carl", "orange")) as carl:
            assert carl.get(f"{PATH}streams").status_code == 200


def test_a_site_that_may_use_the_api_may_not_administer(running: RunningGateway) -> None:
    site = "https://app.example.org"
    with (
        RunningGateway(replace(running.state.settings, origins=(site,))) as gateway,
        gateway.client() as http,
    ):
        for origin, status in ((site, 403), (gateway.url, 200)):
            headers = {"origin": origin}
            assert http.get(f"{PATH}streams", headers=headers).status_code == status
            dry = {"stream": "rain", "dry_run": True}
            assert http.post(f"{PATH}stream.purge", json=dry, headers=headers).status_code == status
