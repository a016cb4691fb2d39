"""The first page: rates, lag and its trend, and the symptoms of the broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from malamute.client.options import DEFAULT_URL
from malamute.gateway.console import symptoms
from malamute.gateway.console.consumption import trend_of
from malamute.gateway.console.series import MINUTES, charted
from malamute.gateway.console.streams import is_own
from malamute.gateway.console.visits import visit_of
from malamute.gateway.console.watch import BrokerWatch, rates
from malamute.gateway.routes import Arguments, Endpoint
from malamute.protocol.admin import MailboxesQuery, ServicesQuery, StreamsQuery

FIRST_LOOK_SECONDS = 0.25
"""How long the very first page waits for the first sample; after that the page refreshes itself."""

TOP_ROWS = 8
"""Number of streams and queues on this page: the busiest."""


async def overview(request: Request, arguments: Arguments) -> Response:
    """Show the broker at a glance."""
    visit = visit_of(request)
    watch = visit.watch
    figures = await watch.wait_for("figures", FIRST_LOOK_SECONDS)
    streams = await visit.listed("streams", StreamsQuery())
    mailboxes = await visit.listed("mailboxes", MailboxesQuery())
    services = await visit.listed("services", ServicesQuery())
    status, totals, storage = figures or (None, None, None)
    shown = [row for row in streams.rows if not is_own(row)]
    complete = streams.complete and mailboxes.complete and services.complete
    refused = streams.refusal or mailboxes.refusal or services.refusal
    samples = rates(watch.samples)
    queues = [("mailbox", row) for row in mailboxes.rows] + [("service", row) for row in services.rows]
    queues.sort(key=lambda pair: (pair[1].messages, pair[1].dead_letters), reverse=True)
    return visit.page(
        "overview.html",
        status=200,
        broker_status=status,
        totals=totals,
        storage=storage,
        now=samples[-1] if samples else None,
        lag_trend=trend_of([sample.lag_seconds for sample in samples[-30:]]),
        series=charted(samples, arguments["minutes"]),
        minutes=arguments["minutes"],
        is_empty=complete and not (refused or shown or mailboxes.rows or services.rows),
        own_streams=len(streams.rows) - len(shown),
        is_default_broker=visit.console.gateway.settings.broker == DEFAULT_URL,
        streams=sorted(shown, key=lambda row: (-row.published_rate, row.name))[:TOP_ROWS],
        queues=[pair for pair in queues if pair[1].messages or pair[1].dead_letters][:TOP_ROWS],
        symptoms=symptoms.by_severity(_symptoms(watch, mailboxes.rows, services.rows)),
        consumers=(watch.found("consumers") or [])[:TOP_ROWS],
        refusals=watch.refusals,
        recent=watch.series["stream"].recent,
    )


def _symptoms(watch: BrokerWatch, mailboxes: list[Any], services: list[Any]) -> Iterator[symptoms.Symptom]:
    if watch.failure:
        yield symptoms.Symptom(symptoms.CRITICAL, f"The broker does not answer: {watch.failure}")
    if figures := watch.found("figures"):
        yield from symptoms.of_broker(figures[0])
        yield from symptoms.of_limits(figures[1])
        yield from symptoms.of_store(figures[2])
    yield from symptoms.of_readers(watch.found("consumers") or [])
    yield from symptoms.of_cursors(watch.found("cursors") or [])
    yield from symptoms.of_queues("mailbox", mailboxes)
    yield from symptoms.of_queues("service", services)


ENDPOINTS = (Endpoint("GET", "/", overview, "Overview", (MINUTES,)),)
