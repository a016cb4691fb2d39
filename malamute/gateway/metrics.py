"""Metrics of the broker and of the gateway for a monitoring system, as OpenMetrics.

A scrape is one query for the state of the broker, its totals and its store, independent of the number of
streams and queues. A scrape that names a stream queries that stream as well. The only names in labels are
that stream and failing plug-ins, so no client makes new series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from malamute.aio import Client
from malamute.errors import BY_CODE, AccessRefused, Failed, InvalidValue, Refused
from malamute.gateway.routes import Arguments, Documented, Endpoint, Parameter
from malamute.gateway.state import Gateway, gateway_of
from malamute.protocol.admin import (
    BrokerMetrics,
    BrokerTotals,
    LimitUsage,
    LinkRow,
    LinksQuery,
    MetricsQuery,
    QueueTotals,
    ReaderTotals,
    StatusQuery,
    StorageQuery,
    StoredQuery,
    StoredStream,
    StreamDetails,
    StreamQuery,
    TotalsQuery,
)
from malamute.protocol.messages import GAP_REASONS
from malamute.protocol.time_units import to_seconds

MEDIA_TYPE = CONTENT_TYPE_LATEST.partition(";")[0]

QUEUE_KINDS = ("mailbox", "service")

SOURCES = ("stream", *QUEUE_KINDS)

READER_STATES = ("live", "replay")

KEY_OPERATIONS = ("get", "put", "delete", "add", "expired")
"""Operations on keys of buckets."""

OUTCOMES = ("acknowledged", "rejected", "dead-lettered", "expired", "purged")
"""Outcomes of messages that leave queues."""

REFUSED_CODES = sorted(code for code, error in BY_CODE.items() if issubclass(error, Refused | Failed))
"""Numbers of the errors that a broker answers."""


class MetricField(NamedTuple):
    """A metric, its name behind `malamute_`, and its field in a row."""

    name: str
    field: str
    words: str
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily] = GaugeMetricFamily
    value: Callable[[Any], float | None] = float
    """Return the field as a number: 1 for a text that is not empty, else 0.

    None for a metric without a value now.
    """


def _count(name: str, field: str, words: str) -> MetricField:
    """Return a counter."""
    return MetricField(name, field, words, CounterMetricFamily)


STATUS = (
    MetricField("uptime_seconds", "uptime", "Seconds since the broker was started."),
    MetricField("clients", "clients", "Clients that are connected."),
    MetricField("sessions", "sessions", "Sessions, connected or waiting to be resumed."),
    MetricField("streams", "streams", "Streams."),
    MetricField("mailboxes", "mailboxes", "Mailboxes."),
    MetricField("services", "services", "Services."),
    MetricField("feeds", "feeds", "Feeds from place to place."),
    MetricField("links", "links", "Links from streams of other brokers."),
    _count("published_messages", "messages_published", "Messages that were published to streams."),
    MetricField("queue_bytes", "queue_bytes", "Bytes in mailboxes and service queues."),
    MetricField(
        "paged_out_bytes", "paged_out_bytes", "Bytes in mailboxes and service queues that are paged out."
    ),
    MetricField("backlog_bytes", "backlog_bytes", "Bytes that were accepted and are not durable yet."),
    MetricField("damages", "damages", "Parts of the store that are damaged."),
    _count("faults", "faults", "Faults of the broker itself."),
    MetricField("store_failing", "store_error", "1 while the store cannot write, else 0.", value=bool),
    MetricField("unrecovered", "not_recovered", "Resources of the store that were not recovered."),
    MetricField("surplus_dead_letters", "dead_excess", "Dead letters beyond a lowered limit."),
    _count("quota_refusals", "quotas_exceeded", "Commands that a quota has refused."),
    MetricField(
        "old_key_connections",
        "old_key_connections",
        "Connections by the key that the broker had before (access.key_before).",
        CounterMetricFamily,
    ),
    MetricField(
        "configuration_refused",
        "config_error",
        "1 if the configuration was refused when it was read last, else 0.",
        value=bool,
    ),
    MetricField(
        "options_waiting_for_restart",
        "waiting_for_restart",
        "Options that were changed and are not in force.",
        value=len,
    ),
)
"""Metrics of the whole broker."""

STORAGE = (
    MetricField("store_size_bytes", "size", "Bytes that the store may have."),
    MetricField("store_used_bytes", "used", "Bytes of it that are in use."),
    MetricField("store_high_water_bytes", "high_water", "The most bytes that ever were in use."),
    MetricField("store_streams_bytes", "streams_bytes", "Bytes of what streams keep."),
    MetricField("store_streams_budget_bytes", "streams_budget", "Bytes that streams may keep."),
    MetricField(
        "store_reader_lag_transactions", "reader_lag", "The oldest reader of its directory: behind by."
    ),
    MetricField(
        "store_first_time_seconds",
        "first_time",
        "When the oldest message that is kept of any stream came, without the broker's own, since the epoch.",
        value=lambda first_time: to_seconds(first_time) if first_time else None,
    ),
    _count("store_transactions", "lsn", "Transactions of the store."),
)
"""Metrics of its store."""

STREAM = (
    MetricField("stream_first_sequence", "first", "The oldest sequence that is kept."),
    MetricField("stream_last_sequence", "last", "The newest sequence."),
    _count("stream_published_messages", "published", "Messages published."),
    MetricField("stream_selectors", "selectors", "Different selectors of its subscriptions."),
    _count("stream_switches_to_live", "switches_to_live", "How often a reader came to the head."),
    _count("stream_switches_to_replay", "switches_to_replay", "How often one fell behind."),
)
"""Metrics of one stream."""


LINK = (
    MetricField(
        "link_running", "state", "1 while a runner carries the link, else 0.", value="running".__eq__
    ),
    MetricField(
        "link_lag_messages", "lag", "Messages of the source that are not here.", value=lambda lag: lag
    ),
    MetricField("link_lag_seconds", "lag_seconds", "The same in seconds.", value=lambda lag: lag),
    _count("link_received_messages", "taken", "Messages that the link has brought."),
)
"""Metrics of one link; the lag is unknown while no runner reports."""


class _Found(Collector):
    """The metrics of one scrape."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _figures(
    figures: Iterable[MetricField], row: Any, labels: Mapping[str, str] | None = None
) -> Iterator[Metric]:
    for figure in figures:
        metric = figure.kind(f"malamute_{figure.name}", figure.words, labels=[*(labels or ())])
        value = figure.value(getattr(row, figure.field))
        if value is not None:
            metric.add_metric([*(labels or {}).values()], value)
        yield metric


