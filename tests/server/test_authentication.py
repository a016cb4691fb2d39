"""The handler of libzmq's authentication protocol: each frame that is wrong, and what passwords cost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq
from zmq.utils import z85

from malamute.access import Account, Accounts
from malamute.access import account as module
from malamute.config.accounts import hash_password
from malamute.core.identity.access import Principal
from malamute.door.addresses import Gateways
from malamute.door.failures import ADDRESSES_MAX, FAILURE_SECONDS, FAILURES_MAX, Failures
from malamute.door.sampling import KINDS_MAX, Sampler
from malamute.errors import AccessRefused, MalamuteError, TryLater
from malamute.protocol.limits import NAME_BYTES_MAX
from malamute.protocol.messages import Hello
from malamute.protocol.passwords import pack_login
from malamute.server import passwords
from malamute.server.authentication import ENDPOINT, Authenticator, Reported
from malamute.server.edge import RefusedConnection
from malamute.server.passwords import Busy

KEY = bytes(range(32))


class Asking:
    """The session of libzmq, as the handler sees it: a socket that asks."""

    def __init__(self, accounts: Accounts) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.refusals: list[RefusedConnection] = []
        self.now = 0.0
        self.handler = Authenticator(
            self.context, accounts, self.refusals.append, gateways=Gateways(["10.0.0.9"])
        )
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(ENDPOINT)

    def ask(self, *frames: bytes) -> tuple[str, str]:
        """Ask with these frames behind the empty one. Returns the status and the user."""
        self.socket.send_multipart([b"", *frames])
        poller = zmq.Poller()
        for source in (self.socket, *self.handler.inputs):
            poller.register(source, zmq.POLLIN)
        while not self.socket.poll(0):
            assert poller.poll(30_000)
            self.handler.update(self.now)
        empty, version, request, status, _, user, _ = self.socket.recv_multipart()
        assert (empty, version, request) == (b"", b"1.0", b"7")
        return status.decode(), user.decode()

    def plain(self, user: str, password: str, address: str = "10.0.0.1") -> tuple[str, str]:
        connection = (b"1.0", b"7", b"domain", address.encode(), b"id")
        return self.ask(*connection, b"PLAIN", user.encode(), password.encode())

    def curve(self, key: bytes) -> tuple[str, str]:
        return self.ask(*CONNECTION, b"CURVE", key)


CONNECTION = (b"1.0", b"7", b"domain", b"10.0.0.1", b"id")


@pytest.fixture
def asking() -> Iterator[Asking]:
    accounts = Accounts(
        [
            Account("ann", key=z85.encode(KEY).decode()),
            Account("bob", hash_password("secret"), uid=1000),
            Account("out", hash_password("secret"), key=z85.encode(KEY[::-1]).decode(), disabled=True),
        ]
    )
    asking = Asking(accounts)
    yield asking
    asking.socket.close()
    asking.handler.close()
    asking.context.term()


def test_keys_and_passwords_say_who_somebody_is(asking: Asking) -> None:
    assert asking.curve(KEY) == ("200", "ann")
    assert asking.plain("bob", "secret") == ("200", "bob")
    assert asking.refusals == []


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (lambda asking: asking.curve(KEY[::-1]), "disabled account"),
        (lambda asking: asking.plain("bob", "wrong"), "wrong user or password"),
        (lambda asking: asking.plain("bob", ""), "wrong user or password"),
        (lambda asking: asking.plain("bob", "x" * 256), "wrong user or password"),
        (lambda asking: asking.plain("bob", "secret\0"), "wrong user or password"),
        (lambda asking: asking.plain("ann", "secret"), "wrong user or password"),
        (lambda asking: asking.plain("nobody", "nobody"), "wrong user or password"),
        (lambda asking: asking.plain("out", "secret"), "disabled account"),
    ],
)
def test_who_proves_nothing_is_refused(asking: Asking, ask: Callable[[Asking], Any], reason: str) -> None:
    assert ask(asking) == ("400", "")
    assert [refusal.reason for refusal in asking.refusals] == [reason]
    assert asking.refusals[0].address == "10.0.0.1"


def test_an_unknown_key_gets_no_further_where_nobody_has_a_password(asking: Asking) -> None:
    asking.handler.accounts = Accounts([Account("ann", key=z85.encode(KEY).decode())])
    assert asking.curve(bytes(32)) == ("400", "")
    assert [refusal.reason for refusal in asking.refusals] == ["unknown key"]


class Part:
    """A frame as libzmq has it, of a connection with a key that no account has."""

    def __init__(self, name: str, address: str = "10.0.0.1") -> None:
        self.properties = {"User-Id": name, "Peer-Address": address}

    def get(self, what: Any) -> Any:
        if what not in self.properties:
            raise zmq.ZMQError
        return self.properties[what]


def hello(asking: Asking, user: str, password: str) -> Principal | MalamuteError:
    """The outcome of a HELLO with a password on such a connection."""
    status, name = asking.curve(bytes(32))
    assert status == "200"
    said = Hello([2], "", attempt=3, token=pack_login(user, password))
    assert asking.handler.identify(b"p", said, Part(name), asking.now) is None
    while True:
        asking.handler.update(asking.now)
        for (_, taken, *_), outcome in asking.handler.bearers.pop(asking.now):
            assert taken.token == ""
            return outcome


def test_a_password_in_hello_says_who_somebody_is_and_whose_the_connection_is_then(asking: Asking) -> None:
    bob = asking.handler.accounts.named("bob")
    assert bob is not None
    for _ in range(2):  # the second time it is known
        assert hello(asking, "bob", "secret") == Principal(
            "bob", method="password", proof=bob.proof("password")
        )
    asking.handler.bearers.welcomed(b"p")
    assert asking.handler.user(b"p", Part("$token.2")) == "bob"
    assert asking.handler.user(b"p", Part("$token.1")) == "$token.1"
    assert asking.refusals == []


@pytest.mark.parametrize(
    ("user", "password", "words"),
    [
        ("bob", "wrong", "wrong user or password"),
        ("nobody", "nobody", "wrong user or password"),
        ("ann", "secret", "wrong user or password"),
        ("", "", "wrong user or password"),
        ("bob", "x" * 256, "wrong user or password"),
        ("out", "secret", "disabled account"),
    ],
)
def test_a_password_in_hello_that_is_not_right_is_refused_and_reported(
    asking: Asking, user: str, password: str, words: str
) -> None:
    error = hello(asking, user, password)
    assert isinstance(error, AccessRefused)
    assert (error.text, error.about, error.ref) == (words, 1, 3)
    assert asking.refusals == [RefusedConnection("10.0.0.1", "password", words, user)]


def test_wrong_passwords_in_hello_and_in_handshakes_count_together(asking: Asking) -> None:
    for _ in range(FAILURES_MAX):
        assert isinstance(hello(asking, "bob", "wrong"), AccessRefused)
    assert asking.plain("bob", "wrong") == ("300", "")
    with pytest.raises(TryLater, match="too many wrong passwords"):
        asking.handler.identify(
            b"p", Hello([2], "", token=pack_login("bob", "secret")), Part("$token.9"), asking.now
        )
    asking.now = FAILURE_SECONDS
    assert isinstance(hello(asking, "bob", "secret"), Principal)


def test_a_token_for_a_broker_without_issuers_and_a_proof_that_is_none_are_refused(asking: Asking) -> None:
    for token, words in [("e30.e30.", "no issuer"), ("", "has no token"), ("\0bob\0secret\0", "no issuer")]:
        with pytest.raises(AccessRefused, match=words):
            asking.handler.identify(b"p", Hello([2], "", token=token), Part("$token.1"), 0.0)
    with pytest.raises(AccessRefused, match="needs none"):
        asking.handler.identify(b"p", Hello([2], "", token=pack_login("bob", "secret")), Part("ann"), 0.0)


def peer_of(address: str) -> tuple[bytes, ...]:
    return (b"1.0", b"7", b"peer", address.encode(), b"id", b"NULL")


def test_a_listener_that_asks_nobody_says_that_nobody_is_there(asking: Asking) -> None:
    assert asking.ask(b"1.0", b"7", b"null", b"10.0.0.1", b"id", b"NULL") == ("200", "")
    assert asking.refusals == []


def test_the_system_says_who_is_on_the_other_end_of_a_socket(asking: Asking) -> None:
    assert asking.ask(*peer_of("localhost:1000:50:77")) == ("200", "bob")
    assert asking.ask(*peer_of("localhost:1001:1000:1000")) == ("400", "")
    for address in ("", "localhost", "localhost:1000", "127.0.0.1", "10.0.0.1:1000:1:1"):
        assert asking.ask(*peer_of(address)) == ("500", "")
    assert [refusal.reason for refusal in asking.refusals[:2]] == ["unknown uid", "malformed credentials"]


def test_another_process_of_the_same_user_is_no_other_address(asking: Asking) -> None:
    for process in range(FAILURES_MAX + 1):
        place = f"localhost:7:7:{process}".encode()
        status, _ = asking.ask(b"1.0", b"7", b"plain", place, b"id", b"PLAIN", b"bob", b"wrong")
    assert status == "300"


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ((*CONNECTION, b"CURVE", KEY[:31]), "malformed credentials"),
        ((*CONNECTION, b"CURVE", KEY, b""), "malformed credentials"),
        ((*CONNECTION, b"PLAIN", b"bob"), "malformed credentials"),
        ((*CONNECTION, b"NULL"), "malformed credentials"),
        ((*CONNECTION, b"\xff", b""), "malformed credentials"),
        ((b"2.0", *CONNECTION[1:], b"CURVE", KEY), "unknown version of ZAP"),
    ],
)
def test_each_malformed_request_is_refused_by_name(
    asking: Asking, frames: tuple[bytes, ...], reason: str
) -> None:
    assert asking.ask(*frames) == ("500", "")
    assert [refusal.reason for refusal in asking.refusals] == [reason]


def test_a_request_without_its_frames_is_passed_over(asking: Asking) -> None:
    asking.socket.send_multipart([b"", b"1.0", b"7"])
    assert asking.curve(KEY) == ("200", "ann")
    assert asking.handler.refused == {"malformed request": 1}


def test_an_account_that_changed_counts_at_once(asking: Asking) -> None:
    assert asking.plain("bob", "secret") == ("200", "bob")
    asking.handler.accounts = Accounts([Account("bob", hash_password("other"))])
    assert asking.plain("bob", "secret") == ("400", "")
    assert asking.plain("bob", "other") == ("200", "bob")
    asking.handler.accounts = Accounts()
    assert asking.plain("bob", "other") == ("400", "")


def test_who_was_right_before_is_not_tried_again(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asking.plain("bob", "secret") == ("200", "bob")
    monkeypatch.setattr(module.PasswordHash, "fits", lambda *given: pytest.fail("tried again"))
    assert asking.plain("bob", "secret") == ("200", "bob")


def test_an_address_with_too_many_wrong_passwords_has_to_wait_and_who_is_known_has_not(
    asking: Asking,
) -> None:
    assert asking.plain("bob", "secret") == ("200", "bob")
    for _ in range(FAILURES_MAX):
        assert asking.plain("bob", "wrong") == ("400", "")
    assert asking.plain("bob", "wrong") == ("300", "")
    assert asking.plain("bob", "secret") == ("200", "bob")
    asking.now = FAILURE_SECONDS
    assert asking.plain("bob", "wrong") == ("400", "")


def test_with_ipv6_whoever_has_a_network_has_no_more_tries_than_one_address(asking: Asking) -> None:
    for number in range(FAILURES_MAX):
        assert asking.plain("bob", "wrong", f"2001:db8:0:1::{number:x}") == ("400", "")
    assert asking.plain("bob", "wrong", "2001:db8:0:1:ffff::1") == ("300", "")
    assert asking.plain("bob", "wrong", "2001:db8:0:2::1") == ("400", "")


def test_of_those_behind_a_gateway_only_he_has_to_wait_for_whom_wrong_passwords_are(asking: Asking) -> None:
    for name in ("bob", ""):
        for _ in range(FAILURES_MAX):
            assert asking.plain(name, "wrong", "10.0.0.9") == ("400", "")
        assert asking.plain(name, "wrong", "10.0.0.9") == ("300", "")
    assert asking.plain("out", "secret", "10.0.0.9") == ("400", "")
    assert asking.plain("bob", "secret", "10.0.0.8") == ("200", "bob")


def test_a_name_that_no_account_can_have_is_refused_untried_and_not_remembered(asking: Asking) -> None:
    """HELLO has room for names of 8 KiB, and a gateway passes on those of many."""
    answers: list[Account | MalamuteError] = []
    for number in range(FAILURES_MAX + 1):
        name = f"{number}".rjust(NAME_BYTES_MAX + 1, "x")
        asking.handler.passwords.prove(name, b"wrong", "10.0.0.9", asking.now, answers.append)
    assert [type(answer) for answer in answers] == [AccessRefused] * (FAILURES_MAX + 1)
    assert asking.plain("x" * NAME_BYTES_MAX, "wrong", "10.0.0.9") == ("400", "")


def test_a_password_that_cannot_be_tried_is_refused_and_takes_nobody_elses_place(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "TRYING_MAX", 1)
    with monkeypatch.context() as patched:
        patched.setattr(module, "scrypt", lambda *given: _raise(MemoryError()))
        for _ in range(FAILURES_MAX + 1):
            assert asking.plain("bob", "secret") == ("500", "")
    assert {refusal.reason for refusal in asking.refusals} == {"a fault of the broker's own: MemoryError"}
    assert asking.plain("bob", "secret") == ("200", "bob")


def _raise(error: Exception) -> None:
    raise error


def test_a_client_that_connects_again_while_its_password_is_tried_costs_no_other_try(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine on which a try takes longer than clients wait would have more and more to try."""
    may_end = threading.Event()
    tried: list[bytes] = []
    scrypt = module.scrypt

    def slow(password: bytes, *cost: Any) -> bytes:
        tried.append(password)
        assert may_end.wait(30)
        return scrypt(password, *cost)

    monkeypatch.setattr(module, "scrypt", slow)
    answers: list[Account | MalamuteError] = []
    subject = asking.handler.passwords
    for _ in range(FAILURES_MAX + 1):
        for password in (b"wrong", b"secret"):
            subject.prove("bob", password, "10.0.0.1", asking.now, answers.append)
    subject.prove("bob", b"wrong", "10.0.0.2", asking.now, answers.append)
    may_end.set()
    while len(answers) < 2 * FAILURES_MAX + 3:
        poller = zmq.Poller()
        poller.register(subject.fileno(), zmq.POLLIN)
        assert poller.poll(30_000)
        subject.update(asking.now)
    assert tried == [b"wrong", b"secret"]
    assert [type(answer) for answer in answers] == [AccessRefused] * 12 + [Account] * 11
    # A guess counts once, however often its client asked meanwhile.
    for _ in range(FAILURES_MAX - 1):
        assert asking.plain("bob", "other") == ("400", "")
    assert asking.plain("bob", "other") == ("300", "")


