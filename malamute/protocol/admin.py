"""What operators ask of a broker and change in it, as values: QUERY and CHANGE with their answers.

A query or a change is a value whose fields are the arguments of its topic. What it is answered is a `Row`, or
a list of rows. On the wire both are maps by the names of the fields, and `encode` and `decode` are all the
code there is for that. A field with a default is left out of a map while it has it, and what a map has beyond
the fields is passed over.

Times of day are in seconds since the epoch, durations have their unit in their names, sizes are in bytes.
Credit is what is left of it, -1 without limit.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from functools import cache
from typing import (
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from malamute.errors import Malformed
from malamute.protocol.arguments import (
    FEED,
    HEADERS,
    NAMES,
    OPERATION,
    PASSWORD,
    PATH,
    PLACE,
    ROWS,
    RULES,
    SECONDS,
    STATE,
    SUBJECT,
    UID,
    WHEN,
    Arguments,
)
from malamute.protocol.messages import (
    ADDRESS,
    BOOLEAN,
    CRITERIA,
    KIND,
    NAME,
    NUMBER,
    SEQUENCE,
    SEQUENCES,
    TEXT,
    WORDS,
    Rule,
)

MESSAGE_ROWS = 100
"""Rows of an answer about messages when nobody says how many."""

_PLAIN = frozenset({int, str, float, bool, bytes, type(None)})

Answer = TypeVar("Answer", covariant=True)


# Values and maps


class _Argument(NamedTuple):
    """A field of a topic: what it may hold, and what it holds if it is left out."""

    rule: Rule
    default: Any = ...


def argument(rule: Rule, *, default: Any = ...) -> Any:
    """A field that is an argument of its topic; required unless it has a default."""
    return _Argument(rule, default)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(argument,))
class Value:
    """A frozen value with named fields, made with keywords.

    It is what a frozen dataclass is, but a class costs 10 µs and not 600: the shell waits for 70 of them.
    """

    _defaults: ClassVar[Mapping[str, Any]] = {}
    """The default of each field in their order; an ellipsis if it has none."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        names = (name for name, kind in cls.__annotations__.items() if not kind.startswith("ClassVar"))
        own = {name: cls.__dict__.get(name, ...) for name in names if "__annotations__" in cls.__dict__}
        cls._defaults = {**cls._defaults, **own}

    def __init__(self, **values: Any) -> None:
        fields = vars(self)
        fields.update(self._defaults)
        fields.update(values)
        if len(fields) != len(self._defaults) or ... in fields.values():
            missing = [name for name, value in fields.items() if value is ...]
            unknown = [name for name in values if name not in self._defaults]
            raise TypeError(f"{type(self).__name__}: missing {missing}, unknown {unknown}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be set")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]  # fields may be lists

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{n}={value!r}' for n, value in vars(self).items())})"

    def as_map(self) -> dict[str, Any]:
        """The fields as they travel, without those that have their default."""
        defaults = self._defaults
        return {name: encode(value) for name, value in vars(self).items() if value != defaults[name]}


class Row(Value):
    """Something that an answer tells about."""


