"""The options: each is one field, with its default, its type, and a docstring.

People read the docstring in `config/malamute.toml`. To add an option, add a field here and run
`make docs`. Limits that follow from options are in `derived`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from malamute.access import AccessRule, Policy, Quota, Quotas, User
from malamute.config import option_types
from malamute.config.derived import CONNECTIONS, MEMORY_BYTES
from malamute.config.option_types import OptionType, quoted
from malamute.errors import ConfigError
from malamute.protocol.limits import Limits
from malamute.store.policies import (
    DURABLE,
    MEMORY,
    BaseKind,
    Persistence,
    QueuePolicy,
    StreamPolicy,
    StreamRetention,
)

_MINUTE, _HOUR, _DAY, _YEAR = 60.0, 3600.0, 86400.0, 365 * 86400.0
_PERSISTENCE = option_types.choice(DURABLE, MEMORY)
_ANY_SIZE, _ANY_COUNT, _ANY_AGE, _ANY_TTL = (
    option_types.size(0),
    option_types.count(0),
    option_types.duration(0, 100 * _YEAR),
    option_types.duration(0, 10 * _YEAR),
)


def option(default: Any, option_type: OptionType) -> Any:
    """A field of a section, with its default and its type."""
    return field(default=default, metadata={"type": option_type})


def read(option_type: OptionType, value: Any, option: str) -> Any:
    """The value of an option.

    Raises:
        ConfigError: the value is invalid; names the option, the value unless that is secret, and the
            allowed values.
    """
    try:
        return option_type.read(value)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error.text}") from None
    except (ValueError, ArithmeticError):
        example = f", such as {option_type.example}" if option_type.example else ""
        shown = "…" if option_type.secret else repr(value)
        raise ConfigError(f"{option} = {shown}: expected {option_type.words}{example}") from None


def refuse_unknown(names: Iterable[str], known: Iterable[str], fault: str) -> None:
    """Raise ConfigError for the first name that is not known, behind `fault`, with the likely one."""
    known = list(known)
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            advice = f"did you mean {close[0]!r}?" if close else f"expected {', '.join(known) or 'none'}"
            raise ConfigError(f"{fault} {name!r}: {advice}")


class Section:
    """Reads every option by its type, so that a section made in a program is checked like one of a file."""

    table: ClassVar[str]

    def __post_init__(self) -> None:
        for option in fields(self):  # type: ignore[arg-type]  # every section is a dataclass
            value = getattr(self, option.name)
            if value is not None or option.default is not None:
                value = read(option.metadata["type"], value, f"{self.table}.{option.name}")
                object.__setattr__(self, option.name, value)


@dataclass(frozen=True)
class ProcessConfig(Section):
    """The process of the broker."""

    table = "broker"

    user: str = option("", option_types.PROCESS_USER)
    """User of the system for a broker that root starts, as NAME or NAME:GROUP. The broker opens its store as
    that user, listens as root, and has no privileges from then on. The user has to be able to read all
    files of a reload."""


@dataclass(frozen=True)
class ListenConfig(Section):
    """Where clients connect, and how their connections are watched."""

    table = "listen"

    endpoints: tuple[str, ...] = option(("tcp://127.0.0.1:9999",), option_types.ENDPOINTS)
    """Where to listen, all at once. `tcp://127.0.0.1:9999` is open to every user of this machine, and so is
    `ipc://@NAME`, a Linux abstract socket, which has no file. `ipc://PATH` is a socket in the file system,
    open to the users of `ipc_mode`. `tcp://*:9999` listens on every network interface. The rules of [access]
    say what clients may do. With `curve+` before it an endpoint takes encrypted connections of clients
    with a key or a password among the accounts, and with `plain+` of clients with a password.
    `peer+ipc://PATH` takes programs whose user of the system (uid) is among the accounts."""
    insecure: bool = option(False, option_types.FLAG)
    """Listen without CURVE on addresses that other machines can reach, though every client that reaches them
    may connect, and every observer of the network reads everything."""
    ipc_mode: str = option("0600", option_types.choice("0600", "0660", "0666"))
    """Who may connect to `ipc://PATH`: its owner, its group too, or everybody."""
    heartbeat_interval: float = option(4.0, option_types.duration(0, 20))
    """How often the broker asks a client for a sign of life where the system does not tell when one came: on
    sockets of the file system, and on other systems than Linux. The client's library gives it however busy
    its program is. 0 is never, and nowhere: then a client that hangs keeps its work until its ack timeout."""
    heartbeat_timeout: float = option(3.5, option_types.duration(0.02, _MINUTE))
    """How late a sign of life may be until the connection is taken for broken. A client that stops is given
    up after this time and the interval together; over TCP, and its own interval, which is 5 s by default."""
    gateways: tuple[str, ...] = option((), option_types.NETWORKS)
    """Addresses and networks of gateways and proxies, from which many users come. The broker never bans
    them for connections that fail, and a wrong password from there delays only the user that it was for."""
    connections: int = option(CONNECTIONS, option_types.count(1, 10_000_000))
    """Clients at a time: each has a session, connected or waiting to be resumed. Half as many more may be
    connecting. A client takes up to 53 KiB of memory beside `limits.memory`, and a file."""
    io_threads: int = option(1, option_types.count(1, 64))
    """Threads that carry bytes between the network and the broker."""

    @property
    def listeners(self) -> list[option_types.ListenEndpoint]:
        """The endpoints, and how each finds out who connects to it."""
        return [*map(option_types.ListenEndpoint.parse, self.endpoints)]


@dataclass(frozen=True)
class SessionConfig(Section):
    """How long the broker waits for its clients."""

    table = "session"

    expiry: float = option(10 * _MINUTE, option_types.duration(1, 30 * _DAY))
    """How long a session may be resumed after its connection broke. Its work goes to others at once."""


@dataclass(frozen=True)
class StreamRule(Section):
    """Options that differ for the streams with a name of this pattern. None is no difference."""

    table = "rule"

    pattern: str = option("", option_types.PATTERN)
    journal: bool | None = option(None, option_types.FLAG)
    committed: bool | None = option(None, option_types.FLAG)
    bytes: int | None = option(None, _ANY_SIZE)
    count: int | None = option(None, _ANY_COUNT)
    age: float | None = option(None, _ANY_AGE)
    ttl: float | None = option(None, _ANY_TTL)


@dataclass(frozen=True)
class QueueRule(Section):
    """Options that differ for the mailboxes and services with a name of this pattern."""

    table = "rule"

    pattern: str = option("", option_types.PATTERN)
    kind: str | None = option(None, option_types.choice("mailbox", "service"))
    persistence: str | None = option(None, _PERSISTENCE)
    ack_timeout: float | None = option(None, _ANY_AGE)
    max_deliver: int | None = option(None, _ANY_COUNT)
    backoff: tuple[float, ...] | None = option(None, option_types.durations(0, _YEAR))
    depth: int | None = option(None, _ANY_COUNT)
    bytes: int | None = option(None, _ANY_SIZE)
    priority_step: int | None = option(None, option_types.count(1, 2**40))
    dedup_window: float | None = option(None, option_types.duration(0, _YEAR))
    dedup_count: int | None = option(None, option_types.count(1))
    dead_letters: int | None = option(None, _ANY_COUNT)
    idle: float | None = option(None, _ANY_AGE)


@dataclass(frozen=True)
class GroupRules(Section):
    """The rules of the users of a group, and their quota together."""

    table = "group"

    name: str = option("", option_types.OWNER)
    rules: tuple[AccessRule, ...] | None = option(None, option_types.RULES)
    quota: Quota | None = option(None, option_types.QUOTA)  # noqa: RUF009  # a Quota is immutable


@dataclass(frozen=True)
class UserRules(Section):
    """The rules, the quota and the groups of a user, and the claims that rules name as `{claim.NAME}`."""

    table = "user"

    name: str = option("", option_types.OWNER)
    groups: tuple[str, ...] | None = option(None, option_types.OWNERS)
    rules: tuple[AccessRule, ...] | None = option(None, option_types.RULES)
    claims: tuple[tuple[str, str], ...] | None = option(None, option_types.CLAIMS)
    quota: Quota | None = option(None, option_types.QUOTA)  # noqa: RUF009  # a Quota is immutable


@dataclass(frozen=True)
class TokenIssuer(Section):
    """An issuer of bearer tokens: the required claims `iss` and `aud`, and the public keys."""

    table = "issuer"

    name: str = option("", option_types.TEXT)
    audience: str = option("", option_types.TEXT)
    keys: str = option("", option_types.TEXT)
    algorithms: tuple[str, ...] = option((), option_types.ALGORITHMS_LIST)
    user_claim: str | None = option(None, option_types.TEXT)
    scope_claim: str | None = option(None, option_types.TEXT)
    leeway: float | None = option(None, option_types.duration(0, 5 * _MINUTE))


Table = TypeVar("Table", bound=Section)


def write_table(section: str, table: Section) -> str:
    """One of the tables of a section, as TOML."""
    options = types_of(type(table))
    given = ((name, value) for name, value in vars(table).items() if value is not None)
    path = f"{section}.{table.table}" if section else table.table
    return "\n".join([f"[[{path}]]", *(f"{name} = {options[name].write(value)}" for name, value in given)])


def read_table(table: type[Table], value: Any) -> Table:
    """Return one of the tables of a section. Raises `ConfigError`, or `ValueError` for another value."""
    if isinstance(value, table):
        return value
    if not isinstance(value, dict):
        raise ValueError
    refuse_unknown(value, types_of(table), "unknown option")
    return table(**value)


def _tables(section: str, table: type[Section], words: str) -> OptionType:
    return OptionType(
        f"a list of tables, each with {words}",
        lambda value: tuple(map(partial(read_table, table), option_types.items(value))),
        lambda tables: "\n\n".join(write_table(section, item) for item in tables),
    )


_DIFFERS = "a pattern and what differs for it"
STREAM_RULES = _tables("streams", StreamRule, _DIFFERS)
QUEUE_RULES = _tables("queues", QueueRule, _DIFFERS)
GROUPS = _tables("access", GroupRules, "a name, and the rules and the quota of the group")
USERS = _tables("access", UserRules, "a name, and the groups, rules, claims and quota of the user")
ISSUERS = _tables("access", TokenIssuer, "a name, an audience, a file of keys and algorithms")


@dataclass(frozen=True)
class StorageConfig(Section):
    """The store of everything that survives a restart."""

    table = "storage"

    directory: Path = option(Path("malamute-data"), option_types.PATH)  # noqa: RUF009  # a Path is immutable
    """The data directory; made when it is not there. A relative path starts at the working directory."""
    kind: str = option("lmdb", option_types.choice("lmdb", "memory"))
    """Where messages are kept: "lmdb" is on the disk, "memory" forgets them when the broker ends."""
    backups: Path = option(Path("backups"), option_types.PATH)  # noqa: RUF009  # a Path is immutable
    """Where `malamute broker backup` may write, and nowhere else. A relative path starts at the data
    directory."""
    size: int = option(1024**3, option_types.size(1024**2, 2**47))
    """Size of the store, which can be raised between two starts; a store never shrinks."""
    preallocate: bool = option(True, option_types.FLAG)
    """Take the whole size from the disk at the start, so that a full disk cannot do harm later."""
    streams_share: float = option(0.7, option_types.share(0.05, 0.85))
    """The part of the store that is for streams. The rest is for mailboxes and service queues."""


@dataclass(frozen=True)
class StreamsConfig(Section):
    """Retention of streams. The oldest messages leave when new ones come."""

    table = "streams"

    journal: bool = option(True, option_types.FLAG)
    """Keep messages at all, for subscribers that come later or are slow."""
    committed: bool = option(False, option_types.FLAG)
    """Deliver messages only when they are durable, to every subscriber. Without it, a crash can take back
    messages delivered just before; the subscriber gets a GAP then."""
    bytes: int = option(0, _ANY_SIZE)
    """Bytes kept of one stream; 0 is as much as the store's share for streams allows."""
    count: int = option(0, _ANY_COUNT)
    """Messages kept of one stream; 0 is no limit."""
    age: float = option(0.0, _ANY_AGE)
    """How old a message may be, be the stream at rest or not; 0 is no limit. After a
    step of the clock, or a lower value here, messages leave at twice the pace of time, late after a start."""
    ttl: float = option(0.0, _ANY_TTL)
    """After how long a message expires: nobody gets it any more, now or in a replay. 0 is never. A publisher
    may give a message less time, and not more."""
    rule: tuple[StreamRule, ...] = option((), STREAM_RULES)
    """Other values for some streams, by the pattern of their names: `*` is any characters, `?` is one,
    `[ab]` is one of these. The first rule with a pattern that fits is taken."""

    def policy(self, stream: str) -> StreamPolicy:
        """How the stream of this name is kept."""
        rule = next((rule for rule in self.rule if fnmatchcase(stream, rule.pattern)), None)

        def value(option: str) -> Any:
            own = getattr(rule, option, None)
            return getattr(self, option) if own is None else own

        retention = StreamRetention(value("bytes"), value("count"), value("age"))
        policy = StreamPolicy(value("journal"), value("committed"), retention, value("ttl"))
        if rule is None or (rule.bytes, rule.count, rule.age) == (None, None, None):
            return policy
        return policy._replace(retention_source=f"rule {rule.pattern}")


