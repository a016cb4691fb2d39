"""The bodies of requests and answers: their limits, and messages as JSON, NDJSON and CloudEvents."""

from __future__ import annotations

import re
from base64 import b64encode
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from malamute.client.events import Gap
from malamute.client.session.message import Message
from malamute.errors import InvalidValue, Malformed, TooLarge
from malamute.gateway.elements import check_elements
from malamute.gateway.header_text import text_of
from malamute.protocol.batch import Columns
from malamute.protocol.limits import BATCH_MESSAGES_MAX

JSON = "application/json"
NDJSON = "application/x-ndjson"
CLOUD_EVENT = "application/cloudevents+json"
CLOUD_EVENTS = "application/cloudevents-batch+json"
ANY = "*/*"

MESSAGE_TYPES = (ANY, NDJSON, CLOUD_EVENT, CLOUD_EVENTS)
"""Media types in which one message or several may be posted."""

HEADER_PREFIX = "malamute-header-"
CLOUD_PREFIX = "ce-"
"""The prefix of CloudEvent attributes in binary mode, in HTTP headers and in message headers."""

HeaderValue = str | int | float | bool | None


class Posted(msgspec.Struct, forbid_unknown_fields=True):
    """A message posted in JSON. Its body is text, or bytes in base64."""

    subject: str = ""
    headers: dict[str, HeaderValue] = {}
    body: str | None = None
    body_base64: bytes | None = None


class Content(NamedTuple):
    """A posted message, in the form that a client sends."""

    subject: str
    body: bytes
    headers: Mapping[str, Any]


def media_type(request: Request) -> str:
    """Return the media type of the body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def contents(request: Request, body: bytes, subject: str | None) -> list[Content]:
    """Return the messages of a request.

    `subject` is the default for messages without one of their own.

    Raises:
        Malformed: the body is not the JSON that its media type announces.
        InvalidValue: the body has no message, or an invalid CloudEvent.
        TooLarge: the body has more messages than one command may carry.
    """
    read = _READERS.get(media_type(request), _single)
    found = read(request, body, subject)
    if not found:
        raise InvalidValue("no message in the body: expected at least one")
    if len(found) > BATCH_MESSAGES_MAX:
        raise TooLarge(f"{len(found)} messages in one request: expected at most {BATCH_MESSAGES_MAX}")
    return found


def _single(request: Request, body: bytes, subject: str | None) -> list[Content]:
    headers: dict[str, Any] = {}
    for name, sent in request.headers.items():
        value = text_of(sent)
        if name.startswith(HEADER_PREFIX):
            headers[name.removeprefix(HEADER_PREFIX)] = value
        elif name.startswith(CLOUD_PREFIX):
            headers[name] = value
    if "ce-specversion" in headers:
        headers |= {name: _unescaped(headers[name]) for name in headers if name.startswith(CLOUD_PREFIX)}
        _check_event({name.removeprefix(CLOUD_PREFIX): value for name, value in headers.items()})
        subject = headers["ce-type"] if subject is None else subject
    if content_type := request.headers.get("content-type"):
        headers["content-type"] = text_of(content_type)
    return [Content(subject or "", body, headers)]


def _unescaped(text: str) -> str:
    """Return the CloudEvent attribute of a header, which may be quoted and is percent-encoded."""
    plain = _QUOTED.sub(lambda quoted: _ESCAPED.sub(r"\1", quoted[1]), text)
    try:
        return unquote(plain, errors="strict")
    except UnicodeDecodeError:
        raise InvalidValue(
            f"invalid CloudEvent: expected UTF-8, percent-encoded, in {text[:100]!r}"
        ) from None


_ESCAPED = re.compile(r"\\(.)")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


def _lines(request: Request, body: bytes, subject: str | None) -> list[Content]:
    # Each line makes an object, so lines are counted before any is decoded.
    if body.count(b"\n") > BATCH_MESSAGES_MAX:
        raise TooLarge(f"too many lines in one request: expected at most {BATCH_MESSAGES_MAX}")
    return [_content(posted, subject) for posted in decoded(_posted_lines, body)]


def _content(posted: Posted, subject: str | None) -> Content:
    return Content(posted.subject or subject or "", body_of(posted), posted.headers)


def body_of(posted: Posted) -> bytes:
    """Return the body of a message in JSON. Raises `InvalidValue` for two bodies."""
    if posted.body is not None and posted.body_base64 is not None:
        raise InvalidValue("a message with body and body_base64: expected one of them")
    return posted.body.encode() if posted.body is not None else posted.body_base64 or b""


def _event(request: Request, body: bytes, subject: str | None) -> list[Content]:
    return [_of_event(decoded(_decode_event, body), subject)]


def _events(request: Request, body: bytes, subject: str | None) -> list[Content]:
    events = decoded(_decode_events, body)
    if len(events) > BATCH_MESSAGES_MAX:
        raise TooLarge(f"{len(events)} messages in one request: expected at most {BATCH_MESSAGES_MAX}")
    return [_of_event(event, subject) for event in events]


def _of_event(event: dict[str, msgspec.Raw], subject: str | None) -> Content:
    """Convert a CloudEvent in structured mode to the same event in binary mode."""
    data, coded = event.pop("data", None), event.pop("data_base64", None)
    if data is not None and coded is not None:
        raise InvalidValue("a CloudEvent with data and data_base64: expected one of them")
    given = {name: decoded(_decode_attribute, bytes(raw)) for name, raw in event.items()}
    # An attribute that is null is absent.
    attributes = {name: value for name, value in given.items() if value is not None}
    _check_event(attributes)
    kind = attributes.pop("datacontenttype", None) or JSON
    headers: dict[str, Any] = {f"{CLOUD_PREFIX}{name}": value for name, value in attributes.items()}
    headers["content-type"] = kind
    body = b"" if data is None else bytes(data)
    if coded is not None:
        body = decoded(_decode_base64, bytes(coded))
    elif data is not None and not _is_json(str(kind)) and body.startswith(b'"'):
        # Data other than JSON is a JSON string in the event.
        body = decoded(_decode_text, body).encode()
    return Content(str(attributes["type"]) if subject is None else subject, body, headers)


def _is_json(kind: str) -> bool:
    essence = kind.partition(";")[0].strip().lower()
    return essence.endswith("+json") or essence == JSON


def _check_event(attributes: Mapping[str, Any]) -> None:
    if attributes.get("specversion") != "1.0":
        raise InvalidValue("invalid CloudEvent: expected specversion 1.0")
    for name in ("id", "source", "type"):
        if not isinstance(attributes.get(name), str) or not attributes[name]:
            raise InvalidValue(f"invalid CloudEvent: expected {name!r} with text")


def decoded(decode: Callable[[bytes], Any], data: bytes) -> Any:
    """Return the decoded JSON. Raises `Malformed` for invalid JSON or another type than expected."""
    try:
        # Programs on Windows begin a text with a byte order mark.
        return decode(data.removeprefix(BOM_UTF8))
    except (ValueError, RecursionError) as error:
        raise Malformed(f"invalid JSON: {error}") from None


_posted_lines = msgspec.json.Decoder(Posted).decode_lines
_decode_event = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_events = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_decode_attribute = msgspec.json.Decoder(HeaderValue).decode
_decode_base64 = msgspec.json.Decoder(bytes).decode
_decode_text = msgspec.json.Decoder(str).decode

_DEPTHS = {NDJSON: 0, CLOUD_EVENT: 1, CLOUD_EVENTS: 2}
"""Depth to which a body is built, by media type; 0 means all of it. Other types are not built."""


def elements_of(request: Request, body: bytes) -> int:
    """Return an estimate of the elements that are built for a body. Raises `TooLarge`."""
    depth = _DEPTHS.get(media_type(request))
    return 0 if depth is None else check_elements(body, depth)


_READERS: dict[str, Callable[[Request, bytes, str | None], list[Content]]] = {
    NDJSON: _lines,
    CLOUD_EVENT: _event,
    CLOUD_EVENTS: _events,
}

to_json = msgspec.json.Encoder().encode


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer, with a final line feed for readers in a terminal."""
    return Response(to_json(value) + b"\n", status, headers, media_type=JSON)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def messages_of(columns: Columns) -> Iterator[Message]:
    """Yield the messages of a run."""
    return map(
        Message,
        columns.each_sequence(),
        columns.each_time(),
        columns.each_sender(),
        columns.subjects,
        columns.records,
    )