def encode(value: Any) -> Any:
    """A value as it travels: rows are maps."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Row):
        return value.as_map()
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def decode(kind: Any, value: Any) -> Any:
    """What travelled, as a value of this type: a row, a list of rows, one of several rows, or anything else.

    Raises:
        Malformed: a row lacks a field, as if the broker was of another version.

    """
    if isinstance(kind, type) and issubclass(kind, Row):
        return _decode_row(kind, value)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is list and isinstance(value, list):
        return [decode(inner[0], item) for item in value]
    if origin in (Union, types.UnionType) and isinstance(value, (dict, list)):
        return decode(next((one for one in inner if _fits(one, value)), None), value)
    return value


def _decode_row(kind: Any, value: Any) -> Any:
    if not _fits(kind, value):
        raise Malformed(f"{value!r:.100} is not a {kind.__name__}: the broker is of another version")
    hints = _hints(kind)
    return kind(**{name: decode(hints[name], value[name]) for name in kind._defaults if name in value})


def _fits(kind: Any, value: Any) -> bool:
    """Whether a value has what a row of this type has to have."""
    if isinstance(kind, type) and issubclass(kind, Row):
        needed = (name for name, default in kind._defaults.items() if default is ...)
        return isinstance(value, dict) and all(name in value for name in needed)
    return get_origin(kind) is list and isinstance(value, list)


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


class AdminTopic(Value, Generic[Answer]):
    """A topic of QUERY or of CHANGE: its fields are the arguments. `Answer` is the type of its answer."""

    topic: ClassVar[str]
    """Its name on the wire."""

    rules: ClassVar[Arguments] = Arguments()
    """What each argument may hold, and which of them may be left out."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        given = {n: one for n, one in cls._defaults.items() if isinstance(one, _Argument)}
        required = {name: one.rule for name, one in given.items() if one.default is ...}
        optional = {name: one.rule for name, one in given.items() if one.default is not ...}
        # What all topics of a kind may take comes last.
        cls.rules = Arguments({**cls.rules.required, **required}, {**optional, **cls.rules.optional})
        cls._defaults = {**cls._defaults, **{name: one.default for name, one in given.items()}}

    @classmethod
    def parse(cls, arguments: Mapping[str, Any]) -> Self:
        """The value with these arguments.

        Raises:
            InvalidValue: an argument is unknown, missing, or not what it may hold.
            InvalidName: an argument breaks the rule for names.

        """
        cls.rules.check(cls.topic, arguments)
        return cls(**arguments)

    @classmethod
    def decode_answer(cls, value: Any) -> Any:
        """The answer as a value. Raises `Malformed` if it is from a broker of another version."""
        kind: Any = cls
        return decode(_answer_of(kind), value)


@cache
def _answer_of(kind: Any) -> Any:
    bases = (base for one in kind.__mro__ for base in getattr(one, "__orig_bases__", ()))
    return next(get_args(base)[0] for base in bases if get_args(base))


class AdminQuery(AdminTopic[Answer]):
    """A question to the broker."""

    page_key: ClassVar[str] = ""
    """The field of its rows by which they are in order, if they come in pages."""


class _Pages(AdminQuery[Answer]):
    """A list that comes in pages: `limit` rows behind the one of this name or id."""

    after_name: str = argument(ADDRESS, default="")
    limit: int | None = argument(ROWS, default=None)


class AdminChange(AdminTopic[Answer]):
    """A change. With `dry_run` nothing is changed, and the answer tells what would be."""

    dry_run: bool = argument(BOOLEAN, default=False)


# The broker and its store


class BrokerStatus(Row):
    """The broker as a whole. `faults` are of its own, `damages` parts of its store.

    Its configuration was loaded at `configured_at`, and these options of it are `waiting_for_restart`. A
    `config_error` tells why the one that was to be loaded last was refused. Quotas have refused something
    `quotas_exceeded` times since the start.
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


class StatusQuery(AdminQuery[BrokerStatus]):
    """How the broker is."""

    topic = "status"


class BrokerOption(Row):
    """An option of the configuration, by its name `section.option`, as it is in force.

    The `value` and the `default` are as in the file, long ones cut. The `source` of the value is `default`,
    `file`, `environment` or `command line`, `program` for a broker within a program, and `system` for what
    the system does not allow as it was given. A reload changes what does not need a restart to change. What
    waits for a restart is not in force.
    """

    name: str
    value: str
    default: str
    source: str
    changed_since_start: bool
    needs_restart: bool
    waiting_for_restart: bool


class OptionsQuery(AdminQuery[list[BrokerOption]]):
    """All options of the configuration, in the order of the file."""

    topic = "options"


class DurationTotals(Row):
    """How many durations there were since the start, their sum, and the longest of the last minute or two."""

    count: int
    seconds: float
    longest_seconds: float


class QueueTotals(Row):
    """All mailboxes, or all services, together; the age is that of the oldest message, in seconds."""

    kind: str
    messages: int
    waiting: int
    delayed: int
    outstanding: int
    dead: int
    oldest_age: float | None


class ReaderTotals(Row):
    """The readers of all streams: how many are live and in replay, and how far the last of them is behind."""

    live: int
    replay: int
    lag: int
    lag_seconds: float


class BrokerTotals(Row):
    """What the broker has done since it started, and what all of its queues have.

    `iterations` are those of its loop, `commits` the times until something was durable that somebody waited
    for. `settlements` are messages by outcome; `switches` those of readers to live and to replay, `gaps`
    those that they were sent, by reason, `refusals` the ERRORs that clients were sent, by code, and
    `family_failures` those of families of patterns that are plug-ins.
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


