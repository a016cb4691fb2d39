"""The configuration of a broker: a TOML file and the environment, read into one frozen `Config`.

The command line comes before an environment variable `MALAMUTE_SECTION__OPTION`, that before the file, and
the file before the default. An invalid value is a `ConfigError` with place, option, value and expectation.

The modules: `option_types` reads and writes values, `sections` are the options, `rendering` makes the file,
`options` are the rows that a broker shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from malamute.config.derived import (
    REMOVED,
    STORE_SLACK,
    ConnectionLimits,
    derive_connection_limits,
    derive_limits,
)
from malamute.config.option_types import quoted, read_toml
from malamute.config.rendering import render
from malamute.config.sections import (
    SECTIONS,
    AccessConfig,
    BucketRule,
    BucketsConfig,
    EventsConfig,
    GroupRules,
    LimitsConfig,
    ListenConfig,
    LogConfig,
    PairConfig,
    ProcessConfig,
    QueueRule,
    QueuesConfig,
    SessionConfig,
    StorageConfig,
    StreamRule,
    StreamsConfig,
    TokenIssuer,
    UserRules,
    read,
    refuse_unknown,
    types_of,
)
from malamute.errors import ConfigError
from malamute.protocol.limits import Limits
from malamute.protocol.quantities import format_size

__all__ = [
    "AccessConfig",
    "BucketRule",
    "BucketsConfig",
    "Config",
    "EventsConfig",
    "GroupRules",
    "LimitsConfig",
    "ListenConfig",
    "LogConfig",
    "PairConfig",
    "QueueRule",
    "QueuesConfig",
    "SessionConfig",
    "StorageConfig",
    "StreamRule",
    "StreamsConfig",
    "TokenIssuer",
    "UserRules",
]

ENVIRONMENT_PREFIX = "MALAMUTE_"

_MIB = 1024**2


@dataclass(frozen=True)
class Config:
    """All options of a broker, checked one by one and against each other. `Config()` has the defaults."""

    broker: ProcessConfig = field(default_factory=ProcessConfig)
    listen: ListenConfig = field(default_factory=ListenConfig)
    access: AccessConfig = field(default_factory=AccessConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    session: SessionConfig = field(default_factory=SessionConfig)
    streams: StreamsConfig = field(default_factory=StreamsConfig)
    queues: QueuesConfig = field(default_factory=QueuesConfig)
    buckets: BucketsConfig = field(default_factory=BucketsConfig)
    events: EventsConfig = field(default_factory=EventsConfig)
    pair: PairConfig = field(default_factory=PairConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    log: LogConfig = field(default_factory=LogConfig)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Where options were given, by their names `section.option`: `file`, `environment` or `command line`, and
    `system` for values that the system does not allow as given. Other options have their defaults."""
    overrides: Mapping[str, float] = field(default_factory=dict, repr=False)
    """Limits in place of derived ones, by name: for programs and tests. No file can set them."""

    def __post_init__(self) -> None:
        """Raises ConfigError for options that contradict each other."""
        if found := "; ".join(_contradictions(self)):
            raise ConfigError(found)

    @classmethod
    def load(
        cls, path: Path | None, environ: Mapping[str, str], options: Mapping[str, str] | None = None
    ) -> Config:
        """Return the configuration of a named file, the environment, and options of the command line.

        Raises ConfigError.
        """
        values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        sources = {}
        for source, all_given in (
            ("file", _from_file(path) if path else ()),
            ("environment", _from_environment(environ)),
            ("command line", _from_command_line(options or {})),
        ):
            for given in all_given:
                values[given.section][given.option] = _checked(given)
                sources[f"{given.section}.{given.option}"] = source
        try:
            sections = {section: SECTIONS[section](**options) for section, options in values.items()}
            return cls(**sections, sources=sources)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error.text}" if path else error.text) from None

    @cached_property
    def core_limits(self) -> Limits:
        """Return the limits of the core, which clients get when they connect."""
        storage, limits = self.storage, self.limits
        room = storage.size * (1 - STORE_SLACK - storage.streams_share)
        derived = derive_limits(limits.memory, self.listen.connections, limits.message_bytes, room)
        given: dict[str, Any] = {
            name: self.overrides[name] for name in Limits._fields if name in self.overrides
        }
        return derived._replace(**given).share_queues()._replace(**given)

    @cached_property
    def connection_limits(self) -> ConnectionLimits:
        """The limits of connections."""
        derived = derive_connection_limits(
            self.limits.memory, self.listen.connections, self.limits.message_bytes
        )
        given: dict[str, Any] = {
            name: value for name, value in self.overrides.items() if name in derived._fields
        }
        return derived._replace(**given)

    def toml(self) -> str:
        """Return a commented file of all options, from which `load` makes an equal `Config`."""
        return render(vars(self))


