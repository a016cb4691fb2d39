"""Services over HTTP: requests wait for their replies or come back for them, and workers lease requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from damaged_messages import publish_damaged
from running_gateway import WAIT_SECONDS, RunningGateway, until

import malamute
from malamute.gateway.services import WAIT_SECONDS as DEFAULT_WAIT
from malamute.gateway.services import wait_of
from malamute.protocol.admin import FeedSet, ServiceQuery

SHOUT = "/v1/services/shout"


@contextmanager
def _asking(gateway: RunningGateway, body: bytes = b"x", **headers: str) -> Iterator[Any]:
    """A request under way, as the future of its answer."""
    with ThreadPoolExecutor(1) as pool, gateway.client() as http:
        yield pool.submit(http.post, f"{SHOUT}/requests", content=body, headers=headers)


def _lease(http: httpx.Client, **params: Any) -> list[dict[str, Any]]:
    answer = http.post(f"{SHOUT}/leases", params={"wait": 60, **params})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["messages"])


def _reply(http: httpx.Client, lease: str, body: bytes, status: int = 201, **params: Any) -> None:
    answer = http.post(f"{SHOUT}/leases/{lease}/reply", params=params, content=body)
    assert answer.status_code == status, answer.text


def test_a_request_waits_for_the_reply_of_a_worker(
    http: httpx.Client, gateway: RunningGateway, client: malamute.Client
) -> None:
    with _asking(gateway, b"good", **{"malamute-header-a": "b"}) as answer, client.work("shout") as work:
        request = work.receive(WAIT_SECONDS)
        assert (request.body, request.headers) == (b"good", {"a": "b"})
        request.reply(b"part", final=False)
        request.reply(b"GOOD", {"n": 1})
        answered = answer.result(WAIT_SECONDS)
    assert answered.status_code == 200
    found = answered.json()
    assert found["final"] is True
    assert [(reply["body"], reply.get("headers")) for reply in found["replies"]] == [
        ("part", None),
        ("GOOD", {"n": 1}),
    ]


def _wait_until_one_is_dead(client: malamute.Client) -> None:
    """A request is a dead letter when that is on the disk."""
    until(lambda: client.query(ServiceQuery(name="shout")).dead_letters == 1)


def test_a_request_that_cannot_be_read_is_no_lease_and_takes_none_with_it(
    http: httpx.Client, gateway: RunningGateway, client: malamute.Client
) -> None:
    client.change(
        FeedSet(source="stream/items", feed="shout", target="service/shout", criteria=[("all", "")])
    )
    publish_damaged(gateway.state.settings.broker, "items")
    assert [_lease(http, limit=1)[0]["body"] for _ in range(2)] == ["1", "3"]
    _wait_until_one_is_dead(client)


def test_a_request_can_be_left_and_its_replies_fetched_from_its_location(
    http: httpx.Client, client: malamute.Client
) -> None:
    answer = http.post(f"{SHOUT}/requests", content=b"x", headers={"prefer": "respond-async"})
    assert answer.status_code == 202
    location = answer.headers["location"]
    assert http.get(location).status_code == 202
    with client.work("shout") as work:
        request = work.receive(WAIT_SECONDS)
        request.reply(b"part", final=False)
        request.reply(b"y")
        client.flush()
    for _ in range(2):
        found = http.get(location, params={"wait": 60})
        assert (found.status_code, [r["body"] for r in found.json()["replies"]]) == (200, ["part", "y"])
    assert http.get(location.replace("shout", "other")).status_code == 404
    assert http.get(f"{SHOUT}/requests/none").status_code == 404


def test_a_request_that_is_refused_is_a_problem_and_is_not_kept(
    gateway: RunningGateway, http: httpx.Client
) -> None:
    answer = http.post(f"/v1/services/{'x' * 256}/requests", content=b"x")
    assert (answer.status_code, answer.json()["code"]) == (400, 414)
    assert len(gateway.state.requests) == 0


def test_workers_lease_requests_and_reply(
    http: httpx.Client, gateway: RunningGateway, client: malamute.Client
) -> None:
    with _asking(gateway, b"good") as answer:
        [request] = _lease(http)
        assert (request["body"], request["attempts"]) == ("good", 1)
        _reply(http, request["lease"], b"part", final="false")
        _reply(http, request["lease"], b"GOOD")
        _reply(http, request["lease"], b"late", 410)
        assert [reply["body"] for reply in answer.result(WAIT_SECONDS).json()["replies"]] == ["part", "GOOD"]
    # The lease ends with its last reply, and its offer a moment later.
    details = until(lambda: client.query(ServiceQuery(name="shout")), lambda details: not details.workers)
    assert details.messages == 0


def test_a_worker_holds_what_it_leased_and_takes_no_more(http: httpx.Client, client: malamute.Client) -> None:
    requests = [client.request("shout", "s", b"%d" % n) for n in range(4)]
    # A lease takes what is ready, and no request waits for that.
    until(lambda: client.query(ServiceQuery(name="shout")), lambda details: details.ready == 4)
    leased = _lease(http, limit=2)
    assert [request["body"] for request in leased] == ["0", "1"]
    _reply(http, leased[0]["lease"], b"r0")
    until(
        lambda: client.query(ServiceQuery(name="shout")),
        lambda details: (details.in_flight, details.ready) == (1, 2),
    )
    answer = http.post(f"{SHOUT}/leases/{leased[1]['lease']}/release")
    assert answer.status_code == 204
    assert [request["body"] for request in _lease(http, limit=9)] == ["1", "2", "3"]
    assert [reply.body for reply in requests[0]] == [b"r0"]


def test_a_worker_takes_what_its_patterns_match(http: httpx.Client, client: malamute.Client) -> None:
    for subject in ("a.x", "b.x"):
        client.request("shout", subject, subject.encode())
    assert [request["body"] for request in _lease(http, limit=5, pattern="b.*")] == ["b.x"]


def test_a_lease_without_requests_leaves_no_worker(http: httpx.Client, client: malamute.Client) -> None:
    assert _lease(http, wait=0) == []
    client.request("shout", "s", b"x")
    until(lambda: client.query(ServiceQuery(name="shout")), lambda details: not details.workers)


def test_a_request_that_is_rejected_ends_without_a_reply_from_a_worker(
    http: httpx.Client, gateway: RunningGateway, client: malamute.Client
) -> None:
    client.request("shout", "s", b"x")
    [request] = _lease(http)
    answer = http.post(f"{SHOUT}/leases/{request['lease']}/reject", params={"reason": "no"})
    assert answer.status_code == 204
    _wait_until_one_is_dead(client)


def test_there_are_as_many_requests_as_there_may_be(start: Callable[..., RunningGateway]) -> None:
    with start(requests=1).client() as http:
        headers = {"prefer": "respond-async"}
        assert http.post(f"{SHOUT}/requests", content=b"x", headers=headers).status_code == 202
        answer = http.post(f"{SHOUT}/requests", content=b"x", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (429, 429)


def test_replies_are_kept_as_long_as_there_is_room_for_them(
    start: Callable[..., RunningGateway], client: malamute.Client
) -> None:
    with start(reply_bytes=1_000).client() as http, client.work("shout") as work:

        def ask(*sizes: int) -> str:
            """Send a request that is replied to. Returns where its replies are when they are complete."""
            answer = http.post(f"{SHOUT}/requests", content=b"x", headers={"prefer": "respond-async"})
            request = work.receive(WAIT_SECONDS)
            for number, size in enumerate(sizes, 1):
                request.reply(b"x" * size, final=number == len(sizes))
            client.flush()
            location = str(answer.headers["location"])
            http.get(location, params={"wait": 60})
            return location

        first, second = ask(400), ask(300, 300)
        assert [http.get(one).status_code for one in (first, second)] == [200, 200]
        third = ask(500)
        assert [http.get(one).status_code for one in (first, second, third)] == [404, 404, 200]
        too_large = http.get(ask(600, 600))
        assert (too_large.status_code, too_large.json()["code"]) == (429, 429)
        assert http.get(ask(1_000)).status_code == 200


@pytest.mark.parametrize(
    ("prefer", "expected"),
    [
        (None, DEFAULT_WAIT),
        ("", DEFAULT_WAIT),
        ("wait=0", 0),
        ("wait=60", 60),
        ("wait=61", 60),
        ("wait=-1", DEFAULT_WAIT),
        ("return=minimal, Wait=5", 5),
        ("respond-async, wait=5", 0),
    ],
)
def test_what_is_preferred_is_understood(prefer: str | None, expected: float) -> None:
    assert wait_of(prefer) == expected
