"""The types of options: which values are allowed, how one is read, how it is written.

Durations and sizes are those of `protocol/quantities.py`. A written value reads back exactly.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from decimal import Decimal
from ipaddress import ip_network
from pathlib import Path
from typing import Any, NamedTuple

from malamute.access import AccessRule, Quota
from malamute.access.token import ALGORITHMS
from malamute.errors import ConfigError, InvalidRule
from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.names import RESERVED_PREFIX, is_name
from malamute.protocol.quantities import (
    format_duration,
    format_size,
    parse_duration,
    parse_size,
    quantity,
    whole,
)

_PLAIN = {"": Decimal(1)}

_TCP = re.compile(r"tcp://(\*|[^\s:/]+|\[[0-9A-Fa-f:.%]+\]):(\*|[0-9]{1,5})")
_IPC_BYTES_MAX = 107  # the bytes of a Unix socket's address
_FLAGS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


class OptionType(NamedTuple):
    """The type of an option.

    `words` describe the allowed values. `read` takes a value of TOML or of the environment, or one that it
    returned before, and raises ValueError for anything else. `write` returns the TOML of a value. `example`
    is for the text of an error, which omits a `secret` value.
    """

    words: str
    read: Callable[[Any], Any]
    write: Callable[[Any], str]
    example: str = ""
    secret: bool = False


def _between(read: Callable[[Any], Any], low: float, high: float) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        number = read(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return checked


def count(low: int, high: int = NUMBER_MAX) -> OptionType:
    """A whole number."""
    words = f"a whole number from {low} " + (f"to {high}" if high < NUMBER_MAX else "on")
    return OptionType(words, _between(lambda value: whole(quantity(value, _PLAIN)), low, high), str)


def size(low: int, high: int = NUMBER_MAX) -> OptionType:
    """A size in bytes."""
    words = f"a size from {format_size(low)} " + (f"to {format_size(high)}" if high < NUMBER_MAX else "on")
    return OptionType(words, _between(parse_size, low, high), _written(format_size), '"64MiB"')


def duration(low: float, high: float) -> OptionType:
    """A duration in seconds."""
    words = f"a duration from {format_duration(low)} to {format_duration(high)}"
    return OptionType(words, _between(parse_duration, low, high), _written(format_duration), '"500ms"')


def durations(low: float, high: float) -> OptionType:
    """A list of durations in seconds."""
    one = duration(low, high)
    return OptionType(
        f"a list, each {one.words}",
        lambda value: tuple(map(one.read, items(value))),
        lambda value: f"[{', '.join(map(one.write, value))}]",
        '["1s", "1m"]',
    )


def share(low: float, high: float) -> OptionType:
    """A part of a whole."""
    read = _between(lambda value: float(quantity(value, _PLAIN)), low, high)
    return OptionType(f"a number from {low} to {high}", read, repr)


def choice(*values: str) -> OptionType:
    """One of some words."""

    def read(value: Any) -> str:
        if value not in values:
            raise ValueError
        return str(value)

    return OptionType("one of " + ", ".join(map(quoted, values)), read, quoted)


def quoted(value: Any) -> str:
    """Return a text as TOML: as JSON, with one more escaped character."""
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _written(form: Callable[[Any], str]) -> Callable[[Any], str]:
    def write(value: Any) -> str:
        text = form(value)
        return text if text.isdigit() else quoted(text)

    return write


def read_toml(text: str) -> dict[str, Any]:
    """The tables of a text. Raises `ValueError`."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("too many lists or tables in each other") from None


