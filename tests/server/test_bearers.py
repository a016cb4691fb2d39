"""Tokens beside the loop: what waits, what is refused without a look, and whose a frame is."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator

import pytest

from malamute.access.token import Bearer, Issuers, TokenRefused
from malamute.core.identity.access import Principal
from malamute.door.addresses import Gateways
from malamute.door.failures import FAILURE_SECONDS, FAILURES_MAX
from malamute.errors import AccessRefused, MalamuteError, TryLater
from malamute.protocol.messages import Hello
from malamute.server import bearers as module
from malamute.server.bearers import METHOD, WAITING_MAX, Bearers, WaitingHello
from malamute.server.passwords import BUSY, Busy

PEER, WALL = b"\x01" * 16, 1_700_000_000.0


class Signed(Issuers):
    """Issuers to whom a token is a name; the test says when they verify."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()

    @property
    def keys(self) -> frozenset[str]:
        return frozenset({"k"})

    def verify(self, token: str, now: float) -> Bearer:
        assert self.go.wait(30)
        if token == "wrong":
            raise TokenRefused("wrong signature")
        if token == "fault":
            raise ZeroDivisionError(token)
        return Bearer(token, (), now + 60, "old" if token == "old" else "k")


class Desk:
    """Bearers, and what they refused."""

    address = "10.0.0.1"

    def __init__(self) -> None:
        self.issuers = Signed()
        self.refusals: list[tuple[str, str]] = []
        self.bearers = Bearers(
            self.issuers,
            lambda *refusal: self.refusals.append(refusal),
            lambda user: user == "out",
            lambda: WALL,
            Gateways(["10.0.0.9"]),
        )

    def put(self, token: str, connection: str = "$token.1", now: float = 0.0, peer: bytes = PEER) -> None:
        hello = Hello([2], "", attempt=3)
        self.bearers.prove(WaitingHello(peer, hello, connection, self.address, 7), token, now)

    def take(self, now: float = 0.0) -> Principal | MalamuteError:
        """The outcome of the next one, which waits for the thread."""
        while True:
            for _, outcome in self.bearers.pop(now):
                return outcome

    def prove(self, token: str, now: float = 0.0) -> Principal | MalamuteError:
        self.put(token, now=now)
        return self.take(now)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.issuers.go.set()
    desk.bearers.close()


def test_a_token_is_valid_for_as_long_as_it_says_by_the_time_of_the_loop(desk: Desk) -> None:
    assert desk.prove("ann", now=5.0) == Principal("ann", method=METHOD, expires_at=65.0, key="k")


def test_a_connection_is_of_its_user_from_welcome_on_and_no_other_connection_is(desk: Desk) -> None:
    desk.prove("ann")
    assert desk.bearers.user(PEER, "$token.1") == "$token.1"
    desk.bearers.welcomed(PEER)
    assert desk.bearers.user(PEER, "$token.1") == "ann"
    assert desk.bearers.user(PEER, "$token.2") == "$token.2"
    assert desk.bearers.user(b"other", "$token.1") == "$token.1"
    desk.bearers.forget(PEER)
    assert desk.bearers.user(PEER, "$token.1") == "$token.1"


def test_a_session_without_a_token_takes_the_place_of_one_with(desk: Desk) -> None:
    desk.prove("ann")
    desk.bearers.welcomed(PEER)
    desk.bearers.welcomed(PEER)
    assert desk.bearers.user(PEER, "$token.1") == "$token.1"


@pytest.mark.parametrize(
    ("token", "code", "reason"),
    [
        ("wrong", 401, "wrong signature"),
        ("out", 401, "token of nobody who may log in"),
        ("old", 401, "token of nobody who may log in"),
        ("fault", 500, "a fault of the broker's own with a token: ZeroDivisionError"),
    ],
)
def test_what_is_refused_is_noted_and_answers_its_hello(
    desk: Desk, token: str, code: int, reason: str
) -> None:
    error = desk.prove(token)
    assert isinstance(error, MalamuteError)
    assert (error.code, error.about, error.ref) == (code, 1, 3)
    assert desk.refusals == [("10.0.0.1", reason)]


def test_no_token_is_refused_at_once(desk: Desk) -> None:
    with pytest.raises(AccessRefused, match="has no token"):
        desk.put("")
    assert desk.refusals == [("10.0.0.1", "no token")]


def test_an_address_with_too_many_refused_tokens_has_to_wait(desk: Desk) -> None:
    for _ in range(FAILURES_MAX):
        desk.prove("wrong")
    with pytest.raises(TryLater, match="too many tokens from this address"):
        desk.put("ann")
    assert isinstance(desk.prove("ann", now=FAILURE_SECONDS), Principal)


def test_nobody_has_to_wait_for_those_who_come_through_the_same_gateway(desk: Desk) -> None:
    desk.address = "10.0.0.9"
    for _ in range(FAILURES_MAX):
        desk.prove("wrong")
    assert isinstance(desk.prove("ann"), Principal)


def test_few_wait_and_one_of_each_connection(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    desk.issuers.go.clear()
    desk.put("ann")
    with pytest.raises(TryLater, match="another HELLO of this connection"):
        desk.put("ann")
    desk.put("bob", "$token.2")
    with pytest.raises(Busy):
        desk.put("carl", "$token.3")
    assert desk.refusals == [("10.0.0.1", BUSY)]
    desk.issuers.go.set()
    assert [desk.take(), desk.take()] == [
        Principal(user, method=METHOD, expires_at=60.0, key="k") for user in ("ann", "bob")
    ]
    desk.put("ann")


def test_the_loop_itself_never_waits_to_say_that_proofs_are_verified(desk):
    """Passwords that were right before are verified at once, by the thread that takes them."""
    bearers = desk.bearers
    bearers._sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    waiting = [WaitingHello(PEER, Hello([2], ""), f"$token.{n}", desk.address, 7) for n in range(WAITING_MAX)]

    def verify() -> None:
        for each in waiting:
            bearers.wait(each)
            bearers.done(each, Principal("ann"))

    loop = threading.Thread(target=verify, daemon=True)
    loop.start()
    loop.join(10)
    assert not loop.is_alive()
    for each in waiting:
        assert select.select([bearers.fileno()], [], [], 0)[0]
        assert next(bearers.pop(0.0)).waiting == each
    assert not select.select([bearers.fileno()], [], [], 0)[0]
