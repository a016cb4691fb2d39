"""The files that the access section names, as a broker and `config check` read them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from malamute.access import Accounts
from malamute.access.token import Issuers
from malamute.config.accounts import accounts_of, read_secret_key
from malamute.config.issuers import read_issuers
from malamute.config.sections import AccessConfig


class AccessFiles(NamedTuple):
    """The content of those files. The `key` is the secret one of the broker, empty if there is none."""

    accounts: Accounts
    issuers: Issuers
    key: str

    @classmethod
    def read(cls, access: AccessConfig) -> AccessFiles:
        """Read them.

        Raises:
            ConfigError: one of them cannot be used, or others than its owner may read or write it.
            NotInstalled: what verifies tokens is missing.
        """
        key = read_secret_key(Path(access.key)) if access.key else ""
        return cls(accounts_of(access), read_issuers(access.issuer), key)
