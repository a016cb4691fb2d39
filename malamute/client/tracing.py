"""Traces over the broker: the context of OpenTelemetry travels in the headers of the messages.

    from malamute.client import tracing

    with tracing.publishing("weather", "temp.oslo", {"unit": "C"}) as headers:
        client.publish("weather", "temp.oslo", b"-3.5", headers)

    for message in client.subscribe("weather"):
        with tracing.processing(message):        # a child of the span that published it
            ...

    @client.service("printer", "bw.*")
    @tracing.traced
    def printer(request): ...                    # an `async def` is traced as well

The headers are those of the W3C, `traceparent` and `tracestate`, or whatever propagator the program has set.
It needs the package `opentelemetry-api`, which `pip install malamute[otel]` brings; where spans go
is set in the SDK. Nothing is traced by itself, and nothing costs time that is not asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, ParamSpec, TypeVar, cast

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind

from malamute.client.session.message import Message
from malamute.protocol.batch import Headers

P = ParamSpec("P")
R = TypeVar("R")


def _tracer() -> trace.Tracer:
    from malamute.version import __version__

    return trace.get_tracer("malamute", __version__)


def inject(headers: Headers | None = None) -> dict[str, Any]:
    """A copy of the headers that carries the current context as well."""
    carrier: dict[str, Any] = dict(headers or {})
    propagate.inject(carrier)
    return carrier


def context_of(message: Message) -> Context:
    """The context that a message carries; an empty one when there is none."""
    carrier = {name: value for name, value in message.headers.items() if isinstance(value, str)}
    return propagate.extract(carrier, context=Context())


@contextmanager
def publishing(destination: str, subject: str, headers: Headers | None = None) -> Iterator[Mapping[str, Any]]:
    """A span around publishing, sending or asking. It yields the headers to do it with."""
    attributes = _attributes("send", destination, subject)
    with _tracer().start_as_current_span(
        f"send {destination}", kind=SpanKind.PRODUCER, attributes=attributes
    ):
        yield inject(headers)


@contextmanager
def processing(message: Message) -> Iterator[Span]:
    """A span around what is done with a message: a child of the span that its headers carry.

    An exception that leaves the block is recorded in it.
    """
    attributes = _attributes("process", "", message.subject)
    attributes["messaging.message.id"] = str(message.sequence)
    with _tracer().start_as_current_span(
        f"process {message.subject}",
        context=context_of(message),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
    ) as span:
        yield span


def _attributes(operation: str, destination: str, subject: str) -> dict[str, str]:
    # The names are those of OpenTelemetry's semantic conventions for messaging.
    attributes = {"messaging.system": "malamute", "messaging.operation.type": operation}
    if destination:
        attributes["messaging.destination.name"] = destination
    return {**attributes, "messaging.malamute.subject": subject}


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
