"""Clients with bearer tokens: who they are, until when, and that nothing shows a token."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
import structlog
import zmq
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from structlog.testing import LogCapture

import malamute
import malamute.aio
from malamute.access import AccessRule, Account, Accounts
from malamute.config import AccessConfig, Config, ListenConfig, TokenIssuer, UserRules
from malamute.config.accounts import hash_password, load_accounts, save_accounts
from malamute.door.failures import FAILURES_MAX
from malamute.errors import AccessRefused, ConfigError, ConnectTimeout, InvalidValue, TryLater
from malamute.protocol.admin import BrokerReload
from malamute.protocol.codec import decode, encode
from malamute.protocol.messages import Error, Hello, Publish, Welcome
from malamute.server import daemon
from malamute.server.daemon import open_broker
from malamute.testing import small_config

ISSUER = "https://login.example.org"
LEEWAY_SECONDS = 5
LEEWAY_LEFT = 2
RULES = ("create,publish,subscribe stream/{claim.tenant}", "receive mailbox/{user}", "view,admin broker/#")


class TokenBroker:
    """A broker with an open listener, one for passwords and one for keys, and an issuer of tokens."""

    def __init__(self, directory: Path) -> None:
        self.key = ed25519.Ed25519PrivateKey.generate()
        self.accounts_file, self.key_file = directory / "accounts.toml", directory / "issuer.pem"
        self.save_key(self.key)
        save_accounts(Accounts([Account("root", hash_password("secret"))]), self.accounts_file)
        self.public, secret = (half.decode() for half in zmq.curve_keypair())
        broker_key = directory / "broker.key_secret"
        broker_key.touch(0o600)
        broker_key.write_text(f'public-key = "{self.public}"\nsecret-key = "{secret}"\n')
        self.issuers: tuple[TokenIssuer, ...] = (
            TokenIssuer(ISSUER, "malamute", str(self.key_file), ("EdDSA",)),
        )
        self.context: zmq.Context[Any] = zmq.Context()
        self.loop = open_broker(self.config(), self.context, read=self.config)
        self.open, self.plain, self.curve = self.loop.endpoints
        self._thread = threading.Thread(target=self.loop.run, daemon=True)
        self._thread.start()

    def save_key(self, key: ed25519.Ed25519PrivateKey) -> None:
        pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self.key_file.touch(0o644)
        self.key_file.write_bytes(pem)

    def config(self) -> Config:
        config = small_config()
        return replace(
            config,
            storage=replace(config.storage, kind="memory"),
            listen=ListenConfig(
                endpoints=("tcp://127.0.0.1:*", "plain+tcp://127.0.0.1:*", "curve+tcp://127.0.0.1:*")
            ),
            access=AccessConfig(
                accounts=str(self.accounts_file),
                key=str(self.accounts_file.with_name("broker.key_secret")),
                rules=tuple(map(AccessRule.parse, RULES)),
                user=(UserRules("root", rules=(AccessRule.parse("* */#"),)),),
                issuer=self.issuers,
            ),
        )

    def token(self, user: str = "ann", seconds: float = 600, **claims: Any) -> str:
        given = {"iss": ISSUER, "aud": "malamute", "sub": user, "tenant": "t", **claims}
        return jwt.encode({**given, "exp": time.time() + seconds}, self.key, "EdDSA")

    def connect(self, user: str = "ann", **options: Any) -> malamute.Client:
        given = {"server_key": self.public, "token": self.token(user), "timeout": 30, **options}
        return malamute.connect(self.curve, **given)

    def root(self, **options: Any) -> malamute.Client:
        return malamute.connect(self.plain, user="root", password="secret", timeout=30, **options)

    def close(self) -> None:
        self.loop.stop()
        self._thread.join()
        self.context.term()


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> LogCapture:
    """The log of a broker that is started after this."""
    capture = LogCapture()
    logger = structlog.wrap_logger(None, processors=[capture], wrapper_class=structlog.BoundLogger)
    monkeypatch.setattr(daemon, "log", logger)
    return capture


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TokenBroker]:
    broker = TokenBroker(tmp_path)
    yield broker
    broker.close()


def test_a_token_says_who_a_client_is_and_what_he_may_do(broker: TokenBroker) -> None:
    with (
        broker.connect("ann", address="ann") as ann,
        malamute.connect(broker.plain, token=broker.token("bob"), address="bob", timeout=30) as bob,
    ):
        with bob.subscribe("t") as subscription:
            ann.publish("t", "a", b"x", assurance="stored")
            assert subscription.receive().sender == "ann"
        with pytest.raises(AccessRefused, match="'publish stream/other/a' is not allowed"):
            ann.publish("other", "a", b"x", assurance="stored")
    with pytest.raises(AccessRefused, match="'receive mailbox/bob' is not allowed"):
        broker.connect("ann", address="bob")


def test_the_environment_has_a_token_for_asyncio_too(
    broker: TokenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALAMUTE_TOKEN", broker.token("ann"))
    monkeypatch.setenv("MALAMUTE_SERVER_KEY", broker.public)

    async def publish() -> int:
        async with malamute.aio.connect(broker.curve, address="ann", timeout=30) as client:
            return await client.publish("t", "a", b"x", assurance="stored")

    assert asyncio.run(publish()) == 1


def test_a_session_ends_when_its_token_expires_and_says_so(broker: TokenBroker) -> None:
    key = jwt.encode(
        {"iss": ISSUER, "aud": "malamute", "sub": "ann", "tenant": "t", "exp": time.time() - 4},
        broker.key,
        "EdDSA",
    )
    with (
        broker.connect(token=key) as ann,
        pytest.raises(AccessRefused, match="the token of 'ann' has expired"),
    ):
        ann.subscribe("t").receive(timeout=30)


class ShortTokens:
    """Gives tokens: the first is valid for a moment, those that follow for long."""

    def __init__(self, broker: TokenBroker) -> None:
        self._broker = broker
        self.expired = threading.Event()
        """Set when the first has expired, and is not taken any more."""
        self.asked = 0

    def __call__(self) -> str:
        self.asked += 1
        if self.asked > 1:
            return self._broker.token("ann")
        threading.Thread(target=self._wait, daemon=True).start()
        return self.first()

    def _wait(self) -> None:
        with suppress(AccessRefused), self._broker.connect(token=self.first()) as other:
            other.subscribe("t").receive(timeout=30)
        self.expired.set()

    def first(self) -> str:
        return self._broker.token("ann", seconds=LEEWAY_LEFT - LEEWAY_SECONDS)


def test_what_a_consumer_holds_outlasts_its_first_token(broker: TokenBroker) -> None:
    tokens = ShortTokens(broker)
    with broker.connect(token=tokens, address="ann") as ann, broker.root(address="root") as root:
        sent = root.send("ann", "s", b"work", assurance="confirmed")
        with ann.mailbox(auto_ack=False) as mailbox:
            message = mailbox.receive(timeout=30)
            assert tokens.expired.wait(30)
            message.ack()
            assert sent.wait(timeout=30) == "acknowledged"
            assert ann.publish("t", "a", b"x", assurance="stored") == 1
        assert tokens.asked == 2


def test_what_an_asyncio_consumer_holds_outlasts_its_first_token(broker: TokenBroker) -> None:
    tokens = ShortTokens(broker)

    async def consume() -> str:
        options: dict[str, Any] = {"server_key": broker.public, "timeout": 30}
        async with malamute.aio.connect(broker.curve, token=tokens, address="ann", **options) as ann:
            mailbox = ann.mailbox(auto_ack=False)
            with broker.root(address="root") as root:
                sent = root.send("ann", "s", b"work", assurance="confirmed")
                message = await mailbox.receive(timeout=30)
                assert await asyncio.to_thread(tokens.expired.wait, 30)
                message.ack()
                await ann.flush()
                return sent.wait(timeout=30)

    assert asyncio.run(consume()) == "acknowledged"
    assert tokens.asked == 2


def test_a_renewal_by_another_user_changes_nothing(broker: TokenBroker) -> None:
    refused: list[Any] = []
    with broker.connect(address="ann") as ann, broker.root() as root:
        ann.on_event = refused.append
        subscription = ann.subscribe("t")
        for token, words in (
            (broker.token("bob"), "expected a token of the same user"),
            (broker.token("ann", seconds=-60), "token refused: expired"),
        ):
            ann._session.renew(token)
            ann._driver.run(ann._driver.wait(lambda: refused, 30, "a refusal"))
            assert words in str(refused.pop().error)
        root.publish("t", "a", b"x", assurance="stored")
        assert subscription.receive(timeout=30).body == b"x"


def test_each_refusal_is_named_and_no_token_is_shown(logged: LogCapture, broker: TokenBroker) -> None:
    other = ed25519.Ed25519PrivateKey.generate()
    given = {"iss": ISSUER, "aud": "malamute", "sub": "eve", "exp": time.time() + 60}
    for token, reason in [
        ("nonsense", "malformed"),
        (jwt.encode(given, other, "EdDSA"), "wrong signature"),
        (broker.token(aud="x"), "wrong audience"),
        (broker.token(seconds=-60), "expired"),
    ]:
        with pytest.raises(AccessRefused, match=f"token refused: {reason}") as refused:
            broker.connect(token=token)
        assert token not in str(refused.value)
        assert reason in str(logged.entries)
        assert token not in str(logged.entries)


def test_who_guesses_from_another_machine_has_to_wait(
    broker: TokenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A token names no user before it is proved, so those of this machine are not counted.
    monkeypatch.setattr("malamute.door.failures.OF_THIS_MACHINE", frozenset())
    for _ in range(FAILURES_MAX):
        with pytest.raises(AccessRefused):
            broker.connect(token="guess")
    with pytest.raises(TryLater, match="too many tokens"):
        broker.connect()


def dealer(broker: TokenBroker, identity: bytes) -> zmq.Socket[bytes]:
    """A bare socket with a key of its own, under a routing id."""
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.linger = 0
    socket.routing_id = identity
    socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
    socket.curve_serverkey = broker.public.encode()
    socket.connect(broker.curve)
    return socket


def say(socket: zmq.Socket[bytes], message: Any) -> Any:
    socket.send_multipart(encode(message))
    assert socket.poll(30_000)
    return decode(socket.recv_multipart())


def test_a_connection_without_a_token_is_nobody(broker: TokenBroker) -> None:
    with dealer(broker, b"\x01" * 16) as nobody:
        refused = say(nobody, Hello([2], "", attempt=7))
        assert (refused.code, refused.about, refused.ref) == (401, 1, 7)
        assert "has no token" in refused.text
        refused = say(nobody, Publish("t", 1, ["a"], [b""]))
        assert (refused.code, refused.about) == (405, 2)


def test_a_token_opens_its_own_connection_alone(broker: TokenBroker) -> None:
    identity = b"\x02" * 16
    with dealer(broker, identity) as own:
        assert isinstance(say(own, Hello([2], "ann", token=broker.token())), Welcome)
        with dealer(broker, identity) as other:
            refused = say(other, Publish("t", 1, ["a"], [b""]))
            assert isinstance(refused, Error)
            assert refused.code in (401, 405)
            assert say(other, Hello([2], "")).code == 401
            refused = say(other, Hello([2], "", token=broker.token("eve")))
            assert (refused.code, "another user" in refused.text) == (401, True)
    with dealer(broker, identity) as again:
        assert say(again, Hello([2], "ann", token=broker.token())).resumed


def test_a_token_where_none_is_asked_for_is_refused(broker: TokenBroker) -> None:
    socket = zmq.Context.instance().socket(zmq.DEALER)
    with socket:
        socket.linger = 0
        socket.routing_id = b"\x03" * 16
        socket.connect(broker.open)
        assert say(socket, Hello([2], "", token=broker.token())).code == 401
    with pytest.raises((AccessRefused, ConnectTimeout)):
        malamute.connect(broker.open, token=broker.token(), timeout=1)


def test_a_reload_takes_other_keys_or_keeps_the_old_ones(broker: TokenBroker) -> None:
    with broker.root() as root, broker.connect() as ann:
        broker.key_file.write_text("nothing")
        with pytest.raises(ConfigError, match="expected a public key in PEM, or a JWKS"):
            root.change(BrokerReload())
        broker.key_file.chmod(0o666)
        with pytest.raises(ConfigError, match="others may write it"):
            root.change(BrokerReload())
        broker.key_file.chmod(0o644)
        ann.publish("t", "a", b"x", assurance="stored")
        broker.key = ed25519.Ed25519PrivateKey.generate()
        broker.save_key(broker.key)
        root.change(BrokerReload())
        with pytest.raises(AccessRefused, match="key that is not trusted any more"):
            ann.subscribe("t").receive(timeout=30)
        with broker.connect():
            pass
        out = Account("ann", hash_password("x"), disabled=True)
        kept = load_accounts(broker.accounts_file).by_name["root"]
        save_accounts(Accounts([kept, out]), broker.accounts_file)
        root.change(BrokerReload())
        with pytest.raises(AccessRefused, match="the account 'ann' is disabled"):
            broker.connect()


def test_a_token_is_refused_by_the_client_that_cannot_be_one_and_is_not_shown() -> None:
    for options, words in [
        ({"token": "t" * 8193}, "invalid token: expected at most 8192"),
        ({"token": "secret-é"}, "invalid token"),
        ({"token": "secret", "user": "ann", "password": "x"}, "expected one of them"),
        ({"token": "secret", "curve": "file"}, "expected one of them"),
    ]:
        with pytest.raises(InvalidValue, match=words) as refused:
            malamute.connect("tcp://127.0.0.1:1", **options)  # type: ignore[arg-type]
        assert "secret" not in str(refused.value)
    assert "secret" not in repr(Hello([2], "ann", token="secret"))
    assert repr(Hello([2], "ann")).endswith("settled=[])")