_QUEUE = QueuePolicy()

POLICY_FIELDS = {
    "persistence": "persistence",
    "ack_timeout": "ack_timeout_seconds",
    "max_deliver": "attempts_max",
    "backoff": "backoff_seconds",
    "depth": "messages_max",
    "bytes": "bytes_max",
    "priority_step": "priority_step_messages",
    "dedup_window": "dedup_window_seconds",
    "dedup_count": "dedup_ids_max",
    "dead_letters": "dead_letters_max",
    "idle": "idle_seconds",
}
"""The options of queues, each with the field of a `QueuePolicy` that it sets."""


@dataclass(frozen=True)
class QueuesConfig(Section):
    """How mailboxes and services treat their messages."""

    table = "queues"

    persistence: str = option(_QUEUE.persistence, _PERSISTENCE)
    """Whether messages are stored, or are in memory only and gone when the broker ends. Queues in memory have
    no dead letters, cannot be tracked, and share the memory for queued messages: a part in 96 of
    `limits.memory`. A queue keeps its persistence until it is removed, and over restarts if it is
    durable."""
    ack_timeout: float = option(_QUEUE.ack_timeout_seconds, _ANY_AGE)
    """How long a consumer may neither settle a message nor report on it, before it goes to another one;
    0 is for ever. An offer may set its own."""
    max_deliver: int = option(_QUEUE.attempts_max, _ANY_COUNT)
    """After so many attempts a message that comes back becomes a dead letter; 0 is never. `malamute service
    edit` sets this, `backoff` and `ack_timeout` of one queue at run time, which overrules the values here."""
    backoff: tuple[float, ...] = option(_QUEUE.backoff_seconds, option_types.durations(0, _YEAR))
    """How long a message waits that came back after its first attempt, its second and so on. The last one
    holds for all that follow; none at all means at once."""
    dedup_window: float = option(_QUEUE.dedup_window_seconds, option_types.duration(0, _YEAR))
    """How long a message with the same `id` is known as the same message; 0 is not at all."""
    idle: float = option(_QUEUE.idle_seconds, _ANY_AGE)
    """After how long without use an empty mailbox or service is removed; 0 is never."""
    rule: tuple[QueueRule, ...] = option((), QUEUE_RULES)
    """Other values for some of them, by the pattern of their names as for streams, and by their `kind` if
    it is given. The first rule that fits is taken. A rule may set these, too: `depth` and `bytes`, the
    messages and bytes of one queue (three quarters of those of all queues), `dead_letters` (10,000 are
    kept; 0 keeps none), `priority_step` (a step puts a message ahead of the 100,000 before it) and
    `dedup_count` (100,000 identities are remembered)."""

    def policy(self, kind: BaseKind, name: str) -> QueuePolicy:
        """How the mailbox or service of this name treats its messages."""
        fitting = (
            rule for rule in self.rule if rule.kind in (None, kind) and fnmatchcase(name, rule.pattern)
        )
        rule = next(fitting, None)
        chosen = {
            field: value
            for section in (self, rule)
            for option, field in POLICY_FIELDS.items()
            if (value := getattr(section, option, None)) is not None
        }
        return QueuePolicy(**chosen, source=f"rule {rule.pattern}" if rule else "default")


