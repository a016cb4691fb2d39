"""The issuers of bearer tokens, with the public keys that their files have."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from malamute.access.token import Issuer, Issuers
from malamute.config.sections import TokenIssuer
from malamute.errors import ConfigError, NotInstalled

LEEWAY_SECONDS = 5.0
"""How much the clocks of the broker and of an issuer may differ, unless that is set."""

KEYS_BYTES_MAX = 1 << 20


def read_issuers(tables: Iterable[TokenIssuer]) -> Issuers:
    """The issuers of the configuration.

    Raises:
        ConfigError: a file cannot be used, or others than its owner may write it.
        NotInstalled: the library that verifies tokens is missing.
    """
    return Issuers(map(_read, tables))


def _read(table: TokenIssuer) -> Issuer:
    path = Path(table.keys).expanduser()
    try:
        return Issuer(
            table.name,
            table.audience,
            table.algorithms,
            _text_of(path),
            user_claim=table.user_claim or "sub",
            scope_claim=table.scope_claim or "",
            leeway_seconds=LEEWAY_SECONDS if table.leeway is None else table.leeway,
        )
    except NotInstalled:
        raise
    except ConfigError as error:
        raise ConfigError(f"access.issuer {table.name!r}: {path}: {error.text}") from None


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & 0o022:
                raise ConfigError(f"others may write it (mode {mode & 0o777:04o}): expected chmod go-w")
            return file.read(KEYS_BYTES_MAX).decode()
    except OSError as error:
        raise ConfigError(f"keys cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError("keys cannot be read: expected text") from None
