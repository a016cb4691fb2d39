"""Mercure's hub (draft 07): updates are published by a form, and followed as Server-Sent Events.

All updates are in one stream. Each is a message for every topic of it, published as one command: the topic is
the subject, so the broker matches the selectors, and its rules say who may publish and see which topics. A
subscriber whose selectors match several of these messages gets the first one. Each message names all topics
of its update, so that a rule can allow it by a topic outside the selectors. The id of an update is `#` and
the sequence of its first message, so Last-Event-ID is where a replay begins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple, TypeGuard

from starlette.requests import Request
from starlette.responses import Response

from malamute.client.session.message import Message
from malamute.errors import InvalidValue, MediaTypeRefused, TooLarge
from malamute.gateway import bodies, sse
from malamute.gateway.addresses import outside
from malamute.gateway.events import EventWriter, start_behind
from malamute.gateway.forms import fields_of
from malamute.gateway.routes import Arguments, Documented, Endpoint, Parameter
from malamute.gateway.sse import follow
from malamute.gateway.state import gateway_of
from malamute.gateway.streams import KEY, published_once
from malamute.gateway.topic_selectors import criteria_of
from malamute.gateway.tracing import sending
from malamute.gateway.users import ANONYMOUS
from malamute.protocol.limits import CRITERIA_MAX, SUBJECT_BYTES_MAX

PATH = "/.well-known/mercure"
FORM = "application/x-www-form-urlencoded"
TEXT = "text/plain"
COOKIE = "mercureAuthorization"
"""The link to the hub, for clients with any answer of it."""

TOPICS_MAX = 100
"""Maximum topics of an update."""

FIELDS_MAX = TOPICS_MAX + 10

RETRY_MS_MAX = 2**31 - 1

EARLIEST = "earliest"

_LINE_END = re.compile(rb"\r\n|\r|\n")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NOT_IN_ID = re.compile(r"^#|[\n\r\0]")


class Update(NamedTuple):
    """The fields of a form. The headers are for all its messages."""

    topics: list[str]
    data: bytes
    headers: dict[str, Any]
    ident: str = ""
    """The id given by the publisher."""

    @property
    def identity(self) -> str:
        """Return the id of the command that publishes it; other updates may share the publisher's id."""
        return blake2b(repr(self).encode(), digest_size=16).hexdigest() if self.ident else ""

    def headers_of_each(self) -> list[dict[str, Any]]:
        """Return the headers of each message."""
        if len(self.topics) == 1:
            return [self.headers]
        first = self.headers | {f"topic{number}": topic for number, topic in enumerate(self.topics, 1)}
        return [first, *(first | {"alternate": number} for number in range(1, len(self.topics)))]


def read_form(body: bytes) -> Update:
    """Return the update of a form.

    Raises:
        Malformed: the form is not UTF-8.
        TooLarge: the form has too many fields.
        InvalidValue: a field is missing, unknown, repeated or invalid.
    """
    fields: dict[str, list[str]] = {}
    for name, value in fields_of(body, FIELDS_MAX):
        fields.setdefault(name, []).append(value)
    if unknown := sorted(fields.keys() - _FIELDS):
        raise InvalidValue(f"unknown field {unknown[0][:100]!r}: expected {', '.join(_FIELDS)}")
    topics = [*dict.fromkeys(fields.pop("topic", ()))]
    _check_topics(topics)
    for name, values in fields.items():
        if len(values) > 1:
            raise InvalidValue(f"field {name!r} {len(values)} times: expected one")
    single = {name: values[0] for name, values in fields.items()}
    if _NOT_IN_ID.search(single.get("id", "")):
        raise InvalidValue("invalid id: expected one without line feeds that does not begin with '#'")
    headers: dict[str, Any] = {}
    if kind := single.get("type"):
        if not _is_type(kind):
            raise InvalidValue("invalid type: expected text of one line")
        headers["type"] = kind
    if text := single.get("retry"):
        headers["retry"] = _retry(text)
    if "private" in single:
        headers["private"] = None
    return Update(topics, single.get("data", "").encode(), headers, single.get("id", ""))


_FIELDS = ("topic", "data", "id", "type", "retry", "private")


def _check_topics(topics: list[str]) -> None:
    if not topics:
        raise InvalidValue("no topic: expected one at least")
    if len(topics) > TOPICS_MAX:
        raise InvalidValue(f"{len(topics)} topics: expected at most {TOPICS_MAX}")
    for topic in topics:
        if not topic or _CONTROL.search(topic) or len(topic.encode()) > SUBJECT_BYTES_MAX:
            words = f"expected 1 to {SUBJECT_BYTES_MAX} bytes without control characters"
            raise InvalidValue(f"invalid topic {topic[:100]!r}: {words}")


def _is_type(value: object) -> bool:
    return isinstance(value, str) and not any(character in value for character in "\r\n\0")


def _retry(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= RETRY_MS_MAX):
        raise InvalidValue(f"invalid retry {text[:100]!r}: expected milliseconds from 0 to {RETRY_MS_MAX}")
    return int(text)


