"""Contexts: the brokers that a person works with, by name, in a file of that person's.

The file is `malamute/contexts.toml` below $XDG_CONFIG_HOME, which is ~/.config unless it is set:

    current = "here"

    [contexts.here]
    url = "tcp://127.0.0.1:9999"
    address = "alice"
    timeout = 5.0
    user = "alice"
    password = "..."

Instead of a user and a password it may have `curve`, the file of a key, or a `token`. The `server_key` of the
broker is needed with `curve`; with the others it has the connection encrypted. Every command that connects
reads the file, and so do programs of Spark that name a context. A new file is written beside the old one and
then replaces it, so that no reader sees half of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from malamute.errors import MalamuteError


class InvalidContext(MalamuteError):
    """Raised for an unknown context, or an invalid file of contexts."""


CREDENTIALS = ("user", "password", "curve", "server_key", "token", "act_as")
"""Fields with credentials, named like the arguments of `malamute.connect`."""

SECRETS = ("password", "token")

FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "url": str,
    "address": str,
    "timeout": (int, float),
    **dict.fromkeys(CREDENTIALS, str),
}
"""Fields of a context, and their types."""


class Context(NamedTuple):
    """URL, user, and timeout in seconds of a broker; None where the context has no value."""

    url: str | None = None
    address: str | None = None
    timeout: float | None = None
    user: str | None = None
    password: str | None = None
    curve: str | None = None
    server_key: str | None = None
    token: str | None = None
    act_as: str | None = None

    def credentials(self) -> dict[str, str]:
        """Return the credentials."""
        return {name: value for name, value in self.given().items() if name in CREDENTIALS}

    def with_credentials(self, credentials: Mapping[str, str]) -> Context:
        """Return the context with other credentials."""
        return self._replace(**credentials)  # type: ignore[arg-type]  # all of them are text

    def shown(self) -> dict[str, Any]:
        """Return all fields except the secrets."""
        return {name: value for name, value in self._asdict().items() if name not in SECRETS}

    def given(self) -> dict[str, Any]:
        """Return the fields with a value."""
        return {name: value for name, value in self._asdict().items() if value is not None}


@dataclass
class Contexts:
    """All contexts of a person; `current` is the name of the default."""

    current: str = ""
    by_name: dict[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        """Return the context of this name. Raises `InvalidContext`."""
        if name not in self.by_name:
            known = f": expected {', '.join(self.by_name)}" if self.by_name else ""
            raise InvalidContext(
                f"there is no context {name!r}{known}",
                hint=f"`malamute context add {name} --url tcp://127.0.0.1:9999` adds it",
            )
        return self.by_name[name]


def file_of(environ: Mapping[str, str]) -> Path:
    """Return the path of the contexts."""
    base = environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    return Path(base) / "malamute" / "contexts.toml"


def load(path: Path) -> Contexts:
    """Return the contexts in a file; none without a file. Raises `InvalidContext` for an invalid one."""
    if not path.exists():
        return Contexts()
    import tomllib

    try:
        mode = path.stat().st_mode
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except RecursionError:
        raise InvalidContext(f"{path}: nested too deeply: expected a table of contexts") from None
    except (OSError, ValueError) as error:
        raise InvalidContext(f"{path}: {error}") from None
    current, found = table.get("current", ""), table.get("contexts", {})
    if not isinstance(current, str) or not isinstance(found, dict):
        raise InvalidContext(
            f"{path}: invalid contexts: expected `current` as text, and `contexts` as a table"
        )
    contexts = Contexts(current, {name: _context(path, name, given) for name, given in found.items()})
    if mode & 0o077 and any(set(SECRETS) & context.given().keys() for context in contexts.by_name.values()):
        raise InvalidContext(f"{path} is open to others: expected chmod 600, as it has a password or a token")
    return contexts


def _context(path: Path, name: str, given: Any) -> Context:
    if not isinstance(given, dict):
        raise InvalidContext(f"{path}: invalid contexts.{name}: expected a table")
    for option, value in given.items():
        if option not in FIELDS:
            known = ", ".join(FIELDS)
            raise InvalidContext(f"{path}: unknown option contexts.{name}.{option}: expected {known}")
        if not isinstance(value, FIELDS[option]) or isinstance(value, bool):
            shown = "…" if option in SECRETS else repr(value)
            raise InvalidContext(f"{path}: invalid value {shown} of contexts.{name}.{option}")
    return Context(**given)


def save(path: Path, contexts: Contexts) -> None:
    """Write the contexts, readable by their owner alone. Raises `InvalidContext` on failure."""
    lines = [f"current = {_quoted(contexts.current)}"]
    for name, context in sorted(contexts.by_name.items()):
        lines += ["", f"[contexts.{_quoted(name)}]"]
        lines += [f"{option} = {_quoted(value)}" for option, value in context.given().items()]
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(
            os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write("\n".join(lines) + "\n")
        beside.replace(path)
    except OSError as error:
        raise InvalidContext(f"{path}: {error.strerror}") from None


def _quoted(value: str | float) -> str:
    """Return a text or a number in TOML: as JSON, except for DEL and for numbers that are not finite."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    # Non-ASCII is kept: JSON makes pairs of surrogates beyond its four digits.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
