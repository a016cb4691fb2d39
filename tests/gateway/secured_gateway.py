"""A gateway before a broker that asks who comes, and has rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import zmq
from running_gateway import WAIT_SECONDS, RunningGateway

from malamute.access import AccessRule, Account, Accounts
from malamute.config import AccessConfig, Config, ListenConfig, TokenIssuer, UserRules
from malamute.config.accounts import hash_password, save_accounts
from malamute.gateway.settings import GatewaySettings
from malamute.server.daemon import open_broker
from malamute.testing import small_config


@contextmanager
def secured_gateway(
    directory: Path,
    passwords: Mapping[str, str],
    rules: Sequence[str],
    *issuers: TokenIssuer,
    own: str = "",
) -> Iterator[RunningGateway]:
    """Run both; users log in by password, or by a token of an issuer. The gateway is `own`, who may all."""
    accounts = directory / "accounts.toml"
    users = [Account(user, hash_password(password)) for user, password in passwords.items()]
    everything = [UserRules(own, rules=(AccessRule.parse("* */#"),))] if own else []
    save_accounts(Accounts(users), accounts)
    config = small_config()
    config = replace(
        config,
        storage=replace(config.storage, kind="memory"),
        listen=ListenConfig(endpoints=("plain+tcp://127.0.0.1:*",)),
        access=AccessConfig(
            accounts=str(accounts),
            rules=tuple(map(AccessRule.parse, rules)),
            issuer=issuers,
            user=tuple(everything),
        ),
    )
    credentials = {"user": own, "password": passwords[own]} if own else {}
    with gateway_before(config, **credentials) as gateway:
        yield gateway


@contextmanager
def gateway_before(config: Config, **credentials: str) -> Iterator[RunningGateway]:
    """Run a broker with this configuration, and a gateway that asks for credentials and has these itself."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    loop = open_broker(config, context)
    thread = Thread(target=loop.run, daemon=True)
    thread.start()
    gateway = RunningGateway(
        GatewaySettings(
            broker=loop.endpoints[0], credentials=credentials, anonymous=False, timeout_seconds=WAIT_SECONDS
        )
    )
    try:
        yield gateway
    finally:
        gateway.stop()
        loop.stop()
        thread.join()
        context.term()
