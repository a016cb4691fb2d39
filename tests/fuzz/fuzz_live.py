"""Real processes under mutated input: a broker and a gateway as users have them, beside a client that works.

    python tests/fuzz/fuzz_live.py --seconds 60
    python tests/fuzz/fuzz_live.py --seconds 60 --seed 7 --door http

Each input is a good conversation of one door that was spoiled in a few ways: sessions by libzmq over TCP and
over a socket of the file system, the bytes of ZMTP below it, and HTTP to the gateway with all that it speaks.
They are drawn from a seed; nothing here follows coverage (`fuzz.py` does). Meanwhile a client publishes,
subscribes, sends mail to itself and answers its own requests. It has to get all of that in order, and
never to wait for longer than `SILENCE_SECONDS`. At the end both processes are there, no fault is in their
logs, and the broker has grown by no more than `GROWTH_MIB`.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import zmq

sys.path.insert(0, str(Path(__file__).parents[1]))
import shared_folders  # noqa: F401  # the folders of the modules below

# isort: split
from free_ports import free_port
from fuzz_brokers import QuietClient
from fuzz_requests import REQUESTS
from rig_daemon import Daemon, environment, small
from torture_hostile import SPOILERS

from malamute.protocol.batch import pack_record
from malamute.protocol.codec import encode
from malamute.protocol.messages import (
    MAILBOX,
    VERSION,
    Ack,
    Bye,
    Cancel,
    Change,
    Commit,
    Credit,
    Drain,
    Hello,
    Message,
    Nak,
    Offer,
    Ping,
    Progress,
    Publish,
    Query,
    Received,
    Reject,
    Release,
    Reply,
    Request,
    Send,
    Subscribe,
    Withdraw,
)

SILENCE_SECONDS = 30.0
GROWTH_MIB = 512
ANSWER_MS = 50
RECORD = pack_record({"n": 1, "unit": "C"}, b"body")
ONE, ALL = [[1, 1]], [["all", ""]]

SESSIONS: Mapping[str, Sequence[Message]] = {
    "streams": (
        Subscribe(1, "loud", [["topic", "a.*"]], "n = 1", "first", 10, 1000, "cursor"),
        Publish("loud", 1, ["a.b", "c"], [RECORD, RECORD], 5000),
        Commit("loud", 2, "cursor", 1),
        Credit(1, 5, 500),
        Drain(1, []),
        Query(1, "explain", {"stream": "loud", "subject": "a", "headers": {"n": 1}}),
        Change(3, "stream.retain", {"stream": "loud", "count": 100}),
        Change(4, "cursor.set", {"stream": "loud", "cursor": "cursor", "start": "first"}),
        Change(5, "stream.purge", {"stream": "loud"}),
        Cancel(1),
    ),
    "mailboxes": (
        Credit(MAILBOX, 10, 10_000),
        Send("loud", 1, ["a"], [RECORD], [{"tracker": 7, "ttl": 1000, "priority": 3}]),
        Send("mallory", 2, ["a"], [RECORD]),
        Ack(MAILBOX, ONE, 1, 100),
        Nak(MAILBOX, ONE, 10),
        Reject(MAILBOX, ONE, "no", True),
        Release(MAILBOX, ONE),
        Withdraw(1, "mailbox", "loud", 1),
        Query(2, "messages", {"kind": "mailbox", "name": "loud", "limit": 5}),
        Change(3, "queue.purge", {"kind": "mailbox", "name": "loud"}),
    ),
    "services": (
        Offer(2, "loud", [["topic", "a.*"]], 3, 1000, 1000),
        Request("loud", 1, ["a.b"], [RECORD], [{"correlation": 1, "key": "k", "id": "i"}]),
        Progress(2, ONE),
        Reply(2, 2, [1], [False], [RECORD]),
        Reply(2, 3, [1], [True], [RECORD], 1, 100),
        Change(4, "feed.set", {"source": "stream/loud", "feed": "f", "target": "service/loud"}),
        Change(5, "queue.redrive", {"kind": "service", "name": "loud"}),
        Query(3, "service", {"name": "loud"}),
    ),
    "operators": (
        Query(1, "status", {}),
        Query(2, "streams", {"limit": 2}),
        Query(3, "access", {"user": "ann", "action": "publish", "target": "stream/x"}),
        Change(1, "user.add", {"name": "ann", "groups": ["g"], "uid": 7}),
        Change(2, "group.add", {"name": "g", "access_rules": []}),
        Change(3, "user.remove", {"name": "ann"}),
        Change(4, "stream.delete", {"stream": "loud", "cascade": True}),
        Change(5, "broker.reload", {}),
        Received(5),
        Ping(1),
    ),
}
"""Good sessions, each behind its HELLO and before its BYE."""

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
READY = b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"

Conversation = list[list[bytes]]


def spoil(said: Conversation, chance: Random) -> Conversation:
    """A conversation with one to three faults."""
    for _ in range(chance.randint(1, 3)):
        if said and all(said):
            chance.choice(SPOILERS)(said, chance)
    return [frames for frames in said if frames]


def conversation(chance: Random) -> Conversation:
    """A good session."""
    said: list[Message] = [Hello([VERSION], chance.choice(["", "mallory"]))]
    for name in chance.sample([*SESSIONS], chance.randint(1, 2)):
        said += SESSIONS[name]
    said += [Bye()] * chance.randint(0, 1)
    return [[bytes(frame) for frame in encode(message)] for message in said]


class Doors:
    """What is open, and one way to come in for each."""

    def __init__(self, session_urls: Sequence[str], gateway: tuple[str, int]) -> None:
        self._urls = session_urls
        self._tcp = session_urls[0].removeprefix("tcp://").rpartition(":")
        self._gateway = gateway
        self._context: zmq.Context[Any] = zmq.Context()

    def close(self) -> None:
        """Come no more."""
        self._context.destroy(0)

    def session(self, chance: Random) -> None:
        """A session by libzmq."""
        with self._context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.ROUTING_ID, b"\1" + secrets.token_bytes(15))
            dealer.setsockopt(zmq.LINGER, chance.choice([0, 20]))
            dealer.setsockopt(zmq.SNDTIMEO, ANSWER_MS)
            dealer.connect(chance.choice(self._urls))
            with suppress(zmq.Again):
                for frames in spoil(conversation(chance), chance):
                    dealer.send_multipart(frames)
            if chance.random() < 0.5 and dealer.poll(ANSWER_MS):
                dealer.recv_multipart()

    def bytes(self, chance: Random) -> None:
        """The bytes that libzmq would send, spoiled, too."""
        said = [[GREETING], [READY]]
        for frames in conversation(chance):
            said.append([_framed(frame, more=frame is not frames[-1]) for frame in frames])
        self._send((self._tcp[0], int(self._tcp[2])), b"".join(map(b"".join, spoil(said, chance))), chance)

    def http(self, chance: Random) -> None:
        """A request or two."""
        said = [_request(*chance.choice(REQUESTS)) for _ in range(chance.randint(1, 2))]
        self._send(self._gateway, b"".join(map(b"".join, spoil(said, chance))), chance)

    def _send(self, place: tuple[str, int], data: bytes, chance: Random) -> None:
        with suppress(OSError), socket.create_connection(place, 5) as connection:
            connection.settimeout(ANSWER_MS / 1000)
            cut = chance.randrange(len(data) + 1) if data and chance.random() < 0.2 else len(data)
            connection.sendall(data[:cut])
            if chance.random() < 0.5:
                connection.recv(1 << 16)


def _framed(frame: bytes, *, more: bool) -> bytes:
    if len(frame) < 256:
        return bytes([more, len(frame)]) + frame
    return bytes([more | 2]) + len(frame).to_bytes(8, "big") + frame


def _request(method: str, path: str, headers: Mapping[str, str], body: str) -> list[bytes]:
    content = body.encode("latin-1")
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if method == "POST":
        lines.append(f"Content-Length: {len(content)}")
    return [*(f"{line}\r\n".encode() for line in lines), b"\r\n", content or b""]


DOORS: Mapping[str, Callable[[Doors, Random], None]] = {
    "session": Doors.session,
    "bytes": Doors.bytes,
    "http": Doors.http,
}


class Worker(threading.Thread):
    """The client that works meanwhile. `longest` is how long it had to wait at the most."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._enough = threading.Event()
        self.error: BaseException | None = None
        self.rounds = 0
        self.longest = 0.0

    def run(self) -> None:
        """Work until it is enough."""
        try:
            with QuietClient(self._url, SILENCE_SECONDS) as client:
                while not self._enough.is_set():
                    began = time.monotonic()
                    client.round()
                    self.longest = max(self.longest, time.monotonic() - began)
                    self.rounds += 1
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        """It is enough. Raises what went wrong."""
        self._enough.set()
        self.join(2 * SILENCE_SECONDS)
        assert not self.is_alive(), "the client that works hangs"
        if self.error is not None:
            raise self.error


