"""The broker as a whole: its status, its configuration, and its totals."""

from __future__ import annotations

from collections.abc import Sequence

from malamute.protocol.admin.store import StoreUsage
from malamute.protocol.admin.topic import AdminChange, AdminQuery
from malamute.protocol.admin.value import Row


class BrokerStatus(Row):
    """The broker as a whole. `faults` are of its own, `damages` parts of its store.

    Its configuration was loaded at `configured_at`, and these options of it are `waiting_for_restart`. A
    `config_error` tells why the one that was to be loaded last was refused. Quotas have refused something
    `quotas_exceeded` times since the start, and `old_key_connections` came by the key of before.
    """

    software: str
    uptime: float
    clients: int
    sessions: int
    streams: int
    mailboxes: int
    services: int
    feeds: int
    messages_published: int
    queue_bytes: int
    paged_out_bytes: int
    backlog_bytes: int
    not_recovered: int
    dead_excess: int
    store_error: str
    damages: int
    faults: int
    configured_at: float
    waiting_for_restart: list[str]
    config_error: str
    quotas_exceeded: int = 0
    endpoints: Sequence[str] = ()
    storage: str = ""
    directory: str = ""
    pid: int = 0
    old_key_connections: int = 0
    links: int = 0


class StatusQuery(AdminQuery[BrokerStatus]):
    """The status of the broker."""

    topic = "status"


class BrokerOption(Row):
    """An option of the configuration, by its name `section.option`, as it is in force.

    The `value` and the `default` are as in the file, long ones cut. The `source` of the value is `default`,
    `file`, `environment` or `command line`, `program` for a broker within a program, and `system` for a value
    that the system has reduced. A reload changes options that need no restart. A value that waits for a
    restart is not in force.
    """

    name: str
    value: str
    default: str
    source: str
    changed_since_start: bool
    needs_restart: bool
    waiting_for_restart: bool
    description: str = ""


class OptionsQuery(AdminQuery[list[BrokerOption]]):
    """All options of the configuration, in the order of the file."""

    topic = "options"


class DurationTotals(Row):
    """The count of durations since the start, their sum, and the longest of the last minute or two."""

    count: int
    seconds: float
    longest_seconds: float


class QueueTotals(Row):
    """All mailboxes, or all services, together; the age is that of the oldest message, in seconds."""

    kind: str
    messages: int
    ready: int
    delayed: int
    in_flight: int
    dead_letters: int
    oldest_age: float | None


class ReaderTotals(Row):
    """The readers and the cursors of all streams.

    Readers are `live` or in `replay`. The `lag` is that of whichever reader or cursor is most behind, in
    messages; `cursor_lag` that of a cursor, whether anybody reads by it or not. `lag_seconds` is of readers.
    """

    live: int
    replay: int
    lag: int
    lag_seconds: float
    cursors: int = 0
    cursor_lag: int = 0


class LimitUsage(Row):
    """The use of a limit, by its name in the section `limits` of the configuration.

    For a limit of each queue, session or stream it is the one that is nearest to it, which is named by
    `where`; the limit of a queue may be that of a rule. At a limit that `refuses`, commands are refused with
    an error; at another one something is forgotten, or is on the disk only.
    """

    name: str
    used: int
    limit: int
    where: str = ""
    refuses: bool = True


class BrokerTotals(Row):
    """Totals of the broker since its start, and the state of all queues together.

    `iterations` are those of its loop, `commits` the times until awaited messages were durable. `settlements`
    are messages by outcome; `switches` those of readers to live and to replay, `gaps` those that they were
    sent, by reason, `refusals` the ERRORs that clients were sent, by code, and `family_failures` those of
    families of patterns that are plug-ins. `delivered` are messages that were sent to subscribers and
    consumers, redeliveries included, by the kind of their source. `dead_lettered` are messages that became
    dead letters, by the kind of queue. `limits` are the use of each limit, and `refused_lately` the commands
    refused for want of room in the last minute or two. `key_operations` are the keys of buckets that were
    read, changed and expired, by what was done.
    """

    iterations: DurationTotals
    commits: DurationTotals
    committed_bytes: int
    settlements: dict[str, int]
    queues: list[QueueTotals]
    readers: ReaderTotals = ReaderTotals(live=0, replay=0, lag=0, lag_seconds=0.0)
    switches: dict[str, int] = {}
    gaps: dict[str, int] = {}
    refusals: dict[str, int] = {}
    family_failures: dict[str, int] = {}
    delivered: dict[str, int] = {}
    dead_lettered: dict[str, int] = {}
    limits: list[LimitUsage] = []
    refused_lately: int = 0
    key_operations: dict[str, int] = {}


class TotalsQuery(AdminQuery[BrokerTotals]):
    """Totals of the broker, and of all queues together."""

    topic = "totals"


class BrokerMetrics(Row):
    """The answers to `status`, `totals` and `storage`, all of about one moment."""

    status: BrokerStatus
    totals: BrokerTotals
    storage: StoreUsage


class MetricsQuery(AdminQuery[BrokerMetrics]):
    """All figures of the broker as a whole, in one answer. The query needs the rights of those three."""

    topic = "metrics"


class BrokerReloaded(Row):
    """The options that are other than before, and those that wait for the next start.

    With `loses_right` the user who asked may not reload again by the rules that it brings.
    """

    changed: list[str]
    waiting_for_restart: list[str]
    loses_right: bool = False


class BrokerReload(AdminChange[BrokerReloaded]):
    """Read the configuration again, and go by it if it is good as a whole."""

    topic = "broker.reload"
