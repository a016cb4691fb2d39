"""What a running broker hears from several clients: its sockets, its threads and its disk are real.

A step is a letter, the number of a client, and what the letter needs:

    S frames   the client sends this
    N frames   the same in an open session, with the number that comes next
    X bytes    over a connection of its own, as they are
    R read what has come    D close the connection at once    W a moment passes

At the end each client opens its session and closes it. Then a client that works gets all of a round.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import fuzz_brokers
import msgpack
import zmq
from core_bench import check_accounts
from fuzz_dialogue import NUMBERED, mutate_steps
from fuzz_frames import FRAME, STEP, Change

from malamute.protocol.codec import decode, encode
from malamute.protocol.messages import VERSION, Bye, Error, Hello, Welcome

INPUTS_MAX = 300
"""How many inputs one broker gets. Then it is stopped, started on what they have left, and made anew."""

STEPS_MAX = 40
ANSWER_SECONDS = 0.1
"""How long a client waits for the answer to its last HELLO. One that was cut off has none."""

MOMENT_SECONDS = 0.002
HANG_SECONDS = 15.0
ADDRESSES = ("ann", "bob", "")
LAST_ATTEMPT = 1_000_000


class Peer:
    """A client as it is on the wire."""

    def __init__(self, here: Running, name: str, number: int) -> None:
        self._name = name
        self.numbers = 0
        self.greeted = False
        self._dealer = here.context.socket(zmq.DEALER)
        self._dealer.setsockopt(zmq.ROUTING_ID, b"\1" + number.to_bytes(15, "big"))
        self._dealer.setsockopt(zmq.LINGER, 0)
        self._dealer.setsockopt(zmq.SNDTIMEO, 100)
        self._dealer.connect(here.broker.url)

    def send(self, frames: list[bytes]) -> None:
        """Send what is no message, perhaps."""
        with suppress(zmq.Again):
            self._dealer.send_multipart(frames)

    def send_numbered(self, frames: list[bytes]) -> None:
        """Send a command with the number that comes next, in an open session."""
        if not self.greeted:
            self.greet(1)
        with suppress(ValueError, TypeError, LookupError, msgpack.UnpackException):
            fields = msgpack.unpackb(frames[0], strict_map_key=False)
            fields[NUMBERED[fields[0]]] = self.numbers + 1
            self.numbers += 1
            frames = [msgpack.packb(fields), *frames[1:]]
        self.send(frames)

    def greet(self, attempt: int) -> None:
        """Open the session."""
        self.greeted = True
        self.send([bytes(frame) for frame in encode(Hello([VERSION], self._name, "fuzz", 1, attempt))])

    def read(self, seconds: float = 0.0) -> bool:
        """Read what has come, for so long. Returns whether the last HELLO was answered."""
        deadline = time.monotonic() + seconds
        while self._dealer.poll(max(0.0, deadline - time.monotonic()) * 1000):
            said = decode(self._dealer.recv_multipart())
            if (type(said) is Welcome and said.attempt == LAST_ATTEMPT) or (
                type(said) is Error and said.ref == LAST_ATTEMPT
            ):
                return True
        return False

    def leave(self) -> None:
        """End the session well, as far as it can be."""
        self.greet(LAST_ATTEMPT)
        self.read(ANSWER_SECONDS)
        self.send([bytes(frame) for frame in encode(Bye())])
        # What it has sent is on its way while the client that works has its round.
        self._dealer.close(1000)

    def close(self) -> None:
        """Close the connection at once."""
        self._dealer.close(0)


class Running:
    """A broker that runs in this process, on a disk, and a client of it that works."""

    def __init__(self) -> None:
        self.peers = 0
        self.context: zmq.Context[Any] = zmq.Context()
        self._directory = Path(tempfile.mkdtemp(prefix="malamute-fuzz-"))
        self._faults = fuzz_brokers.Faults()
        self.broker = fuzz_brokers.broker(self._directory / "data")
        self._host, _, self._port = self.broker.url.removeprefix("tcp://").rpartition(":")
        self._quiet = fuzz_brokers.QuietClient(self.broker.url, HANG_SECONDS)
        self._quiet.round()

    def peer(self, number: int) -> Peer:
        """A client, of a session that nobody had."""
        self.peers += 1
        return Peer(self, ADDRESSES[number], self.peers)

    def send_bytes(self, data: bytes) -> None:
        """Send what is no message of ZeroMQ."""
        with suppress(OSError), socket.create_connection((self._host, int(self._port)), 1) as connection:
            connection.sendall(data)

    def check(self) -> None:
        """The broker serves others, and has met no fault."""
        self._quiet.round()
        assert self.broker._thread is not None
        assert self.broker._thread.is_alive()
        self._faults.check()

    def close(self) -> None:
        """End it, after a new start on what it has stored."""
        self._quiet.close()
        self._stop()
        self.broker.start()
        with fuzz_brokers.QuietClient(self.broker.url, HANG_SECONDS) as quiet:
            quiet.round()
        self._stop()
        self._faults.check()
        self._faults.close()
        self.context.destroy(0)
        shutil.rmtree(self._directory)

    def _stop(self) -> None:
        loop = self.broker._loop
        assert loop is not None
        self.broker.stop()
        check_accounts(loop.core)


RUNNING = fuzz_brokers.Lasting(Running, INPUTS_MAX)


def live(data: bytes) -> None:
    """The broker goes on, without a fault, and serves others in time."""
    here = RUNNING.get()
    peers: dict[int, Peer] = {}
    for step in data.split(STEP)[:STEPS_MAX]:
        number = step[1] % 3 if len(step) > 1 else 0
        _do(here, peers, number, step[:1], step[2:])
    for peer in peers.values():
        peer.leave()
    here.check()


def _do(here: Running, peers: dict[int, Peer], number: int, kind: bytes, rest: bytes) -> None:
    if kind == b"X":
        here.send_bytes(rest)
        return
    if kind == b"W":
        time.sleep(MOMENT_SECONDS)
        return
    if kind == b"D":
        if number in peers:
            peers.pop(number).close()
        return
    peer = peers.get(number) or peers.setdefault(number, here.peer(number))
    match kind:
        case b"S":
            peer.send(rest.split(FRAME))
        case b"N":
            peer.send_numbered(rest.split(FRAME))
        case b"R":
            peer.read(MOMENT_SECONDS)


def mutate(data: bytes, size_max: int, seed: int, change: Change) -> bytes:
    """A conversation with a step or a few changed, moved, doubled or left out."""
    return mutate_steps(data, size_max, seed, change, b"SNN", b"RRDW")
