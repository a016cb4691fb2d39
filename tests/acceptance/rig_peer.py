"""A peer that says exactly what a test wants: a DEALER socket without any client around it."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import zmq
from rig_waiting import PATIENCE

from malamute.protocol.codec import decode, encode
from malamute.protocol.messages import Error, Hello, Message, Ping, Pong, Received, Welcome


class Peer:
    """One DEALER. What it receives is decoded as a client would."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket

    def send_frames(self, *frames: bytes) -> None:
        """Send these frames, whatever they are."""
        self.socket.send_multipart(frames)

    def send(self, message: Message) -> None:
        """Send a message."""
        self.socket.send_multipart(encode(message))

    def receive(self) -> Message:
        """The next message."""
        while True:
            assert self.socket.poll(int(PATIENCE * 1000)), "no answer"
            message = decode(self.socket.recv_multipart())
            if not isinstance(message, Ping) or not message.token:
                return message
            self.send(Received(message.token))

    def ask(self, message: Message) -> Message:
        """Send a message, and give the next one that comes and is no question whether this peer is there."""
        self.send(message)
        while isinstance(answer := self.receive(), Ping):
            pass
        return answer

    def open(self, address: str = "") -> Welcome:
        """Say HELLO."""
        welcome = self.ask(Hello([2], address, "a bare peer"))
        assert isinstance(welcome, Welcome), welcome
        return welcome

    def answers(self) -> list[Message]:
        """Everything that comes before the answer to a PING that goes out now."""
        self.send(Ping())
        answers: list[Message] = []
        while not isinstance(message := self.receive(), Pong):
            answers.append(message)
        return answers

    def errors_to(self, frames: Sequence[bytes]) -> list[tuple[int, int, int]]:
        """Code, opcode and number of each ERROR that these frames bring; nothing else may come."""
        self.send_frames(*frames)
        answers = [answer for answer in self.answers() if not isinstance(answer, Ping)]
        assert all(isinstance(answer, Error) for answer in answers), answers
        return [(answer.code, answer.about, answer.ref) for answer in answers if isinstance(answer, Error)]


@contextmanager
def peers(url: str, count: int = 1, **options: Any) -> Iterator[list[Peer]]:
    """Peers that are connected to a broker, each with a routing id as clients choose theirs."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4096)
    made = []
    for _ in range(count):
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.set(zmq.ROUTING_ID, options.get("identity") or b"\1" + secrets.token_bytes(15))
        socket.connect(url)
        made.append(Peer(socket))
    try:
        yield made
    finally:
        context.destroy(0)


@contextmanager
def peer(url: str, **options: Any) -> Iterator[Peer]:
    """One such peer."""
    with peers(url, 1, **options) as made:
        yield made[0]
