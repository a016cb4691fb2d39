"""The list of streams, and one stream: retention, readers, contents, and traffic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from malamute.errors import MalamuteError
from malamute.gateway.console.series import MINUTES, charted
from malamute.gateway.console.visits import visit_of
from malamute.gateway.routes import Arguments, Endpoint, Parameter
from malamute.protocol.admin import StoredQuery, StreamQuery, StreamRow, StreamsQuery

PAGE_ROWS = 100

OWN = "$"
"""The beginning of the names of the broker's own streams."""

FIND = Parameter("find", "A part of the name.", {"type": "string", "default": ""})
PAGE = Parameter("page", "Which page.", {"type": "integer", "minimum": 1, "default": 1})

NAME = Parameter("name", "The name of the stream.", {"type": "string", "default": ""})

ORDERS: dict[str, Callable[[StreamRow], Any]] = {
    "name": lambda row: row.name,
    "rate": lambda row: (-row.published_rate, row.name),
    "kept": lambda row: (row.first - row.last, row.name),
    "selectors": lambda row: (-row.selectors, row.name),
}
"""Sort keys of the list."""


def is_own(row: StreamRow) -> bool:
    """Return whether a stream is one of the broker itself, which lists leave out."""
    return row.name.startswith(OWN)


def sheet(rows: list[Any], page: int) -> dict[str, Any]:
    """The rows of one page of a list, and its position."""
    pages = max(1, -(-len(rows) // PAGE_ROWS))
    page = min(page, pages)
    return {
        "rows": rows[(page - 1) * PAGE_ROWS : page * PAGE_ROWS],
        "number": page,
        "pages": pages,
        "all": len(rows),
    }


async def streams(request: Request, arguments: Arguments) -> Response:
    """Show the streams."""
    visit = visit_of(request)
    listed = await visit.listed("streams", StreamsQuery())
    find = arguments["find"]
    found = [row for row in listed.rows if find in row.name and (find.startswith(OWN) or not is_own(row))]
    found.sort(key=ORDERS[arguments["order"]])
    return visit.page(
        "streams.html",
        listed=listed,
        sheet=sheet(found, arguments["page"]),
        recent=visit.watch.series["stream"].recent,
        hidden=sum(map(is_own, listed.rows)) if not find else 0,
        **arguments_of(arguments),
    )


def arguments_of(arguments: Arguments) -> dict[str, Any]:
    """Return order and filter of a list, for its template."""
    return {"find": arguments["find"], "order": arguments.get("order", "")}


async def stream(request: Request, arguments: Arguments) -> Response:
    """Show one stream. Raises `NotFound`."""
    visit = visit_of(request)
    details = await visit.ask(StreamQuery(name=arguments["name"]))
    refusal, stored = "", None
    try:
        stored = next(iter(await visit.ask(StoredQuery(stream=details.name, limit=1))), None)
    except MalamuteError as error:
        refusal = error.text
    return visit.page(
        "stream.html",
        stream=details,
        stored=stored,
        refusal=refusal,
        series=charted(visit.watch.series["stream"].of(details.name), arguments["minutes"]),
        minutes=arguments["minutes"],
    )


ENDPOINTS = (
    Endpoint(
        "GET",
        "/console/streams",
        streams,
        "Streams",
        (
            FIND,
            PAGE,
            Parameter("order", "In which order.", {"type": "string", "enum": [*ORDERS], "default": "name"}),
        ),
    ),
    Endpoint("GET", "/console/stream", stream, "Stream", (NAME, MINUTES)),
)
