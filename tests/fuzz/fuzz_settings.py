"""What operators write: the configuration as a file and in the environment, and the file of accounts."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from malamute.access import Accounts
from malamute.config import Config
from malamute.config.accounts import _accounts
from malamute.errors import ConfigError


class _File:
    """A file that is not on any disk."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_text(self, encoding: str) -> str:
        return self._data.decode(encoding)

    def __str__(self) -> str:
        return "malamute.toml"


def configuration(data: bytes) -> None:
    """A configuration that is taken writes itself so that it is the same; any other is a ConfigError."""
    file: Any = _File(data)
    with suppress(ConfigError):
        config = Config.load(file, {})
        again: Any = _File(config.toml().encode())
        assert Config.load(again, {}) == config


def environment(data: bytes) -> None:
    """The same of what an environment says: NAME=VALUE in each line."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    variables = dict(line.split("=", 1) for line in lines if "=" in line)
    with suppress(ConfigError):
        config = Config.load(None, variables)
        again: Any = _File(config.toml().encode())
        assert Config.load(again, {}) == config


def accounts(data: bytes) -> None:
    """A file of accounts is one, or what is wrong with it is said."""
    with suppress(ConfigError, ValueError):
        Accounts(_accounts(data.decode()))
