"""Services over HTTP: sending requests, awaiting replies, leasing requests for workers, and replying."""

from __future__ import annotations

import asyncio
import re

from starlette.requests import Request
from starlette.responses import Response

import malamute.aio
from malamute.gateway import bodies
from malamute.gateway.addresses import address
from malamute.gateway.leases import LeasedQueue
from malamute.gateway.queues import (
    LEASE,
    OPTIONS,
    SUBJECT,
    WAIT,
    WAIT_SECONDS_MAX,
    content_of,
    lease_endpoints,
    options_of,
    unless_gone,
)
from malamute.gateway.requests import AskedRequest
from malamute.gateway.routes import Arguments, Documented, Endpoint, Parameter
from malamute.gateway.state import gateway_of
from malamute.gateway.tracing import replying

WAIT_SECONDS = 30.0
"""Default wait for the replies to a request."""

NAME = Parameter("name", "The name of the service.", place="path")
PATTERN = Parameter("pattern", "Requests whose subject matches one of these patterns.", many=True)
PREFER = Parameter(
    "Prefer",
    "`wait=N`: for how many seconds to wait for the final reply. `respond-async`: not at all. Default: 30.",
    place="header",
)


_WAIT = re.compile(r"wait=([0-9]{1,6})")


def wait_of(prefer: str | None) -> float:
    """Return the wait in seconds from the header Prefer. Unknown preferences are ignored."""
    for preference in (prefer or "").replace(" ", "").lower().split(","):
        if preference == "respond-async":
            return 0
        if found := _WAIT.fullmatch(preference):
            return min(int(found[1]), WAIT_SECONDS_MAX)
    return WAIT_SECONDS


async def ask(request: Request, arguments: Arguments) -> Response:
    """Send a request to a service, and wait for its replies."""
    gateway = gateway_of(request)
    identity = gateway.identity(request)
    owner = await gateway.owner(request)
    content = await content_of(request, arguments["subject"])
    options = options_of(arguments, "key")
    name, asked = await gateway.requests.ask(identity, owner, arguments["name"], content, options)
    return await _answer(request, asked, name, wait_of(arguments["prefer"]))


async def replies(request: Request, arguments: Arguments) -> Response:
    """Wait for the replies to a request sent before."""
    gateway = gateway_of(request)
    asked = gateway.requests.find(await gateway.owner(request), arguments["name"], arguments["request"])
    return await _answer(request, asked, arguments["request"], arguments["wait"])


async def _answer(request: Request, asked: AskedRequest, name: str, wait_seconds: float) -> Response:
    assert asked.task is not None
    await unless_gone(request, asyncio.wait({asked.task}, timeout=wait_seconds))
    if asked.task.done():
        asked.task.result()
        return bodies.answer({"replies": asked.replies, "final": True})
    location = address("v1", "services", asked.service, "requests", name)
    return bodies.answer({"replies": asked.replies, "final": False}, 202, {"location": location})


async def reply(request: Request, arguments: Arguments) -> Response:
    """Reply to a leased request, and answer when the reply is durable."""
    gateway = gateway_of(request)
    content = await content_of(request, "")
    timeout, final = gateway.settings.timeout_seconds, arguments["final"]

    async def send(message: malamute.aio.Request) -> bool:
        with replying(message, arguments["name"], content.headers) as headers:
            receipt = await message.reply(content.body, headers, final=final, assurance="stored")
            await receipt.wait(timeout)
        return bool(final)

    queue = LeasedQueue(await gateway.owner(request), "service", arguments["name"])
    await gateway.leases.settle(queue, arguments["lease"], send, timeout)
    return bodies.answer({"count": 1}, 201)


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/services/{name}/requests",
        ask,
        "Send a request to a service, and wait for its replies, or get a location for them.",
        (
            NAME,
            SUBJECT,
            PREFER,
            *OPTIONS,
            Parameter("key", "Requests of one key go to one worker for as long as it works."),
        ),
        bodies.MESSAGE_TYPES,
        {200: Documented("The replies."), 202: Documented("It is durable; its replies will be at Location.")},
        (413, 415, 429, 507),
    ),
    Endpoint(
        "GET",
        "/v1/services/{name}/requests/{request}",
        replies,
        "Wait for the replies to a request that was sent before.",
        (NAME, Parameter("request", "The request, as Location named it.", place="path"), WAIT),
        answers={200: Documented("The replies."), 202: Documented("The replies so far.")},
        problems=(404,),
    ),
    Endpoint(
        "POST",
        "/v1/services/{name}/leases/{lease}/reply",
        reply,
        "Reply to a leased request. The final reply completes it.",
        (
            NAME,
            LEASE,
            Parameter("final", "Whether it is the last one.", {"type": "boolean", "default": True}),
        ),
        bodies.MESSAGE_TYPES,
        {201: Documented("The reply is durable.")},
        (410, 413, 415),
    ),
    *lease_endpoints("service", "services", NAME, (PATTERN,)),
)