def test_clients_that_wait_for_one_try_are_so_many_at_the_most(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "TRYING_MAX", 3)
    may_end = threading.Event()
    monkeypatch.setattr(module, "scrypt", lambda *given: bytes(32 * may_end.wait(30)))
    answers: list[Account | MalamuteError] = []
    for _ in range(3):
        asking.handler.passwords.prove("bob", b"wrong", "10.0.0.1", asking.now, answers.append)
    with pytest.raises(Busy):
        asking.handler.passwords.prove("bob", b"wrong", "10.0.0.1", asking.now, answers.append)
    may_end.set()


def test_more_passwords_at_a_time_than_may_wait_come_again_by_no_fault_of_their_own(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "TRYING_MAX", 0)
    assert asking.plain("bob", "secret") == ("300", "")
    assert asking.refusals == [RefusedConnection("10.0.0.1", "PLAIN", "too many at a time", "bob", busy=True)]
    for _ in range(2):  # it waits no more when it is refused
        with pytest.raises(Busy):
            asking.handler.identify(
                b"p", Hello([2], "", token=pack_login("bob", "secret")), Part("$token.1"), 0.0
            )
    assert [refusal.busy for refusal in asking.refusals[1:]] == [True, True]


def test_addresses_that_are_remembered_are_bounded() -> None:
    failures = Failures()
    for number in range(ADDRESSES_MAX + 5):
        failures.add(str(number), 0.0)
    assert len(failures._found) == ADDRESSES_MAX


def test_refusals_are_written_once_a_second_for_each_reason() -> None:
    lines: list[dict[str, Any]] = []

    class Log:
        def warning(self, event: str, **details: Any) -> None:
            lines.append(details)

    now = [0.0]
    report = Reported(Log(), lambda: now[0])
    for _ in range(5):
        report(RefusedConnection("a", "PLAIN", "wrong"))
    report(RefusedConnection("a", "CURVE", "unknown"))
    now[0] = 1.0
    report(RefusedConnection("b", "PLAIN", "wrong"))
    assert [(line["address"], line["reason"], line["count"]) for line in lines] == [
        ("a", "wrong", 1),
        ("a", "unknown", 1),
        ("b", "wrong", 5),
    ]


def test_of_very_many_reasons_the_first_ones_are_counted_and_no_more():
    sampler = Sampler(lambda: 0.0)
    assert sum(sampler.count(f"reason {number}") for number in range(2 * KINDS_MAX)) == KINDS_MAX
    assert len(sampler._waiting) == 0