# All messages of a chunk share one time, and formatting it took over two fifths of an event.
@lru_cache(maxsize=16)
def time_of(time_ns: int) -> str:
    """Return a time in UTC as RFC 3339 writes it, to the microsecond."""
    return (_EPOCH + timedelta(microseconds=time_ns // 1000)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def body_fields(body: bytes) -> dict[str, str]:
    """Return a body as JSON fields: text if it is UTF-8, otherwise base64."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}


def shown_gap(gap: Gap) -> dict[str, Any]:
    """Return a gap as JSON fields."""
    store = {"store": gap.store} if gap.store else {}
    return {"first": gap.first, "last": gap.last, "reason": gap.reason, **store}


UNREADABLE = "malformed"
"""The reason of a gap, or of a dead letter, for a message with a damaged record."""


def is_readable(message: Message) -> bool:
    """Return whether a message can be decoded: the broker does not look into records."""
    try:
        return message.headers is not None
    except Malformed:
        return False


def unreadable(message: Message) -> Gap:
    """Return a gap in place of a damaged message: a reader who met an error there would never get past it."""
    return Gap("", message.sequence, message.sequence, UNREADABLE)


def shown(message: Message) -> dict[str, Any]:
    """Return a message as JSON fields. Raises `Malformed`."""
    fields: dict[str, Any] = {"sequence": message.sequence, "time": time_of(message.time_ns)}
    if message.sender:
        fields["sender"] = message.sender
    fields["subject"] = message.subject
    if message.headers:
        fields["headers"] = message.headers
    return fields | body_fields(message.body)