class TotalsQuery(AdminQuery[BrokerTotals]):
    """What the broker has done, and what all queues have together."""

    topic = "totals"


class StoreDamage(Row):
    """A part of the store that is damaged: a range of sequences, or of numbers of blocks."""

    kind: str
    name: str
    first: int
    last: int
    outcome: str


class StoreUsage(Row):
    """How full the store is. The oldest reader of its directory is `reader_lag` transactions behind.

    `lsn` is the number of the newest transaction.
    """

    size: int
    used: int
    high_water: int
    streams_budget: int
    streams_bytes: int
    leaving_bytes: int
    log_bytes: int
    log_blocks: int
    log_unreadable: int
    sessions: int
    reader_pid: int
    reader_lag: int
    lsn: int
    damages: list[StoreDamage]


class StorageQuery(AdminQuery[StoreUsage]):
    """How full the store is."""

    topic = "storage"


class StoredStream(Row):
    """What the store has of a stream, and how much of it is kept; 0 is no limit. `retain_age` is in seconds.

    `first_time` and `last_time` are nanoseconds since the epoch.
    """

    identifier: int
    name: str
    first: int
    last: int
    reserved: int
    bytes: int
    count: int
    chunks: int
    first_time: int
    last_time: int
    retain_bytes: int
    retain_count: int
    retain_age: float


class StoredQuery(_Pages[list[StoredStream]]):
    """What the store has of each stream, or of one."""

    topic = "stored"
    page_key = "name"

    stream: str = argument(ADDRESS, default="")


# Streams


class StreamRow(Row):
    """A stream: its sequences, what was published to it, and by how many selectors it is read."""

    name: str
    first: int
    last: int
    stored: int
    published: int
    published_rate: float
    journaled: bool
    selectors: int


class StreamsQuery(_Pages[list[StreamRow]]):
    """All streams."""

    topic = "streams"
    page_key = "name"


class FamilyFailures(Row):
    """How often a family of patterns that is a plug-in has failed."""

    family: str
    count: int


class ReaderRow(Row):
    """Who reads a stream: a subscription by its client, or a feed by its cursor. `lag` is in messages."""

    client: str
    address: str
    state: str
    delivered: int
    skipped: int
    lag: int
    lag_seconds: float


class CursorRow(Row):
    """A cursor: the last sequence done with, and how many messages it is behind; None if that is lost."""

    name: str
    sequence: int | None
    lag: int | None


class StreamDetails(StreamRow):
    """A stream with those who read it, and how often one came to its head or fell behind it."""

    switches_to_live: int
    switches_to_replay: int
    failures: list[FamilyFailures]
    readers: list[ReaderRow]
    cursors: list[CursorRow]


class StreamQuery(AdminQuery[StreamDetails]):
    """One stream."""

    topic = "stream"

    name: str = argument(NAME)


class ExplainedSelector(Row):
    """A selector of a stream, how many subscriptions have it, and why it does not take a message."""

    id: str
    criteria: list[list[Any]]
    where: str
    subscriptions: int
    matched: bool
    reason: str


class ExplainQuery(_Pages[list[ExplainedSelector]]):
    """Which selectors of a stream take a message."""

    topic = "explain"
    page_key = "id"

    stream: str = argument(NAME)
    subject: str = argument(SUBJECT, default="")
    headers: Mapping[str, Any] | None = argument(HEADERS, default=None)
    sender: str = argument(ADDRESS, default="")


class StreamCursor(Row):
    """A cursor of any stream."""

    stream: str
    name: str
    sequence: int | None
    lag: int | None


class CursorsQuery(_Pages[list[StreamCursor]]):
    """The cursors of all streams, or of one."""

    topic = "cursors"
    page_key = "stream"

    stream: str = argument(ADDRESS, default="")