@dataclass(frozen=True)
class BucketRule(Section):
    """Options that differ for the buckets with a name of this pattern."""

    table = "rule"

    pattern: str = option("", option_types.PATTERN)
    persistence: str | None = option(None, _PERSISTENCE)


BUCKET_RULES = _tables("buckets", BucketRule, _DIFFERS)


@dataclass(frozen=True)
class BucketsConfig(Section):
    """How buckets keep their keys."""

    table = "buckets"

    rule: tuple[BucketRule, ...] = option((), BUCKET_RULES)
    """The `persistence` of some buckets, by the pattern of their names as for streams: `durable`, as without
    a rule, or `memory`, so that keys are gone when the broker ends. The first rule that fits is taken. A
    bucket keeps its persistence while it has a key, and over restarts if it is durable."""

    def policy(self, bucket: str) -> Persistence:
        """The persistence of the bucket of this name."""
        rules = (rule.persistence for rule in self.rule if fnmatchcase(bucket, rule.pattern))
        return cast(Persistence, next(rules, None) or DURABLE)


@dataclass(frozen=True)
class EventsConfig(Section):
    """Reports of the broker on the streams `$sys` and `$audit`, which clients can only read."""

    table = "events"

    lifecycle: bool = option(True, option_types.FLAG)
    """Events of clients, streams, queues, workers and slow consumers, and faults of the store."""
    settled: bool = option(False, option_types.FLAG)
    """When each queued message came, was delivered and was settled, by whom and how, for analytics, at
    about a tenth of the cost of queued messages."""
    audit: bool = option(True, option_types.FLAG)
    """Every administrative change on `$audit`: user, change, before and after, stored with the change."""