def _totals(totals: BrokerTotals) -> Iterator[Metric]:
    for name, words, durations in (
        ("iteration", "Iterations of the broker's loop, without its waiting", totals.iterations),
        ("commit", "Commits with waiting clients", totals.commits),
    ):
        yield SummaryMetricFamily(
            f"malamute_{name}_seconds",
            f"{words}: seconds.",
            count_value=durations.count,
            sum_value=durations.seconds,
        )
        longest = durations.longest_seconds
        yield GaugeMetricFamily(
            f"malamute_{name}_longest_seconds", f"{words}: the longest of the last minute or two.", longest
        )
    yield CounterMetricFamily(
        "malamute_committed_bytes", "Bytes of messages that became durable.", totals.committed_bytes
    )
    # Counters begin with 0: a counter that appears with its first event would show no growth.
    for name, words, label, known, counts in (
        (
            "delivered_messages",
            "Messages sent, by the kind of their source.",
            "kind",
            SOURCES,
            totals.delivered,
        ),
        ("settlements", "Messages that left queues, by outcome.", "outcome", OUTCOMES, totals.settlements),
        ("dead_lettered_messages", "New dead letters.", "kind", QUEUE_KINDS, totals.dead_lettered),
        ("key_operations", "Operations on keys.", "operation", KEY_OPERATIONS, totals.key_operations),
        ("switches", "Switches of readers to live or replay.", "state", READER_STATES, totals.switches),
        ("gaps", "Gaps that readers were sent, by reason.", "reason", GAP_REASONS, totals.gaps),
        ("refusals", "Refused commands, by error.", "code", map(str, REFUSED_CODES), totals.refusals),
        ("family_failures", "Failures of plug-ins for patterns.", "family", (), totals.family_failures),
    ):
        counted = CounterMetricFamily(f"malamute_{name}", words, labels=[label])
        for value, count in (dict.fromkeys(known, 0) | counts).items():
            counted.add_metric([value], count)
        yield counted
    yield from _all_readers(totals.readers)
    yield from _queues(totals.queues)
    yield from _limits(totals.limits)


