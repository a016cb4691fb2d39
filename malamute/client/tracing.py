"""Traces over the broker: the context of OpenTelemetry travels in the headers of the messages.

    from malamute.client import tracing

    with tracing.publishing("weather", "temp.oslo", {"unit": "C"}) as headers:
        client.publish("weather", "temp.oslo", b"-3.5", headers)

    for message in client.subscribe("weather"):
        with tracing.processing(message, destination="weather"):     # linked to the span that published it
            ...

    @client.service("printer", "bw.*")
    @tracing.traced
    def printer(request): ...                    # an `async def` is traced as well

Names, kinds, attributes and metrics are those of OpenTelemetry's semantic conventions for messaging:

    operation                  type       kind        metrics
    publish, send, request     send       PRODUCER    messaging.client.sent.messages, …operation.duration
    receive                    receive    CLIENT      messaging.client.consumed.messages, …operation.duration
    process                    process    CONSUMER    messaging.process.duration, …consumed.messages
    ack, release, …            settle     CLIENT      messaging.client.operation.duration

Each span that takes a message in is linked to the one that its headers carry. `process` of one message is its
child as well, unless it runs within another span: then it is a child of that one.

The headers are those of the W3C, `traceparent` and `tracestate`, or those of the program's propagator.
Tracing needs the package `opentelemetry-api`, which `pip install malamute[otel]` installs; the SDK sets the
destination of spans and metrics. Only requested spans are made, and only they cost time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from inspect import iscoroutinefunction
from time import perf_counter
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, cast
from urllib.parse import urlsplit

from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind

from malamute.client.session.message import Mail, Message
from malamute.errors import Malformed
from malamute.protocol.batch import Headers
from malamute.version import __version__

P = ParamSpec("P")
R = TypeVar("R")

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""The limits of the buckets of durations, as the conventions advise."""


class TracedClient(Protocol):
    """The properties of a client, blocking or not, in spans."""

    @property
    def url(self) -> str:
        """Return the address of its broker."""

    @property
    def address(self) -> str:
        """Return its address, empty without one."""


class _Instruments(NamedTuple):
    sent: metrics.Counter
    consumed: metrics.Counter
    operations: metrics.Histogram
    processing: metrics.Histogram


@cache
def _tracer() -> trace.Tracer:
    return trace.get_tracer("malamute", __version__)


@cache
def _instruments() -> _Instruments:
    meter = metrics.get_meter("malamute", __version__)

    def seconds(name: str, words: str) -> metrics.Histogram:
        return meter.create_histogram(name, "s", words, explicit_bucket_boundaries_advisory=SECONDS)

    return _Instruments(
        meter.create_counter("messaging.client.sent.messages", "{message}", "Messages sent."),
        meter.create_counter("messaging.client.consumed.messages", "{message}", "Messages delivered."),
        seconds("messaging.client.operation.duration", "How long operations took."),
        seconds("messaging.process.duration", "How long messages were processed."),
    )


def inject(headers: Headers | None = None) -> dict[str, Any]:
    """Return a copy of the headers with the current context."""
    carrier: dict[str, Any] = dict(headers or {})
    propagate.inject(carrier)
    return carrier


def context_of(message: Message) -> Context:
    """Return the context of a message; an empty one without headers of a trace."""
    try:
        return _extract(message.headers)
    except Malformed:
        return Context()


def _extract(headers: Headers) -> Context:
    fields = propagate.get_global_textmap().fields
    carrier = {name: headers[name] for name in fields if isinstance(headers.get(name), str)}
    return propagate.extract(carrier, context=Context()) if carrier else Context()


def _origin(context: Context) -> SpanContext | None:
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None


def _links(messages: Sequence[Message]) -> list[Link]:
    """Return links to the spans in which messages were published."""
    found = ((message, _origin(context_of(message))) for message in messages)
    return [Link(origin, _of_message(message)) for message, origin in found if origin is not None]


@contextmanager
def publishing(
    destination: str,
    subject: str = "",
    headers: Headers | None = None,
    *,
    operation: str = "publish",
    client: TracedClient | None = None,
    answers: Message | None = None,
) -> Iterator[Mapping[str, Any]]:
    """Open a span around publishing a message; `operation` may also be `send`, `request` or `reply`.

    Yields the headers to publish with. A context in the given headers stays, and the span is linked to it; so
    it is to the message that this one `answers`.
    """
    links = [] if answers is None else _links([answers])
    with _sending(destination, [headers or {}], operation, client, links, **_of_subject(subject)) as [
        carrier
    ]:
        yield carrier


@contextmanager
def publishing_batch(
    destination: str,
    headers: Sequence[Headers | None],
    *,
    operation: str = "publish",
    client: TracedClient | None = None,
) -> Iterator[list[Mapping[str, Any]]]:
    """Open a span around publishing several messages as one; yields the headers of each."""
    fields = {"messaging.batch.message_count": len(headers)}
    with _sending(destination, [one or {} for one in headers], operation, client, [], **fields) as carriers:
        yield carriers