def fuzz(seconds: float, seed: int, doors: Sequence[str], directory: Path) -> dict[str, Any]:
    """Come in by these doors for so long. Returns what was done; raises for what must not be."""
    chance, counts = Random(seed), Counter[str]()
    with ExitStack() as stack:
        daemon = Daemon(directory / "broker", small())
        stack.callback(daemon.close)
        ipc = f"ipc://{directory}/socket"
        listen = replace(daemon.config.listen, endpoints=(daemon.url, ipc))
        daemon.configure(replace(daemon.config, listen=listen))
        daemon.start()
        port, log = free_port(), directory / "gateway.log"
        words = ["gateway", "run", "--listen", f"127.0.0.1:{port}", "--broker", daemon.url]
        with log.open("wb") as errors:
            gateway = subprocess.Popen(
                [sys.executable, "-m", "malamute", *words],
                env=environment(),
                stdout=errors,
                stderr=errors,
            )
        stack.callback(gateway.wait)
        stack.callback(gateway.terminate)
        _await_port(port, gateway)
        open_doors = Doors([daemon.url, ipc], ("127.0.0.1", port))
        stack.callback(open_doors.close)
        worker = Worker(daemon.url)
        worker.start()
        before, deadline = daemon.anonymous_mib, time.monotonic() + seconds
        while time.monotonic() < deadline and worker.error is None:
            door = chance.choice(doors)
            DOORS[door](open_doors, chance)
            counts[door] += 1
        worker.stop()
        grown = daemon.anonymous_mib - before
        assert not daemon.has_ended, f"the broker has ended:\n{daemon.log[-2000:]}"
        assert gateway.poll() is None, f"the gateway has ended:\n{log.read_text()[-2000:]}"
        faults = log.read_text().partition("Traceback")[1:]
        assert not any(faults), "".join(faults)[:6000]
        assert grown < GROWTH_MIB, f"the broker has grown by {grown:.0f} MiB"
        daemon.stop()
    return {
        "seed": seed,
        "inputs": counts.total(),
        "by_door": dict(counts),
        "rounds": worker.rounds,
        "longest_round_seconds": round(worker.longest, 3),
        "grown_mib": round(grown, 1),
    }


def _await_port(port: int, gateway: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SILENCE_SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert gateway.poll() is None, "the gateway has ended"
            assert time.monotonic() < deadline, "the gateway does not listen"
            time.sleep(0.05)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)))
    parser.add_argument("--door", action="append", choices=DOORS)
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="malamute-live-") as made:
        print(json.dumps(fuzz(chosen.seconds, chosen.seed, chosen.door or [*DOORS], Path(made))))


if __name__ == "__main__":
    main()
