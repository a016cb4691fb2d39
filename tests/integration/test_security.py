"""Who connects is who he says he is: passwords, keys, and all at one broker."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq
from click.testing import CliRunner
from structlog.testing import capture_logs

import malamute
from malamute.access import AccessRule, Account, Accounts, Quota
from malamute.cli.root import cli
from malamute.config import AccessConfig, Config, GroupRules, ListenConfig
from malamute.config.accounts import hash_password, save_accounts
from malamute.errors import (
    AccessRefused,
    ConfigError,
    ConnectTimeout,
    InvalidValue,
    MalamuteError,
    QuotaExceeded,
)
from malamute.protocol.admin import BrokerReload, QuotasQuery, StatusQuery, UserAdd, UserRemove, UsersQuery
from malamute.protocol.batch import pack_record
from malamute.protocol.codec import decode, encode
from malamute.protocol.messages import Error, Hello, Ping, Publish, Stored, Welcome
from malamute.protocol.passwords import pack_login
from malamute.server.authentication import metadata
from malamute.server.daemon import open_broker
from malamute.server.transport import Transport
from malamute.testing import Broker, small_config

RULES = (
    "create,publish,subscribe stream/#",
    "receive mailbox/{user}",
    "create,send mailbox/#",
    "view,admin broker/#",
)


HASH = hash_password("secret")
"""One for all: with another salt it would be another password to the broker."""


class Keys:
    """Files with keys for some names."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.public: dict[str, str] = {}
        for name in ("broker", "ann", "eve"):
            public, secret = (half.decode() for half in zmq.curve_keypair())
            self.public[name] = public
            path = self.path(name)
            path.touch(0o600)
            path.write_text(f'curve\n    public-key = "{public}"\n    secret-key = "{secret}"\n')

    def path(self, name: str) -> Path:
        return self.directory / f"{name}.key_secret"


class SecureBroker:
    """A broker with an open listener, one for passwords and one for keys, and its accounts in a file."""

    def __init__(self, directory: Path, keys: Keys, gateways: tuple[str, ...] = ()) -> None:
        self.keys = keys
        self.gateways = gateways
        self.accounts_file = directory / "accounts.toml"
        self.config_rules = RULES
        self.groups: tuple[GroupRules, ...] = ()
        ann = Account("ann", key=keys.public["ann"], groups=("staff",), uid=os.getuid())
        self.save(ann, Account("bob", HASH))
        endpoints = ("tcp://127.0.0.1:*", "plain+tcp://127.0.0.1:*", "curve+tcp://127.0.0.1:*")
        endpoints += (f"peer+ipc://{directory}/peer",)
        self._context: zmq.Context[Any] = zmq.Context()
        config = self.config(endpoints)
        self.loop = open_broker(config, self._context, read=lambda: self.config(endpoints))
        self.open, self.plain, self.curve, self.peer = self.loop.endpoints
        self.notices: list[str] = []
        self.loop._on_notice = lambda notice: self.notices.append(notice.event)
        self._thread = threading.Thread(target=self.loop.run, daemon=True)
        self._thread.start()

    def save(self, *accounts: Account) -> None:
        save_accounts(Accounts(accounts), self.accounts_file)

    def config(self, endpoints: tuple[str, ...]) -> Config:
        config = small_config()
        return replace(
            config,
            storage=replace(config.storage, kind="memory"),
            listen=ListenConfig(endpoints=endpoints, gateways=self.gateways),
            access=AccessConfig(
                accounts=str(self.accounts_file),
                key=str(self.keys.path("broker")),
                rules=tuple(map(AccessRule.parse, self.config_rules)),
                group=self.groups,
            ),
        )

    def connect(self, who: str = "", **options: Any) -> malamute.Client:
        if who == "bob":
            return malamute.connect(self.plain, user="bob", password="secret", **options)
        if who:
            key = self.keys.path(who)
            return malamute.connect(self.curve, curve=key, server_key=self.keys.public["broker"], **options)
        return malamute.connect(self.open, **options)

    def close(self) -> None:
        self.loop.stop()
        self._thread.join()
        self._context.term()


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
def secure(tmp_path: Path, keys: Keys) -> Iterator[SecureBroker]:
    broker = SecureBroker(tmp_path, keys)
    yield broker
    broker.close()


