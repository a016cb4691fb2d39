"""Credentials for a broker: given on one machine, for tasks that run on others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from malamute.client.contexts import CREDENTIALS, file_of, load
from malamute.client.link.credentials import given_by
from malamute.errors import InvalidValue

if TYPE_CHECKING:
    from malamute.client.sync.client import Client


@dataclass(frozen=True)
class Login:
    """The options of `malamute.connect` with credentials. No text, log or plan shows them."""

    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, given: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Login:
        """Return the given options, with defaults of this environment: that of a task is another one.

        Raises:
            InvalidValue: the server key cannot be read. A curve key is read where it is used.
        """
        return cls(given_by(environ, {name: given[name] for name in CREDENTIALS if given.get(name)}))

    def connect(self, url: str, **options: Any) -> Client:
        """Return a client. Raises as `malamute.connect`."""
        from malamute.client.sync.client import connect

        given: dict[str, Any] = {**self.credentials, **options}
        return connect(url, **given)


ANYBODY = Login()


def with_context(texts: dict[str, str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the options of Spark with URL and credentials of the context that they name, if any.

    Raises:
        InvalidContext: the context is unknown, or the file of contexts invalid.
        InvalidValue: another option has an address too, or the context has none.
    """
    name = texts.get("context", "")
    if not name:
        return texts
    if found := [option for option in ("data", "path", "url") if texts.get(option)]:
        raise InvalidValue(f"option {found[0]!r} beside a context: expected one of them")
    context = load(file_of(environ)).get(name)
    if not context.url:
        raise InvalidValue(f"context {name!r} has no URL: expected one, as of `malamute context add`")
    others = {option: text for option, text in texts.items() if option != "context"}
    proofs = {} if set(CREDENTIALS) & others.keys() else context.credentials()
    return {**others, **proofs, "url": context.url}


def login_of(texts: Mapping[str, str], url: str) -> Login:
    """Return the credentials in options of Spark. Raises `InvalidValue` if no broker is a source."""
    if not url:
        if found := sorted(set(CREDENTIALS) & texts.keys()):
            raise InvalidValue(f"option {found[0]!r} without a broker: expected the option url beside it")
        return ANYBODY
    return Login.of(texts)
