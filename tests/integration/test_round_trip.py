"""The messages that one request after the other costs: two of the clients, two of the broker."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest

import malamute
from malamute.client.link.link import Link
from malamute.client.session.session import ClientSession
from malamute.protocol import messages
from malamute.protocol.codec import decode
from malamute.protocol.messages import Ack, Credit, Deliver, Message, Ping, Received, Reply, Request, Stored
from malamute.testing import Broker

PATIENCE = 40.0
REQUESTS = 10
PROBES = (Ping, Received, messages.Query, messages.Answer, messages.PackedAnswer)
"""The broker may ask at any time whether a client is there; one of other tests, what its broker does."""

Answer = Callable[[malamute.Client], None]


class Transcript:
    """The frames that clients of this process send and receive, from `begin` on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[Message] = []
        self.received: list[Message] = []
        send, receive = Link.send, ClientSession.receive

        def noted_send(link: Link, frames: Sequence[bytes]) -> bool:
            # Before it is sent: once it was, the other end may be done and `begin` anew.
            message = self._note(self.sent, frames)
            taken = send(link, frames)
            if not taken and message is not None:
                self.sent.remove(message)
            return taken

        def noted_receive(session: ClientSession, frames: Sequence[bytes]) -> None:
            self._note(self.received, frames)
            receive(session, frames)

        monkeypatch.setattr(Link, "send", noted_send)
        monkeypatch.setattr(ClientSession, "receive", noted_receive)

    def _note(self, place: list[Message], frames: Sequence[bytes]) -> Message | None:
        message = decode([bytes(frame) for frame in frames])
        if isinstance(message, PROBES):
            return None
        place.append(message)
        return message

    def begin(self) -> None:
        self.sent.clear()
        self.received.clear()

    @property
    def counts(self) -> tuple[dict[type, int], dict[type, int]]:
        return dict(Counter(map(type, self.sent))), dict(Counter(map(type, self.received)))


@pytest.fixture
def transcript(monkeypatch: pytest.MonkeyPatch) -> Transcript:
    return Transcript(monkeypatch)


@pytest.fixture
def url() -> Iterator[str]:
    """A broker, and a worker that answers one request after the other."""
    with Broker() as broker:
        offered = threading.Event()

        def work() -> None:
            with malamute.connect(broker.url, address="worker") as client, client.work("echo") as requests:
                offered.set()
                for request in requests:
                    request.reply(request.body)
                    if request.subject == "last":
                        return

        worker = threading.Thread(target=work)
        worker.start()
        assert offered.wait(PATIENCE)
        yield broker.url
        with malamute.connect(broker.url) as client:
            [*client.request("echo", "last")]
        worker.join()


def ask(client: malamute.Client, count: int, **options: str) -> None:
    for place in range(count):
        (reply,) = client.request("echo", "a", b"%d" % place, timeout=PATIENCE, **options)
        assert reply.body == b"%d" % place


@pytest.mark.parametrize(("assurance", "confirmations"), [("none", {}), ("stored", {Stored: REQUESTS})])
def test_a_request_costs_two_messages_of_clients_and_two_of_the_broker(
    transcript: Transcript, url: str, assurance: str, confirmations: dict[type, int]
) -> None:
    with malamute.connect(url, address="alice") as client:
        ask(client, 1, assurance=assurance)
        transcript.begin()
        ask(client, REQUESTS, assurance=assurance)
        assert transcript.counts == (
            {Request: REQUESTS, Reply: REQUESTS},
            {Deliver: 2 * REQUESTS, **confirmations},
        )
        carried = [message.acks for message in transcript.sent if isinstance(message, Request)]
        assert all(len(acks) == 1 for acks in carried)
        transcript.begin()
        client.flush()
        (alone,) = [message for message in transcript.sent if isinstance(message, Ack)]
        ((first, last),) = alone.ranges
        assert first == last


def test_nothing_is_outstanding_when_all_was_acknowledged(transcript: Transcript, url: str) -> None:
    with malamute.connect(url, address="alice") as client:
        ask(client, REQUESTS)
        client.flush()
        (mailbox,) = [row for row in client.query("mailboxes") if row["name"] == "alice"]
        assert mailbox["in_flight"] == 0
        assert not [message for message in transcript.sent if isinstance(message, Credit) and message.source]