def _limits(rows: Iterable[LimitUsage]) -> Iterator[Metric]:
    labels = ["limit", "effect"]
    used = GaugeMetricFamily(
        "malamute_limit_used",
        "Use of a limit: by all, or by the queue, session or stream nearest to its own.",
        labels=labels,
    )
    most = GaugeMetricFamily(
        "malamute_limit",
        "The limit: at it commands are refused, or something is forgotten or paged out.",
        labels=labels,
    )
    for row in rows:
        values = [row.name, "refuses" if row.refuses else "evicts"]
        used.add_metric(values, row.used)
        most.add_metric(values, row.limit)
    yield from (used, most)


def _all_readers(totals: ReaderTotals) -> Iterator[Metric]:
    readers = GaugeMetricFamily(
        "malamute_readers", "Readers of all streams, by their state.", labels=["state"]
    )
    for state in READER_STATES:
        readers.add_metric([state], getattr(totals, state))
    yield readers
    for name, words, value in (
        ("lag_messages", "The reader or cursor that is most behind, of all streams: messages.", totals.lag),
        ("lag_seconds", "The reader that is most behind, of all streams: seconds.", totals.lag_seconds),
        ("cursors", "Cursors of all streams, whether anybody reads by them or not.", totals.cursors),
        ("cursor_lag_messages", "The cursor that is most behind: messages.", totals.cursor_lag),
    ):
        yield GaugeMetricFamily(f"malamute_{name}", words, value=value)


def _queues(rows: Iterable[QueueTotals]) -> Iterator[Metric]:
    messages = GaugeMetricFamily(
        "malamute_queued_messages", "Messages in queues, by their state.", labels=["kind", "state"]
    )
    dead = GaugeMetricFamily("malamute_dead_letters", "Dead letters.", labels=["kind"])
    ages = GaugeMetricFamily(
        "malamute_oldest_message_seconds", "The age of the oldest message in a queue.", labels=["kind"]
    )
    for row in rows:
        for state, count in (("ready", row.ready), ("delayed", row.delayed), ("in-flight", row.in_flight)):
            messages.add_metric([row.kind, state], count)
        dead.add_metric([row.kind], row.dead_letters)
        ages.add_metric([row.kind], row.oldest_age or 0.0)
    yield from (messages, dead, ages)


def _readers(details: StreamDetails) -> Iterator[Metric]:
    labels = {"stream": details.name}
    readers = GaugeMetricFamily(
        "malamute_stream_readers", "Readers of the stream, by their state.", labels=["stream", "state"]
    )
    for state in READER_STATES:
        count = sum(reader.state == state for reader in details.readers)
        readers.add_metric([details.name, state], count)
    yield readers
    of_readers = [reader.lag for reader in details.readers]
    of_cursors = [cursor.lag or 0 for cursor in details.cursors]
    for name, words, lags in (
        ("lag_messages", "The reader or cursor that is most behind: messages.", of_readers + of_cursors),
        ("cursor_lag_messages", "The cursor that is most behind: messages.", of_cursors),
        (
            "lag_seconds",
            "The reader that is most behind: seconds.",
            [reader.lag_seconds for reader in details.readers],
        ),
    ):
        lag = GaugeMetricFamily(f"malamute_stream_{name}", words, labels=[*labels])
        lag.add_metric([details.name], max(lags, default=0))
        yield lag