def items(value: Any) -> tuple[Any, ...]:
    """The items of a list. The environment gives it as TOML, or as texts between commas.

    Raises:
        ValueError: it is neither a list nor text.
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = read_toml(f"list = {value}")["list"]
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",") if item.strip())
    if not isinstance(value, (list, tuple)):
        raise ValueError
    return tuple(value)


def _read_flag(value: Any) -> bool:
    flag = _FLAGS.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(flag, bool):
        raise ValueError
    return flag


def _read_path(value: Any) -> Path:
    if not isinstance(value, (str, Path)) or not str(value) or "\0" in str(value):
        raise ValueError
    try:
        return Path(value).expanduser()
    except RuntimeError as error:  # the home of somebody unknown
        raise ValueError from error


def _read_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _read_endpoints(value: Any) -> tuple[str, ...]:
    endpoints = items(value)
    if not endpoints or not all(map(_is_endpoint, endpoints)) or len(set(endpoints)) < len(endpoints):
        raise ValueError
    return endpoints


def _is_endpoint(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    mechanism, place = ListenEndpoint.parse(value)
    if (match := _TCP.fullmatch(place)) and mechanism != "peer":
        return match[2] == "*" or int(match[2]) <= 65535
    path = place.removeprefix("ipc://")
    return path not in (place, "", "@") and len(path.encode()) <= _IPC_BYTES_MAX


class ListenEndpoint(NamedTuple):
    """An endpoint, and how those prove who they are that connect to it.

    The mechanism is `null`, `plain` or `curve`; with `peer` the system says who is on the other end. One that
    is `curve-before` is `curve` with the key that the broker had before.
    """

    mechanism: str
    endpoint: str

    @classmethod
    def parse(cls, text: str) -> ListenEndpoint:
        """Return the value of the configuration."""
        for mechanism in ("plain", "curve", "curve-before", "peer"):
            if text.startswith(f"{mechanism}+"):
                return cls(mechanism, text.removeprefix(f"{mechanism}+"))
        return cls("null", text)

    @property
    def is_open(self) -> bool:
        """Whether other machines can reach it, and nothing is encrypted."""
        match = _TCP.fullmatch(self.endpoint)
        encrypted = self.mechanism in ("curve", "curve-before")
        return not encrypted and match is not None and not _LOOPBACK.fullmatch(match[1])


_LOOPBACK = re.compile(r"localhost|127(?:\.[0-9]{1,3}){3}|\[::1\]")


def _read_rule(value: Any) -> AccessRule:
    try:
        return value if isinstance(value, AccessRule) else AccessRule.parse(value)
    except InvalidRule as error:
        raise ConfigError(error.text) from None


def _read_owner(value: Any) -> str:
    if not isinstance(value, str) or not is_name(value) or value.startswith(RESERVED_PREFIX):
        raise ValueError
    return value


def _read_claims(value: Any) -> tuple[tuple[str, str], ...]:
    pairs = tuple(sorted(value.items())) if isinstance(value, dict) else items(value)
    if not all(isinstance(text, str) and text for pair in pairs for text in pair):
        raise ValueError
    return pairs


def _list_of(words: str, read: Callable[[Any], Any], example: str) -> OptionType:
    return OptionType(
        words,
        lambda value: tuple(map(read, items(value))),
        lambda value: f"[{', '.join(map(quoted, value))}]",
        example,
    )


def _read_network(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    ip_network(value)
    return value


NETWORKS = _list_of("a list of IP addresses and networks", _read_network, '["10.0.0.7", "10.1.0.0/16"]')
RULES = _list_of("a list of rules", _read_rule, '["receive mailbox/{user}"]')
OWNER = OptionType("a name that does not begin with $", _read_owner, quoted, '"ann"')
OWNERS = _list_of("a list of names", _read_owner, '["staff"]')
CLAIMS = OptionType(
    "a table of texts",
    _read_claims,
    lambda claims: "{" + ", ".join(f"{quoted(name)} = {quoted(value)}" for name, value in claims) + "}",
    '{ward = "3"}',
)


QUOTA_TYPES: dict[str, OptionType] = {
    name: size(1) if "bytes" in name else count(1) for name in Quota._fields
}


def _read_quota(value: Any) -> Quota:
    if isinstance(value, Quota):
        value = {name: most for name, most in value._asdict().items() if most is not None}
    if isinstance(value, str):
        value = read_toml(f"table = {value}")["table"]
    if not isinstance(value, dict):
        raise ValueError
    for name in value:
        if name not in QUOTA_TYPES:
            raise ConfigError(f"unknown quota {name!r}: expected {', '.join(QUOTA_TYPES)}")
    return Quota(**{name: _read_most(name, most) for name, most in value.items()})


def _read_most(name: str, value: Any) -> Any:
    try:
        return QUOTA_TYPES[name].read(value)
    except (ValueError, ArithmeticError):
        raise ConfigError(f"{name} = {value!r}: expected {QUOTA_TYPES[name].words}") from None


def _write_quota(quota: Quota) -> str:
    given = ((name, most) for name, most in quota._asdict().items() if most is not None)
    return "{" + ", ".join(f"{name} = {QUOTA_TYPES[name].write(most)}" for name, most in given) + "}"


QUOTA = OptionType(
    f"a table of some of {', '.join(QUOTA_TYPES)}, each 1 or more; what is left out has no limit",
    _read_quota,
    _write_quota,
    '{connections = 10, bytes_per_second = "1MiB"}',
)


def _read_algorithms(value: Any) -> tuple[str, ...]:
    found = items(value)
    if not found or not set(found) <= ALGORITHMS.keys():
        raise ValueError
    return found


ALGORITHMS_LIST = OptionType(
    f"a list of some of {', '.join(ALGORITHMS)}",
    _read_algorithms,
    lambda value: f"[{', '.join(map(quoted, value))}]",
    '["RS256"]',
)
FLAG = OptionType("true or false", _read_flag, lambda value: str(value).lower())


def _read_file(value: Any) -> str:
    return "" if value == "" else str(_read_path(value))


def _read_process_user(value: Any) -> str:
    if not isinstance(value, str) or (value and not _PROCESS_USER.fullmatch(value)):
        raise ValueError
    return value


_PROCESS_USER = re.compile(r"[^\s:/]+(:[^\s:/]+)?")

PROCESS_USER = OptionType(
    "NAME or NAME:GROUP of this system; none if it is empty", _read_process_user, quoted
)
FILE = OptionType("a path; none if it is empty", _read_file, quoted)
PLACE = OptionType("a text; none if it is empty", _read_file, quoted)
PATH = OptionType("a path", _read_path, quoted)
TEXT = OptionType("a text", _read_text, quoted)
PATTERN = OptionType("a pattern of names", _read_text, quoted, '"metrics.*"')
ENDPOINTS = OptionType(
    "a list of different endpoints, each `tcp://HOST:PORT` or `ipc://PATH`, with `curve+` or `plain+` or not,"
    " or `peer+ipc://PATH`",
    _read_endpoints,
    lambda value: f"[{', '.join(map(quoted, value))}]",
    '["tcp://*:9999", "ipc:///run/malamute.sock"]',
)
