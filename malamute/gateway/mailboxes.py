"""Mailboxes over HTTP: sending, leasing and settling messages."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from malamute.gateway import bodies
from malamute.gateway.queues import KEY, OPTIONS, SUBJECT, content_of, lease_endpoints, options_of
from malamute.gateway.routes import Arguments, Documented, Endpoint, Parameter
from malamute.gateway.state import gateway_of
from malamute.gateway.tracing import sending

NAME = Parameter("name", "The address of the mailbox.", place="path")

SHARED = Parameter(
    "shared",
    "Consume as one of several, beside the owner: each message goes to one consumer.",
    {"type": "boolean", "default": False},
)
SENDER = Parameter(
    "sender",
    "Messages whose sender's address matches one of these patterns; the mailbox is shared then.",
    many=True,
)


async def send(request: Request, arguments: Arguments) -> Response:
    """Send one message to a mailbox, and answer when it is durable."""
    gateway = gateway_of(request)
    content = await content_of(request, arguments["subject"])
    options = options_of(arguments, "correlation", "reply_to")
    name, timeout = arguments["name"], gateway.settings.timeout_seconds
    async with gateway.session(request) as client:
        with sending("send", name, [content.headers], client) as [headers]:
            await client.send(name, content.subject, content.body, headers, timeout=timeout, **options)
    return bodies.answer({"count": 1}, 201)


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/mailboxes/{name}/messages",
        send,
        "Send one message to a mailbox, whether its owner is there or not.",
        (
            NAME,
            SUBJECT,
            KEY,
            *OPTIONS,
            Parameter("correlation", "The correlation id for the recipient."),
            Parameter("reply_to", "The address for answers."),
        ),
        bodies.MESSAGE_TYPES,
        {201: Documented("It is durable.")},
        (413, 415, 507),
    ),
    *lease_endpoints("mailbox", "mailboxes", NAME, (SHARED, SENDER)),
)