class UpdateWriter(EventWriter):
    """Writes updates as Mercure's events."""

    OWN_TYPES = b"malamute-"

    def __init__(self, requested: str | None, last: int, store: str) -> None:
        super().__init__(last, store)
        self._requested = requested
        self._update = last

    def headers(self) -> Mapping[str, str]:
        """Return the position before the first event: another one than requested reports a loss."""
        earliest = self._requested == EARLIEST or not self.last
        return {**_discovery(), "last-event-id": EARLIEST if earliest else _ident(self.last, self.store)}

    def position(self, sequence: int) -> bytes:
        """Return the id of an update."""
        return _ident(sequence, self.store).encode()

    def event(self, message: Message) -> bytes:
        """Return an update as an event, at the first of its messages."""
        # Any client of the broker may have published the message, so its headers are checked.
        headers = message.headers
        alternate = headers.get("alternate")
        update = message.sequence - (alternate if _is_natural(alternate, TOPICS_MAX - 1) else 0)
        if update == self._update:
            return b""
        self._update = update
        lines = [b"id: " + self.position(update)]
        if (kind := headers.get("type")) and _is_type(kind):
            lines.append(b"event: " + kind.encode())
        if _is_natural(retry_ms := headers.get("retry"), RETRY_MS_MAX):
            lines.append(b"retry: %d" % retry_ms)
        lines += [b"data: " + line for line in _LINE_END.split(message.body)]
        return b"\n".join(lines) + b"\n\n"


def _ident(sequence: int, store: str) -> str:
    """Return the id of the update with this first message."""
    return f"#{sequence}@{store}"


def _is_natural(value: object, most: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= most


def _with_cookie(request: Request) -> Request:
    """Return the request with the token of a cookie as its bearer token: EventSource can set no header."""
    token = request.cookies.get(COOKIE, "")
    if not token or "authorization" in request.headers:
        return request
    header = (b"authorization", b"Bearer " + token.encode("latin-1", "replace"))
    return Request({**request.scope, "headers": [*request.scope["headers"], header]}, request.receive)


def _discovery() -> dict[str, str]:
    return {"link": f'<{outside(PATH)}>; rel="mercure"'}


async def publish_update(request: Request, arguments: Arguments) -> Response:
    """Publish an update, and answer with its id when it is durable.

    Raises:
        MediaTypeRefused: the body is no form.
        TooLarge: the form has too many fields.
    """
    request = _with_cookie(request)
    gateway = gateway_of(request)
    settings = gateway.settings
    if bodies.media_type(request) != FORM:
        raise MediaTypeRefused(f"an update as {bodies.media_type(request)[:100]!r}: expected {FORM}")
    body = await gateway.body(request)
    update = await gateway.bodies.built(body, partial(read_form, body))
    count = len(update.topics)
    if count * len(update.data) > settings.body_bytes:
        raise TooLarge(
            f"{len(update.data)} bytes for {count} topics: expected at most {settings.body_bytes} together"
        )
    stream = settings.mercure_stream

    key = arguments["idempotency_key"]
    async with gateway.session(request) as client:
        with (
            published_once(key) as identity,
            sending("publish", stream, update.headers_of_each(), client) as headers,
        ):
            first = await client.publish_batch(
                stream,
                update.topics,
                [update.data] * count,
                headers,
                timeout=settings.timeout_seconds,
                id=identity or update.identity,
            )
        ident = _ident(first, client.store)
    # The sequence is 0 after a connection that broke before the confirmation: the number is lost.
    return Response(ident if first else "", headers=_discovery(), media_type=TEXT)


async def follow_updates(request: Request, arguments: Arguments) -> Response:
    """Follow the updates of some topics.

    Raises:
        InvalidValue: the request has no topic, too many, or a token in its address.
    """
    topics = arguments["topic"]
    if not topics:
        raise InvalidValue("no topic: expected one at least")
    if "authorization" in request.query_params:
        raise InvalidValue("a token in the address, which is logged: expected a header or a cookie")
    request = _with_cookie(request)
    gateway = gateway_of(request)
    # A browser that reconnects adds the header to the address.
    last = arguments["last_event_id"] or _last_of(request)
    public_only = gateway.identity(request) == ANONYMOUS
    return await follow(
        request,
        gateway.settings.mercure_stream,
        partial(UpdateWriter, last),
        criteria=criteria_of(topics),
        where="not exists private" if public_only else "",
        start=_start(last),
        committed=True,
    )


def _last_of(request: Request) -> str | None:
    """Return the last update in the address. Earlier drafts, and libraries, spell its parameter otherwise."""
    # A library that reconnects appends its parameter to the page's own.
    given = reversed(request.query_params.multi_items())
    return next((value for name, value in given if name.lower().replace("-", "") == "lasteventid"), None)


def _start(last: str | None) -> str:
    if last == EARLIEST:
        return "first"
    if last is None or not last.startswith("#"):
        return "new"
    try:
        return start_behind(last[1:])
    except InvalidValue:
        return "new"


TOPIC = f"A topic, a URI template or `*`. There may be {CRITERIA_MAX}, of which some 30 are templates."
LAST = "The last update that was had: the next one comes first. `earliest` is all that the hub has."

ENDPOINTS = (
    Endpoint(
        "POST",
        PATH,
        publish_update,
        "Mercure: publish an update, by a form with `topic`, `data`, `private`, `type`, `retry` and `id`.",
        (KEY,),
        (FORM,),
        {200: Documented("It is durable, and this is its id.", (TEXT,))},
        (413, 415, 422, 507),
    ),
    Endpoint(
        "GET",
        PATH,
        follow_updates,
        "Mercure: follow the updates of topics as Server-Sent Events.",
        (
            Parameter("topic", TOPIC, many=True),
            Parameter("lastEventID", LAST),
            Parameter("Last-Event-ID", f"{LAST} It counts before the parameter.", place="header"),
        ),
        (),
        {200: Documented("Updates, without end.", (sse.MEDIA_TYPE,))},
        (413,),
        ignores_unknown=True,
    ),
)