@contextmanager
def _sending(
    destination: str,
    headers: Sequence[Headers],
    operation: str,
    client: TracedClient | None,
    links: Sequence[Link],
    **fields: Any,
) -> Iterator[list[Mapping[str, Any]]]:
    origins = [_origin(_extract(one)) for one in headers]
    attributes = _common(operation, "send", destination, client) | fields
    links = [*links, *(Link(origin) for origin in origins if origin is not None)]
    # A message that carries nothing of this span has a context of its own.
    kind = SpanKind.CLIENT if headers and all(origins) else SpanKind.PRODUCER
    with _operation(attributes, kind, links, count=_instruments().sent, messages=len(headers)):
        context = inject()
        yield [
            {**one, **(context if origin is None else {})}
            for one, origin in zip(headers, origins, strict=True)
        ]


@contextmanager
def receiving(destination: str, *, client: TracedClient | None = None) -> Iterator[Callable[..., None]]:
    """Open a span around waiting for messages. Yields a function to be called with them."""
    attributes = _common("receive", "receive", destination, client)
    with _operation(attributes, SpanKind.CLIENT) as span:

        def received(*messages: Message) -> None:
            span.set_attribute("messaging.batch.message_count", len(messages))
            for link in _links(messages):
                span.add_link(link.context, link.attributes)
            _instruments().consumed.add(len(messages), _labels(attributes))

        yield received


@contextmanager
def processing(
    *messages: Message, destination: str = "", client: TracedClient | None = None, received: bool = False
) -> Iterator[Span]:
    """Open a span around processing a message, or several, linked to the spans of their publishing.

    `destination` is the source stream, mailbox or service. `received` is true for messages counted by
    `receiving`. An exception that leaves the block is recorded in the span.
    """
    attributes = _common("process", "process", destination, client)
    parent = None
    if len(messages) == 1:
        attributes |= _of_message(messages[0]) | _of_subject(messages[0].subject)
        # A span that has ended may still be the current one of a task that was started in it.
        if not trace.get_current_span().is_recording():
            parent = context_of(messages[0])
    else:
        attributes["messaging.batch.message_count"] = len(messages)
    count = None if received else _instruments().consumed
    with _operation(
        attributes,
        SpanKind.CONSUMER,
        _links(messages),
        parent=parent,
        count=count,
        messages=len(messages),
        durations=_instruments().processing,
    ) as span:
        yield span


@contextmanager
def settling(
    *messages: Message, operation: str = "ack", destination: str = "", client: TracedClient | None = None
) -> Iterator[Span]:
    """Open a span around acknowledging, releasing, retrying or rejecting messages."""
    attributes = _common(operation, "settle", destination, client)
    if len(messages) == 1:
        attributes |= _of_message(messages[0])
    else:
        attributes["messaging.batch.message_count"] = len(messages)
    with _operation(attributes, SpanKind.CLIENT, _links(messages)) as span:
        yield span


@contextmanager
def _operation(
    attributes: dict[str, Any],
    kind: SpanKind,
    links: Sequence[Link] = (),
    *,
    parent: Context | None = None,
    count: metrics.Counter | None = None,
    messages: int = 0,
    durations: metrics.Histogram | None = None,
) -> Iterator[Span]:
    """Open a span with its metrics. `error.type` is the class of an exception that leaves the block."""
    labels = _labels(attributes)
    name = " ".join(
        filter(None, [attributes["messaging.operation.name"], attributes.get("messaging.destination.name")])
    )
    began = perf_counter()
    try:
        with _tracer().start_as_current_span(name, parent, kind, attributes, links) as span:
            try:
                yield span
            except Exception as error:
                labels["error.type"] = type(error).__qualname__
                span.set_attribute("error.type", labels["error.type"])
                raise
    finally:
        (durations or _instruments().operations).record(perf_counter() - began, labels)
        if count is not None:
            count.add(messages, labels)


def _labels(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that metrics have, too. Any number of destinations is possible."""
    return {name: attributes[name] for name in _LABELS if name in attributes}


_LABELS = (
    "messaging.system",
    "messaging.operation.name",
    "messaging.operation.type",
    "server.address",
    "server.port",
)


def _common(operation: str, kind: str, destination: str, client: TracedClient | None) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "messaging.system": "malamute",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    if destination:
        attributes["messaging.destination.name"] = destination
    if client is not None:
        attributes |= _server(client.url)
        if client.address:
            attributes["messaging.client.id"] = client.address
    return attributes


@cache
def _server(url: str) -> dict[str, Any]:
    """Return the address of a broker: its host and port, or the path of its socket."""
    parts = urlsplit(url)
    if not parts.hostname or parts.port is None:
        return {"server.address": parts.path or url}
    return {"server.address": parts.hostname, "server.port": parts.port}


def _of_subject(subject: str) -> dict[str, Any]:
    return {"messaging.malamute.subject": subject} if subject else {}


def _of_message(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"messaging.message.id": str(message.sequence)}
    if isinstance(message, Mail) and message.correlation is not None:
        found["messaging.message.conversation_id"] = str(message.correlation)
    return found


def traced(handler: Callable[P, R]) -> Callable[P, R]:
    """Decorate a handler, so that each of its calls is a span; see `processing`."""
    if iscoroutinefunction(handler):

        @wraps(handler)
        async def handle_later(*args: P.args, **options: P.kwargs) -> Any:
            with processing(cast("Message", args[0])):
                return await handler(*args, **options)

        return cast("Callable[P, R]", handle_later)

    @wraps(handler)
    def handle(*args: P.args, **options: P.kwargs) -> R:
        with processing(cast("Message", args[0])):
            return handler(*args, **options)

    return handle
