"""Mailboxes and services: depth, age, messages in flight with their consumers, and dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from malamute.errors import MalamuteError, NotFound
from malamute.gateway.console.clients import FIRST_LOOK_SECONDS
from malamute.gateway.console.series import MINUTES, charted
from malamute.gateway.console.stream_pages import COUNT, HEX, characters_of
from malamute.gateway.console.streams import FIND, PAGE, PAGE_ROWS, arguments_of, sheet
from malamute.gateway.console.visits import Visit, visit_of
from malamute.gateway.routes import Arguments, Endpoint, Parameter
from malamute.protocol.admin import (
    BucketsQuery,
    ClientQuery,
    MailboxesQuery,
    MailboxReader,
    MessagesQuery,
    QueueRow,
    ServiceQuery,
    ServicesQuery,
)

KIND = Parameter(
    "kind", "What it is.", {"type": "string", "enum": ["mailbox", "service"], "default": "mailbox"}
)
NAME = Parameter("name", "The name of the queue.", {"type": "string", "default": ""})
WHERE = Parameter("where", "Only headers that meet it.", {"type": "string", "default": ""})

SHOWN = ("all", "ready", "delayed", "in-flight", "dead")
"""Selections of a queue's messages: a state, or the dead letters."""

ORDERS: dict[str, Callable[[tuple[str, QueueRow]], Any]] = {
    "messages": lambda pair: (-pair[1].messages, -pair[1].dead_letters, pair[1].name),
    "name": lambda pair: (pair[1].name, pair[0]),
    "age": lambda pair: (-(pair[1].oldest_age or 0.0), pair[1].name),
    "in_flight": lambda pair: (-pair[1].in_flight, pair[1].name),
    "dead_letters": lambda pair: (-pair[1].dead_letters, pair[1].name),
}
"""Sort keys of the list."""


async def queues(request: Request, arguments: Arguments) -> Response:
    """Show all queues, the longest first, and the buckets."""
    visit = visit_of(request)
    mailboxes = await visit.listed("mailboxes", MailboxesQuery())
    services = await visit.listed("services", ServicesQuery())
    buckets = await visit.listed("buckets", BucketsQuery())
    found = [("mailbox", row) for row in mailboxes.rows] + [("service", row) for row in services.rows]
    found = [pair for pair in found if arguments["find"] in pair[1].name]
    found.sort(key=ORDERS[arguments["order"]])
    return visit.page(
        "queues.html",
        mailboxes=mailboxes,
        services=services,
        buckets=[row for row in buckets.rows if arguments["find"] in row.name][:PAGE_ROWS],
        sheet=sheet(found, arguments["page"]),
        **arguments_of(arguments),
    )


async def queue(request: Request, arguments: Arguments) -> Response:
    """Show one queue with its messages. Raises `NotFound`."""
    visit = visit_of(request)
    kind, name, show = arguments["kind"], arguments["name"], arguments["show"]
    row, workers, reader = await found_queue(visit, kind, name)
    problem, messages = "", []
    try:
        query = MessagesQuery(
            kind=kind,
            name=name,
            dead=show == "dead",
            after=arguments["after"],
            limit=arguments["count"],
            where=arguments["where"].strip(),
            state=show if show not in ("all", "dead") else "",
        )
        messages = await visit.ask(query)
    except MalamuteError as error:
        problem = error.text
    return visit.page(
        "queue.html",
        kind=kind,
        row=row,
        workers=workers,
        reader=reader,
        refusal=visit.watch.refusals.get("consumers", "") if kind == "mailbox" else "",
        messages=messages,
        most=characters_of(messages),
        as_hex=arguments["hex"],
        problem=problem,
        series=charted(visit.watch.series[kind].of(name), arguments["minutes"]),
        minutes=arguments["minutes"],
        show=show,
        shown=SHOWN,
        where=arguments["where"],
        more=messages[-1].sequence if len(messages) == arguments["count"] else 0,
    )


async def found_queue(visit: Visit, kind: str, name: str) -> tuple[QueueRow, list[Any], MailboxReader | None]:
    """Return a queue, its workers, and the owner's reading of a mailbox. Raises `NotFound`."""
    if kind == "service":
        details = await visit.ask(ServiceQuery(name=name))
        return details, details.workers, None
    listed = await visit.listed("mailboxes", MailboxesQuery())
    row = next((row for row in listed.rows if row.name == name), None)
    if row is None:
        raise NotFound(f"there is no mailbox {name!r}" if not listed.refusal else listed.refusal)
    # Shared consumers of a mailbox are found among all clients.
    await visit.watch.wait_for("consumers", FIRST_LOOK_SECONDS)
    others = visit.watch.consumption.by_queue.get((kind, name), [])
    try:
        return row, others, (await visit.ask(ClientQuery(id=name))).mailbox
    except MalamuteError:
        # The owner is away, or this user may not view clients.
        return row, others, None


ENDPOINTS = (
    Endpoint(
        "GET",
        "/console/queues",
        queues,
        "Queues",
        (
            FIND,
            PAGE,
            Parameter(
                "order", "In which order.", {"type": "string", "enum": [*ORDERS], "default": "messages"}
            ),
        ),
    ),
    Endpoint(
        "GET",
        "/console/queue",
        queue,
        "Queue",
        (
            KIND,
            NAME,
            WHERE,
            MINUTES,
            Parameter(
                "show", "The messages to show.", {"type": "string", "enum": [*SHOWN], "default": "all"}
            ),
            COUNT,
            HEX,
            Parameter("after", "Behind this sequence.", {"type": "integer", "minimum": 0, "default": 0}),
        ),
    ),
)
