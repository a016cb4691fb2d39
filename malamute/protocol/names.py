"""Names, and the URIs that carry them.

A stream, a mailbox (its name is an address) and a service each have a name: 1 to 255 bytes of UTF-8
without control characters, and neither `.` nor `..`, which no address of HTTP can have. Names that start with
`$` belong to the broker. A URI adds the broker:
`malamute://host[:port]/stream/NAME`, with `/mailbox/` and `/service/` beside it; NAME is percent-encoded.
The URI of a broker alone is `malamute://host[:port]`. Within a broker `stream/NAME` is a place,
with its NAME as it is.
A URI with anything more (a user, a query, a fragment, a control character) is refused, not cut.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple, get_args
from urllib.parse import quote, unquote

from malamute.errors import InvalidName
from malamute.protocol.limits import NAME_BYTES_MAX

Kind = Literal["stream", "mailbox", "service"]

DEFAULT_PORT = 9999
PORT_MAX = 65_535
SCHEME = "malamute://"
NAME_FORM = f"1 to {NAME_BYTES_MAX} bytes of UTF-8 without control characters, and not . or .."
FORM = "malamute://host[:port], and perhaps /stream/NAME, /mailbox/NAME or /service/NAME"
PLACE_FORM = "stream/NAME, mailbox/NAME or service/NAME"
RESERVED_PREFIX = "$"

SIGNATURE_PREFIX = f"{RESERVED_PREFIX}user."

AUDIT = "$audit"
"""The stream of administrative changes."""

ERROR_HEADER = "malamute.error"
"""The header of a final reply that reports a failure: its text."""

# A lone surrogate has no UTF-8 form, so it is no text that another program could read.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_URI = re.compile(
    r"malamute://(?:\[(?P<bracketed>[0-9a-z.%]*:[0-9a-z:.%]*)\]|(?P<host>[\w.-]+))(?::(?P<port>[0-9]{1,5}))?"
    r"(?:/|/(?P<kind>\w+)/(?P<name>(?:[^/?#%]|%[0-9a-f]{2})+))?",
    re.ASCII | re.IGNORECASE,
)


@lru_cache(maxsize=4096)
def is_name(value: str) -> bool:
    """Return whether `value` is a valid name."""
    if not 1 <= len(value) <= NAME_BYTES_MAX or value in (".", "..") or _CONTROL.search(value):
        return False
    return len(value) * 4 <= NAME_BYTES_MAX or len(value.encode()) <= NAME_BYTES_MAX


def signature(user: str) -> str:
    """Return the sender of messages of a signed session; a broker without users has one user."""
    return SIGNATURE_PREFIX + user


class Place(NamedTuple):
    """A stream, a mailbox or a service of one broker: `str(place)` and `Place.parse` are inverse."""

    kind: Kind
    name: str

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read `KIND/NAME`. Raises `InvalidName` for any other text."""
        kind, _, name = text.partition("/")
        if kind not in get_args(Kind) or not is_name(name):
            raise InvalidName(f"invalid place {text!r}: expected {PLACE_FORM}", hint="such as stream/weather")
        return cls(kind, name)  # type: ignore[arg-type]  # checked above

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class Uri(NamedTuple):
    """The address of a stream, a mailbox or a service: `str(uri)` and `Uri.parse` are inverse."""

    host: str
    port: int
    kind: Kind
    name: str

    @classmethod
    def parse(cls, text: str) -> Uri:
        """Read a `malamute://` URI. Raises `InvalidName` for any other text."""
        parts = _parts(text)
        if parts["kind"] is None:
            raise InvalidName(
                f"invalid URI {text!r}: expected /stream/NAME, /mailbox/NAME or /service/NAME at its end"
            )
        if parts["kind"] not in get_args(Kind):
            raise InvalidName(f"invalid URI {text!r}: expected {FORM}")
        try:
            name = unquote(parts["name"], errors="strict")
        except UnicodeDecodeError:
            name = ""
        if not is_name(name):
            raise InvalidName(
                f"invalid name in the URI {text!r}: expected a name of 1 to {NAME_BYTES_MAX} bytes"
            )
        return cls(*_place(parts), parts["kind"], name)  # type: ignore[arg-type]  # checked above

    @property
    def endpoint(self) -> str:
        """Return the address of the broker for ZeroMQ."""
        return f"tcp://{_authority(self.host)}:{self.port}"

    def __str__(self) -> str:
        port = "" if self.port == DEFAULT_PORT else f":{self.port}"
        return f"{SCHEME}{_authority(self.host)}{port}/{self.kind}/{quote(self.name, safe='')}"


def endpoint_of(text: str) -> str:
    """Return the ZeroMQ address in a `malamute://` URI. Raises `InvalidName` for any other text."""
    parts = _parts(text)
    if parts["kind"] is not None:
        return Uri.parse(text).endpoint
    host, port = _place(parts)
    return f"tcp://{_authority(host)}:{port}"


def _parts(text: str) -> re.Match[str]:
    parts = _URI.fullmatch(text)
    if parts is None:
        raise InvalidName(f"invalid URI {text!r}: expected {FORM}")
    if not 1 <= int(parts["port"] or DEFAULT_PORT) <= PORT_MAX:
        raise InvalidName(f"invalid port in the URI {text!r}: expected 1 to {PORT_MAX}")
    return parts


def _place(parts: re.Match[str]) -> tuple[str, int]:
    return (parts["host"] or parts["bracketed"]).lower(), int(parts["port"] or DEFAULT_PORT)


def _authority(host: str) -> str:
    return f"[{host}]" if ":" in host else host