def _links(rows: Iterable[LinkRow]) -> Iterator[Metric]:
    gaps = CounterMetricFamily("malamute_link_gaps", "Gaps of the source.", labels=["link", "reason"])
    for row in rows:
        yield from _figures(LINK, row, {"link": row.name})
        for reason, count in row.gaps.items():
            gaps.add_metric([row.name, reason], count)
    yield gaps


def _own(gateway: Gateway) -> Iterator[Metric]:
    for name, words, value in (
        ("malamute_gateway_sessions", "Sessions of the gateway with the broker.", len(gateway.users)),
        ("malamute_gateway_leases", "Messages that are leased.", len(gateway.leases)),
        ("malamute_gateway_requests", "Requests whose replies are awaited, or kept.", len(gateway.requests)),
    ):
        yield GaugeMetricFamily(name, words, value=value)


def _stored(streams: Iterable[StoredStream]) -> Iterator[Metric]:
    for stream in streams:
        labels = {"stream": stream.name}
        for name, words, value in (
            ("malamute_stream_stored_messages", "Messages of the stream in the store.", stream.count),
            ("malamute_stream_stored_bytes", "Bytes of the stream in the store.", stream.bytes),
            (
                "malamute_stream_first_time_seconds",
                "When the oldest message that is kept came, since the epoch.",
                to_seconds(stream.first_time) if stream.chunks else None,
            ),
        ):
            metric = GaugeMetricFamily(name, words, labels=[*labels])
            if value is not None:
                metric.add_metric([*labels.values()], value)
            yield metric


async def _of_broker(client: Client, timeout: float) -> BrokerMetrics:
    """Return the figures of the whole broker. An older broker does not know the query for all of them."""
    try:
        return await client.query(MetricsQuery(), timeout=timeout)
    except (InvalidValue, AccessRefused):
        return BrokerMetrics(
            status=await client.query(StatusQuery(), timeout=timeout),
            totals=await client.query(TotalsQuery(), timeout=timeout),
            storage=await client.query(StorageQuery(), timeout=timeout),
        )


async def metrics(request: Request, arguments: Arguments) -> Response:
    """Answer a scrape."""
    gateway = gateway_of(request)
    timeout = gateway.settings.timeout_seconds
    found: list[Metric] = []
    async with gateway.session(request) as client:
        broker = await _of_broker(client, timeout)
        found += _figures(STATUS, broker.status)
        found += _totals(broker.totals)
        found += _figures(STORAGE, broker.storage)
        if broker.status.links:
            found += _links(await client.query(LinksQuery(), timeout=timeout))
        for name in dict.fromkeys(arguments["stream"]):
            details = await client.query(StreamQuery(name=name), timeout=timeout)
            found += _figures(STREAM, details, {"stream": details.name})
            found += _readers(details)
            found += _stored(await client.query(StoredQuery(stream=name), timeout=timeout))
    found += _own(gateway)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Found(_merged(found)))
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})


def _merged(metrics: Iterable[Metric]) -> list[Metric]:
    """Merge metrics of one name, with the samples of all of them."""
    by_name: dict[str, Metric] = {}
    for metric in metrics:
        by_name.setdefault(metric.name, metric)
        if by_name[metric.name] is not metric:
            by_name[metric.name].samples += metric.samples
    return [*by_name.values()]


ENDPOINTS = (
    Endpoint(
        "GET",
        "/metrics",
        metrics,
        "The figures of broker and gateway for a monitoring system.",
        (Parameter("stream", "Streams to look at in detail.", many=True),),
        answers={200: Documented("The figures, as OpenMetrics.", (MEDIA_TYPE,))},
        problems=(404,),
    ),
)
