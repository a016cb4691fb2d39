"""One WebSocket with many subscriptions: credit decides what comes, and each ends by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import msgpack
import pytest
from damaged_messages import publish_damaged
from running_gateway import WAIT_SECONDS, RunningGateway
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode
from websockets.sync.client import ClientConnection, connect

import malamute
from malamute.errors import NotFound
from malamute.gateway.ws import CREDIT_MAX, JSON, SUBSCRIPTIONS_MAX, WINDOW_BYTES, PageSocket
from malamute.protocol.admin import StreamPurge, StreamQuery
from malamute.testing import Broker


class Page:
    def __init__(self, socket: ClientConnection, form: str = "malamute.json") -> None:
        self._socket = socket
        self._packed = form == "malamute.msgpack"

    def send(self, op: str, **fields: Any) -> None:
        message = {"op": op, **fields}
        self._socket.send(msgpack.packb(message) if self._packed else json.dumps(message))

    def raw(self, data: str | bytes) -> None:
        self._socket.send(data)

    def raw_text(self, data: bytes) -> None:
        self._socket.send(data, text=True)

    def receive(self) -> dict[str, Any]:
        data = self._socket.recv(WAIT_SECONDS)
        assert isinstance(data, bytes) == self._packed
        return dict(msgpack.unpackb(data) if isinstance(data, bytes) else json.loads(data))

    def bodies(self, count: int) -> list[tuple[int, str]]:
        found = [self.receive() for _ in range(count)]
        assert {report["op"] for report in found} <= {"message"}
        return [(report["id"], report["body"]) for report in found]


@contextmanager
def _page(gateway: RunningGateway, form: str = "", **options: Any) -> Iterator[Page]:
    url = gateway.url.replace("http://", "ws://") + "/v1/ws"
    protocols = [form] if form else None
    with connect(url, subprotocols=protocols, proxy=None, **options) as socket:  # type: ignore[arg-type]
        assert socket.subprotocol == (form or None)
        yield Page(socket, form or "malamute.json")


@pytest.fixture
def page(gateway: RunningGateway) -> Iterator[Page]:
    with _page(gateway) as page:
        yield page


def _publish(client: malamute.Client, stream: str, first: int, last: int, body: bytes = b"%d") -> None:
    numbers = range(first, last + 1)
    client.publish_batch(stream, ["s"] * len(numbers), [body % n for n in numbers])


def test_a_position_of_another_store_is_a_gap_before_the_first_message(
    gateway: RunningGateway, client: malamute.Client
) -> None:
    _publish(client, "a", 1, 2)
    with _page(gateway, "malamute.json") as page:
        page.send("subscribe", id=7, stream="a", start="after:1@" + "ee" * 16, credit=10)
        assert page.receive()["op"] == "subscribed"
        gap = {"first": 1, "last": 0, "reason": "another-store", "store": client.store}
        assert page.receive() == {"op": "gap", "id": 7, "stream": "a", **gap}
        assert page.bodies(2) == [(7, "1"), (7, "2")]


@pytest.mark.parametrize("form", ["", "malamute.json", "malamute.msgpack"])
def test_many_subscriptions_share_a_socket(
    gateway: RunningGateway, client: malamute.Client, form: str
) -> None:
    _publish(client, "a", 1, 2)
    with _page(gateway, form) as page:
        page.send("subscribe", id=7, stream="a", start="first", credit=10)
        assert page.receive() == {"op": "subscribed", "id": 7, "first": 1, "store": client.store}
        assert page.bodies(2) == [(7, "1"), (7, "2")]
        page.send("subscribe", id=8, stream="b", patterns=["s"], where="not n = 1", credit=10)
        assert page.receive() == {"op": "subscribed", "id": 8, "first": 1, "store": client.store}
        _publish(client, "b", 1, 1)
        message = page.receive()
        assert message.pop("time").endswith("Z")
        expected = {"op": "message", "id": 8, "sequence": 1, "sender": "native", "subject": "s", "body": "1"}
        assert message == expected


def test_nothing_comes_without_credit_and_all_of_it_with_more(
    gateway: RunningGateway, page: Page, client: malamute.Client
) -> None:
    page.send("subscribe", id=1, stream="a", start="first")
    assert page.receive()["op"] == "subscribed"
    for first in range(1, 2001, 100):
        _publish(client, "a", first, first + 99, b"%d " + b"x" * 1000)
    assert client.query(StreamQuery(name="a")).switches_to_replay > 0
    page.send("credit", id=1, messages=3)
    assert [body.split()[0] for _, body in page.bodies(3)] == ["1", "2", "3"]
    # The present answer was not held up by messages: there is no credit for them.
    page.send("credit", id=9, messages=1)
    assert page.receive()["op"] == "problem"
    page.send("credit", id=1, messages=CREDIT_MAX)
    assert [int(body.split()[0]) for _, body in page.bodies(1997)] == [*range(4, 2001)]


def test_a_page_that_does_not_read_goes_into_replay_whatever_credit_it_has_given(
    gateway: RunningGateway, client: malamute.Client
) -> None:
    with _page(gateway, "malamute.msgpack") as page:
        page.send("subscribe", id=1, stream="a", start="first", credit=CREDIT_MAX)
        assert page.receive()["op"] == "subscribed"
        for first in range(1, 301, 10):
            _publish(client, "a", first, first + 9, b"%d " + b"x" * 60_000)
        assert client.query(StreamQuery(name="a")).switches_to_replay > 0
        # Of what the system has not taken one message is written, and one window has come from the broker,
        # which stops behind the message that uses it up.
        [connection] = [
            one
            for one in gateway.server.server_state.connections
            if isinstance(one, WebSocketsSansIOProtocol)
        ]
        assert connection.transport.get_write_buffer_size() < 200_000
        [subscription] = gateway.state._followed
        assert (subscription._source.waiting - 1) * 60_000 < WINDOW_BYTES
        assert [int(body.split()[0]) for _, body in page.bodies(300)] == [*range(1, 301)]


class _FakeSocket:
    """A page that sends these commands with a pause between, and reads when it may."""

    def __init__(self, commands: Iterable[dict[str, Any]], pause: int) -> None:
        self.reads = asyncio.Event()
        self.read: list[str] = []
        self._commands = iter(commands)
        self._pause = pause

    async def receive(self) -> dict[str, Any]:
        for command in self._commands:
            for _ in range(self._pause):
                await asyncio.sleep(0)
            return {"type": "websocket.receive", "text": json.dumps(command)}
        await self.reads.wait()
        return {"type": "websocket.disconnect"}

    async def send_text(self, text: str) -> None:
        await self.reads.wait()
        self.read.append(json.loads(text)["op"])


class _FakeClient:
    """A client whose subscriptions are refused, or never answered."""

    def __init__(self, *, refuses: bool) -> None:
        self._refuses = refuses

    @asynccontextmanager
    async def subscribe(self, *arguments: object, **options: object) -> AsyncIterator[None]:
        if self._refuses:
            raise NotFound("there is no stream")
        await asyncio.Event().wait()
        yield


def test_a_page_that_sends_and_does_not_read_has_no_more_tasks_than_subscriptions() -> None:
    async def play() -> None:
        commands = ({"op": "subscribe", "id": number % 2, "stream": "a"} for number in range(500))
        socket: Any = _FakeSocket(commands, pause=3)
        page = PageSocket(socket, cast("Any", None), cast("Any", _FakeClient(refuses=True)), JSON)
        serving = asyncio.create_task(page.serve())
        for _ in range(2_000):
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) <= SUBSCRIPTIONS_MAX + 2
        socket.reads.set()
        await serving
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(play())


@pytest.mark.parametrize("pause", [0, 3])
def test_the_end_of_a_subscription_is_reported_once_however_fast_and_often_it_is_ended(pause: int) -> None:
    async def play() -> None:
        end = {"op": "unsubscribe", "id": 1}
        socket: Any = _FakeSocket([{"op": "subscribe", "id": 1, "stream": "a"}, end, end], pause)
        socket.reads.set()
        page = PageSocket(socket, cast("Any", None), cast("Any", _FakeClient(refuses=False)), JSON)
        await page.serve()
        assert sorted(socket.read) == ["ended", "problem"]

    asyncio.run(play())


def test_a_server_that_has_closed_the_socket_already_is_no_fault() -> None:
    class Closed(_FakeSocket):
        async def send_text(self, text: str) -> None:
            raise RuntimeError("Unexpected ASGI message 'websocket.send', after sending 'websocket.close'.")

    socket: Any = Closed([{"op": "subscribe", "id": 1, "stream": "a"}, {"op": "none"}], pause=0)
    page = PageSocket(socket, cast("Any", None), cast("Any", _FakeClient(refuses=True)), JSON)
    asyncio.run(page.serve())


def test_a_subscription_ends_when_the_page_says_so_and_its_id_is_free(page: Page) -> None:
    for _ in range(2):
        page.send("subscribe", id=1, stream="a", credit=1)
        assert page.receive()["op"] == "subscribed"
        page.send("unsubscribe", id=1)
        assert page.receive() == {"op": "ended", "id": 1}


def test_what_is_refused_ends_with_a_problem(page: Page) -> None:
    page.send("subscribe", id=1, stream="a", where="a =")
    ended = page.receive()
    assert (ended["op"], ended["id"], ended["problem"]["code"]) == ("ended", 1, 415)


def test_a_gap_stands_where_it_belongs(page: Page, client: malamute.Client) -> None:
    _publish(client, "a", 1, 3)
    client.change(StreamPurge(stream="a"))
    _publish(client, "a", 4, 4)
    page.send("subscribe", id=1, stream="a", start="seq:2", credit=1)
    assert page.receive()["op"] == "subscribed"
    gap = page.receive()
    assert (gap["op"], gap["id"], gap["first"], gap["last"]) == ("gap", 1, 2, 3)
    assert page.receive()["sequence"] == 4


def test_a_message_that_cannot_be_read_is_a_gap_and_costs_no_credit(page: Page, broker: Broker) -> None:
    publish_damaged(broker.url, "a")
    page.send("subscribe", id=1, stream="a", start="first", credit=2)
    found = [page.receive() for _ in range(4)]
    assert [report["op"] for report in found] == ["subscribed", "message", "gap", "message"]
    assert (found[2]["first"], found[2]["last"], found[2]["reason"]) == (2, 2, "malformed")


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("{", 400),
        ("[]", 400),
        ('{"op": "explode", "id": 1}', 400),
        ('{"op": "subscribe", "id": 1}', 400),
        ('{"op": "subscribe", "id": 1, "stream": 7}', 400),
        ('{"op": "subscribe", "id": 1, "stream": "a", "more": 1}', 400),
        ('{"op": "subscribe", "id": 1, "stream": "a", "credit": -1}', 416),
        (f'{{"op": "subscribe", "id": 1, "stream": "a", "credit": {CREDIT_MAX + 1}}}', 416),
        ('{"op": "credit", "id": 1, "messages": 1}', 404),
        ('{"op": "unsubscribe", "id": 1}', 404),
        (b"\x80", 400),
        ("[" * 100_000, 400),
    ],
)
def test_a_bad_frame_is_a_problem_and_the_socket_stays(page: Page, frame: str | bytes, code: int) -> None:
    page.raw(frame)
    problem = page.receive()
    assert (problem["op"], problem["code"]) == ("problem", code)
    page.send("subscribe", id=2, stream="a")
    assert page.receive()["op"] == "subscribed"


def test_a_frame_may_be_as_large_as_a_body_and_not_larger(start: Callable[..., RunningGateway]) -> None:
    gateway = start(body_bytes=200)
    command = '{"op": "subscribe", "id": 1, "stream": "a"}'
    with _page(gateway) as page:
        page.raw(command.ljust(200))
        assert page.receive()["op"] == "subscribed"
        page.raw(command.ljust(201))
        with pytest.raises(ConnectionClosed) as closed:
            page.receive()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == CloseCode.MESSAGE_TOO_BIG


def test_a_text_that_is_no_utf_8_ends_the_socket_and_is_no_fault(
    page: Page, caplog: pytest.LogCaptureFixture
) -> None:
    page.raw_text(b'{"op": "subscribe", "id": 1, "stream": "\xff"}')
    with pytest.raises(ConnectionClosed) as closed:
        page.receive()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == CloseCode.INVALID_DATA
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_there_are_as_many_subscriptions_as_there_may_be(page: Page) -> None:
    for number in range(SUBSCRIPTIONS_MAX):
        page.send("subscribe", id=number, stream="a")
        assert page.receive()["op"] == "subscribed"
    page.send("subscribe", id=SUBSCRIPTIONS_MAX, stream="a")
    assert page.receive()["code"] == 429
    page.send("subscribe", id=0, stream="a")
    assert page.receive()["code"] == 416


def test_who_may_not_come_gets_no_socket_and_is_no_fault(
    start: Callable[..., RunningGateway], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidStatus) as refused, _page(start(anonymous=False)):
        pass
    assert refused.value.response.status_code == 401
    assert json.loads(refused.value.response.body)["code"] == 905
    with pytest.raises(InvalidStatus) as refused, _page(start(), origin="http://evil.example"):
        pass
    assert refused.value.response.status_code == 403
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_socket_ends_with_the_gateway_and_a_gone_page_leaves_nothing(
    start: Callable[..., RunningGateway],
) -> None:
    gateway = start()
    with _page(gateway) as page:
        page.send("subscribe", id=1, stream="a")
        assert page.receive()["op"] == "subscribed"
        assert len(gateway.state._followed) == 1
    with gateway.client() as http:
        while gateway.state._followed:
            http.get("/live")
    with _page(gateway) as page:
        page.send("subscribe", id=1, stream="a")
        assert page.receive()["op"] == "subscribed"
        gateway.stop()