class FeedRow(Row):
    """A feed: what it takes from where and puts to where, and where it stands.

    `state` is `live` or `replay`; `full`, while it waits for room at its target, which has `credit` for so
    many more messages, -1 without limit; `disabled`; or `stopped` for a `reason`, as the rights of the `user`
    have ended who has set it. It has `taken` so many messages since the broker started, and `skipped` others
    that its target could never have. `sequence` is the last of its source that it is done with.
    """

    source: str
    feed: str
    target: str
    operation: str
    when: str
    criteria: list[list[Any]]
    where: str
    state: str
    sequence: int | None
    lag: int
    taken: int
    skipped: int
    credit: int
    user: str
    reason: str


class FeedsQuery(_Pages[list[FeedRow]]):
    """All feeds."""

    topic = "feeds"
    page_key = "source"


class FeedQuery(AdminQuery[FeedRow]):
    """One feed, by its source and its name there."""

    topic = "feed"

    source: str = argument(PLACE)
    feed: str = argument(FEED)


# Queues


class QueueRow(Row):
    """A mailbox or a service. Rates are of a second, and quantiles None while nothing was measured."""

    name: str
    persistence: str
    messages: int
    waiting: int
    delayed: int
    outstanding: int
    dead: int
    bytes: int
    paged_out_bytes: int
    consumers: int
    oldest_age: float | None
    expired: int
    timeouts: int
    redelivered: int
    arrival_rate: float
    settled_rate: float
    queue_time_p50_ms: float | None
    queue_time_p99_ms: float | None
    processing_time_p50_ms: float | None
    processing_time_p99_ms: float | None


class WorkerRow(Row):
    """Who works for a service: what it takes, since when, what it may still be given, and what it holds."""

    client: str
    address: str
    patterns: list[str]
    since: float
    credit: int
    credit_bytes: int
    outstanding: int


class ServiceDetails(QueueRow):
    """A service with its workers."""

    workers: list[WorkerRow]


class MailboxesQuery(_Pages[list[QueueRow]]):
    """All mailboxes."""

    topic = "mailboxes"
    page_key = "name"


class ServicesQuery(_Pages[list[ServiceDetails | QueueRow]]):
    """All services, with `details` each with its workers."""

    topic = "services"
    page_key = "name"

    details: bool = argument(BOOLEAN, default=False)


class ServiceQuery(AdminQuery[ServiceDetails]):
    """One service."""

    topic = "service"

    name: str = argument(NAME)


class MessageRow(Row):
    """A queued message or a dead letter. `time` is in nanoseconds, `size` that of its record."""

    sequence: int
    time: int
    sender: str
    subject: str
    headers: dict[str, Any]
    body: bytes
    size: int
    properties: dict[str, Any]
    attempts: int
    state: str
    damaged: bool


class MessagesQuery(AdminQuery[list[MessageRow]]):
    """Messages of a mailbox or a service, or its dead letters, behind a sequence."""

    topic = "messages"

    kind: str = argument(KIND)
    name: str = argument(NAME)
    dead: bool = argument(BOOLEAN, default=False)
    after: int = argument(NUMBER, default=0)
    limit: int = argument(ROWS, default=MESSAGE_ROWS)
    where: str = argument(TEXT, default="")
    state: str = argument(STATE, default="")


class MessageQuery(AdminQuery[MessageRow]):
    """One message of a mailbox or a service, or one of its dead letters, with its whole body."""

    topic = "message"

    kind: str = argument(KIND)
    name: str = argument(NAME)
    sequence: int = argument(SEQUENCE)
    dead: bool = argument(BOOLEAN, default=False)


# Clients


class _ClientSession(Row):
    id: str
    address: str
    software: str
    connected: bool
    since: float
    last_heard: float
    holding: int


class ClientRow(_ClientSession):
    """A client: how many subscriptions and offers it has, and how many messages it holds."""

    subscriptions: int
    offers: int


class SubscriptionRow(Row):
    """A subscription of a client, and how far it is behind, in messages."""

    source: int
    stream: str
    criteria: list[list[Any]]
    where: str
    since: float
    credit: int
    credit_bytes: int
    state: str
    lag: int
    delivered: int
    skipped: int


