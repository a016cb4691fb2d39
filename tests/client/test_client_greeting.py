"""A broker that wants another proof is told from one that is away, where libzmq does not."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest
import zmq

import malamute
import malamute.aio
from malamute.client.link import greeting, link
from malamute.client.link.greeting import mechanism_of, trouble_with
from malamute.errors import AccessRefused, ConnectTimeout
from malamute.testing import Broker

PATIENCE = 60.0


@pytest.mark.parametrize("mechanism", ["NULL", "PLAIN", "CURVE"])
@pytest.mark.parametrize("kind", ["tcp", "tcp6", "ipc", "abstract"])
def test_the_mechanism_of_a_listener(kind: str, mechanism: str, tmp_path: Path) -> None:
    endpoints = {
        "tcp": "tcp://127.0.0.1:*",
        "tcp6": "tcp://[::1]:*",
        "ipc": f"ipc://{tmp_path}/socket",
        "abstract": f"ipc://@{tmp_path}",
    }
    with zmq.Context() as context, context.socket(zmq.ROUTER) as listener:
        listener.plain_server = mechanism == "PLAIN"
        if mechanism == "CURVE":
            listener.curve_secretkey = zmq.curve_keypair()[1]
            listener.curve_server = True
        listener.ipv6 = kind == "tcp6"
        try:
            listener.bind(endpoints[kind])
        except zmq.ZMQError:
            pytest.skip(f"no {kind} here")
        url = endpoints[kind] if kind in ("ipc", "abstract") else listener.last_endpoint.decode()
        assert mechanism_of(url) == mechanism.encode()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n".ljust(64), b"\xff"])
def test_who_gives_no_greeting_has_no_mechanism(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            peer = server.accept()[0]
            peer.recv(64)
            peer.sendall(answer)
            peer.close()

        thread = threading.Thread(target=serve)
        thread.start()
        assert mechanism_of(f"tcp://127.0.0.1:{port}", PATIENCE) == b""
        thread.join()


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:1", "tcp://nobody", "ipc:///nowhere/at/all", "inproc://x"])
def test_who_is_away_has_no_mechanism(url: str) -> None:
    assert mechanism_of(url) == b""


def test_a_handshake_that_failed_without_detail_is_refused_if_the_mechanisms_differ(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a busy machine: the reason never comes.
    monkeypatch.setattr(link, "_EVENT", _WithoutDetail())
    with pytest.raises(AccessRefused, match="another proof"):
        malamute.connect(broker.url, user="a", password="b", timeout=PATIENCE)


def test_a_handshake_that_failed_without_detail_is_tried_again_if_they_do_not(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_EVENT", _WithoutDetail())
    monkeypatch.setattr(greeting, "mechanism_of", lambda url: b"PLAIN")
    with pytest.raises(ConnectTimeout):
        malamute.connect(broker.url, user="a", password="b", timeout=0.5)


class _SlowListener:
    """A listener that names its mechanism when it is let, and whether it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, mechanism: bytes = b"NULL") -> None:
        self._mechanism = mechanism
        self.asked, self.let = threading.Event(), threading.Event()
        monkeypatch.setattr(link, "_EVENT", _WithoutDetail())
        monkeypatch.setattr(greeting, "mechanism_of", self._mechanism_of)

    def _mechanism_of(self, url: str) -> bytes:
        self.asked.set()
        return self._mechanism if self.let.wait(PATIENCE) else b""


def test_an_event_loop_goes_on_while_a_listener_is_asked(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = _SlowListener(monkeypatch)

    async def program() -> None:
        connecting = asyncio.ensure_future(
            malamute.aio.connect(broker.url, user="a", password="b", timeout=PATIENCE)
        )
        while not listener.asked.is_set():
            await asyncio.sleep(0)
        # This is reached before it answers.
        listener.let.set()
        with pytest.raises(AccessRefused, match=f"connection to {broker.url} is refused: .* another proof"):
            await connecting

    asyncio.run(program())


def test_a_time_out_holds_while_a_listener_is_asked(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = _SlowListener(monkeypatch)
    with pytest.raises(ConnectTimeout):
        malamute.connect(broker.url, user="a", password="b", timeout=0.2)
    assert listener.asked.is_set()
    assert not listener.let.is_set()
    listener.let.set()


def test_a_listener_that_wants_another_proof_counts_no_more_where_another_one_takes_the_client(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = _SlowListener(monkeypatch, b"PLAIN")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as other:
        other.plain_server = True
        port = other.bind_to_random_port("tcp://127.0.0.1")
        with malamute.connect(f"tcp://127.0.0.1:{port},{broker.url}", timeout=PATIENCE) as client:
            assert listener.asked.is_set()
            listener.let.set()
            client.publish("s", "a", b"x", assurance="stored")
            client.publish("s", "a", b"x", assurance="stored")


class _WithoutDetail:
    """Every failure of a handshake is one of which nothing is known but that the pipe broke."""

    def unpack_from(self, data: bytes) -> tuple[int, int]:
        event, value = int.from_bytes(data[:2], "little"), int.from_bytes(data[2:6], "little")
        if event == zmq.Event.HANDSHAKE_FAILED_PROTOCOL:
            return int(zmq.Event.HANDSHAKE_FAILED_NO_DETAIL), 32
        return event, value


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "what listens there speaks HTTP, as a gateway"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "what listens there speaks TLS"),
        (b"\xff\0\0\0\0\0\0\0\1\x7f", ""),
    ],
)
def test_what_listens_in_place_of_a_broker_is_told_in_words(answer: bytes, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            served, _ = listener.accept()
            with served:
                served.recv(1000)
                served.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        assert trouble_with(f"tcp://127.0.0.1:{listener.getsockname()[1]}", PATIENCE) == words
        serving.join()


def test_nothing_and_an_unknown_name_are_told_in_words(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        assert trouble_with(url, 0.01) == "what is there says nothing"
    assert trouble_with(url) == "nothing listens there"
    assert trouble_with(f"ipc://{tmp_path}/none") == "nothing listens there"
    assert trouble_with("tcp://nobody.invalid:9") == "the name 'nobody.invalid' is not known here"
    assert trouble_with("tcp://nobody") == ""
