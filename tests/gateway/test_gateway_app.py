"""Checks before every path: limits and deadlines, hosts and sites, headers, health, and who comes."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from running_gateway import RunningGateway

from malamute.errors import BY_CODE, MalamuteError
from malamute.gateway import problems
from malamute.gateway.server import AnswerTransport
from malamute.gateway.settings import GatewaySettings, is_loopback
from malamute.testing import Broker

WEATHER = "/v1/streams/weather/messages"


def test_it_lives_and_is_ready_while_the_broker_answers(
    start: Callable[..., RunningGateway], broker: Broker
) -> None:
    with start(timeout_seconds=0.5).client() as http:
        assert http.get("/live").json() == {"status": "live"}
        assert http.get("/ready").json() == {"status": "ready"}
        broker.stop()
        answer = http.get("/ready")
        assert answer.status_code in (503, 504)
        assert answer.json()["code"] in (600, 601, 602)
        assert http.get("/live").status_code == 200


def test_head_is_answered_as_get_without_a_body(http: httpx.Client) -> None:
    answer = http.head("/live")
    assert (answer.status_code, answer.content) == (200, b"")


def test_a_stream_without_end_has_no_head(http: httpx.Client) -> None:
    answer = http.head("/v1/streams/weather/events")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


def _certificate(directory: Path) -> dict[str, str]:
    """A certificate for this machine that it has signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = {"ssl_certfile": directory / "cert.pem", "ssl_keyfile": directory / "key.pem"}
    files["ssl_certfile"].write_bytes(certificate.public_bytes(Encoding.PEM))
    files["ssl_keyfile"].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return {option: str(path) for option, path in files.items()}


def test_it_serves_with_a_certificate(settings: GatewaySettings, tmp_path: Path) -> None:
    files = _certificate(tmp_path)
    with RunningGateway(settings, **files) as gateway:
        assert gateway.url.startswith("https://")
        with gateway.client(verify=ssl.create_default_context(cafile=files["ssl_certfile"])) as http:
            assert http.post(f"{WEATHER}?subject=", content=b"x").status_code == 201


@pytest.mark.parametrize("path", ["/live", "/none", WEATHER + "?limit=0"])
def test_every_answer_has_the_headers_of_security(http: httpx.Client, path: str) -> None:
    headers = http.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers
    assert not [name for name in headers if name.startswith("access-control")]


def test_a_body_at_the_limit_is_taken_and_one_past_it_is_not(start: Callable[..., RunningGateway]) -> None:
    with start(body_bytes=100).client() as http:
        assert http.post(f"{WEATHER}?subject=", content=b"x" * 100).status_code == 201
        for content in (b"x" * 101, iter([b"x" * 100, b"x"])):
            answer = http.post(f"{WEATHER}?subject=", content=content)
            assert (answer.status_code, answer.json()["code"]) == (413, 413)
        assert len(http.get(WEATHER).json()["messages"]) == 1


def test_a_compressed_body_is_refused(http: httpx.Client) -> None:
    answer = http.post(WEATHER, content=b"x", headers={"content-encoding": "gzip"})
    assert (answer.status_code, answer.json()["code"]) == (415, 903)


def _talk(gateway: RunningGateway, *parts: bytes, finish: bool = False) -> bytes:
    """Return the answers on a raw connection until the gateway ends it."""
    with socket.create_connection((gateway.host, gateway.port), timeout=60) as sock:
        for part in parts:
            sock.sendall(part)
        if finish:
            sock.shutdown(socket.SHUT_WR)
        found = b""
        while part := sock.recv(65536):
            found += part
    return found


HEAD = b"POST /v1/streams/weather/messages?subject= HTTP/1.1\r\nhost: localhost\r\n"


def test_a_body_that_does_not_come_in_time_is_a_problem_and_publishes_nothing(
    start: Callable[..., RunningGateway],
) -> None:
    gateway = start(body_seconds=0.2)
    answer = _talk(gateway, HEAD + b"content-length: 10\r\n\r\nhalf")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":904' in answer
    with gateway.client() as http:
        assert http.get(WEATHER).status_code == 404


def test_a_body_that_ends_halfway_publishes_nothing(gateway: RunningGateway, http: httpx.Client) -> None:
    with socket.create_connection((gateway.host, gateway.port), timeout=60) as sock:
        sock.sendall(HEAD + b"content-length: 10\r\n\r\nhalf")
    assert http.get(WEATHER).status_code == 404


def test_the_head_of_an_answer_goes_with_what_follows_and_with_nothing_before_it() -> None:
    written: list[bytes] = []
    transport = SimpleNamespace(
        write=written.append, close=lambda: written.append(b"close"), is_closing=lambda: False
    )
    for body in (b"body", b"", None):
        cycle: Any = SimpleNamespace(transport=transport, response_started=False)
        answer = AnswerTransport(cycle, joins=True)
        answer.write(b"100")
        cycle.response_started = True
        answer.write(b"head ")
        if body is not None:
            answer.write(body)
            answer.write(b"more")
        answer.close()
    once = [b"100", b"head body", b"more", b"close"]
    assert written == [*once, once[0], b"head ", *once[2:], b"100", b"head ", b"close"]


