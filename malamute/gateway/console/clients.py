"""Pages of the connected: consumers of streams with their states over time, and clients with their queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import monotonic, time
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from malamute.gateway.console.consumption import TRAIL, ClientTraffic, StreamConsumer
from malamute.gateway.console.series import charted
from malamute.gateway.console.streams import FIND, PAGE, PAGE_ROWS, arguments_of, sheet
from malamute.gateway.console.visits import visit_of
from malamute.gateway.routes import Arguments, Endpoint, Parameter
from malamute.protocol.admin import ClientQuery, ClientsQuery, CursorsQuery

FIRST_LOOK_SECONDS = 1.0
"""How long the page waits for the first sample; after that it refreshes itself."""

CHARTS_MAX = 6
"""Subscriptions of a client with a chart: those with the largest lag."""


class Strip(NamedTuple):
    """A period in one state, as a rectangle: its start, and its length in samples."""

    state: str
    x: int
    width: int


def strips(consumer: StreamConsumer) -> list[Strip]:
    """Return the states of a subscription over the last samples, the newest at the right end."""
    found: list[Strip] = []
    begin = TRAIL - len(consumer.trail)
    for place, (state, *_) in enumerate(consumer.trail, begin):
        if found and found[-1].state == state:
            found[-1] = found[-1]._replace(width=found[-1].width + 1)
        else:
            found.append(Strip(state, place, 1))
    return found


def lags_of(known: Sequence[StreamConsumer]) -> list[list[float]]:
    """Return the lags of the subscriptions of a client, by the times in seconds since the epoch."""
    began = time() - monotonic()
    looks = min((len(one.trail) for one in known), default=0)
    return [
        [began + now[0].at, *(look.lag for look in now)]
        for now in zip(*(one.trail[-looks:] for one in known), strict=True)
    ]


class UserTraffic(NamedTuple):
    """The clients of a user, and the messages that they send and receive in a second."""

    name: str
    clients: int
    sent_rate: float
    received_rate: float


def users_of(rows: Iterable[Any], traffic: Mapping[str, ClientTraffic]) -> list[UserTraffic]:
    """Return the users with clients, the busiest first; at most one page of them."""
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row.user, []).append(row.id)
    users = []
    for user, clients in found.items():
        known = [traffic[client] for client in clients if client in traffic]
        sent, received = (
            sum(one.sent_rate or 0.0 for one in known),
            sum(one.received_rate or 0.0 for one in known),
        )
        users.append(UserTraffic(user, len(clients), sent, received))
    return sorted(users, key=lambda one: (-one.sent_rate - one.received_rate, one.name))[:PAGE_ROWS]


async def consumers(request: Request, arguments: Arguments) -> Response:
    """Show the subscriptions of all clients, the largest lag first, and the cursors."""
    visit = visit_of(request)
    watch = visit.watch
    found = await watch.wait_for("consumers", FIRST_LOOK_SECONDS) or []
    find = arguments["find"]
    found = [one for one in found if find in one.name or find in one.subscription.stream]
    cursors = await visit.listed("cursors", CursorsQuery())
    return visit.page(
        "consumers.html",
        sheet=sheet(found, arguments["page"]),
        strips=strips,
        looks=TRAIL,
        cursors=[row for row in cursors.rows if find in row.stream or find in row.name],
        refusal=watch.refusals.get("consumers", ""),
        **arguments_of(arguments),
    )


async def clients(request: Request, arguments: Arguments) -> Response:
    """Show the clients."""
    visit = visit_of(request)
    listed = await visit.listed("clients", ClientsQuery())
    find = arguments["find"]
    found = sorted(listed.rows, key=lambda row: (row.address or "~", row.id))
    found = [
        row for row in found if any(find in text for text in (row.address, row.id, row.user, row.software))
    ]
    traffic = visit.watch.consumption.traffic
    return visit.page(
        "clients.html",
        listed=listed,
        sheet=sheet(found, arguments["page"]),
        traffic=traffic,
        users=users_of(found, traffic),
        **arguments_of(arguments),
    )


async def client(request: Request, arguments: Arguments) -> Response:
    """Show one client. Raises `NotFound`."""
    visit = visit_of(request)
    details = await visit.ask(ClientQuery(id=arguments["id"]))
    known = [one for one in visit.watch.found("consumers") or [] if one.client == details.id]
    trails = {one.subscription.source: one for one in known}
    traffic = visit.watch.consumption.traffic.get(details.id)
    return visit.page(
        "client.html",
        client=details,
        trails=trails,
        strips=strips,
        looks=TRAIL,
        traffic=traffic,
        charts=[f"{one.subscription.stream}, messages behind" for one in known[:CHARTS_MAX]],
        series=charted(lags_of(known[:CHARTS_MAX]), 30),
    )


ENDPOINTS = (
    Endpoint("GET", "/console/consumers", consumers, "Consumers", (FIND, PAGE)),
    Endpoint("GET", "/console/clients", clients, "Clients", (FIND, PAGE)),
    Endpoint(
        "GET",
        "/console/client",
        client,
        "Client",
        (Parameter("id", "Its id or address.", {"type": "string", "default": ""}),),
    ),
)