@dataclass(frozen=True)
class PairConfig(Section):
    """Another broker that takes over from this one, as docs/guides/pair.md shows."""

    table = "pair"

    name: str = option("", option_types.PLACE)
    """Name of this broker in its pair; none if it is empty: the broker is in no pair."""
    register: str = option("", option_types.PLACE)
    """Where the pair keeps who is primary, such as "file:/var/lib/malamute/pair.json" for one host."""
    listen: str = option("tcp://127.0.0.1:9998", option_types.TEXT)
    """Where the other broker connects to this one. The link is not encrypted, so on the loopback only."""
    advertise: tuple[str, ...] = option(("tcp://127.0.0.1:9999",), option_types.ENDPOINTS)
    """Where clients reach this broker: the other one tells them."""
    mode: str = option("sync", option_types.choice("sync", "strict", "async"))
    """Without its standby, a primary goes on alone ("sync"), or confirms nothing ("strict"). With "async" it
    never waits for the standby, and a takeover is made by hand."""
    lease: float = option(3.0, option_types.duration(1, _HOUR))
    """How long a primary waits for its standby, before it goes on alone."""
    takeover: float = option(5.0, option_types.duration(1, _HOUR))
    """How long a standby hears nothing of its primary, before it takes over."""


@dataclass(frozen=True)
class LimitsConfig(Section):
    """Limits of the broker. Most follow from these two, as docs/operations/sizing.md shows."""

    table = "limits"

    memory: int = option(MEMORY_BYTES, option_types.size(64 * 1024**2))
    """Memory for everything that clients can fill: queued messages, data on its way to the disk or to
    clients, selectors, streams, queues, cursors and caches. Each kind has its share, and is refused past it.
    The broker takes its own 30 MiB beside it, and memory for connections and large messages."""
    message_bytes: int = option(Limits().message_bytes, option_types.size(1))
    """Size of the records of one command together."""