def test_nothing_is_written_to_a_connection_that_is_gone() -> None:
    written: list[bytes] = []
    transport = SimpleNamespace(
        write=written.append, close=lambda: written.append(b"close"), is_closing=lambda: True
    )
    cycle: Any = SimpleNamespace(transport=transport, response_started=True)
    # Of HEAD there is a head alone.
    for joins in (True, False):
        answer = AnswerTransport(cycle, joins=joins)
        answer.write(b"head")
        answer._head = b"head"
        answer.close()
    assert written == [b"close", b"close"]


def test_a_request_that_is_refused_does_not_become_a_websocket(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    upgrade = b"GET /streams/s/live HTTP/1.0\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    with socket.create_connection((gateway.host, gateway.port), timeout=60) as sock:
        sock.sendall(upgrade.replace(b"1.0", b"2.0"))
        answer = b""
        while data := sock.recv(1 << 16):
            answer += data
    assert _problem(answer)[0] == 400
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


LIVE = b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n"


def _problem(answer: bytes) -> tuple[int, int]:
    """The status and the code of the problem document that an answer is."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head
    document = json.loads(body)
    assert int(head.split()[1]) == document["status"]
    return document["status"], document["code"]


def test_a_connection_without_a_request_ends_after_a_while(start: Callable[..., RunningGateway]) -> None:
    assert _talk(start(head_seconds=0.2)) == b""


@pytest.mark.parametrize("before", [b"", LIVE])
def test_a_head_that_does_not_come_in_time_is_a_problem(
    start: Callable[..., RunningGateway], before: bytes
) -> None:
    answer = _talk(start(head_seconds=0.2), before + HEAD)
    assert answer.startswith(b"HTTP/1.1 200 ") == bool(before)
    assert _problem(answer[answer.rindex(b"HTTP/1.1") :]) == (408, 904)


def test_line_feeds_alone_do_not_keep_a_connection(start: Callable[..., RunningGateway]) -> None:
    gateway = start(head_seconds=0.2)
    with socket.create_connection((gateway.host, gateway.port), timeout=60) as sock:
        sock.sendall(LIVE)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
        # Once they would have been enough to wait for ever.
        sock.sendall(b"\r\n")
        assert _rest(sock)[-2:] != b"\r\n"


def _rest(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(65536), b""))


def test_a_head_at_the_limit_is_taken_and_one_past_it_is_not(start: Callable[..., RunningGateway]) -> None:
    gateway = start(head_bytes=1000)
    begin = b"GET /live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: "
    rest = 1000 - len(begin) - len(b"\r\n\r\n")
    assert _talk(gateway, begin + b"x" * rest + b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert _problem(_talk(gateway, begin + b"x" * (rest + 1) + b"\r\n\r\n")) == (413, 413)
    # Neither is one whose end is yet to come.
    assert _problem(_talk(gateway, begin + b"x" * (rest + 5))) == (413, 413)


def test_only_a_head_counts_for_its_limit(start: Callable[..., RunningGateway]) -> None:
    gateway = start(head_bytes=200)
    post = HEAD + b"content-length: 1000\r\n\r\n"
    # A body, and a part of the next head with it.
    answer = _talk(gateway, post, b"x" * 1000 + LIVE[:-20], LIVE[-20:-2] + b"connection: close\r\n\r\n")
    assert [part[:4] for part in answer.split(b"HTTP/1.1 ")] == [b"", b"201 ", b"200 "]


def test_what_is_named_behind_a_body_is_no_header(http: httpx.Client, gateway: RunningGateway) -> None:
    head = HEAD + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    assert _talk(gateway, head, b"1\r\nx\r\n0\r\nmalamute-header-late: 1\r\n\r\n").startswith(
        b"HTTP/1.1 201 "
    )
    [message] = http.get(WEATHER).json()["messages"]
    assert "headers" not in message


@pytest.mark.parametrize(
    "junk",
    [
        b"\x00\xff\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/2.0\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/0.9\r\nhost: localhost\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"BREW / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\nx",
        HEAD + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"content-length: -1\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"bad\x00name: 1\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(gateway: RunningGateway, junk: bytes) -> None:
    assert _problem(_talk(gateway, junk, finish=True)) == (400, 400)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost"}, 200),
        ({"host": "127.0.0.1:80"}, 200),
        ({"host": "[::1]:80"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "localhost.evil.example"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"host": "localhost:80", "origin": "http://localhost:80"}, 200),
        ({"host": "localhost:80", "origin": "http://localhost:81"}, 403),
    ],
)
def test_pages_of_other_sites_and_names_that_are_not_ours_are_refused(
    http: httpx.Client, headers: dict[str, str], status: int
) -> None:
    answer = http.get("/live", headers=headers)
    assert answer.status_code == status
    assert status == 200 or answer.json()["code"] == 906


def test_a_site_that_is_allowed_may_ask_before_and_read_the_answer(
    start: Callable[..., RunningGateway],
) -> None:
    site = "https://app.example"
    with start(origins=[site]).client() as http:
        assert http.get("/live", headers={"origin": site}).headers["access-control-allow-origin"] == site
        asked = {"origin": site, "access-control-request-method": "POST"}
        assert http.options(WEATHER, headers=asked).status_code == 200
        assert http.get("/live", headers={"origin": "https://other.example"}).status_code == 403
        for name, value in (("method", "PATCH"), ("headers", "x-secret")):
            refused = http.options(WEATHER, headers={**asked, f"access-control-request-{name}": value})
            assert (refused.status_code, refused.headers["content-type"]) == (400, problems.MEDIA_TYPE)
            assert value in refused.json()["detail"]
            assert "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize(
    ("path", "expected"), [("/.well-known/mercure", "true"), ("/live", None), ("/console/streams", None)]
)
def test_a_site_that_is_allowed_sends_cookies_to_the_hub_alone(
    start: Callable[..., RunningGateway], path: str, expected: str | None
) -> None:
    site = {"origin": "https://app.example"}
    asked = {
        **site,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    with start(origins=["https://app.example"]).client() as http:
        for answer in (http.options(path, headers=asked), http.get(path, headers=site)):
            assert answer.headers.get("access-control-allow-credentials") == expected
            assert answer.headers["access-control-allow-origin"] == "https://app.example"
        refused = http.get(path, headers={"origin": "https://other.example"})
        assert (refused.status_code, "access-control-allow-origin" in refused.headers) == (403, False)
    with start().client() as http:
        assert "access-control-allow-credentials" not in http.get(path).headers


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"authorization": "Basic"},
        {"authorization": "Basic ?"},
        {"authorization": "Basic YWJj"},
        {"authorization": "Basic /w=="},
        {"authorization": "Bearer"},
        {"authorization": "Bearer ä".encode().decode("latin-1")},
        {"authorization": "Digest x"},
    ],
)
def test_who_does_not_say_who_it_is_has_to_log_in(
    start: Callable[..., RunningGateway], given: dict[str, str]
) -> None:
    with start(anonymous=False).client() as http:
        answer = http.get(WEATHER, headers={k: v.encode("latin-1") for k, v in given.items()})
        assert (answer.status_code, answer.json()["code"]) == (401, 905)
        assert "Basic" in answer.headers["www-authenticate"]
        assert http.get("/live").status_code == 200


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded"])
def test_what_a_proxy_has_forwarded_needs_credentials_on_loopback_too(
    start: Callable[..., RunningGateway], header: str
) -> None:
    with start().client(headers={header: "for=192.0.2.1"}) as http:
        answer = http.post(f"{WEATHER}?subject=", content=b"x")
        assert (answer.status_code, answer.json()["code"]) == (401, 905)
        assert http.get("/console/streams").headers["location"].startswith("/console/sign-in")
        assert http.get("/live").status_code == 200


def test_the_application_runs_in_any_server_of_asgi(broker: Broker) -> None:
    code = f"""
import asyncio, sys
sys.modules["uvicorn"] = None
import httpx
from malamute.gateway.app import make_app
from malamute.gateway.settings import GatewaySettings

async def main():
    app = make_app(GatewaySettings(broker="{broker.url}"))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            posted = await http.post("{WEATHER}?subject=", content=b"x")
            page = await http.get("{WEATHER}")
            print(posted.status_code, page.json()["messages"][0]["body"], (await http.get("/")).status_code)

asyncio.run(main())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["201", "x", "200"], run.stderr


def test_every_error_with_a_number_has_a_status_and_a_title() -> None:
    for error in [MalamuteError, *BY_CODE.values()]:
        assert 400 <= problems.status_of(error) < 600
        assert problems.title_of(error)


def test_the_sessions_are_as_many_as_there_may_be_and_the_oldest_idle_one_makes_room(
    start: Callable[..., RunningGateway],
) -> None:
    gateway = start(users=2)
    with gateway.client() as http, http.stream("GET", "/.well-known/mercure?topic=a") as following:
        assert following.status_code == 200
        for _ in range(3):
            assert http.get("/ready").status_code == 200
        assert len(gateway.state.users) == 2


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.9", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("x", False),
    ],
)
def test_loopback_is_known(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_settings_do_not_show_the_credentials() -> None:
    assert "secret" not in repr(replace(GatewaySettings(), credentials={"password": "secret"}))


def test_a_fault_of_the_gateway_is_a_problem_too(
    gateway: RunningGateway, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(gateway.state.users, "session", fail)
    answer = http.get("/ready")
    assert (answer.status_code, answer.json()["code"]) == (500, 500)
    assert "secret" not in answer.text
