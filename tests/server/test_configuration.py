"""The configuration of a running broker, read again beside the loop."""

from __future__ import annotations

import threading
from pathlib import Path

from malamute.access import AccessRule, Account, Accounts, Policy
from malamute.config import AccessConfig, Config
from malamute.config.accounts import load_accounts, save_accounts
from malamute.core.iteration.settings import ConfigurationLoaded
from malamute.server.daemon import Configuration


def config(*rules: str) -> Config:
    return Config(access=AccessConfig(rules=tuple(map(AccessRule.parse, rules))))


def load(configuration: Configuration) -> ConfigurationLoaded:
    loaded = configuration.load()
    assert isinstance(loaded, ConfigurationLoaded)
    return loaded


def test_rules_that_are_the_same_are_the_same_object_so_that_the_loop_need_not_compare_them() -> None:
    policy = Policy([AccessRule.parse("publish stream/s")])
    read = config("publish stream/s")
    configuration = Configuration(config("publish stream/s"), lambda: read, [], policy, Accounts())
    assert load(configuration).settings.access is policy
    read = config("publish stream/t")
    loaded = load(configuration)
    assert loaded.settings.access == Policy([AccessRule.parse("publish stream/t")])
    # Nothing is in force before it is applied.
    read = config("publish stream/s")
    assert load(configuration).settings.access is policy
    configuration.apply(loaded)
    read = config("publish stream/t")
    assert load(configuration).settings.access is loaded.settings.access


def test_accounts_that_were_replaced_are_let_go_and_the_same_ones_are_not(tmp_path: Path) -> None:
    path = tmp_path / "accounts.toml"
    save_accounts(Accounts([Account("ann")]), path)
    first = load_accounts(path)
    configured = Config(access=AccessConfig(accounts=str(path)))
    configuration = Configuration(configured, lambda: configured, [], configured.access.policy(), first)
    loaded = load(configuration)
    assert loaded.settings.accounts is first
    configuration.apply(loaded)
    save_accounts(Accounts([Account("ann"), Account("bob")]), path)
    loaded = load(configuration)
    assert loaded.settings.accounts.by_name.keys() == {"ann", "bob"}
    assert first.by_name.keys() == {"ann"}
    configuration.apply(loaded)
    for thread in threading.enumerate():
        if thread.name == "malamute-accounts":
            thread.join()
    assert not first.by_name
    assert loaded.settings.accounts.by_name.keys() == {"ann", "bob"}


def test_a_reload_names_the_accounts_when_their_file_has_others(tmp_path: Path) -> None:
    path = tmp_path / "accounts.toml"
    save_accounts(Accounts([Account("ann")]), path)
    configured = Config(access=AccessConfig(accounts=str(path)))
    first = load_accounts(path)
    configuration = Configuration(configured, lambda: configured, [], configured.access.policy(), first)
    assert load(configuration).changed == ()
    save_accounts(Accounts([Account("ann", groups=("staff",))]), path)
    loaded = load(configuration)
    assert loaded.changed == ("access.accounts",)
    configuration.apply(loaded)
    assert load(configuration).changed == ()
