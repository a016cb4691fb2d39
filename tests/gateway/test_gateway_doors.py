"""The door of the gateway: who comes is proved, then counted, then room is made, and each has a share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import select
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import httpx
import msgspec
import pytest
from gateway_process import answer_of, gateway_process
from hypothesis import given
from hypothesis import strategies as st
from running_gateway import WAIT_SECONDS, RunningGateway, client_of, until
from secured_gateway import secured_gateway
from token_issuer import SigningIssuer

from malamute.door.shares import Shares, share_of
from malamute.errors import Malformed, TooLarge, TryLater
from malamute.gateway import door, elements, forms, openings, server
from malamute.gateway.app import make_app
from malamute.gateway.connections import Connections, files_for
from malamute.gateway.openings import Openings
from malamute.gateway.restms.documents import RESTMS_XML, read
from malamute.gateway.settings import GatewaySettings
from malamute.gateway.ws import JSON, PageSocket
from malamute.testing import Broker

BOB, ANN = ("bob", "secret"), ("ann", "geheim")
RULES = ["create,publish,subscribe stream/{user}", "create,send,receive mailbox/#"]
MIB = 1 << 20
BOBS = "/v1/streams/bob/messages"


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[RunningGateway]:
    """A gateway before a broker that asks for a password."""
    with secured_gateway(tmp_path, dict((BOB, ANN)), RULES) as gateway:
        yield gateway


def basic(user: str, password: str) -> str:
    return f"Authorization: Basic {b64encode(f'{user}:{password}'.encode()).decode()}\r\n"


def head(path: str, length: int, credentials: str = "", more: str = "") -> bytes:
    lines = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n"
    return f"{lines}{credentials}{more}\r\n".encode()


def started(run: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


# A limit for all, and shares


def test_each_has_as_much_as_is_left_to_the_others() -> None:
    shares = Shares(12)
    assert [shares.take("ann") for _ in range(7)] == [True] * 6 + [False]
    assert [shares.take("bob") for _ in range(4)] == [True] * 3 + [False]
    assert shares.take("carl", 3)
    assert not shares.take("dora")
    assert (shares.total, shares.held("ann"), shares.held("dora")) == (12, 6, 0)
    shares.give_back("ann", 6)
    assert shares.take("dora")
    assert shares.held("ann") == 0


def test_who_has_no_name_is_everybody() -> None:
    shares = Shares(3)
    assert [shares.take("") for _ in range(4)] == [True] * 3 + [False]
    assert [share_of(10, total, own, named=True) for total, own in ((0, 0), (4, 4), (5, 5), (9, 0))] == [
        5,
        1,
        0,
        1,
    ]
    assert share_of(10, 9, 9, named=False) == 1


# Bodies


def test_the_bodies_of_strangers_are_not_read(secured: RunningGateway, tmp_path: Path) -> None:
    """20 connections with made-up credentials send 16 MiB each: all of it was kept before."""
    broker = secured.state.settings.broker
    with gateway_process(broker, tmp_path, "--require-credentials") as gateway:
        before = gateway.peak_mib
        answers: list[bytes] = []

        def send(number: int) -> None:
            with gateway.connect() as connection:
                connection.sendall(head(BOBS, 16 * MIB, basic(f"user{number % 12}", "wrong")))
                part = bytes(64 * 1024)
                try:
                    for _ in range(16 * MIB // len(part)):
                        connection.sendall(part)
                except OSError:
                    pass
                answers.append(answer_of(connection)[:12])

        threads = [started(lambda number=number: send(number)) for number in range(20)]
        for thread in threads:
            thread.join(WAIT_SECONDS)
        assert answers == [b"HTTP/1.1 401"] * 20
        grown = gateway.peak_mib - before
        assert grown < 100, grown


def test_who_sends_a_body_after_its_refusal_gets_the_refusal_and_may_go_on(secured: RunningGateway) -> None:
    with socket.create_connection((secured.host, secured.port), WAIT_SECONDS) as connection:
        connection.sendall(head(BOBS, 1000, basic("bob", "wrong")))
        assert answer_of(connection).startswith(b"HTTP/1.1 401")
        for _ in range(10):
            connection.sendall(bytes(100))
        connection.sendall(head(f"{BOBS}?subject=", 3, basic(*BOB)) + b"abc")
        assert answer_of(connection).startswith(b"HTTP/1.1 201")


def test_all_bodies_have_a_limit_together_and_each_user_a_share(tmp_path: Path) -> None:
    with (
        secured_gateway(tmp_path, dict((BOB, ANN)), RULES, bodies_bytes=4000) as gateway,
        ExitStack() as stack,
    ):

        def post(auth: tuple[str, str], length: int, sent: int) -> socket.socket:
            connection = stack.enter_context(
                socket.create_connection((gateway.host, gateway.port), WAIT_SECONDS)
            )
            connection.sendall(
                head(f"/v1/streams/{auth[0]}/messages?subject=", length, basic(*auth)) + bytes(sent)
            )
            return connection

        shares = gateway.state.bodies.shares
        first = post(BOB, 2000, 1999)
        until(lambda: shares.held("bob") == 1999)
        # At the limit of his share, and one past it.
        assert answer_of(post(BOB, 2, 2)).startswith(b"HTTP/1.1 503")
        assert answer_of(post(BOB, 1, 1)).startswith(b"HTTP/1.1 201")
        assert answer_of(post(ANN, 1000, 1000)).startswith(b"HTTP/1.1 201")
        first.sendall(b"x")
        assert answer_of(first).startswith(b"HTTP/1.1 201")
        until(lambda: shares.total == 0)


@pytest.mark.parametrize(("pieces", "status"), [(50, b"201"), (51, b"413")])
def test_a_body_has_so_many_pieces_at_the_most(
    start: Callable[..., RunningGateway], monkeypatch: pytest.MonkeyPatch, pieces: int, status: bytes
) -> None:
    monkeypatch.setattr(server, "BODY_PIECES_MAX", 50)
    gateway = start()
    with socket.create_connection((gateway.host, gateway.port), WAIT_SECONDS) as connection:
        connection.sendall(
            b"POST /v1/streams/weather/messages?subject= HTTP/1.1\r\nHost: localhost\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * pieces + b"0\r\n\r\n"
        )
        assert answer_of(connection).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(("waiting", "statuses"), [(3, 4), (4, 1)])
def test_so_many_requests_wait_on_a_connection_at_the_most(
    start: Callable[..., RunningGateway], monkeypatch: pytest.MonkeyPatch, waiting: int, statuses: int
) -> None:
    monkeypatch.setattr(server, "PIPELINE_MAX", 3)
    gateway = start()
    with socket.create_connection((gateway.host, gateway.port), WAIT_SECONDS) as connection:
        last = b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        connection.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n" * waiting + last)
        found = b""
        while part := connection.recv(65_536):
            found += part
    assert found.count(b"HTTP/1.1 ") == statuses
    assert (b"HTTP/1.1 429" in found) == (statuses == 1)


@pytest.mark.parametrize(("count", "status"), [(9, b"201"), (12, b"413")])
def test_what_stands_behind_a_body_has_the_limit_of_a_head(
    start: Callable[..., RunningGateway], count: int, status: bytes
) -> None:
    gateway = start(head_bytes=1000)
    with socket.create_connection((gateway.host, gateway.port), WAIT_SECONDS) as connection:
        lines = "POST /v1/streams/weather/messages?subject= HTTP/1.1\r\nHost: localhost\r\n"
        lines += "Transfer-Encoding: chunked\r\n\r\n"
        trailers = b"A: " + b"x" * 94 + b"\r\n"
        connection.sendall(lines.encode() + b"1\r\nx\r\n0\r\n" + trailers * count + b"\r\n")
        assert answer_of(connection).startswith(b"HTTP/1.1 " + status)


def test_a_head_that_is_too_large_is_not_read_as_a_whole(
    start: Callable[..., RunningGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bytes] = []
    take = server.HttpToolsProtocol.on_header

    def on_header(protocol: server.HttpToolsProtocol, name: bytes, value: bytes) -> None:
        taken.append(name)
        take(protocol, name, value)

    monkeypatch.setattr(server.HttpToolsProtocol, "on_header", on_header)
    gateway = start(head_bytes=1000)
    with socket.create_connection((gateway.host, gateway.port), WAIT_SECONDS) as connection:
        connection.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 10_000)
        assert answer_of(connection).startswith(b"HTTP/1.1 413")
    assert len(taken) < 1000


# Proofs


def test_wrong_logins_hold_no_place_of_right_ones(
    secured: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = threading.Event()
    statuses: set[Any] = set()

    def guess(number: int) -> None:
        with secured.client() as http:
            count = 0
            while not stopped.is_set():
                count += 1
                answer = http.get(BOBS, auth=(f"user{number}-{count}", "wrong"))
                statuses.add((answer.status_code, answer.text))

    threads = [started(lambda number=number: guess(number)) for number in range(16)]
    try:
        with secured.client(auth=BOB) as http, secured.client(auth=ANN) as other:
            assert http.post(f"{BOBS}?subject=", content=b"x").status_code == 201
            assert other.post("/v1/streams/ann/messages?subject=a", content=b"x").status_code == 201
    finally:
        stopped.set()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    assert {status for status, _ in statuses} == {401}, statuses


def test_who_guesses_at_one_user_has_to_wait_and_others_have_not(secured: RunningGateway) -> None:
    with secured.client(auth=("ann", "wrong")) as http:
        answers = [http.get(BOBS) for _ in range(11)]
    assert {answer.status_code for answer in answers} == {401}
    assert "too many wrong" not in answers[9].text
    assert "too many wrong" in answers[10].text
    assert answers[10].headers["retry-after"] == "60"
    with secured.client(auth=BOB) as http:
        assert http.post(f"{BOBS}?subject=", content=b"x").status_code == 201


def test_strangers_share_the_places_by_address_and_who_was_proved_waits_for_none() -> None:
    async def use() -> None:
        places = Openings()
        entered: list[str] = []
        leave = asyncio.Event()

        async def enter(sender: str) -> None:
            async with places.place(sender, WAIT_SECONDS, known=False):
                entered.append(sender)
                await leave.wait()

        tasks = [asyncio.create_task(enter("a")) for _ in range(openings.PLACES)]
        for _ in range(3):
            await asyncio.sleep(0)
        assert entered == ["a"] * (openings.PLACES // 2)
        tasks.append(asyncio.create_task(enter("b")))
        for _ in range(3):
            await asyncio.sleep(0)
        assert entered[-1] == "b"
        async with places.place("a", WAIT_SECONDS, known=True):
            pass
        leave.set()
        await asyncio.gather(*tasks)
        assert len(entered) == openings.PLACES + 1

    asyncio.run(use())


def test_those_who_wait_for_a_place_are_so_many_at_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "WAITING_MAX", 4)

    async def use() -> None:
        places = Openings()
        leave = asyncio.Event()

        async def enter() -> None:
            async with places.place("a", WAIT_SECONDS, known=False):
                await leave.wait()

        tasks = [asyncio.create_task(enter()) for _ in range(openings.PLACES // 2 + 2)]
        for _ in range(3):
            await asyncio.sleep(0)
        with pytest.raises(TryLater, match="share for each"):
            await enter()
        # Who gives up leaves the queue.
        tasks[-1].cancel()
        await asyncio.gather(tasks[-1], return_exceptions=True)
        tasks.append(asyncio.create_task(enter()))
        leave.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in results if one] == [asyncio.CancelledError]

    asyncio.run(use())


# Users


def test_a_user_with_many_tokens_has_the_share_of_one_user(tmp_path: Path) -> None:
    issuer = SigningIssuer(tmp_path)
    with (
        secured_gateway(tmp_path, dict([BOB]), RULES, issuer.known, users=8) as gateway,
        ExitStack() as stack,
    ):

        def follow(token: str) -> int:
            http = stack.enter_context(gateway.client(headers={"authorization": f"Bearer {token}"}))
            return stack.enter_context(http.stream("GET", "/v1/streams/carl/events")).status_code

        create = {"authorization": f"Bearer {issuer.token('carl')}"}
        with gateway.client(headers=create) as http:
            assert http.post("/v1/streams/carl/messages?subject=a", content=b"x").status_code == 201
        statuses = [follow(issuer.token("carl", 3600 + number)) for number in range(5)]
        assert statuses == [200] * 4 + [503]
        with gateway.client(auth=BOB) as http:
            assert http.post(f"{BOBS}?subject=", content=b"x").status_code == 201


def test_a_rate_is_that_of_a_user_and_not_of_a_token(tmp_path: Path) -> None:
    issuer = SigningIssuer(tmp_path)
    with secured_gateway(tmp_path, {}, RULES, issuer.known, user_rate=0.001) as gateway:

        def get(user: str, seconds: int) -> int:
            with gateway.client(headers={"authorization": f"Bearer {issuer.token(user, seconds)}"}) as http:
                return http.get("/live").status_code

        assert [get("carl", 3600), get("carl", 3601), get("dora", 3600)] == [200, 429, 200]


def test_a_renewed_token_keeps_leases_and_one_with_other_claims_has_none(tmp_path: Path) -> None:
    issuer = SigningIssuer(tmp_path)
    with secured_gateway(tmp_path, {}, RULES, issuer.known) as gateway:

        def client(seconds: int, **claims: str) -> httpx.Client:
            token = issuer.token("carl", seconds, **claims)
            return gateway.client(headers={"authorization": f"Bearer {token}"})

        path = "/v1/mailboxes/box"
        with client(3600) as http, client(3700) as renewed, client(3800, team="other") as other:
            sent = http.post(f"{path}/messages", content=b"x")
            assert sent.status_code == 201, sent.text
            [message] = http.post(f"{path}/leases", params={"wait": 30, "shared": True}).json()["messages"]
            settle = f"{path}/leases/{message['lease']}/acknowledge"
            assert other.post(settle).status_code == 410
            assert renewed.post(settle).status_code == 204
            assert http.post(settle).status_code == 410


# Connections


class Open:
    """A connection as the table of them knows it."""

    def __init__(self, address: str) -> None:
        self.client = (address, 1)
        self.is_over = False

    def end(self) -> None:
        self.is_over = True


def test_at_the_limit_who_has_waited_longest_goes_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = Connections(3)
    busy, first, second, third = [Open("10.0.0.1") for _ in range(4)]
    for connection in (busy, first, second):
        table.add(connection)
        table.waits(connection)
    table.works(busy)
    assert (len(table), caplog.records) == (3, [])
    table.add(third)
    assert [one.is_over for one in (busy, first, second, third)] == [False, True, False, False]
    table.waits(third)
    table.add(Open("10.0.0.2"))
    assert second.is_over
    assert len(caplog.records) == 1
    # Connections of the address that has the most.
    table.waits(Open("10.0.0.9"))
    table.add(Open("10.0.0.3"))
    assert third.is_over
    table.add(Open("10.0.0.4"))
    assert len(table) == 3
    for one in (busy, third):
        table.remove(one)
    assert len(caplog.records) == 1


def test_files_are_for_connections_sessions_and_a_few_to_spare() -> None:
    assert files_for(1024, 200) == (388, 74, 128)
    assert files_for(1_048_576, 200) == (1_048_576 - 2048 - 64 - 1200, 200, 2048)
    assert min(files_for(20, 200)) == 1


def test_idle_connections_leave_files_for_others(broker: Broker, tmp_path: Path) -> None:
    """With the hard limit at 1,024: before, `/live` failed, and nothing was logged. A lower one is raised."""
    with ExitStack() as stack:
        limit = "ulimit -n 1024 && ulimit -Sn 128"
        gateway = stack.enter_context(gateway_process(broker.url, tmp_path, files=limit))
        limits = Path(f"/proc/{gateway.pid}/limits").read_text()
        [line] = [line for line in limits.splitlines() if line.startswith("Max open files")]
        assert line.split()[3:5] == ["1024", "1024"]
        idle = [stack.enter_context(gateway.connect()) for _ in range(1100)]
        with client_of(gateway.url) as http:
            for _ in range(3):
                assert http.get("/live").status_code == 200
            assert http.post("/v1/streams/weather/messages?subject=a", content=b"x").status_code == 201
        ended, _, _ = select.select(idle[:10], [], [], WAIT_SECONDS)
        assert ended
        assert gateway.log.count("connections is reached") == 1


# Logs


def test_what_strangers_send_is_logged_once_a_second(broker: Broker, tmp_path: Path) -> None:
    with gateway_process(broker.url, tmp_path) as gateway:
        began = time.monotonic()
        for _ in range(200):
            with gateway.connect() as connection:
                connection.sendall(b"no request\r\n\r\n")
                assert answer_of(connection).startswith(b"HTTP/1.1 400")
        assert gateway.log.count("Invalid HTTP request") <= time.monotonic() - began + 1


def test_a_line_says_how_many_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    sampled = server.SampledLog(lambda: now)

    def written(words: str) -> str | None:
        record = logging.LogRecord("a", logging.WARNING, "", 1, "%s came", (words,), None)
        return record.getMessage() if sampled.filter(record) else None

    assert [written("x"), written("y"), written("z")] == ["x came", None, None]
    now = 1.0
    assert written("w") == "w came (3 times)"


# Where a request comes from


LOCAL = "127.0.0.1"
COMERS: list[tuple[str, str, dict[str, str], int]] = [
    (LOCAL, LOCAL, {}, 201),
    ("::1", "::1", {}, 201),
    ("192.0.2.1", LOCAL, {}, 401),
    (LOCAL, "192.0.2.7", {}, 401),
    ("", LOCAL, {}, 401),
    (LOCAL, LOCAL, {"X-Real-IP": "1.2.3.4"}, 401),
    (LOCAL, LOCAL, {"Via": "1.1 proxy"}, 401),
    (LOCAL, LOCAL, {"Forwarded": "for=1.2.3.4"}, 401),
    (LOCAL, LOCAL, {"X-Forwarded-Proto": "https"}, 401),
    (LOCAL, LOCAL, {"Fastly-Client-IP": "1.2.3.4"}, 401),
    (LOCAL, LOCAL, {"Ali-CDN-Real-IP": "1.2.3.4"}, 401),
    (LOCAL, LOCAL, {"X-Sucuri-ClientIP": "1.2.3.4"}, 401),
    (LOCAL, LOCAL, {"CDN-Loop": "example"}, 401),
    (LOCAL, LOCAL, {"X-Amzn-Trace-Id": "Root=1"}, 401),
    (LOCAL, LOCAL, {"CF-Ray": "1"}, 401),
]
"""The address of a client, that of the listener, the headers, and the status of the answer."""


def test_in_any_server_who_is_not_local_needs_credentials(broker: Broker) -> None:
    async def statuses() -> list[int]:
        app = make_app(GatewaySettings(broker=broker.url))
        found: list[int] = []
        async with app.router.lifespan_context(app):
            for client, listener, headers, _ in COMERS:

                async def at(
                    scope: Any, receive: Any, send: Any, client: str = client, listener: str = listener
                ) -> None:
                    scope["client"] = (client, 1) if client else None
                    scope["server"] = (listener, 80)
                    await app(scope, receive, send)

                transport = httpx.ASGITransport(at)
                async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                    posted = await http.post(
                        "/v1/streams/weather/messages?subject=", content=b"x", headers=headers
                    )
                    found.append(posted.status_code)
        return found

    assert asyncio.run(statuses()) == [status for *_, status in COMERS]


# Elements, before they are built


def _peak_growth(broker: Broker, directory: Path, *posts: tuple[str, str, bytes]) -> tuple[float, list[int]]:
    """How many MiB a gateway grows by these bodies, and what it answers."""
    with gateway_process(broker.url, directory) as gateway:
        with client_of(gateway.url) as http:
            assert http.post("/v1/streams/weather/messages?subject=a", content=b"x").status_code == 201
            before = gateway.peak_mib
            statuses = [
                http.post(path, content=body, headers={"content-type": kind}).status_code
                for path, kind, body in posts
            ]
        return gateway.peak_mib - before, statuses


def test_sixteen_mebibytes_of_empty_elements_are_not_built(broker: Broker, tmp_path: Path) -> None:
    """Each became some 430 MiB before."""
    count = 5_000_000
    attributes = b" ".join(b'a%d=""' % number for number in range(1_200_000))
    messages, feed = "/v1/streams/weather/messages", "/restms/feed/default"
    grown, statuses = _peak_growth(
        broker,
        tmp_path,
        (messages, "application/cloudevents-batch+json", b"[" + b"{}," * count + b"{}]"),
        (messages, "application/cloudevents+json", b"{" + b'"a":1,' * 2_000_000 + b'"b":1}'),
        (messages, "application/x-ndjson", b'{"headers":{' + b'"a":1,' * 2_000_000 + b'"b":1}}'),
        (feed, "application/restms+json", b'{"restms":{"message":[' + b"[]," * count + b"[]]}}"),
        (feed, "application/restms+xml", b"<restms " + attributes + b"/>"),
    )
    assert statuses == [413] * 5
    # The bodies themselves, and their copies.
    assert grown < 130, grown


@pytest.mark.parametrize(
    ("count", "fits"), [(elements.ELEMENTS_MAX - 3, True), (elements.ELEMENTS_MAX - 2, False)]
)
def test_elements_are_counted_to_the_limit(count: int, fits: bool) -> None:
    body = b'[["a,[{\\\\\\"", ' + b"1," * count + b"1]]"
    if fits:
        assert elements.check_elements(body) == elements.ELEMENTS_MAX
    else:
        with pytest.raises(TooLarge):
            elements.check_elements(body)


def test_what_is_not_built_is_not_counted() -> None:
    data = b'{"data": [' + b"1.5,[2,{}]," * 300_000 + b'3], "id": "a"}'
    assert elements.check_elements(data, depth=1) < 10
    with pytest.raises(TooLarge):
        elements.check_elements(data)
    text = msgspec.json.encode({"body": '",[{\\' * 300_000})
    assert elements.check_elements(text) == 1


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda of: st.lists(of) | st.dictionaries(st.text(), of)
    )
)
def test_the_count_is_exact_where_it_is_looked_at(value: Any) -> None:
    def count(value: Any) -> int:
        inside = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
        commas = max(len(inside) - 1, 0)
        return isinstance(value, dict | list) + commas + sum(map(count, inside))

    assert elements.exact(msgspec.json.encode(value), 0) == count(value)


@pytest.mark.parametrize(("size", "error"), [(200_000, None), (400_000, TooLarge)])
def test_a_tag_has_a_limit_before_it_is_built(size: int, error: type[Exception] | None) -> None:
    body = b'<restms title="' + b"x" * size + b'"/>'
    with pytest.raises(error) if error else nullcontext():
        assert len(read(body, RESTMS_XML).get("title")) == size


# WebSockets


def _frame(opcode: int, data: bytes = b"", final: bool = True) -> bytes:
    head = bytes([opcode | (0x80 if final else 0)])
    size = (
        bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + len(data).to_bytes(2, "big")
    )
    return head + size + bytes(4) + data


def _handshake(credentials: str) -> bytes:
    lines = "GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    return f"{lines}{credentials}{key}".encode()


def _websocket(gateway: RunningGateway, credentials: str = "") -> socket.socket:
    connection = socket.create_connection((gateway.host, gateway.port), WAIT_SECONDS)
    connection.sendall(_handshake(credentials))
    found = b""
    while b"\r\n\r\n" not in found:
        found += connection.recv(1)
    assert b" 101 " in found, found
    return connection


def _close_code(connection: socket.socket) -> int:
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65_536):
            found += part
    at = found.rindex(b"\x88")
    return int.from_bytes(found[at + 2 : at + 4], "big")


COMMAND = b'{"op":"credit","id":1,"messages":1}'


@pytest.mark.parametrize("frames", [server.FRAMES_MAX, server.FRAMES_MAX + 1])
def test_a_message_has_so_many_frames_at_the_most(gateway: RunningGateway, frames: int) -> None:
    with _websocket(gateway) as connection:
        connection.sendall(
            _frame(1, COMMAND, final=False) + _frame(0, b"", final=False) * (frames - 2) + _frame(0)
        )
        if frames > server.FRAMES_MAX:
            assert _close_code(connection) == 1009
        else:
            assert b"there is no subscription 1" in connection.recv(65_536)


@pytest.mark.parametrize("pings", [server.CONTROL_FRAMES_MAX, server.CONTROL_FRAMES_MAX + 1])
def test_a_page_may_send_so_many_pings(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, pings: int
) -> None:
    monkeypatch.setattr(server, "CONTROL_SECONDS", 3600.0)
    with _websocket(gateway) as connection:
        connection.sendall(_frame(9) * pings + _frame(1, COMMAND))
        if pings > server.CONTROL_FRAMES_MAX:
            assert _close_code(connection) == 1008
        else:
            found = b""
            while b"there is no subscription 1" not in found:
                found += connection.recv(65_536)
            assert found.count(b"\x8a\x00") == pings


def test_many_commands_at_once_are_carried_out_in_order(gateway: RunningGateway) -> None:
    count = 3_000
    with _websocket(gateway) as connection:
        commands = [b'{"op":"unsubscribe","id":%d}' % number for number in range(count)]
        sending = started(lambda: connection.sendall(b"".join(_frame(1, command) for command in commands)))
        found = b""
        while b"subscription %d" % (count - 1) not in found:
            part = connection.recv(65_536)
            assert part
            found += part
        sending.join(WAIT_SECONDS)
        numbers = [int(one) for one in re.findall(rb"no subscription (\d+)", found)]
        assert numbers == [*range(count)]


def test_others_have_their_turn_between_commands() -> None:
    class Page:
        """A socket whose commands are all there already."""

        left = 50
        sent = 0

        async def receive(self) -> dict[str, Any]:
            if not self.left:
                return {"type": "websocket.disconnect"}
            self.left -= 1
            return {"type": "websocket.receive", "text": "{}"}

        async def send_text(self, text: str) -> None:
            self.sent += 1

    async def use() -> None:
        page: Any = Page()
        nobody: Any = None
        serving = asyncio.create_task(PageSocket(page, nobody, nobody, JSON).serve())
        seen = []
        while not serving.done():
            await asyncio.sleep(0)
            seen.append(page.sent)
        assert {later - before for before, later in pairwise(seen)} <= {0, 1}
        assert page.sent == 50

    asyncio.run(use())


@pytest.mark.parametrize(("size", "code"), [(server.FRAME_BYTES_MAX + 1, 1009)])
def test_a_command_has_so_many_bytes_at_the_most(gateway: RunningGateway, size: int, code: int) -> None:
    with _websocket(gateway) as connection:
        left = size
        first = True
        with contextlib.suppress(OSError):
            while left:
                part = min(left, 60_000)
                left -= part
                connection.sendall(_frame(1 if first else 0, bytes(b"x" * part), final=not left))
                first = False
        assert _close_code(connection) == code


def test_frames_of_a_stranger_are_not_read_before_the_handshake_is_answered(
    secured: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    handle = server.SocketProtocol.handle_text
    monkeypatch.setattr(
        server.SocketProtocol, "handle_text", lambda *given: parsed.append(1) or handle(*given)
    )
    with socket.create_connection((secured.host, secured.port), WAIT_SECONDS) as connection:
        connection.sendall(_handshake(basic("bob", "wrong")) + _frame(1, COMMAND) * 10)
        assert b" 401 " in answer_of(connection)
    assert not parsed


def test_a_handshake_with_more_headers_than_it_may_have_is_answered(gateway: RunningGateway) -> None:
    with socket.create_connection((gateway.host, gateway.port), WAIT_SECONDS) as connection:
        connection.sendall(_handshake("".join(f"X-{number}: y\r\n" for number in range(300))))
        assert b" 400 " in answer_of(connection)
        assert connection.recv(1) == b""


# Forms


@given(st.lists(st.tuples(st.text(), st.text())), st.integers(3, 10))
def test_a_form_is_read_as_the_library_does(pairs: list[tuple[str, str]], size: int) -> None:
    body = urlencode(pairs).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "SLICE_BYTES", size)
        expected = parse_qsl(body.decode(), keep_blank_values=True, errors="strict")
        assert forms.fields_of(body, len(pairs) + 1) == expected


@pytest.mark.parametrize("value", [b"%", b"%4", b"%zz", b"+%2B+", b"a%", b"%E4%"])
def test_what_only_looks_like_an_escape_is_text(value: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "SLICE_BYTES", 3)
    if b"E4" in value:
        with pytest.raises(Malformed):
            forms.fields_of(b"a=" + value, 1)
    else:
        expected = parse_qsl(f"a={value.decode()}", keep_blank_values=True)
        assert forms.fields_of(b"a=" + value, 1) == expected


def test_a_form_of_escapes_is_not_built_of_objects(broker: Broker, tmp_path: Path) -> None:
    """16 MiB of them became 1,317 MiB before, and 6 s for everybody."""
    kind = "application/x-www-form-urlencoded"
    body = b"topic=a&data=" + b"%41" * 5_500_000
    grown, statuses = _peak_growth(broker, tmp_path, ("/.well-known/mercure", kind, body))
    # The broker of the tests takes no message that is so large.
    assert statuses == [413]
    assert grown < 200, grown


# Answers


def test_answers_that_nobody_takes_are_so_large_at_the_most_and_end(
    start: Callable[..., RunningGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "TAKE_SECONDS", 2.0)
    gateway = start(answers_bytes=12 * MIB)
    with gateway.client() as http:
        for _ in range(8):
            assert http.post("/v1/streams/big/messages?subject=a", content=b"x" * 700_000).status_code == 201
        expected = http.get("/v1/streams/big/messages")
        assert len(expected.content) > 5 * MIB
        request = b"GET /v1/streams/big/messages HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with ExitStack() as stack:
            unread = [stack.enter_context(socket.socket()) for _ in range(2)]
            for connection in unread:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.settimeout(WAIT_SECONDS)
                connection.connect((gateway.host, gateway.port))
                connection.sendall(request)
            shares = gateway.state.bodies.answers
            until(lambda: shares.total > 10 * MIB)
            refused = http.get("/v1/streams/big/messages")
            assert (refused.status_code, refused.json()["code"]) == (503, 503)
            assert http.get("/live").status_code == 200
            until(lambda: shares.total == 0)
            taken = 0
            with contextlib.suppress(ConnectionError):
                while part := unread[0].recv(65_536):
                    taken += len(part)
            assert taken < len(expected.content)
        assert http.get("/v1/streams/big/messages").content == expected.content
