"""Printed messages: lines for people, JSON for programs, or the bodies alone."""

from __future__ import annotations

import base64
import codecs
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from malamute.cli.error_output import report
from malamute.cli.escaping import for_terminal
from malamute.cli.escaping import printable as printable
from malamute.cli.escaping import to_json as to_json
from malamute.cli.options import json_option

if TYPE_CHECKING:
    from malamute.client.session.message import Message

Render = Callable[["Message"], bytes]
Function = TypeVar("Function", bound=Callable[..., Any])

BODY_CHARACTERS = 120
"""Characters of a body in a table."""


def jsonable(value: Any) -> Any:
    """Return a value for JSON, which has no infinite numbers."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _text(body: bytes) -> str:
    return body.decode("utf-8", "backslashreplace")


def plain_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return headers for JSON."""
    return {name: jsonable(value) for name, value in headers.items()}


class MessageContent(NamedTuple):
    """Headers and frames of a message; without them for a damaged record, with the reason."""

    headers: Mapping[str, Any]
    frames: Sequence[bytes]
    damage: str = ""

    @property
    def body(self) -> bytes:
        """Return the frames as one piece."""
        return b"".join(self.frames)


def content_of(message: Message) -> MessageContent:
    """Return the content of a message. Any client may have published a damaged record: readers continue."""
    from malamute.errors import Malformed

    try:
        return MessageContent(message.headers, message.frames)
    except Malformed as error:
        return MessageContent({}, (), f"unreadable: {error.text}")


def fields_of(message: Message) -> dict[str, Any]:
    """Return a message for JSON, from which `OutgoingMessage` makes the same one again.

    A body other than text is `body_base64`. `frames` are present for more than one; `floats` names headers
    with numbers that JSON cannot express, which are text.
    """
    content = content_of(message)
    fields: dict[str, Any] = {
        "sequence": message.sequence,
        "time": message.time.isoformat(),
        "sender": message.sender,
        "subject": message.subject,
        "headers": plain_headers(content.headers),
    }
    if floats := [name for name, value in content.headers.items() if jsonable(value) is not value]:
        fields["floats"] = floats
    if attempts := getattr(message, "attempts", 0):
        fields["attempts"] = attempts
    if message.expires is not None:
        fields["ttl"] = message.ttl
    if content.damage:
        return {**fields, "unreadable": content.damage}
    if len(content.frames) != 1:
        fields["frames"] = [body_fields(frame) for frame in content.frames]
    return {**fields, **body_fields(content.body)}


def body_fields(body: bytes) -> dict[str, str]:
    """Return a body for JSON: `body` if it is text, `body_base64` if not."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def excerpt(headers: Mapping[str, Any], body: bytes) -> dict[str, str]:
    """Return headers and the beginning of a body for a row of a table."""
    try:
        # The cut must not end inside a character.
        text = codecs.getincrementaldecoder("utf-8")().decode(body[: 4 * BODY_CHARACTERS])
    except UnicodeDecodeError:
        text = f"{len(body)} bytes"
    if len(text) > BODY_CHARACTERS:
        text = f"{text[:BODY_CHARACTERS]}…"
    return {"headers": to_json(plain_headers(headers)) if headers else "", "body": text}


def as_json(message: Message) -> bytes:
    """Return a message as a line of JSON."""
    return f"{to_json(fields_of(message))}\n".encode("utf-8", "backslashreplace")


def as_line(message: Message) -> bytes:
    """Return a message as a line for people: sequence, subject, body and headers with tabs between them."""
    content = content_of(message)
    body = f"({content.damage})" if content.damage else _text(content.body)
    parts = [str(message.sequence), printable(message.subject), printable(body)]
    if content.headers:
        parts.append(printable(to_json(plain_headers(content.headers))))
    return ("\t".join(parts) + "\n").encode("utf-8", "backslashreplace")


def as_body(message: Message) -> bytes:
    """Return the body, with an end of line if it has none."""
    body = as_raw(message)
    return body if body.endswith(b"\n") else body + b"\n"


def as_raw(message: Message) -> bytes:
    """Return the body unchanged. For a damaged message, print a warning on standard error."""
    content = content_of(message)
    if content.damage:
        report(f"message {message.sequence} is {content.damage}")
    return content.body


def as_format(template: str) -> Render:
    """Return a renderer for a template such as `{subject} {header[unit]} {body}`."""

    def render(message: Message) -> bytes:
        content = content_of(message)
        values = {
            "sequence": message.sequence,
            "time": message.time.isoformat(),
            "sender": message.sender,
            "subject": message.subject,
            "headers": to_json(plain_headers(content.headers)),
            "header": _Missing(content.headers),
            "body": f"({content.damage})" if content.damage else _text(content.body),
        }
        return f"{template.format_map(values)}\n".encode("utf-8", "backslashreplace")

    return render


class _Missing(dict[str, Any]):
    """Headers for a template: a missing one is empty."""

    def __missing__(self, name: str) -> str:
        return ""


def _check_template(ctx: click.Context, parameter: click.Parameter, template: str | None) -> str | None:
    texts = dict.fromkeys(("time", "sender", "subject", "headers", "body"), "")
    try:
        if template is not None:
            template.format_map({"sequence": 0, "header": _Missing(), **texts})
    except (KeyError, ValueError, AttributeError, IndexError, TypeError) as error:
        raise click.BadParameter(f"{template!r}: {error}") from None
    return template


def prints_messages(default: Render | None) -> Callable[[Function], Function]:
    """Add --json, --body, --raw and --format; the command gets the chosen one, or `default`, as `render`."""

    def decorate(function: Function) -> Function:
        @json_option
        @click.option("--body", "bodies", is_flag=True, help="Print the bodies, each on lines of its own.")
        @click.option("--raw", is_flag=True, help="Print the bodies and nothing between them.")
        @click.option(
            "--format",
            "template",
            callback=_check_template,
            help="A template with {sequence} {time} {sender} {subject} {headers} {header[NAME]} {body}.",
        )
        @functools.wraps(function)
        def command(*args: Any, bodies: bool, raw: bool, template: str | None, **more: Any) -> Any:
            given = {
                "--json": as_json if more.pop("as_json") else None,
                "--body": as_body if bodies else None,
                "--raw": as_raw if raw else None,
                "--format": as_format(template) if template is not None else None,
            }
            chosen = [render for render in given.values() if render is not None]
            if len(chosen) > 1:
                raise click.UsageError(f"two of {', '.join(given)}: expected one of them")
            return function(*args, render=chosen[0] if chosen else default, **more)

        return command  # type: ignore[return-value]  # the wrapper replaces the command

    return decorate


def show(messages: Iterable[Message], render: Render) -> None:
    """Print messages at once. On a terminal, characters that it would obey are escaped."""
    click.echo(for_terminal(b"".join(map(render, messages))), nl=False)
