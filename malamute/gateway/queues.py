"""The common part of mailboxes and services over HTTP: options of a message, leases, settlement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from malamute.client.session.message import Mail
from malamute.errors import InvalidValue, NotFound, RequestTimeout
from malamute.gateway import bodies
from malamute.gateway.leases import LeasedQueue, lease_of
from malamute.gateway.routes import DURATION, Arguments, Documented, Endpoint, Parameter
from malamute.gateway.state import gateway_of
from malamute.gateway.tracing import receiving, settling

Result = TypeVar("Result")

LEASES_MAX = 100
WAIT_SECONDS_MAX = 60

SUBJECT = Parameter("subject", "The subject of the message.")
LEASE = Parameter("lease", "The lease, as it was named with the message.", place="path")
WAIT = Parameter(
    "wait",
    "How long to wait for the first one, in seconds or as 30s.",
    {**DURATION, "maximum": WAIT_SECONDS_MAX, "default": 0},
)
LIMIT = Parameter(
    "limit",
    "The most messages to lease.",
    {"type": "integer", "minimum": 1, "maximum": LEASES_MAX, "default": 1},
)
KEY = Parameter(
    "Idempotency-Key",
    "The queue takes a message with this id once, as long as it remembers it.",
    place="header",
)
OPTIONS = (
    Parameter("ttl", "After how long it expires, in seconds or as 30s.", DURATION),
    Parameter("delay", "For how long it is held back, in seconds or as 10m.", DURATION),
    Parameter(
        "priority", "A higher one is delivered first.", {"type": "integer", "minimum": 0, "maximum": 9}
    ),
)


def options_of(arguments: Arguments, *more: str) -> dict[str, Any]:
    """Return the options of a message from these parameters."""
    names = ("ttl", "delay", "priority", *more)
    given = {name: arguments[name] for name in names if arguments[name] is not None}
    key = arguments.get("idempotency_key")
    return given if key is None else {**given, "id": key}


async def content_of(request: Request, subject: str | None) -> bodies.Content:
    """Return the one message of a body. Raises as `body` and `contents`, and `InvalidValue` for several."""
    gateway = gateway_of(request)
    body = await gateway.body(request)
    found = await gateway.contents(request, body, subject)
    if len(found) != 1:
        raise InvalidValue(f"{len(found)} messages in the body: expected one")
    return found[0]


async def unless_gone(request: Request, call: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a call that waits. A client that disconnects cancels the call.

    Raises `RequestTimeout` then, to a closed connection.
    """
    task = asyncio.create_task(call)
    watch = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise RequestTimeout("the client has disconnected")
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def leased(message: Mail) -> dict[str, Any]:
    """Return a leased message as JSON fields."""
    fields: dict[str, Any] = {"lease": lease_of(message), "attempts": message.attempts}
    if message.correlation is not None:
        fields["correlation"] = message.correlation
    if reply_to := message.properties.get("reply_to"):
        fields["reply_to"] = reply_to
    return fields | bodies.shown(message)


_PROGRESS = "progress"

_SETTLE: dict[str, Callable[[Mail, Arguments], None]] = {
    "acknowledge": lambda message, arguments: message.ack(),
    "release": lambda message, arguments: message.release(),
    "retry": lambda message, arguments: message.nak(arguments["delay"]),
    "reject": lambda message, arguments: message.reject(arguments["reason"] or ""),
    "bounce": lambda message, arguments: message.bounce(arguments["reason"] or ""),
    _PROGRESS: lambda message, arguments: message.in_progress(),
}

VERB = Parameter(
    "verb",
    "`acknowledge`: it is done. `release`: it is redelivered at once, and it is no attempt. `retry`: "
    "it is redelivered after `delay`, or a backoff. `reject`: it becomes a dead letter, with `reason`. "
    "`bounce`: mail goes back to its sender, with `reason`. "
    "`progress`: it is still worked on, and its ack timeout begins anew.",
    {"type": "string", "enum": [*_SETTLE]},
    "path",
)


def lease_endpoints(
    kind: str, plural: str, name: Parameter, more: Sequence[Parameter]
) -> tuple[Endpoint, ...]:
    """Return the paths that lease and settle messages of a kind of queue."""

    async def lease(request: Request, arguments: Arguments) -> Response:
        gateway = gateway_of(request)
        senders = arguments.get("sender", [])
        shared = arguments.get("shared", False) or bool(senders)
        queue = LeasedQueue(await gateway.owner(request), kind, arguments["name"], shared)
        patterns = senders or arguments.get("pattern", [])
        identity = gateway.identity(request)
        call = gateway.leases.take(queue, identity, arguments["limit"], arguments["wait"], patterns)
        with receiving(queue.name) as received:
            found = await unless_gone(request, call)
            received(*found)
        return bodies.answer({"messages": [leased(message) for message in found]})

    async def settle(request: Request, arguments: Arguments) -> Response:
        gateway = gateway_of(request)
        verb: str = arguments["verb"]
        if verb not in _SETTLE:
            raise NotFound(f"no way to settle a lease is called {verb[:50]!r}")
        queue = LeasedQueue(await gateway.owner(request), kind, arguments["name"])

        async def carry_out(message: Mail) -> bool:
            with settling(message, verb, queue.name):
                _SETTLE[verb](message, arguments)
            return verb != _PROGRESS

        await gateway.leases.settle(queue, arguments["lease"], carry_out, gateway.settings.timeout_seconds)
        return Response(status_code=204)

    lease.__name__, settle.__name__ = f"lease_{kind}", f"settle_{kind}"
    return (
        Endpoint(
            "POST",
            f"/v1/{plural}/{{name}}/leases",
            lease,
            f"Lease messages of a {kind}: they are yours until you settle them, or the ack timeout passes.",
            (name, LIMIT, WAIT, *more),
            answers={200: Documented("The messages; none if none came in time.")},
            problems=(409, 429),
        ),
        Endpoint(
            "POST",
            f"/v1/{plural}/{{name}}/leases/{{lease}}/{{verb}}",
            settle,
            "Settle a lease, or report on it.",
            (
                name,
                LEASE,
                VERB,
                Parameter("delay", "For `retry`: how long, in seconds or as 30s.", DURATION),
                Parameter("reason", "For `reject` and `bounce`: why, at most 255 bytes."),
            ),
            answers={204: Documented("The broker has it.", ())},
            problems=(404, 409, 410),
        ),
    )
