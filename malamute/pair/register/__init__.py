"""Registers: engines that keep the value of a pair, each by reading it and by swapping it for another.

`open_register` finds the engine by the URL:

    file:/var/lib/pair.json                             both nodes on one host
    s3://bucket/pair.json, gs://…, az://…               object stores; `?endpoint=…`, options of obstore
    postgresql://user@host/database#pair                a row of the table `malamute_register`
    etcd://user:password@host:2379,host:2379/pair       a key; `etcds` with TLS, `?ca=…&cert=…&key=…`

An engine may raise any exception: a swap that returns neither True nor False has an unknown outcome.
"""

from __future__ import annotations

import secrets
from importlib import import_module
from typing import Protocol

from malamute.errors import ConfigError, MalamuteError, NotInstalled, TryLater
from malamute.pair import state
from malamute.pair.state import PairValue

SECONDS = 2
"""Time that an engine has for an answer."""

_ENGINES = {
    "file": "file",
    "s3": "objects",
    "gs": "objects",
    "az": "objects",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "etcd": "etcd",
    "etcds": "etcd",
}


class RegisterEngine(Protocol):
    """A place of small values, each with a version that never names another content."""

    def get(self, key: str) -> tuple[bytes, object] | None:
        """Return the last value that was put, and its version."""

    def put(self, key: str, data: bytes, version: object) -> bool:
        """Put a value if its place has this version, or nothing for None; return whether that was so."""

    def close(self) -> None:
        """Release all."""


class Register:
    """The register of one pair: a key of an engine."""

    def __init__(self, engine: RegisterEngine, key: str, name: str) -> None:
        self._engine = engine
        self._key = key
        self.name = name
        """The URL without a password."""

    def read(self) -> tuple[PairValue | None, object]:
        """Return the value and its version, both None where there is none.

        Raises: TryLater without an answer, Malformed for the value of no pair.
        """
        try:
            found = self._engine.get(self._key)
        except MalamuteError:
            raise
        except Exception as error:
            raise TryLater(f"register {self.name} does not answer: {_said(error)}") from error
        if found is None:
            return None, None
        data, version = found
        return state.decode(data), version

    def swap(self, value: PairValue, version: object) -> bool:
        """Put a value for that of this version; return whether it was still there.

        Raises: TryLater where the outcome is unknown. The swap may then be done, even later.
        """
        data = state.encode(value)
        try:
            return self._engine.put(self._key, data, version)
        except Exception as error:
            raise TryLater(f"register {self.name} did not say whether it swapped: {_said(error)}") from error

    def prove(self) -> None:
        """Try swaps that have to be refused, at a key beside.

        Raises: ConfigError for an engine that ignores conditions, TryLater without an answer.
        """
        key = f"{self._key}.proof"
        try:
            self._engine.put(key, secrets.token_bytes(16), None)
            found = self._engine.get(key)
            stale = None if found is None else found[1]
            self._engine.put(key, secrets.token_bytes(16), stale)
            refused = [self._engine.put(key, secrets.token_bytes(16), old) for old in (None, stale)]
        except Exception as error:
            raise TryLater(f"register {self.name} does not answer: {_said(error)}") from error
        if stale is None or any(refused):
            raise ConfigError(
                f"register {self.name} ignores conditions: expected a store that compares before it writes,"
                " such as AWS S3, PostgreSQL or etcd"
            )

    def close(self) -> None:
        """Release all that the engine holds."""
        self._engine.close()


def _said(error: BaseException) -> str:
    """Return the words of an error, or of the one that it was made from."""
    return str(error) or str(error.__context__ or "") or type(error).__name__


def open_register(url: str) -> Register:
    """Return the register of a URL; nothing is connected yet.

    Raises: ConfigError for another URL, NotInstalled without the library of an extra.
    """
    scheme = url.partition(":")[0]
    if scheme not in _ENGINES:
        raise ConfigError(
            f"register {scheme!r}: expected a URL that begins with one of {', '.join(_ENGINES)},"
            " such as s3://bucket/pair.json"
        )
    try:
        engine = import_module(f"malamute.pair.register.{_ENGINES[scheme]}")
    except ModuleNotFoundError as error:
        raise NotInstalled.module(error.name) from error
    made: Register = engine.open_engine(url)
    return made