class OfferRow(Row):
    """A service that a client works for, or a mailbox of the name `service` that it receives from."""

    source: int
    kind: str
    service: str
    patterns: list[str]
    since: float
    credit: int
    credit_bytes: int
    outstanding: int


class MailboxReader(Row):
    """How a client takes from its mailbox."""

    since: float
    credit: int
    credit_bytes: int
    outstanding: int


class ClientDetails(_ClientSession):
    """A client with all that it has."""

    subscriptions: list[SubscriptionRow]
    offers: list[OfferRow]
    mailbox: MailboxReader | None


class ClientsQuery(_Pages[list[ClientDetails | ClientRow]]):
    """All clients, with `details` each with all that it has."""

    topic = "clients"
    page_key = "id"

    details: bool = argument(BOOLEAN, default=False)


class ClientQuery(AdminQuery[ClientDetails]):
    """One client, by its id or its address."""

    topic = "client"

    id: str = argument(NAME)


class AccessExplained(Row):
    """Whether a user may do something, the rule that decided, and all rules about it.

    It is `limited` if he may do it in part: under some subjects, or for some rows. Without any rule
    everything is allowed, and none is `in_force`.
    """

    allowed: bool
    limited: bool
    in_force: bool
    rule: str
    owner: str
    rules: list[dict[str, Any]]


class QuotaFigure(Row):
    """One limit of a quota: how much of it is used, and how often it refused something since the start.

    Of a rate, it is what of one second's worth is used.
    """

    name: str
    used: int
    limit: int
    refused: int


class UserRow(Row):
    """An account without its password, and where it is: in the `file` or in the `store`.

    One that is `unreadable` is in the store, and lets nobody in. One in the store that the file has too does
    not count. A list of accounts tells what each has of his own quota.
    """

    name: str
    source: str
    key: str | None
    password: bool
    uid: int | None
    groups: list[str]
    access_rules: list[str]
    disabled: bool
    quotas: list[QuotaFigure] = []


class UsersQuery(_Pages[list[UserRow]]):
    """Those who may log in: the accounts of the file, and those in the store."""

    topic = "users"
    page_key = "name"


class AccessQuery(AdminQuery[AccessExplained]):
    """Whether a user may do something: the action, and the thing as it stands in a rule."""

    topic = "access"

    user: str = argument(ADDRESS)
    action: str = argument(WORDS)
    target: str = argument(WORDS)


class QuotaRow(Row):
    """What a user or a group has of its quota. The owner is `user NAME` or `group NAME`."""

    owner: str
    quotas: list[QuotaFigure]


class QuotasQuery(_Pages[list[QuotaRow]]):
    """The quotas of those who have one and were here, or have it by name; or of one user and his groups."""

    topic = "quotas"
    page_key = "owner"

    user: str = argument(ADDRESS, default="")


# Changes


class BrokerReloaded(Row):
    """The options that are other than before, and those that wait for the next start."""

    changed: list[str]
    waiting_for_restart: list[str]


class BrokerReload(AdminChange[BrokerReloaded]):
    """Read the configuration again, and go by it if it is good as a whole."""

    topic = "broker.reload"


class CursorChanged(Row):
    """Where a cursor was before, and where it is."""

    stream: str
    cursor: str
    before: int | None
    sequence: int


class CursorSet(AdminChange[CursorChanged]):
    """Set a cursor so that its reader goes on at `start`."""

    topic = "cursor.set"

    stream: str = argument(NAME)
    cursor: str = argument(NAME)
    start: str = argument(WORDS)


class CursorDeleted(Row):
    """Where a cursor was."""

    stream: str
    cursor: str
    before: int | None


class CursorDelete(AdminChange[CursorDeleted]):
    """Forget a cursor."""

    topic = "cursor.delete"

    stream: str = argument(NAME)
    cursor: str = argument(NAME)


class StreamKept(Row):
    """How much of a stream is kept, as it was set for it: bytes, messages and seconds; 0 is no limit."""

    stream: str
    bytes: int | None = None
    count: int | None = None
    age: float | None = None


