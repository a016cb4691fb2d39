"""Mailboxes over HTTP: what is sent is durable, and each message is leased to one until it is settled."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest
from running_gateway import WAIT_SECONDS, RunningGateway, gateway_before, until

import malamute
from malamute.protocol.admin import MailboxesQuery
from malamute.testing import Broker, small_config

BOB = "/v1/mailboxes/bob"


def _row(client: malamute.Client, name: str = "bob") -> Any:
    return next(row for row in client.query(MailboxesQuery()) if row.name == name)


def _lease(http: httpx.Client, **params: Any) -> list[dict[str, Any]]:
    answer = http.post(f"{BOB}/leases", params={"wait": 60, **params})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["messages"])


def _settle(http: httpx.Client, lease: str, verb: str, status: int = 204, **params: Any) -> None:
    answer = http.post(f"{BOB}/leases/{lease}/{verb}", params=params)
    assert answer.status_code == status, answer.text


def test_a_message_is_sent_leased_and_acknowledged(http: httpx.Client, client: malamute.Client) -> None:
    params = {"subject": "hello", "correlation": "c1", "reply_to": "alice", "priority": 3}
    headers = {"content-type": "text/plain", "malamute-header-a": "b"}
    answer = http.post(f"{BOB}/messages", params=params, content=b"hi", headers=headers)
    assert (answer.status_code, answer.json()) == (201, {"count": 1})
    [message] = _lease(http)
    assert message.pop("time").endswith("Z")
    assert message == {
        "lease": "1-1",
        "attempts": 1,
        "correlation": "c1",
        "reply_to": "alice",
        "sequence": 1,
        "subject": "hello",
        "headers": {"a": "b", "content-type": "text/plain"},
        "body": "hi",
    }
    assert _row(client).in_flight == 1
    _settle(http, "1-1", "acknowledge")
    _wait_until_stored(client)
    _settle(http, "1-1", "acknowledge", 410)


def test_a_key_makes_a_message_known_to_the_queue(http: httpx.Client, client: malamute.Client) -> None:
    for _ in range(2):
        answer = http.post(f"{BOB}/messages", content=b"x", headers={"idempotency-key": "k"})
        assert answer.status_code == 201
    assert _row(client).messages == 1


def test_only_what_is_leased_is_held_and_the_rest_stays_in_the_queue(
    http: httpx.Client, client: malamute.Client
) -> None:
    for n in range(5):
        client.send("bob", "s", b"%d" % n)
    assert [m["body"] for m in _lease(http, limit=2)] == ["0", "1"]
    assert [m["body"] for m in _lease(http, limit=1)] == ["2"]
    assert (_row(client).in_flight, _row(client).messages) == (3, 5)


def _wait_until_stored(client: malamute.Client) -> None:
    """A message that was settled is in its queue until that is on the disk."""
    until(lambda: not _row(client).messages)


@pytest.mark.parametrize("verb", ["release", "retry", "reject"])
def test_a_lease_is_given_back_or_refused(http: httpx.Client, client: malamute.Client, verb: str) -> None:
    client.send("bob", "s", b"x")
    [message] = _lease(http)
    _settle(http, message["lease"], verb, **({"delay": 0} if verb == "retry" else {}))
    if verb == "reject":
        _wait_until_stored(client)
        assert _row(client).dead_letters == 1
        return
    [again] = _lease(http)
    assert again["attempts"] == (1 if verb == "release" else 2)
    _settle(http, again["lease"], "progress")
    _settle(http, again["lease"], "acknowledge")
    _wait_until_stored(client)


def test_a_lease_goes_back_to_the_sender_of_the_message(http: httpx.Client, client: malamute.Client) -> None:
    with malamute.connect(client.url, address="alice") as alice, malamute.connect(client.url) as anybody:
        alice.send("bob", "s", b"x", assurance="stored")
        anybody.send("bob", "s", b"y", assurance="stored")
        message, other = _lease(http, limit=2)
        _settle(http, message["lease"], "bounce", reason="moved")
        back = alice.receive(timeout=WAIT_SECONDS)
        assert (back.body, back.bounced, back.properties["reason"]) == (b"x", "bob", "moved")
    answer = http.post(f"{BOB}/leases/{other['lease']}/bounce")
    assert (answer.status_code, answer.json()["code"]) == (400, 416)


def test_without_messages_a_lease_is_empty_and_a_wait_ends_with_the_first_message(
    http: httpx.Client, gateway: RunningGateway, client: malamute.Client
) -> None:
    assert _lease(http, wait=0) == []
    with ThreadPoolExecutor(1) as pool, gateway.client() as other:
        waiting = pool.submit(_lease, other)
        client.send("bob", "s", b"x")
        assert [m["body"] for m in waiting.result(WAIT_SECONDS)] == ["x"]


def test_what_waits_is_given_up_when_who_asked_is_gone(
    gateway: RunningGateway, http: httpx.Client, client: malamute.Client
) -> None:
    with gateway.client() as other, pytest.raises(httpx.ReadTimeout):
        other.post(f"{BOB}/leases", params={"wait": 60}, timeout=0.2)
    while gateway.state.leases._holders:
        http.get("/live")
    client.send("bob", "s", b"x")
    assert len(_lease(http)) == 1


def test_a_lease_that_the_broker_took_back_is_over(broker: Broker) -> None:
    config = small_config()
    queues = replace(config.queues, ack_timeout=0.2)
    with (
        Broker(config=replace(config, queues=queues)) as quick,
        gateway_before(quick) as gateway,
        gateway.client() as http,
    ):
        http.post(f"{BOB}/messages", content=b"x")
        [first] = _lease(http)
        [second] = _lease(http)
        assert second["attempts"] > first["attempts"]
        _settle(http, first["lease"], "acknowledge", 410)
        # When the last lease is over the session is let go.
        while gateway.state.leases._holders:
            http.get("/live")


def test_there_are_as_many_leases_as_there_may_be(
    start: Callable[..., RunningGateway], client: malamute.Client
) -> None:
    for _ in range(3):
        client.send("bob", "s", b"x")
    with start(leases=2).client() as http:
        leased = _lease(http, limit=3)
        assert len(leased) == 2
        answer = http.post(f"{BOB}/leases")
        assert (answer.status_code, answer.json()["code"]) == (429, 429)
        _settle(http, leased[0]["lease"], "acknowledge")
        assert len(_lease(http)) == 1


def test_there_are_as_many_bytes_leased_as_there_may_be(
    start: Callable[..., RunningGateway], client: malamute.Client
) -> None:
    for _ in range(3):
        client.send("bob", "s", b"x" * 600)
    with start(lease_bytes=1_000).client() as http:
        leased = [*_lease(http), *_lease(http)]
        answer = http.post(f"{BOB}/leases")
        assert (answer.status_code, answer.json()["code"]) == (429, 429)
        assert "1200 bytes are leased: expected less than 1000" in answer.json()["detail"]
        _settle(http, leased[0]["lease"], "acknowledge")
        assert len(_lease(http)) == 1


def test_what_is_leased_goes_back_when_the_gateway_stops(
    start: Callable[..., RunningGateway], client: malamute.Client
) -> None:
    client.send("bob", "s", b"x")
    gateway = start()
    with gateway.client() as http:
        assert len(_lease(http)) == 1
    gateway.stop()
    assert (_row(client).in_flight, _row(client).messages) == (0, 1)


def test_a_second_program_with_the_address_takes_it_over_and_the_leases_with_it(
    http: httpx.Client, broker: Broker, client: malamute.Client
) -> None:
    client.send("bob", "s", b"x")
    [message] = _lease(http)
    with malamute.connect(broker.url, address="bob", timeout=WAIT_SECONDS) as bob:
        assert bob.receive(WAIT_SECONDS).body == b"x"
        _settle(http, message["lease"], "acknowledge", 410)
        bob.flush()


def test_a_shared_mailbox_is_leased_beside_others(
    http: httpx.Client, gateway: RunningGateway, client: malamute.Client
) -> None:
    """WP19: each message goes to one consumer, of HTTP or not, and its owner is not asked for."""
    with client.consume("bob", auto_ack=False) as native:
        for n in range(3):
            client.send("bob", "s", b"%d" % n)
        first = native.receive(WAIT_SECONDS)
        found = _lease(http, shared="true", limit=5)
        assert {first.body.decode(), *(m["body"] for m in found)} == {"0", "1", "2"}
        # A settlement makes room for no message that was not asked for.
        _settle(http, found[0]["lease"], "acknowledge")
        client.send("bob", "s", b"3")
        _settle(http, found[1]["lease"], "release")
        again = _lease(http, shared="true", limit=5)
        assert [(m["body"], m["attempts"]) for m in again] == [(found[1]["body"], 1), ("3", 1)]
        for message in again:
            _settle(http, message["lease"], "acknowledge")
            _settle(http, message["lease"], "acknowledge", 410)
        first.ack()
        client.flush()
    _wait_until_stored(client)
    assert len(gateway.state.leases) == 0


def test_the_mail_of_some_senders_is_leased_and_the_rest_stays(http: httpx.Client, broker: Broker) -> None:
    for name in ("shop.oslo", "shop.rome", "depot.one"):
        with malamute.connect(broker.url, address=name, timeout=WAIT_SECONDS) as sender:
            sender.send("bob", "s", name.encode())
    found = _lease(http, sender=["shop.rome", "depot.*"], limit=5)
    assert [m["body"] for m in found] == ["shop.rome", "depot.one"]
    assert [m["body"] for m in _lease(http, limit=5)] == ["shop.oslo"]
    # A lease is found by its name, however it was taken.
    for lease in ("1-1", "2-1", "3-1"):
        _settle(http, lease, "acknowledge")


@pytest.mark.parametrize(
    ("path", "params", "body", "status", "code"),
    [
        (f"{BOB}/messages", {"priority": 10}, b"x", 400, 416),
        (f"{BOB}/messages", {"ttl": "nan"}, b"x", 400, 416),
        (f"{BOB}/messages", {"ttl": -1}, b"x", 400, 416),
        (f"{BOB}/messages", {"subject": "s" * 256}, b"x", 413, 413),
        (f"/v1/mailboxes/{'b' * 256}/messages", {}, b"x", 400, 414),
        (f"{BOB}/leases", {"limit": 0}, b"", 400, 416),
        (f"{BOB}/leases", {"limit": 101}, b"", 400, 416),
        (f"{BOB}/leases", {"wait": 61}, b"", 400, 416),
        (f"{BOB}/leases", {"shared": "maybe"}, b"", 400, 416),
        (f"{BOB}/leases", {"sender": "a*b"}, b"", 400, 415),
        (f"{BOB}/leases", {"pattern": "a"}, b"", 400, 416),
        (f"{BOB}/leases/1-1/explode", {}, b"", 400, 416),
        (f"{BOB}/leases/9-9/acknowledge", {}, b"", 410, 420),
    ],
)
def test_bad_requests_are_problems(
    http: httpx.Client, path: str, params: dict[str, Any], body: bytes, status: int, code: int
) -> None:
    answer = http.post(path, params=params, content=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
