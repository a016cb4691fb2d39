"""Messages in the form of arguments and input: headers, bodies, lines, and lines of JSON."""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import select
import stat
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, NamedTuple, TypeVar

import click

from malamute.cli.error_output import BadInput, report
from malamute.cli.standard_streams import has_input

HEADERS_HELP = (
    "A header. A value that is a JSON number, true, false, null or quoted text is that; "
    "anything else is text. NAME alone is null."
)

READ_BYTES = 1 << 16

Value = str | int | float | bool | None
Function = TypeVar("Function", bound=Callable[..., Any])


class OutgoingMessage(NamedTuple):
    """A message to be published."""

    subject: str
    headers: dict[str, Value] | None
    body: bytes | list[bytes]
    ttl: float | None = None


def parse_value(text: str) -> Value:
    """Return the value of a typed header."""
    try:
        value = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text
    # A list or a map cannot be a header; Infinity and NaN are no JSON. Such values stay text.
    return text if isinstance(value, (list, dict)) else value


def parse_header(text: str) -> tuple[str, Value]:
    """Return a header from `name=value`, or from a name alone."""
    name, equals, value = text.partition("=")
    if not name:
        raise click.BadParameter(f"invalid header {text!r}: expected NAME=VALUE")
    return name, parse_value(value) if equals else None


def _parse_headers(
    ctx: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Value]:
    return dict(map(parse_header, texts))


headers_option = click.option(
    "--header",
    "-H",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_parse_headers,
    help=HEADERS_HELP,
)
"""Adds -H; the command gets a map."""


def rows_option(verb: str) -> Callable[[Function], Function]:
    """Return --file with this verb in its help; the command gets the open file as `rows`."""
    row = '{"subject": …, "headers": {…}, "body": …}'
    words = f"{verb} each line {row} of a file; - is standard input."
    return click.option("--file", "rows", type=click.File("rb"), help=words)


def confirm_option(messages: str) -> Callable[[Function], Function]:
    """Return --confirm and --no-confirm for these messages."""
    words = f"Wait until the {messages} on the broker's disk."
    return click.option("--confirm/--no-confirm", default=True, show_default=True, help=words)


def body_of(text: str) -> bytes:
    """Return the body of an argument; `-` is standard input."""
    if text == "-":
        return standard_input().read()
    return os.fsencode(text)


def body_given(text: str | None, seconds: float) -> bytes:
    """Return the body of an argument, or standard input without one.

    A terminal, a device such as /dev/null, and a closed standard input are no body, and neither is the rest
    of a file of which a shell has read the beginning. An open pipe is awaited for `seconds`: it may have no
    writer, as in a job of a build server.

    Raises:
        BadInput: the pipe had no data in time.
    """
    if text is not None:
        return body_of(text)
    if not has_input():
        return b""
    source = standard_input()
    try:
        descriptor = source.fileno()
    except OSError:
        return source.read()  # a program has replaced sys.stdin
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return source.read() if os.lseek(descriptor, 0, os.SEEK_CUR) == 0 else b""
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return b""
    if not select.select([descriptor], [], [], seconds)[0]:
        raise BadInput(
            f"no body came on standard input in {seconds:g} s: expected BODY, '' for an empty one, "
            "or - to wait for it; `< /dev/null` says that there is none"
        )
    return source.read()


def standard_input() -> IO[bytes]:
    """Return standard input, as bytes."""
    return sys.stdin.buffer


def chunks_of_lines(source: IO[bytes]) -> Iterator[list[bytes]]:
    """Yield lists of lines as they arrive: a slow writer need not fill a list."""
    read = getattr(source, "read1", source.read)
    rest, begun = b"", False
    while piece := read(READ_BYTES):
        rest += piece
        if not begun:
            # Programs on Windows begin a text with a byte order mark.
            if len(rest) < len(BOM_UTF8) and BOM_UTF8.startswith(rest):
                continue
            rest, begun = rest.removeprefix(BOM_UTF8), True
        *lines, rest = rest.split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


def row_of(line: bytes, subject: str) -> OutgoingMessage:
    """Return the message of a line of JSON; `subject` is the default. Raises `BadInput`."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"invalid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadInput("expected a JSON object")
    subject, headers = fields.get("subject", subject), fields.get("headers")
    if not isinstance(headers, dict | None):
        raise BadInput("invalid headers: expected a JSON object")
    floats = _list(fields, "floats")
    for name in floats:
        _make_float(headers or {}, name)
    return OutgoingMessage(subject, headers, _content_of(fields), _ttl_of(fields))


def _make_float(headers: dict[str, Any], name: Any) -> None:
    value = headers.get(name) if isinstance(name, str) else None
    if value not in ("nan", "inf", "-inf"):
        raise BadInput(f"invalid floats: expected names of headers that are nan, inf or -inf, found {name!r}")
    headers[name] = float(value)


def _list(fields: dict[str, Any], name: str) -> list[Any]:
    value = fields.get(name, [])
    if not isinstance(value, list):
        raise BadInput(f"invalid {name}: expected a list")
    return value


def _ttl_of(fields: dict[str, Any]) -> float | None:
    ttl = fields.get("ttl")
    if ttl is not None and (
        isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl < math.inf
    ):
        raise BadInput(f"invalid ttl {str(ttl)[:40]}: expected seconds, such as 30")
    return ttl


def _content_of(fields: dict[str, Any]) -> bytes | list[bytes]:
    if "frames" not in fields:
        return _body_of(fields)
    frames = _list(fields, "frames")
    if not all(isinstance(frame, dict) for frame in frames):
        raise BadInput('invalid frames: expected a list of {"body": …} or {"body_base64": …}')
    return [*map(_body_of, frames)]


def _body_of(fields: dict[str, Any]) -> bytes:
    encoded, body = fields.get("body_base64"), fields.get("body", "")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise BadInput("invalid body_base64: expected base64") from None
    if not isinstance(body, str):
        raise BadInput("invalid body: expected text")
    return body.encode("utf-8", "surrogatepass")


def unreadable_in(line: bytes) -> bool:
    """Return whether a line stands for a message that was unreadable when it was printed."""
    if b'"unreadable"' not in line:
        return False
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and "unreadable" in fields and "body" not in fields


def rows_of(lines: Iterable[tuple[int, bytes]], subject: str, place: str) -> Iterator[OutgoingMessage]:
    """Yield the messages of numbered lines. Raises `BadInput` with the place and the number of the line."""
    for number, line in lines:
        if line.strip():
            if unreadable_in(line):
                # The message cannot be restored, and the others need not be lost with it.
                report(f"{place}, line {number}: a message that was unreadable is left out")
                continue
            try:
                yield row_of(line, subject)
            except BadInput as error:
                raise BadInput(f"{place}, line {number}: {error.text}") from None