class StreamCreate(AdminChange[StreamKept]):
    """Make a stream, and set how much of it is kept if any limit is given; 0 is no limit."""

    topic = "stream.create"

    stream: str = argument(NAME)
    bytes: int | None = argument(NUMBER, default=None)
    count: int | None = argument(NUMBER, default=None)
    age: float | None = argument(SECONDS, default=None)


class StreamRetain(AdminChange[StreamKept]):
    """Set how much of a stream is kept, making the stream if needed; 0 is no limit.

    What is None stays as it is. If anything is not as expected, nothing is changed.
    """

    topic = "stream.retain"

    stream: str = argument(NAME)
    bytes: int | None = argument(NUMBER, default=None)
    count: int | None = argument(NUMBER, default=None)
    age: float | None = argument(SECONDS, default=None)
    expect_bytes: int | None = argument(NUMBER, default=None)
    expect_count: int | None = argument(NUMBER, default=None)
    expect_age: float | None = argument(SECONDS, default=None)


class StreamPurged(Row):
    """The messages that a stream had."""

    stream: str
    first: int
    last: int


class StreamPurge(AdminChange[StreamPurged]):
    """Drop the history of a stream. Its readers, its cursors, its retention and its sequences go on."""

    topic = "stream.purge"

    stream: str = argument(NAME)


class StreamDeleted(Row):
    """The messages that a stream had, and what hung on it: cursors, readers, and feeds from it or to it.

    It is `partial` if only feeds have ended so far: ask again.
    """

    stream: str
    first: int
    last: int
    cursors: int
    readers: int
    feeds: list[str]
    partial: bool = False


class StreamDelete(AdminChange[StreamDeleted]):
    """Remove a stream with its history.

    It is refused while anything hangs on it, unless to `cascade`: then its subscriptions, its cursors, and
    the feeds from it and to it end as well.
    """

    topic = "stream.delete"

    stream: str = argument(NAME)
    cascade: bool = argument(BOOLEAN, default=False)


class FeedChanged(Row):
    """Whether a feed is new, and the last sequence of its source that it is done with."""

    source: str
    feed: str
    target: str
    created: bool
    sequence: int | None = None


class FeedSet(AdminChange[FeedChanged]):
    """Pass messages on from one place to another, or change how.

    Without a `start` it goes on where it is, or begins at the head. What is in a stream stays there, so the
    `operation` is `copy`; what is in a queue is for one, and it is `move`: without one it is what the source
    asks for. It takes what meets its criteria; by `overflow` of that what waits in its queue since no
    consumer has credit for it, and by `default` what no other feed of its source takes.
    """

    topic = "feed.set"

    source: str = argument(PLACE)
    feed: str = argument(FEED)
    target: str = argument(PLACE)
    criteria: Sequence[Sequence[Any]] = argument(CRITERIA, default=(("all", ""),))
    where: str = argument(TEXT, default="")
    start: str = argument(WORDS, default="")
    operation: str = argument(OPERATION, default="")
    when: str = argument(WHEN, default="match")


class FeedSwitched(Row):
    """A feed that goes on or rests, and the last sequence of its source that it is done with."""

    source: str
    feed: str
    enabled: bool
    sequence: int | None


class FeedEnable(AdminChange[FeedSwitched]):
    """Let a feed go on where it is."""

    topic = "feed.enable"

    source: str = argument(PLACE)
    feed: str = argument(FEED)


class FeedDisable(AdminChange[FeedSwitched]):
    """Let a feed rest where it is, over restarts, until it is enabled or set again."""

    topic = "feed.disable"

    source: str = argument(PLACE)
    feed: str = argument(FEED)


class FeedDeleted(Row):
    """The last sequence of its source that a feed was done with."""

    source: str
    feed: str
    sequence: int | None


class FeedDelete(AdminChange[FeedDeleted]):
    """End a feed; what it has passed on stays."""

    topic = "feed.delete"

    source: str = argument(PLACE)
    feed: str = argument(FEED)


FEED_CHANGES: Mapping[str, type[FeedEnable | FeedDisable | FeedDelete]] = {
    change.topic: change for change in (FeedEnable, FeedDisable, FeedDelete)
}
"""The changes of one feed that need no more than which."""