class _Given(NamedTuple):
    """An option that was given, and where: a file, an environment variable, or the command line."""

    place: Path | str
    section: str
    option: str
    value: Any


def _from_file(path: Path) -> Iterator[_Given]:
    tables = _tables(path)
    refuse_unknown(tables, SECTIONS, f"{path}: unknown section")
    for section, options in tables.items():
        if not isinstance(options, dict):
            raise ConfigError(f"{path}: {section} = {options!r}: expected a table, as in [{section}]")
        yield from (_Given(path, section, option, value) for option, value in options.items())


def _tables(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: invalid TOML: {error}") from None


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Given]:
    """The variables MALAMUTE_SECTION__OPTION; without the two underscores they are not for the broker."""
    for variable, value in sorted(environ.items()):
        section, separator, option = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
        if variable.startswith(ENVIRONMENT_PREFIX) and separator:
            yield _Given(variable, section, option, value)


def _from_command_line(options: Mapping[str, str]) -> Iterator[_Given]:
    for name, value in options.items():
        section, _, option = name.partition(".")
        yield _Given(f"--set {name}", section, option, value)


def _checked(given: _Given) -> Any:
    place, section, option, value = given
    refuse_unknown([section], SECTIONS, f"{place}: unknown section")
    type_of = types_of(SECTIONS[section])
    if value_now := REMOVED.get(f"{section}.{option}"):
        raise ConfigError(f"{place}: {section}.{option} is not an option any more: it is {value_now}")
    refuse_unknown([option], type_of, f"{place}: [{section}]: unknown option")
    return read(type_of[option], value, f"{place}: {section}.{option}")


def _unprotected(config: Config) -> Iterator[str]:
    """Return the faults of listeners: a missing key, or an open listener without encryption."""
    for listener in config.listen.listeners:
        if listener.is_open and not config.listen.insecure:
            yield (
                f"listen.endpoints: {listener.endpoint} is open to other machines without encryption: "
                f"expected curve+{listener.endpoint}, or listen.insecure = true"
            )
    if not config.access.key and any(each.mechanism == "curve" for each in config.listen.listeners):
        yield "access.key is empty: expected the file with the secret key of the broker"
    before = any(each.mechanism == "curve-before" for each in config.listen.listeners)
    if not config.access.key_before and before:
        yield "access.key_before is empty: expected the file with the secret key that the broker had before"


def _contradictions(config: Config) -> Iterator[str]:
    if config.pair.name and not config.pair.register:
        yield "pair.name without pair.register: expected one such as file:/var/lib/malamute/pair.json"
    if config.pair.name and config.storage.kind == "memory":
        yield "pair.name with storage.kind memory: expected lmdb, as both brokers have all on their disks"
    if config.pair.name and config.broker.user:
        yield "pair.name with broker.user: expected a broker that is started as that user"
    yield from _unprotected(config)
    storage = config.storage
    for_streams = int(storage.size * storage.streams_share)
    share = f"storage.size ({format_size(storage.size)}) and streams_share ({storage.streams_share}) leave"
    sizes = [
        (
            "limits.message_bytes",
            config.limits.message_bytes,
            f"{share} one queue",
            config.core_limits.queue_bytes,
        ),
        ("streams.bytes", config.streams.bytes, share, for_streams),
    ]
    for rule in config.streams.rule:
        called = f"streams.rule {quoted(rule.pattern)}"
        sizes.append((f"bytes of {called}", rule.bytes or 0, share, for_streams))
    for option, size_bytes, because, most in sizes:
        if size_bytes > most:
            most -= most % min(_MIB, most)
            yield f"{option} ({format_size(size_bytes)}) is too large: {because} {format_size(most)}"