def test_one_broker_serves_open_plain_and_curve_listeners_at_once(secure: SecureBroker) -> None:
    with (
        secure.connect() as anybody,
        secure.connect("bob", address="bob") as bob,
        secure.connect("ann", address="ann") as ann,
    ):
        with ann.subscribe("s") as subscription:
            for client in (anybody, bob, ann):
                client.publish("s", "a", b"x", assurance="stored")
            assert [subscription.receive().sender for _ in range(3)] == ["", "bob", "ann"]
        bob.send("ann", "hello", b"y", assurance="stored")
        assert ann.mailbox().receive().body == b"y"


def test_the_system_says_whose_program_it_is(secure: SecureBroker) -> None:
    with malamute.connect(secure.peer, address="ann") as ann:
        ann.publish("s", "a", b"x", assurance="stored")
        with pytest.raises(AccessRefused, match="'receive mailbox/bob' is not allowed"):
            malamute.connect(secure.peer, address="bob")
        secure.save(Account("ann", key=secure.keys.public["ann"], uid=os.getuid() + 1))
        with secure.connect() as operator:
            operator.change(BrokerReload())
        with pytest.raises(AccessRefused, match="the uid of 'ann' was changed"):
            ann.subscribe("s").receive(timeout=30)
        with pytest.raises(AccessRefused, match="is refused"):
            malamute.connect(secure.peer)


def test_who_cannot_prove_who_he_is_is_refused_at_once(secure: SecureBroker) -> None:
    broker_key = secure.keys.public["broker"]
    for url, options in [
        (secure.plain, {"user": "bob", "password": "wrong"}),
        (secure.plain, {"user": "nobody", "password": "secret"}),
        (secure.plain, {"user": "ann", "password": "secret"}),
        (secure.plain, {"user": "bob", "password": "secret", "server_key": broker_key}),
    ]:
        with pytest.raises(AccessRefused, match=r"connection to tcp://.* is refused"):
            malamute.connect(url, timeout=20, **options)
    with pytest.raises(
        AccessRefused, match="expected the key of an account, a token, or a user and a password"
    ):
        secure.connect("eve", timeout=20)


def test_an_unknown_key_is_refused_in_the_handshake_where_nobody_has_a_password(secure: SecureBroker) -> None:
    secure.save(Account("ann", key=secure.keys.public["ann"]))
    with secure.connect() as operator:
        operator.change(BrokerReload())
    with pytest.raises(AccessRefused, match=r"connection to tcp://.* is refused"):
        secure.connect("eve", timeout=20)


