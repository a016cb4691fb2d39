"""Files of the access section, as a broker and `config check` read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from malamute.access import Accounts
from malamute.access.token import Issuers
from malamute.config.accounts import accounts_of, read_secret_key
from malamute.config.issuers import read_issuers
from malamute.config.sections import AccessConfig


class AccessFiles(NamedTuple):
    """The content of those files.

    The `keys` are the secret ones of the broker by the mechanisms of its listeners, empty if there is none.
    """

    accounts: Accounts
    issuers: Issuers
    keys: Mapping[str, str]

    @classmethod
    def read(cls, access: AccessConfig) -> AccessFiles:
        """Read them.

        Raises:
            ConfigError: one of them cannot be used, or others than its owner may read or write it.
            NotInstalled: the library that verifies tokens is missing.
        """
        files = {"curve": access.key, "curve-before": access.key_before}
        keys = {name: read_secret_key(Path(file)) if file else "" for name, file in files.items()}
        return cls(accounts_of(access), read_issuers(access.issuer), keys)