class QueueChanged(Row):
    """How many messages were sent again or dropped; `partial` if not all of them could be."""

    kind: str
    name: str
    messages: int
    partial: bool = False


class QueueRedrive(AdminChange[QueueChanged]):
    """Send dead letters again, as new messages: those that are named or found, or all."""

    topic = "queue.redrive"

    kind: str = argument(KIND)
    name: str = argument(NAME)
    sequences: Sequence[int] | None = argument(SEQUENCES, default=None)
    where: str = argument(TEXT, default="")
    limit: int | None = argument(SEQUENCE, default=None)


class QueuePurge(AdminChange[QueueChanged]):
    """Drop messages of a queue, or dead letters: those that are named or found, or all."""

    topic = "queue.purge"

    kind: str = argument(KIND)
    name: str = argument(NAME)
    dead: bool = argument(BOOLEAN, default=False)
    sequences: Sequence[int] | None = argument(SEQUENCES, default=None)
    where: str = argument(TEXT, default="")
    state: str = argument(STATE, default="")
    limit: int | None = argument(SEQUENCE, default=None)


class QueueDeleted(Row):
    """What a mailbox or a service had, messages and dead letters, and what hung on it: consumers and feeds.

    It is `partial` if some of it is there yet, as the disk has refused that or more has come: ask again.
    """

    kind: str
    name: str
    messages: int
    dead: int
    consumers: int
    feeds: list[str]
    partial: bool = False


class QueueDelete(AdminChange[QueueDeleted]):
    """Remove a mailbox or a service with all that is in it, as if that was purged.

    It is refused while anything hangs on it, unless to `cascade`: then the feeds from it and to it, and the
    offers of its consumers end as well.
    """

    topic = "queue.delete"

    kind: str = argument(KIND)
    name: str = argument(NAME)
    cascade: bool = argument(BOOLEAN, default=False)


class ClientDisconnected(Row):
    """The session that was ended, and how many messages it held."""

    id: str
    address: str
    connected: bool
    holding: int


class ClientDisconnect(AdminChange[ClientDisconnected]):
    """End a session; what it holds goes back to the queues, and its client does not come back by itself."""

    topic = "client.disconnect"

    id: str = argument(NAME)


class UserRemoved(Row):
    """The account that was removed."""

    name: str


class _UserChange(AdminChange[UserRow]):
    name: str = argument(NAME)
    password: str | None = argument(PASSWORD, default=None)
    key: str | None = argument(WORDS, default=None)
    uid: int | None = argument(UID, default=None)
    groups: Sequence[str] | None = argument(NAMES, default=None)
    access_rules: Sequence[str] | None = argument(RULES, default=None)
    disabled: bool | None = argument(BOOLEAN, default=None)

    def __repr__(self) -> str:
        # Whatever prints it prints no hash.
        return f"{type(self).__name__}(name={self.name!r})"


class UserAdd(_UserChange):
    """Add somebody who may log in to the store. `password` is a hash of it, as `malamute user` makes it."""

    topic = "user.add"


class UserSet(_UserChange):
    """Change an account in the store. What is None stays as it is; an empty password or key is none."""

    topic = "user.set"


class UserRemove(AdminChange[UserRemoved]):
    """Remove an account from the store."""

    topic = "user.remove"

    name: str = argument(NAME)


class BackupMade(Row):
    """Where a backup is, and what was copied; without that, where it would be."""

    directory: str
    streams: int | None = None
    chunks: int | None = None
    bytes: int | None = None
    blocks: int | None = None
    damages: list[Any] | None = None


class JournalBackup(AdminChange[BackupMade]):
    """Copy the store into a new directory below that of the backups, while the broker runs."""

    topic = "journal.backup"

    directory: str = argument(PATH)


def _by_topic(kind: type[Any]) -> dict[str, type[Any]]:
    every = [*kind.__subclasses__()]
    for one in every:
        every += one.__subclasses__()
    return {one.topic: one for one in every if hasattr(one, "topic")}


QUERIES: Mapping[str, type[AdminQuery[Any]]] = _by_topic(AdminQuery)
"""The queries by their topics."""

CHANGES: Mapping[str, type[AdminChange[Any]]] = _by_topic(AdminChange)
"""The changes by their topics."""
