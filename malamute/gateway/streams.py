"""Streams over HTTP: messages are posted, read in pages, and followed as Server-Sent Events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from malamute.aio import Client, Subscription
from malamute.client.events import Gap
from malamute.client.options import check_name
from malamute.client.session.message import Message
from malamute.errors import InvalidSelector, InvalidValue, KeyReused, Malformed, TimedOut
from malamute.gateway import bodies
from malamute.gateway.addresses import address
from malamute.gateway.events import start_behind
from malamute.gateway.routes import DURATION, Arguments, Documented, Endpoint, Parameter
from malamute.gateway.sse import follow
from malamute.gateway.state import Gateway, gateway_of
from malamute.gateway.tracing import sending
from malamute.protocol.batch import Columns
from malamute.protocol.messages import BY_TYPE, Publish
from malamute.protocol.position import StorePosition
from malamute.protocol.start import AFTER

PUBLISH = BY_TYPE[Publish].opcode

PAGE_MESSAGES = 100
PAGE_MESSAGES_MAX = 1000

NAME = Parameter("name", "The name of the stream.", place="path")
SUBJECT = Parameter("subject", "The subject of messages without one of their own.")
TTL = Parameter(
    "ttl",
    "Time to live, in seconds or as 30s.",
    DURATION,
)
KEY = Parameter(
    "Idempotency-Key", "A request that is repeated with its key is carried out once.", place="header"
)
SELECTION = (
    Parameter("pattern", "Messages whose subject matches one of these patterns.", many=True),
    Parameter(
        "family",
        "How the patterns are read: `topic`, `topic-amqp`, `exact`, `prefix`, `regex`, or one of a plug-in.",
        {"type": "string", "default": "topic"},
    ),
    Parameter(
        "criteria", 'Pairs of a family and a pattern as JSON, such as `[["geo", {…}]]`, besides the patterns.'
    ),
    Parameter("where", "A match expression on the headers.", {"type": "string", "default": ""}),
)


def _start(default: str) -> Parameter:
    words = (
        "Where to begin: `new`, `first`, `last`, `last-per-subject`, `seq:N`, `after:N@STORE`, `time:T` or "
        "`since:1h`."
    )
    return Parameter("start", words, {"type": "string", "default": default})


def selection(arguments: Arguments) -> dict[str, Any]:
    """Return options of `subscribe` from these parameters. Raises `InvalidSelector`."""
    criteria: list[tuple[str, Any]] = [(arguments["family"], p) for p in arguments["pattern"]]
    if text := arguments["criteria"]:
        try:
            criteria += msgspec.json.decode(text, type=list[tuple[str, Any]])
        except (ValueError, RecursionError) as error:
            raise InvalidSelector(
                f"invalid criteria: expected pairs of family and pattern: {error}"
            ) from None
    return {"criteria": criteria, "where": arguments["where"]}


@contextmanager
def published_once(key: str | None) -> Iterator[str]:
    """Yield the id of what a request publishes with an Idempotency-Key; empty without one.

    Raises:
        InvalidName: the key cannot be an id.
        KeyReused: the user has published other messages to the stream with the key.
    """
    if key is not None:
        check_name("Idempotency-Key", key)
    try:
        yield key or ""
    except InvalidValue as error:
        # The id is the only value of a PUBLISH that a broker refuses.
        if key is None or error.about != PUBLISH:
            raise
        raise KeyReused(f"Idempotency-Key {key!r} was used for another request") from None


async def publish(request: Request, arguments: Arguments) -> Response:
    """Publish the messages of a body as one command, and answer when they are durable.

    Raises:
        InvalidValue: a message has no subject, and the request gives none to all.
    """
    gateway = gateway_of(request)
    body = await gateway.body(request)
    found = await gateway.contents(request, body, arguments["subject"])
    if arguments["subject"] is None and not all(content.subject for content in found):
        raise InvalidValue(
            "a message without a subject: expected ?subject=temp.oslo, or `subject` in each message; "
            "?subject= is the empty one"
        )
    name, ttl, timeout = arguments["name"], arguments["ttl"], gateway.settings.timeout_seconds
    async with gateway.session(request) as client:
        with (
            published_once(arguments["idempotency_key"]) as identity,
            sending("publish", name, [content.headers for content in found], client) as headers,
        ):
            first: int
            if len(found) == 1:
                # The message may share its command with those of other requests.
                first = await client.publish(
                    name,
                    found[0].subject,
                    found[0].body,
                    headers[0],
                    assurance="stored",
                    timeout=timeout,
                    ttl=ttl,
                    id=identity,
                )
            else:
                first = await client.publish_batch(
                    name,
                    [content.subject for content in found],
                    [content.body for content in found],
                    headers,
                    timeout=timeout,
                    ttl=ttl,
                    id=identity,
                )
    # The sequence is 0 after a connection that broke before the confirmation: the number is lost.
    answer = {"first": int(first), "last": first + len(found) - 1} if first else {}
    return bodies.answer({"count": len(found), **answer}, 201)


async def history(request: Request, arguments: Arguments) -> Response:
    """Answer with a page of stored messages."""
    gateway = gateway_of(request)
    limit = arguments["limit"]
    async with gateway.session(request) as client:
        page = await read_page(
            gateway, client, arguments["name"], limit, start=arguments["start"], **selection(arguments)
        )
    link = "" if page.is_last else _next_page(request, arguments["name"], page)
    headers = {"link": f'<{link}>; rel="next"'} if link else {}
    rows, gaps = _rows(page)
    if bodies.NDJSON in request.headers.get("accept", ""):
        lines = b"".join(bodies.to_json(row) + b"\n" for row in (*({"gap": gap} for gap in gaps), *rows))
        return Response(lines, headers=headers, media_type=bodies.NDJSON)
    return bodies.answer({"messages": rows, "gaps": gaps, "next": link or None}, headers=headers)


class HistoryPage(NamedTuple):
    """A part of the history of a stream."""

    messages: list[Message]
    gaps: Sequence[Gap] = ()
    is_last: bool = True
    """Whether there are no more now."""
    store: str = ""
    """The store of the sequences."""


def _rows(page: HistoryPage) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Yield the messages of a page, and gaps for missing and damaged ones."""
    rows, gaps = [], [*page.gaps]
    for message in page.messages:
        try:
            rows.append(bodies.shown(message))
        except Malformed:
            gaps.append(bodies.unreadable(message))
    return rows, [bodies.shown_gap(gap) for gap in sorted(gaps, key=attrgetter("first"))]


