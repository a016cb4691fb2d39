"""A gateway before a broker that asks who comes, and has rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import zmq
from running_gateway import WAIT_SECONDS, RunningGateway

from malamute.access import AccessRule, Account, Accounts
from malamute.config import AccessConfig, Config, ListenConfig, TokenIssuer, UserRules
from malamute.config.accounts import hash_password, save_accounts
from malamute.gateway.settings import GatewaySettings
from malamute.server.daemon import open_broker
from malamute.testing import small_config

NO_CHANGES: Mapping[str, Any] = {}


@contextmanager
def secured_gateway(
    directory: Path,
    passwords: Mapping[str, str],
    rules: Sequence[str],
    *issuers: TokenIssuer,
    own: str = "",
    curve: bool = False,
    **changes: Any,
) -> Iterator[RunningGateway]:
    """Run both, the gateway with these changes of its settings.

    Users log in by password, or by a token of an issuer. The gateway is `own`, who may all.
    """
    server_key = _new_key(directory / "broker.key_secret") if curve else ""
    accounts = directory / "accounts.toml"
    users = [Account(user, hash_password(password)) for user, password in passwords.items()]
    everything = [UserRules(own, rules=(AccessRule.parse("* */#"),))] if own else []
    save_accounts(Accounts(users), accounts)
    config = small_config()
    config = replace(
        config,
        storage=replace(config.storage, kind="memory"),
        listen=ListenConfig(endpoints=(f"{'curve' if curve else 'plain'}+tcp://127.0.0.1:*",)),
        access=AccessConfig(
            accounts=str(accounts),
            key=str(directory / "broker.key_secret") if curve else "",
            rules=tuple(map(AccessRule.parse, rules)),
            issuer=issuers,
            user=tuple(everything),
        ),
    )
    credentials = {"user": own, "password": passwords[own]} if own else {}
    with gateway_before(config, server_key, changes, **credentials) as gateway:
        yield gateway


def _new_key(path: Path) -> str:
    """Make a key. Returns its public half."""
    public, secret = (half.decode() for half in zmq.curve_keypair())
    path.touch(0o600)
    path.write_text(f'curve\n    public-key = "{public}"\n    secret-key = "{secret}"\n')
    return public


@contextmanager
def gateway_before(
    config: Config, server_key: str = "", changes: Mapping[str, Any] = NO_CHANGES, **credentials: str
) -> Iterator[RunningGateway]:
    """Run a broker with this configuration, and a gateway that asks for credentials and has these itself."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    loop = open_broker(config, context)
    thread = Thread(target=loop.run, daemon=True)
    thread.start()
    gateway = RunningGateway(
        GatewaySettings(
            broker=loop.endpoints[0],
            credentials=credentials,
            server_key=server_key,
            anonymous=False,
            timeout_seconds=WAIT_SECONDS,
            **changes,
        )
    )
    try:
        yield gateway
    finally:
        gateway.stop()
        loop.stop()
        thread.join()
        context.term()