@dataclass(frozen=True)
class LogConfig(Section):
    """Log of the broker."""

    table = "log"

    level: str = option("info", option_types.choice("debug", "info", "warning", "error"))
    """The least important that is still written."""
    format: str = option("auto", option_types.choice("auto", "console", "json"))
    """How it is written; "auto" is "console" on a terminal, and "json" elsewhere."""


@dataclass(frozen=True)
class AccessConfig(Section):
    """The permissions of users, by rules `["deny"] ACTION{,ACTION} KIND/NAME[/SUBJECT] ["where" EXPRESSION]`.

    Without any rule everything is allowed. Once there is one, only what a rule allows; docs/security.md.
    """

    table = "access"

    accounts: str = option("", option_types.FILE)
    """The file of those who may log in, as `malamute user` writes it. A relative path starts at the working
    directory."""
    key: str = option("", option_types.FILE)
    """The file with the secret key of the broker, for endpoints with `curve+`, as `malamute keys new` writes
    it."""
    key_before: str = option("", option_types.FILE)
    """The same with the key that it had before, for endpoints with `curve-before+`: clients that still have
    that key connect there, and the log names them."""
    rules: tuple[AccessRule, ...] = option((), option_types.RULES)
    """Rights of all users. A rule that begins with `deny` wins over all others; the order means nothing."""
    quota: Quota = option(Quota(), option_types.QUOTA)  # noqa: RUF009  # the same
    """How much of the broker each user may have who has no other quota; docs/security.md."""
    group: tuple[GroupRules, ...] = option((), GROUPS)
    """Rights of groups, and quotas that their users share."""
    user: tuple[UserRules, ...] = option((), USERS)
    """Rights, quotas and groups of users. A rule names a text of `claims` as `{claim.NAME}`."""
    issuer: tuple[TokenIssuer, ...] = option((), ISSUERS)
    """Issuers of the bearer tokens (JWT) that endpoints with `curve+` or `plain+` take: `name` is the claim
    `iss`, `audience` the claim `aud`, and `keys` a file of public keys, in PEM or as a JWKS. `user_claim`
    names the claim with the user, and is `sub` by default. `scope_claim` has rules that narrow the user's
    permissions. `leeway` is the allowed difference of clocks."""

    def __post_init__(self) -> None:
        """Raises ConfigError for a name that stands twice, and for a group that is none."""
        super().__post_init__()
        groups = {group.name for group in self.group}
        for kind, tables in (("group", self.group), ("user", self.user), ("issuer", self.issuer)):
            names = Counter(table.name for table in tables)
            if twice := [name for name, count in names.items() if count > 1]:
                raise ConfigError(f"access.{kind}: {twice[0]!r} stands twice: expected each name once")
        for user in self.user:
            fault = f"access.user {quoted(user.name)}: unknown group"
            refuse_unknown(user.groups or (), groups, fault)

    def policy(self, keys: frozenset[str] = frozenset()) -> Policy:
        """The rules, as the broker goes by them. The rest is as in `Policy`."""
        return Policy(
            self.rules,
            {group.name: group.rules or () for group in self.group},
            {user.name: User(user.groups or (), user.rules or (), user.claims or ()) for user in self.user},
            keys,
            Quotas(
                self.quota,
                {user.name: user.quota for user in self.user if user.quota is not None},
                {group.name: group.quota for group in self.group if group.quota is not None},
            ),
        )


SECTIONS: dict[str, type[Any]] = {
    "broker": ProcessConfig,
    "listen": ListenConfig,
    "access": AccessConfig,
    "storage": StorageConfig,
    "session": SessionConfig,
    "streams": StreamsConfig,
    "queues": QueuesConfig,
    "buckets": BucketsConfig,
    "events": EventsConfig,
    "pair": PairConfig,
    "limits": LimitsConfig,
    "log": LogConfig,
}
"""The tables of the file in their order, each with the class of its options."""


def types_of(section: type[Any]) -> dict[str, OptionType]:
    """The options of a section, with the type of each."""
    return {option.name: option.metadata["type"] for option in fields(section)}