async def read_page(gateway: Gateway, client: Client, name: str, limit: int, **options: Any) -> HistoryPage:
    """Return up to `limit` messages, and the gaps before the last of them.

    Raises `TimedOut` without a message in time.
    """
    settings = gateway.settings
    async with client.subscribe(name, credit=1, existing=True) as probe:
        head = probe.first
    credit_bytes = settings.page_bytes
    found: list[Message] = []
    size_bytes = 0
    async with client.subscribe(name, credit=limit, credit_bytes=credit_bytes, **options) as subscription:
        if subscription.first >= head:
            # A subscription that begins at the head never reports that it has arrived there.
            return HistoryPage([])
        while len(found) < limit and size_bytes < credit_bytes:
            try:
                columns = await _next_part(subscription, settings.timeout_seconds)
            except TimedOut:
                if found:
                    break
                raise
            if columns is None:
                return HistoryPage(found, subscription.recent_gaps)
            found += bodies.messages_of(columns)
            size_bytes += sum(map(len, columns.records))
        last = found[:limit][-1].sequence
        gaps = [gap for gap in subscription.recent_gaps if gap.store or gap.first < last]
        return HistoryPage(found[:limit], gaps, is_last=False, store=subscription.store)


async def _next_part(subscription: Subscription, timeout: float) -> Columns | None:
    """Return the next messages of a subscription; None after all stored ones."""
    return await subscription.columns(timeout, enough=lambda: subscription.state == "live")


def _next_page(request: Request, stream: str, page: HistoryPage) -> str:
    position = StorePosition(page.messages[-1].sequence, page.store)
    following = [("start", f"{AFTER}:{position}")]
    same = [(name, value) for name, value in request.query_params.multi_items() if name != "start"]
    return address("v1", "streams", stream, "messages", query=same + following)


async def events(request: Request, arguments: Arguments) -> Response:
    """Follow a stream."""
    last = arguments["last_event_id"]
    start = arguments["start"] if last is None else start_behind(last)
    options = {"committed": arguments["committed"], "existing": True, **selection(arguments)}
    return await follow(request, arguments["name"], start=start, **options)


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/streams/{name}/messages",
        publish,
        "Publish one message, or many as one: all of them become durable, or none.",
        (NAME, SUBJECT, TTL, KEY),
        bodies.MESSAGE_TYPES,
        {201: Documented("They are durable. `first` and `last` are their sequences.")},
        (413, 415, 422, 507),
    ),
    Endpoint(
        "GET",
        "/v1/streams/{name}/messages",
        history,
        "Read a page of the messages that a stream holds.",
        (
            NAME,
            *SELECTION,
            _start("first"),
            Parameter(
                "limit",
                "The most messages of the page.",
                {"type": "integer", "minimum": 1, "maximum": PAGE_MESSAGES_MAX, "default": PAGE_MESSAGES},
            ),
        ),
        (),
        {200: Documented("The page. `next` leads to the following one.", (bodies.JSON, bodies.NDJSON))},
        (404,),
    ),
    Endpoint(
        "GET",
        "/v1/streams/{name}/events",
        events,
        "Follow a stream as Server-Sent Events; the id of an event is its sequence and its store, `N@STORE`.",
        (
            NAME,
            *SELECTION,
            _start("new"),
            Parameter(
                "committed",
                "Whether a message comes only when it is durable.",
                {"type": "boolean", "default": False},
            ),
            Parameter(
                "Last-Event-ID",
                "The last event that was had: the next one comes first. One of another store begins at the "
                "first message that there is, behind a `gap`.",
                place="header",
            ),
        ),
        (),
        {200: Documented("Events `message` and `gap`, without end.", ("text/event-stream",))},
        (404,),
    ),
)
