"""A broker for each module, and a session in dialogue: what the broker says in and the session out."""

from collections.abc import Callable, Iterator

import pytest

from malamute.client.session.outbox import Command
from malamute.client.session.session import ClientSession
from malamute.protocol.batch import Columns, pack_queue_payload, pack_record, pack_stream_payload
from malamute.protocol.codec import decode, encode
from malamute.protocol.messages import Deliver, Message, Welcome
from malamute.testing import Broker

IDENTITY = b"\x01session-identit"
WELCOME = Welcome(2, IDENTITY, b"broker", False, "malamute 0", {})


class Dialogue:
    def __init__(self, address: str = "") -> None:
        self.session = ClientSession(IDENTITY, address=address, software="test")

    def receives(self, *messages: Message) -> None:
        for message in messages:
            self.session.receive(encode(message))

    def said(self) -> list[Message]:
        messages = []
        while (frames := self.session.outbox.next_to_send()) is not None:
            messages.append(decode([bytes(frame) for frame in frames]))
            self.session.outbox.sent()
        return messages

    def open(self) -> None:
        self.session.connected()
        self.receives(WELCOME)
        self.said()
        self.session.pop_events()

    def broken(self) -> None:
        self.session.disconnected()
        self.session.connected()

    def publish(self, *bodies: bytes, stream: str = "s") -> Command:
        command = Command()
        records = [pack_record(None, body) for body in bodies]
        self.session.sending.publish(stream, ["a"] * len(bodies), records, command)
        return command

    def publish_single(self, body: bytes, stream: str = "s", *, confirmed: bool = True) -> Command:
        command = Command()
        record = pack_record(None, body)
        self.session.sending.publish_single(stream, "a", record, command if confirmed else None)
        return command


def stream_delivery(source: int, after: int, sequences: list[int], body: bytes = b"x") -> Deliver:
    count = len(sequences)
    columns = Columns(sequences, 1, "alice", ["a"] * count, [pack_record(None, body)] * count)
    return Deliver(source, after, *pack_stream_payload(columns))


def queue_delivery(
    source: int, sequences: list[int], attempts: int = 1, properties: object = None, body: bytes = b"x"
) -> Deliver:
    count = len(sequences)
    records = [pack_record(None, body)] * count
    rows = None if properties is None else [properties] * count
    columns = Columns(sequences, [1] * count, "bob", ["a"] * count, records, attempts, rows)  # type: ignore[arg-type]
    return Deliver(source, 0, *pack_queue_payload(columns))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """The broker of a module, whose tests have streams and mailboxes of their own."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def dialogue() -> Dialogue:
    dialogue = Dialogue()
    dialogue.open()
    return dialogue


@pytest.fixture
def new_dialogue() -> Callable[..., Dialogue]:
    return Dialogue


@pytest.fixture
def delivery() -> Callable[..., Deliver]:
    return stream_delivery


@pytest.fixture
def mail() -> Callable[..., Deliver]:
    return queue_delivery
