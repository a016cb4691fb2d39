"""Figures and messages in words: the filters of the templates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup, escape

from malamute.gateway.bodies import is_readable
from malamute.protocol.batch import pack_plain
from malamute.protocol.quantities import shown_size, shown_span
from malamute.protocol.time_units import to_seconds

BODY_CHARACTERS = 160
"""Length of a body's beginning in a table."""

HEX_ROW = 16
"""Bytes in a row of a dump."""

JSON_BYTES_MAX = 1024 * 1024
"""Maximum bytes of a body that is indented."""

INDENT_MAX = 20
"""Maximum levels of an indentation: deep ones would be mostly spaces."""

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_CODE = re.compile(r"`([^`]+)`")
_OPENS = ("{", "[")
_JSON_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')

size, span = shown_size, shown_span


def count(value: float | None) -> str:
    """Return a number for people; a dash for None."""
    if value is None:
        return "-"
    if isinstance(value, float) and 0 < abs(value) < 100:
        return f"{value:,.1f}"
    return f"{value:,.0f}"


def some(number: int, noun: str) -> str:
    """Return a number of things in words."""
    ending = "" if number == 1 else "es" if noun.endswith("x") else "s"
    return f"{count(number)} {noun}{ending}"


def marked(text: str) -> Markup:
    """Return a text whose parts in backticks are code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))


def moment(seconds: float | None) -> str:
    """Return a time in UTC, from seconds since the epoch."""
    return "-" if not seconds else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def moment_ns(nanoseconds: int) -> str:
    """Return a time in UTC with milliseconds, from nanoseconds since the epoch."""
    at = datetime.fromtimestamp(to_seconds(nanoseconds), UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at.microsecond // 1000:03}"


def credit(value: int) -> str:
    """Return the remaining credit."""
    return "unlimited" if value < 0 else count(value)


def body(data: bytes, most: int | None = None) -> str:
    """Return a body as text, or a description of its bytes."""
    text = _decoded(data)
    if text is None:
        return f"{len(data):,} bytes that are no text"
    return text if most is None or len(text) <= most else f"{text[:most]}…"


def excerpt(data: bytes) -> str:
    """Return the beginning of a body for a row of a table."""
    return body(data[: 4 * BODY_CHARACTERS], BODY_CHARACTERS) if _decoded(data) is not None else body(data)


def is_text(data: bytes) -> bool:
    """Return whether a body is text, so that it can be edited."""
    return _decoded(data) is not None


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


class Shown(NamedTuple):
    """A body for people, from its beginning."""

    kind: str
    """`JSON`, `text` or `hex`."""
    text: str
    is_cut: bool


def pretty(data: bytes, most: int, as_hex: bool = False) -> Shown:
    """Return at most so many characters of a body: indented JSON, text, or a dump of bytes, also `as_hex`."""
    text = _decoded(data)
    if as_hex or text is None or _CONTROL.search(text):
        rows = range(0, min(len(data), most // 4), HEX_ROW)
        return Shown("hex", "\n".join(_hex_row(data, start) for start in rows), len(data) > most // 4)
    kind = "JSON" if _is_json(data) else "text"
    text = _indented(text, most) if kind == "JSON" else text
    return Shown(kind, text[:most], len(text) > most)


def _hex_row(data: bytes, start: int) -> str:
    row = data[start : start + HEX_ROW]
    plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
    return f"{start:08x}  {row.hex(' '):<{3 * HEX_ROW}} {plain}"


def _is_json(data: bytes) -> bool:
    """Return whether a body is an object or an array; numbers and strings are text as well."""
    if len(data) > JSON_BYTES_MAX or data.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _indented(text: str, most: int) -> str:
    """Return JSON with a line for each value, and no other change: numbers and keys are those of the body."""
    found, depth, before = "", 0, ""
    for token in (one[0] for one in _JSON_TOKENS.finditer(text)):
        closes = token in ("}", "]")
        depth -= closes
        if before == "," or closes != (before in _OPENS):
            found += "\n" + "  " * min(depth, INDENT_MAX)
        found += ": " if token == ":" else token
        depth += token in _OPENS
        if len(found) > most:
            break
        before = token
    return found


def header_lines(headers: Mapping[str, Any] | None) -> str:
    """Return headers as lines NAME=VALUE, as in forms."""
    return "\n".join(f"{name}={header_text(value)}" for name, value in (headers or {}).items())


def header_text(value: Any) -> str:
    """Return a value so that it is read back unchanged: text that looks like another value is quoted."""
    if isinstance(value, str) and parse_value(value) == value and "\n" not in value:
        return value
    return json.dumps(value, ensure_ascii=False)


def parse_value(text: str) -> str | float | bool | None:
    """Return the value of a typed header: JSON that a header can have, otherwise text."""
    # A publisher may nest lists endlessly: other types are not decoded.
    if text.lstrip()[:1] in ("[", "{"):
        return text
    try:
        value: str | float | bool | None = json.loads(text, parse_constant=str)
        pack_plain(value)
    except (ValueError, OverflowError):
        return text
    return value


def criteria(pairs: Iterable[Sequence[Any]]) -> str:
    """Return criteria in words, as the command line has them."""
    return " | ".join(f"{family} {pattern}".rstrip() for family, pattern in pairs)


def plain(value: Any) -> str:
    """Return any value of an answer in words."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value)) or "-"
    return count(value) if isinstance(value, int | float) else str(value)


def spaced(name: str) -> str:
    """Return the name of a field in words."""
    return name.replace("_", " ")


def link(path: str, /, **arguments: Any) -> str:
    """Return a path of the console with its parameters, without the empty ones."""
    given = {name: value for name, value in arguments.items() if value not in (None, "", [])}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def points(values: Sequence[float], width: int = 100, height: int = 24) -> str:
    """Return the points of a line in a box, the last value at its right end."""
    if len(values) < 2:
        return ""
    top = max(values) or 1.0
    step = width / (len(values) - 1)
    return " ".join(
        f"{place * step:.1f},{height - 1 - value / top * (height - 2):.1f}"
        for place, value in enumerate(values)
    )


FILTERS: Mapping[str, Callable[..., Any]] = {
    "body": body,
    "count": count,
    "credit": credit,
    "criteria": criteria,
    "excerpt": excerpt,
    "header_lines": header_lines,
    "header_text": header_text,
    "is_readable": is_readable,
    "is_text": is_text,
    "marked": marked,
    "moment": moment,
    "moment_ns": moment_ns,
    "plain": plain,
    "points": points,
    "pretty": pretty,
    "size": size,
    "some": some,
    "spaced": spaced,
    "span": span,
}
"""The filters of the templates."""