class Wire:
    """Passes on what one client and a broker say to each other, and keeps what the client says."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        self.broker = (host, int(port))
        self.heard = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        with client, socket.create_connection(self.broker, 30) as broker:
            back = threading.Thread(target=self._pass_on, args=(broker, client))
            back.start()
            for data in self._said(client, broker):
                self.heard += data
            back.join()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        for _ in self._said(source, target):
            pass

    def _said(self, source: socket.socket, target: socket.socket) -> Iterator[bytes]:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
                yield data
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """The client has ended its connection."""
        self._thread.join()
        self._listener.close()


def test_a_password_over_curve_is_proved_and_nobody_on_the_way_reads_it_or_has_a_use_for_what_he_heard(
    secure: SecureBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALAMUTE_SERVER_KEY", str(secure.keys.path("broker")))
    with closing(Wire(secure.curve)) as wire:
        with malamute.connect(wire.url, user="bob", password="secret", address="bob") as bob:
            bob.publish("s", "a", b"x", assurance="stored")
            assert [row["user"] for row in bob.query("clients")] == ["bob"]
        assert b"bob" not in wire.heard
        assert b"secret" not in wire.heard
    # The same bytes are sent once more.
    with socket.create_connection(wire.broker, 30) as again:
        again.sendall(wire.heard)
        again.shutdown(socket.SHUT_WR)
        while again.recv(1 << 16):
            pass
    with secure.connect() as operator:
        assert [row["user"] for row in operator.query("clients")] == [""]


def test_a_password_over_curve_that_is_wrong_is_refused_at_once_and_so_is_a_disabled_account(
    secure: SecureBroker,
) -> None:
    def connect(password: str) -> malamute.Client:
        server = secure.keys.public["broker"]
        return malamute.connect(secure.curve, user="bob", password=password, server_key=server, timeout=20)

    with pytest.raises(AccessRefused, match="wrong user or password") as refused:
        connect("guess")
    assert "guess" not in str(refused.value)
    with connect("secret") as bob:
        secure.save(Account("bob", HASH, disabled=True))
        with secure.connect() as operator:
            operator.change(BrokerReload())
        with pytest.raises(AccessRefused, match="disabled"):
            bob.subscribe("s").receive(timeout=30)
    with pytest.raises(AccessRefused, match="disabled account"):
        connect("secret")


def test_a_broker_that_is_busy_with_passwords_has_clients_connect_again(
    secure: SecureBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("malamute.server.passwords.TRYING_MAX", 0)
    (transport,) = secure.loop.edges
    assert isinstance(transport, Transport)
    assert transport._authenticator is not None
    refused = transport._authenticator.refused

    def let_them() -> None:
        while refused["too many at a time"] < 2:
            time.sleep(0.01)
        monkeypatch.setattr("malamute.server.passwords.TRYING_MAX", 1)

    thread = threading.Thread(target=let_them)
    thread.start()
    server = secure.keys.public["broker"]
    with malamute.connect(secure.curve, user="bob", password="secret", server_key=server, timeout=30) as bob:
        bob.publish("s", "a", b"x", assurance="stored")
    thread.join()


def test_behind_a_gateway_nobody_waits_for_wrong_passwords_of_another(
    tmp_path: Path, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("malamute.door.failures.FAILURES_MAX", 1)
    broker = SecureBroker(tmp_path, keys, ("127.0.0.0/8",))
    broker.save(*(Account(name, HASH) for name in ("bob", "carl")))
    with broker.connect() as operator:
        operator.change(BrokerReload())
    with pytest.raises(AccessRefused):
        malamute.connect(broker.plain, user="bob", password="wrong", timeout=20)
    with pytest.raises(ConnectTimeout):
        malamute.connect(broker.plain, user="bob", password="secret", timeout=0.3)
    malamute.connect(broker.plain, user="carl", password="secret", timeout=20).close()
    broker.close()


def test_who_brings_another_proof_than_is_asked_for_is_refused_at_once(secure: SecureBroker) -> None:
    for url, options in [
        (secure.plain, {}),
        (secure.curve, {}),
        (secure.curve, {"user": "bob", "password": "secret"}),
        (secure.open, {"user": "bob", "password": "secret"}),
    ]:
        with pytest.raises(AccessRefused, match="the broker wants another proof"):
            malamute.connect(url, timeout=20, **options)


def test_a_broker_with_another_key_is_nobody_to_talk_to(secure: SecureBroker) -> None:
    with pytest.raises(ConnectTimeout):
        malamute.connect(
            secure.curve, curve=secure.keys.path("ann"), server_key=secure.keys.public["eve"], timeout=0.5
        )


def test_a_user_has_his_own_address_and_no_other(secure: SecureBroker) -> None:
    with pytest.raises(AccessRefused, match="'receive mailbox/bob' is not allowed"):
        secure.connect("ann", address="bob")
    with pytest.raises(AccessRefused, match="'receive mailbox/bob' is not allowed"):
        secure.connect(address="bob")


def test_the_environment_says_who_a_client_is(secure: SecureBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALAMUTE_USER", "bob")
    monkeypatch.setenv("MALAMUTE_PASSWORD", "secret")
    with malamute.connect(secure.plain, address="bob"):
        pass
    monkeypatch.delenv("MALAMUTE_USER")
    monkeypatch.setenv("MALAMUTE_CURVE", str(secure.keys.path("ann")))
    monkeypatch.setenv("MALAMUTE_SERVER_KEY", str(secure.keys.path("broker")))
    with malamute.connect(secure.curve, address="ann"):
        pass


def test_an_account_that_is_disabled_ends_its_sessions_and_no_others(secure: SecureBroker) -> None:
    with secure.connect("ann", address="ann") as ann, secure.connect("bob", address="bob") as bob:
        secure.save(
            Account("ann", key=secure.keys.public["ann"], disabled=True),
            Account("bob", HASH),
        )
        bob.change(BrokerReload())
        with pytest.raises(AccessRefused, match="disabled"):
            ann.subscribe("s").receive(timeout=30)
        bob.publish("s", "a", b"x", assurance="stored")
        with pytest.raises(AccessRefused):
            secure.connect("ann")


@pytest.mark.parametrize("way", ["a key", "a password", "a password over CURVE"])
def test_a_key_or_a_password_that_was_changed_in_the_file_ends_the_sessions_of_the_old_one(
    secure: SecureBroker, way: str
) -> None:
    who = "ann" if way == "a key" else "bob"
    by_curve = {"user": "bob", "password": "secret", "server_key": secure.keys.public["broker"]}
    with (
        malamute.connect(secure.curve, **by_curve)
        if way == "a password over CURVE"
        else secure.connect(who, address=who)
    ) as old:
        ann, other = secure.keys.public["ann"], secure.keys.public["eve"]
        keyed = Account("ann", key=other if way == "a key" else ann, uid=os.getuid())
        secure.save(keyed, Account("bob", HASH if way == "a key" else hash_password("second")))
        with secure.connect() as operator:
            operator.change(BrokerReload())
        with pytest.raises(AccessRefused, match=f"the (key|password) of '{who}' was changed"):
            old.subscribe("s").receive(timeout=30)


def test_an_account_that_is_stored_while_the_broker_runs_logs_in_until_it_is_disabled(
    secure: SecureBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    secure.config_rules = (*RULES, "admin user/#")
    for name, value in (("URL", secure.plain), ("USER", "bob"), ("PASSWORD", "secret")):
        monkeypatch.setenv(f"MALAMUTE_{name}", value)
    monkeypatch.delenv("MALAMUTE_ACCESS__ACCOUNTS", raising=False)

    def run(*arguments: str, stdin: str = "") -> str:
        done = CliRunner().invoke(cli, ["user", *arguments], input=stdin)
        assert done.exit_code == 0, done.output
        return done.output

    def connect(password: str) -> malamute.Client:
        return malamute.connect(secure.plain, user="dora", password=password, address="dora", timeout=30)

    with secure.connect("bob", address="bob") as bob:
        bob.change(BrokerReload())
        with pytest.raises(AccessRefused):
            connect("first")
        run("add", "dora", "--password", "--rule", "create,request service/w", stdin="first\n")
        with connect("first") as dora:
            dora.publish("s", "a", b"x", assurance="stored")
            dora.request("w", "x", b"")
            run("passwd", "dora", stdin="second\n")
            with pytest.raises(AccessRefused, match="the password of 'dora' was changed"):
                dora.subscribe("s").receive(timeout=30)
            with pytest.raises(AccessRefused):
                connect("first")
        with connect("second") as dora:
            run("disable", "dora")
            with pytest.raises(AccessRefused, match="disabled"):
                dora.subscribe("s").receive(timeout=30)
            with pytest.raises(AccessRefused):
                connect("second")
        run("enable", "dora")
        with connect("second"):
            pass
        assert "scrypt" not in (shown := run("list"))
        assert "dora" in shown
        run("remove", "dora", "--yes")
        with pytest.raises(AccessRefused):
            connect("second")
        bob.publish("s", "a", b"x", assurance="stored")


@pytest.mark.parametrize("mechanism", ["plain+tcp", "curve+tcp", "peer+ipc"])
def test_stored_accounts_do_where_every_listener_asks_and_without_any_nobody_could_log_in(
    tmp_path: Path, keys: Keys, mechanism: str
) -> None:
    place = f"//{tmp_path}/socket" if mechanism == "peer+ipc" else "//127.0.0.1:*"
    config = replace(
        small_config(),
        listen=ListenConfig(endpoints=(f"{mechanism}:{place}",)),
        access=AccessConfig(key=str(keys.path("broker"))),
    )
    config = replace(config, storage=replace(config.storage, directory=tmp_path / "data"))
    context: zmq.Context[Any] = zmq.Context()
    with pytest.raises(ConfigError, match=r"nobody could log in: .* expected one"):
        open_broker(config, context)
    with Broker(tmp_path / "data") as broker, malamute.connect(broker.url) as client:
        fields = {"password": HASH, "key": keys.public["ann"], "uid": os.getuid()}
        client.change(UserAdd(name="ann", **fields))  # type: ignore[arg-type]  # each has its own type
    loop = open_broker(config, context)
    thread = threading.Thread(target=loop.run)
    thread.start()
    proof: dict[str, Any] = {
        "plain+tcp": {"user": "ann", "password": "secret"},
        "curve+tcp": {"curve": keys.path("ann"), "server_key": keys.public["broker"]},
        "peer+ipc": {},
    }[mechanism]
    with malamute.connect(loop.endpoints[0], **proof) as client:
        client.publish("s", "a", b"x", assurance="stored")
    loop.stop()
    thread.join()
    context.term()


def test_stored_accounts_are_in_a_backup(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, malamute.connect(broker.url, timeout=40) as client:
        client.change(UserAdd(name="dora", uid=7))
        made = client.change("journal.backup", directory="one")
        client.change(UserRemove(name="dora"))
    for directory, users in ((tmp_path / "data", []), (Path(made["directory"]), [("dora", 7)])):
        with Broker(directory) as broker, malamute.connect(broker.url, timeout=40) as client:
            assert [(row.name, row.uid) for row in client.query(UsersQuery())] == users


def test_a_group_that_an_account_leaves_is_left_by_its_sessions(secure: SecureBroker) -> None:
    secure.groups = (GroupRules("staff", tuple(map(AccessRule.parse, ["request service/#"]))),)
    with secure.connect("ann", address="ann") as ann, secure.connect("bob", address="bob") as bob:
        bob.change(BrokerReload())
        ann.request("w", "x", b"")
        secure.save(Account("ann", key=secure.keys.public["ann"]), Account("bob", HASH))
        bob.change(BrokerReload())
        with pytest.raises(AccessRefused, match="'request service/w/x' is not allowed"):
            next(iter(ann.request("w", "x", b"", timeout=30)))


def test_a_quota_that_a_reload_brings_counts_for_its_group_and_for_nobody_else(secure: SecureBroker) -> None:
    rules = tuple(map(AccessRule.parse, RULES))
    with secure.connect("ann") as ann, secure.connect("bob") as bob:
        ann.publish_batch("s", ["a"] * 100, [b"x"] * 100)
        secure.groups = (GroupRules("staff", rules, quota=Quota(messages_per_second=10)),)
        bob.change(BrokerReload())
        ann.publish_batch("s", ["a"] * 100, [b"x"] * 100)
        with pytest.raises(QuotaExceeded, match="group 'staff'"):
            ann.publish("s", "a", b"x", assurance="stored")
        bob.publish_batch("s", ["a"] * 100, [b"x"] * 100)
        bob.publish("s", "a", b"x", assurance="stored")
        (row,) = bob.query(QuotasQuery(user="ann"))
        assert (row.owner, row.quotas[0].refused) == ("group staff", 1)
        secure.groups = ()
        bob.change(BrokerReload())
        ann.publish("s", "a", b"x", assurance="stored")


def test_a_subscription_that_is_narrowed_says_so_and_one_that_is_not_does_not(secure: SecureBroker) -> None:
    secure.config_rules = ("create,publish stream/#", "subscribe stream/s/a.#", "admin broker/reload")
    with secure.connect("bob") as bob:
        bob.change(BrokerReload())
        assert bob.subscribe("s").limited
        assert not bob.subscribe("s", "a.b").limited
        bob.publish("s", "b", b"no", assurance="stored")
        bob.publish("s", "a.c", b"yes", assurance="stored")
        assert bob.subscribe("s", start="first").receive(timeout=30).body == b"yes"


def test_a_connection_that_was_refused_is_an_event_with_the_name_that_it_gave(secure: SecureBroker) -> None:
    secure.config_rules = (*RULES, "subscribe stream/$sys")
    with secure.connect("ann") as ann:
        ann.change(BrokerReload())
        with pytest.raises(AccessRefused):
            malamute.connect(secure.plain, user="bob\x1b[2J", password="guess")
        with ann.subscribe("$sys", "access.refused.#", start="first") as events:
            refused = events.receive(timeout=30).headers
    assert refused == {
        "user": "",
        "by": "",
        "method": "PLAIN",
        "origin": "127.0.0.1",
        "client": "",
        "address": "",
        "action": "connect",
        "target": "user/bob\\x1b[2J",
        "rule": "wrong user or password",
        "count": 1,
    }


def test_a_refusal_is_told_with_the_user_and_the_address_that_he_comes_from(secure: SecureBroker) -> None:
    secure.config_rules = ("subscribe stream/$sys", "subscribe stream/$audit", "admin broker/reload")
    with secure.connect("bob") as bob, secure.connect("ann") as ann:
        bob.change(BrokerReload())
        with pytest.raises(AccessRefused):
            ann.publish("s", "a", b"x", assurance="stored")
        refused = bob.subscribe("$sys", "access.refused.#", start="first").receive(timeout=30).headers
        assert {
            "user": "ann",
            "method": "curve",
            "origin": "127.0.0.1",
            "rule": "no rule",
        }.items() <= refused.items()
        assert (refused["action"], refused["target"]) == ("publish", "stream/s/a")
        record = bob.subscribe("$audit", start="first").receive(timeout=30)
        assert (record.subject, record.headers["user"], record.headers["method"]) == (
            "broker.reload",
            "bob",
            "plain",
        )


def test_a_file_that_is_wrong_keeps_the_accounts_that_are_there(secure: SecureBroker) -> None:
    with secure.connect("bob", address="bob") as bob:
        secure.accounts_file.write_text("[[account]]\nname = 'ann'\npassword = 'plain text'\n")
        with pytest.raises(ConfigError, match=r"account 1: account.password = .*: expected what"):
            bob.change(BrokerReload())
        secure.accounts_file.chmod(0o644)
        with pytest.raises(ConfigError, match="open to others"):
            bob.change(BrokerReload())
        with secure.connect("ann"):
            pass


def dealer(secure: SecureBroker, identity: bytes, who: str) -> zmq.Socket[bytes]:
    """A bare socket under a routing id, of somebody with a key, or with one that nobody knows."""
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.linger = 0
    socket.routing_id = identity
    if who:
        text = secure.keys.path(who).read_text().split('"')
        socket.curve_publickey, socket.curve_secretkey = text[1].encode(), text[3].encode()
    else:
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
    socket.curve_serverkey = secure.keys.public["broker"].encode()
    socket.connect(secure.curve)
    return socket


def say(socket: zmq.Socket[bytes], message: Any) -> Any:
    socket.send_multipart(encode(message))
    return heard(socket)


def heard(socket: zmq.Socket[bytes]) -> Any:
    """The next message but for those that ask whether somebody is there."""
    while True:
        assert socket.poll(30_000)
        message = decode(socket.recv_multipart())
        if not isinstance(message, Ping):
            return message


def test_a_routing_id_that_another_user_takes_opens_nothing_and_is_reported(secure: SecureBroker) -> None:
    secure.config_rules = (*RULES, "subscribe stream/$sys")
    secure.save(
        Account("ann", key=secure.keys.public["ann"]),
        Account("eve", key=secure.keys.public["eve"]),
        Account("bob", HASH),
    )
    with secure.connect("bob") as bob:
        bob.change(BrokerReload())
        identity = b"\x01" + os.urandom(15)
        own = dealer(secure, identity, "ann")
        assert isinstance(say(own, Hello([2], "ann")), Welcome)
        other = dealer(secure, identity, "eve")
        refused = say(other, Publish("s", 1, ["a"], [b""]))
        assert isinstance(refused, Error)
        assert refused.code in (401, 405)
        refused = say(other, Hello([2], ""))
        assert (refused.code, refused.about) == (401, 1)
        with bob.subscribe("$sys", "access.refused.#", start="first") as events:
            reported = events.receive(timeout=30).headers
        assert reported["rule"] == "the user 'eve' in a session of another"
        assert (reported["action"], reported["origin"]) == ("connect", "127.0.0.1")
        assert identity.hex() not in str(reported)
        other.close()
        # The message is there for its owner.
        again = dealer(secure, identity, "ann")
        assert say(again, Hello([2], "ann")).resumed
        again.close()
        own.close()


@pytest.mark.parametrize("by_key", [True, False], ids=["key", "password in HELLO"])
def test_a_session_that_acts_as_another_is_its_provers_on_every_command(
    secure: SecureBroker, by_key: bool
) -> None:
    """Neither the user that it acts as nor another proxy gets into it by its routing id."""
    proxies = ("proxies",)
    secure.groups = (GroupRules("proxies", (AccessRule.parse("impersonate user/ann"),)),)
    secure.save(
        Account("ann", key=secure.keys.public["ann"]),
        Account("eve", hash_password("other"), key=secure.keys.public["eve"], groups=proxies),
        Account("bob", HASH, groups=proxies),
    )
    with secure.connect() as operator:
        operator.change(BrokerReload())
    identity = b"\x01" + os.urandom(15)
    prover, token = ("eve", "") if by_key else ("", pack_login("bob", "secret"))
    hello = Hello([2], "ann", token=token, act_as="ann")
    own = dealer(secure, identity, prover)
    assert isinstance(say(own, hello), Welcome)
    assert isinstance(say(own, Publish("s", 1, ["a"], [pack_record({}, b"own")])), Stored)
    proofs = {
        "the user that it acts as": ("ann", Hello([2], "ann")),
        "another proxy": ("", Hello([2], "ann", token=pack_login("bob", "secret"), act_as="ann"))
        if by_key
        else ("eve", Hello([2], "ann", act_as="ann")),
        "a token that proves nobody": ("", Hello([2], "ann", token=pack_login("eve", "x"), act_as="ann")),
    }
    for who, forged in proofs.values():
        other = dealer(secure, identity, who)
        refused = say(other, Publish("s", 2, ["a"], [pack_record({}, b"forged")]))
        assert (type(refused), refused.code in (401, 405)) == (Error, True)
        refused = say(other, forged)
        assert (type(refused), refused.code, refused.about) == (Error, 401, 1)
        refused = say(other, Publish("s", 2, ["a"], [pack_record({}, b"forged")]))
        assert (type(refused), refused.code in (401, 405)) == (Error, True)
        other.close()
        own.close()
        own = dealer(secure, identity, prover)
        assert say(own, hello).resumed
    # As itself the prover has no part in it either.
    refused = say(own, hello._replace(address="", act_as=""))
    assert (refused.code, refused.text) == (401, "this session belongs to another user")
    assert say(own, hello).resumed
    secure.groups = ()
    with secure.connect() as operator:
        operator.change(BrokerReload())
        refused = heard(own)
        assert (refused.code, "'impersonate user/ann' is not allowed" in refused.text) == (401, True)
        assert say(own, hello).code == 401
        own.close()
        with operator.subscribe("s", start="first") as found:
            assert found.receive(timeout=30).body == b"own"
            operator.publish("s", "a", b"last", assurance="stored")
            assert found.receive(timeout=30).body == b"last"


def test_on_an_open_listener_nobody_acts_as_others(secure: SecureBroker) -> None:
    secure.config_rules = (*RULES, "impersonate user/#")
    with secure.connect() as operator:
        operator.change(BrokerReload())
    for options in ({}, {"address": "ann"}):
        with pytest.raises(AccessRefused, match="proves nobody"):
            secure.connect(act_as="ann", **options)


def test_options_that_contradict_each_other_are_refused(keys: Keys, tmp_path: Path) -> None:
    key, server = keys.path("ann"), keys.public["broker"]
    for options, words in [
        ({"user": "a", "password": "b", "curve": key}, "expected one of them"),
        ({"curve": key}, "no server_key"),
        ({"password": "b"}, "a password without a user"),
        ({"user": "a"}, "invalid password: expected 1 to 255 bytes"),
        ({"user": "a" * 256, "password": "b"}, "invalid user"),
        ({"user": "a", "password": "b\0"}, "invalid password"),
        ({"user": "a\0", "password": "b"}, "invalid user"),
        ({"user": "a", "password": "\udce9"}, "invalid password"),
        ({"curve": tmp_path / "none", "server_key": server}, "cannot be read"),
        ({"curve": key, "server_key": "short"}, "cannot be read"),
    ]:
        with pytest.raises(InvalidValue, match=words):
            malamute.connect("tcp://127.0.0.1:1", **options)  # type: ignore[arg-type]
    key.chmod(0o640)
    with pytest.raises(InvalidValue, match="open to others"):
        malamute.connect("tcp://127.0.0.1:1", curve=key, server_key=server)
    key.chmod(0o600)
    key.write_text("curve\n    public-key = 7\n")
    with pytest.raises(InvalidValue, match="there is no public key in it"):
        malamute.connect("tcp://127.0.0.1:1", curve=key, server_key=server)


@pytest.mark.parametrize("name", ["accounts.toml", "broker.key_secret"])
def test_a_broker_does_not_start_with_secrets_that_others_can_read(
    tmp_path: Path, keys: Keys, name: str
) -> None:
    save_accounts(Accounts([Account("bob", hash_password("x"))]), tmp_path / "accounts.toml")
    (tmp_path / name).chmod(0o640)
    config = replace(
        small_config(),
        listen=ListenConfig(endpoints=("curve+tcp://127.0.0.1:*",)),
        access=AccessConfig(accounts=str(tmp_path / "accounts.toml"), key=str(keys.path("broker"))),
    )
    context: zmq.Context[Any] = zmq.Context()
    with pytest.raises(MalamuteError, match="open to others"):
        open_broker(config, context)
    context.term()


def forged(secure: SecureBroker, **properties: str) -> socket.socket:
    """A bare connection to the open listener that claims these properties in its handshake."""
    place = secure.open.removeprefix("tcp://").split(":")
    connection = socket.create_connection((place[0], int(place[1])), 30)
    connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    claims = {"Socket-Type": "DEALER", "Identity": "\x01" * 16, **properties}
    ready = b"\x05READY" + b"".join(metadata(name.replace("_", "-"), claims[name]) for name in claims)
    connection.sendall(bytes([4, len(ready)]) + ready)
    read_until(connection, b"READY")
    return connection


def read_until(connection: socket.socket, *words: bytes) -> bytes:
    """Read what the broker says until it has said one of these."""
    heard = b""
    while not any(word in heard for word in words):
        data = connection.recv(4096)
        assert data, heard
        heard += data
    return heard


def test_nobody_becomes_a_user_by_what_he_says_of_himself(secure: SecureBroker) -> None:
    with forged(secure, User_Id="ann", X_Method="curve") as connection:
        (hello,) = encode(Hello([2], "ann"))
        connection.sendall(bytes([0, len(hello)]) + hello)
        heard = read_until(connection, b"is not allowed", b"queues_bytes")
        assert b"'receive mailbox/ann' is not allowed" in heard


def test_a_client_with_a_key_that_was_replaced_is_refused_and_reported_with_it(secure: SecureBroker) -> None:
    refused: list[Any] = []
    report = secure.loop.edges[0].guard.on_refusal  # type: ignore[attr-defined]  # it is a transport
    secure.loop.edges[0].guard.on_refusal = lambda refusal: (refused.append(refusal), report(refusal))  # type: ignore[attr-defined]
    with pytest.raises(AccessRefused):
        secure.connect("eve", timeout=20)
    assert secure.keys.public["eve"] in {refusal.key for refusal in refused}


def test_two_keys_of_the_broker_are_good_at_once_and_who_uses_the_old_one_is_logged_and_counted(
    tmp_path: Path, keys: Keys
) -> None:
    """The clients of the old key connect to an endpoint of their own."""
    config = small_config()
    save_accounts(Accounts([Account("ann", key=keys.public["ann"])]), tmp_path / "accounts.toml")
    config = replace(
        config,
        storage=replace(config.storage, kind="memory"),
        listen=ListenConfig(endpoints=("curve+tcp://127.0.0.1:*", "curve-before+tcp://127.0.0.1:*")),
        access=AccessConfig(
            accounts=str(tmp_path / "accounts.toml"),
            key=str(keys.path("broker")),
            key_before=str(keys.path("eve")),
        ),
    )
    context: zmq.Context[Any] = zmq.Context()
    with capture_logs() as logs:
        loop = open_broker(config, context)
        thread = threading.Thread(target=loop.run)
        thread.start()
        new, old = loop.endpoints
        ann = keys.path("ann")
        for url, server, count in ((new, "broker", 0), (old, "eve", 1), (old, "eve", 2)):
            with malamute.connect(url, curve=ann, server_key=keys.public[server]) as client:
                client.publish("s", "a", b"x", assurance="stored")
                assert client.query(StatusQuery()).old_key_connections == count
        loop.stop()
        thread.join()
        context.term()
    found = [line for line in logs if line["event"] == "a client uses the key of before"]
    assert [(line["user"], line["address"], line["count"]) for line in found] == [
        ("ann", "127.0.0.1", 1),
        ("ann", "127.0.0.1", 2),
    ]
