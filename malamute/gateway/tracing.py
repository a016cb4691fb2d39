"""Spans of the gateway: one for each request, and one for each of its calls to the broker.

Names, attributes and metrics are those of OpenTelemetry's conventions for HTTP and for messaging. A request
may belong to a trace: its `traceparent` is read, and passed on in the headers of the messages. Without the
package `opentelemetry-api` there are no spans; the SDK sets their destination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from time import perf_counter
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as Event

from malamute.aio import Client
from malamute.client.session.message import Mail, Message

try:
    from opentelemetry import context, metrics, propagate, trace
    from opentelemetry.trace import SpanKind, StatusCode

    from malamute.client import tracing
    from malamute.client.tracing import SECONDS
    from malamute.version import __version__
except ImportError:
    IS_INSTALLED = False
else:
    IS_INSTALLED = True

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"))
"""Methods that a span may name: a client can invent others."""

Values = Mapping[str, Any]


def _is_idle() -> bool:
    """Return whether spans are not recorded, and no trace is to be passed on."""
    return not IS_INSTALLED or not context.get_current()


def _is_recorded() -> bool:
    """Return whether an SDK has replaced the API's own no-op provider."""
    providers = (trace.get_tracer_provider(), metrics.get_meter_provider())
    return not all(type(one).__module__.startswith(_PLACEHOLDERS) for one in providers)


_PLACEHOLDERS = ("opentelemetry.trace", "opentelemetry.metrics")


@contextmanager
def sending(
    operation: str, destination: str, headers: Sequence[Values], client: Client
) -> Iterator[Sequence[Values]]:
    """Open a span around sending messages with these headers. Yields the headers to send them with."""
    if _is_idle():
        yield headers
    elif len(headers) == 1:
        with tracing.publishing(destination, "", headers[0], operation=operation, client=client) as one:
            yield [one]
    else:
        with tracing.publishing_batch(destination, headers, operation=operation, client=client) as many:
            yield many


def replying(message: Mail, service: str, headers: Values) -> AbstractContextManager[Values]:
    """Open a span around a reply to a request, linked to it. Yields the headers to reply with."""
    if _is_idle():
        return nullcontext(headers)
    return tracing.publishing(service, "", headers, operation="reply", answers=message)


def receiving(destination: str) -> AbstractContextManager[Callable[..., None]]:
    """Open a span around leasing messages. Yields a function to be called with them."""
    return nullcontext(_nothing) if _is_idle() else tracing.receiving(destination)


def settling(message: Message, operation: str, destination: str) -> AbstractContextManager[Any]:
    """Open a span around settling a lease."""
    if _is_idle():
        return nullcontext()
    return tracing.settling(message, operation=operation, destination=destination)


def _nothing(*messages: Message) -> None:
    """No span is recorded."""


@cache
def _durations() -> metrics.Histogram:
    return metrics.get_meter("malamute.gateway", __version__).create_histogram(
        "http.server.request.duration",
        "s",
        "How long requests took.",
        explicit_bucket_boundaries_advisory=SECONDS,
    )


class ServerSpans:
    """ASGI middleware: a span around each request. The span of an endless answer lasts as long.

    Without an SDK only requests with a trace to pass on have one; the others cost nothing.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._records = _is_recorded()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or WebSocket."""
        if scope["type"] == "lifespan" or not (self._records or _carries_context(scope)):
            await self._app(scope, receive, send)
            return
        labels = _labels(scope)
        headers = Headers(scope=scope)
        tracer = trace.get_tracer("malamute.gateway", __version__)
        began = perf_counter()

        async def send_noted(event: Event) -> None:
            if (status := _status_of(event)) is not None:
                labels["http.response.status_code"] = status
                if status >= 500:
                    labels["error.type"] = str(status)
                    span.set_status(StatusCode.ERROR)
            await send(event)

        method = labels["http.request.method"]
        with tracer.start_as_current_span(
            "HTTP" if method == "_OTHER" else method,
            propagate.extract(headers),
            SpanKind.SERVER,
            labels | _particulars(scope, headers),
        ) as span:
            try:
                await self._app(scope, receive, send_noted)
            finally:
                if route := getattr(scope.get("endpoint"), "path", ""):
                    labels["http.route"] = route
                    span.update_name(f"{method} {route}")
                span.set_attributes(labels)
                _durations().record(perf_counter() - began, labels)


def _carries_context(scope: Scope) -> bool:
    fields = {name.encode() for name in propagate.get_global_textmap().fields}
    return any(name in fields for name, _ in scope["headers"])


def _labels(scope: Scope) -> dict[str, Any]:
    """Attributes of spans and metrics alike. No client can make new values."""
    method = scope.get("method", "GET")
    return {
        "http.request.method": method if method in METHODS else "_OTHER",
        "url.scheme": scope["scheme"],
        "network.protocol.version": scope["http_version"],
    }


def _particulars(scope: Scope, headers: Headers) -> dict[str, Any]:
    found: dict[str, Any] = {"url.path": scope["path"]}
    for name, place in (("server", scope.get("server")), ("client", scope.get("client"))):
        if place:
            found |= {f"{name}.address": place[0], f"{name}.port": place[1]}
    if agent := headers.get("user-agent"):
        found["user_agent.original"] = agent
    if scope.get("method", "GET") not in METHODS:
        found["http.request.method_original"] = scope["method"]
    return found


def _status_of(event: Event) -> int | None:
    if event["type"] == "websocket.accept":
        return 101
    return event["status"] if event["type"].endswith("http.response.start") else None
