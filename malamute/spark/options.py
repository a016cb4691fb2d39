"""The options of the data source: its source, a part of the history, and columns.

    path       an exported directory or URL, as `load` takes it
    data       a data directory, which may be in use
    url        a broker
    context    a broker and who connects there, by the name that `malamute context add` gave it
    user, password, token, curve, server_key, act_as
               who connects there, as for `malamute.connect`; the environment of the program may say it, too
    stream     one stream; all of them without it
    subject    only messages whose subject meets this pattern, as `malamute sub` takes it
    where      only messages that this match expression holds for, as a subscription has it
    since      the start: a time, seq:N, or since:1h
    until      the end, not included
    columns    names between commas, in place of all columns
    promote    NAME:TYPE between commas: headers with columns of their own; an export has its own
    table      `gaps` for unavailable ranges in place of messages
    lost       `report` continues behind a gap, with a warning; `fail` ends the query
    cursor     the name of a cursor at the broker, which a stream of Spark moves as it processes messages
    rows       about how many messages a task reads; for a stream of Spark, how many a micro-batch has

Spark gives a source in Python nothing of the columns that a query needs (SPARK-51713 asks for that). So
`columns` is worth giving, or a schema that has only those, wherever not all of them are needed. Nor are the
conditions of a query used (`filters`): `subject`, `where`, `since` and `until` are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from malamute.client.contexts import CREDENTIALS
from malamute.errors import InvalidValue, NotFound
from malamute.matching import Selector
from malamute.protocol.start import SEQ, SINCE
from malamute.spark.export_location import ExportLocation
from malamute.spark.history import ALL, HistorySource, ReadFilter, open_history, parse_point
from malamute.spark.login import ANYBODY, Login, login_of, with_context
from malamute.spark.manifest import Manifest, described, exported_streams
from malamute.spark.scan import HistoryBounds
from malamute.spark.schema import Column, Promoted, all_columns, parse_promoted

MESSAGES, GAPS = "messages", "gaps"
REPORT, FAIL = "report", "fail"

ROWS = 1_000_000

GAP_COLUMNS = (
    Column("stream", "string", True),
    Column("first", "bigint", True),
    Column("last", "bigint", True),
    Column("reason", "string", True),
    Column("path", "string", True),
)
"""Columns of `table=gaps`: the range, the reason, and the file or an empty text."""

NAMES = frozenset(
    (
        *(
            "path",
            "data",
            "url",
            "context",
            "stream",
            "subject",
            "where",
            "since",
            "until",
            "columns",
            "promote",
            "table",
            "lost",
            "rows",
            "cursor",
        ),
        *CREDENTIALS,
    )
)


_TEXTS = ("path", "data", "url", "stream", "subject", "where", "since", "until", "cursor")


class SourceOptions(NamedTuple):
    """The parsed options. `rows` is 0 by default."""

    path: str = ""
    data: str = ""
    url: str = ""
    stream: str = ""
    subject: str = ""
    where: str = ""
    since: str = ""
    until: str = ""
    cursor: str = ""
    columns: tuple[str, ...] = ()
    promote: Mapping[str, str] = {}
    table: str = MESSAGES
    lost: str = REPORT
    rows: int = 0
    login: Login = ANYBODY

    @classmethod
    def parse(cls, given: Mapping[str, str], lost: str = REPORT) -> SourceOptions:
        """Read the options of Spark. Raises `InvalidValue` for one that is unknown or has a wrong value."""
        texts = {name.lower(): value for name, value in given.items()}
        if unknown := sorted(texts.keys() - NAMES):
            raise InvalidValue(f"unknown option {unknown[0]!r}: expected {', '.join(sorted(NAMES))}")
        texts = with_context(texts)
        options = cls(
            **{name: texts.get(name, "") for name in _TEXTS},
            columns=tuple(_words(texts.get("columns", ""))),
            promote=dict(map(parse_promoted, _words(texts.get("promote", "")))),
            table=_one_of("table", texts.get("table", MESSAGES), MESSAGES, GAPS),
            lost=_one_of("lost", texts.get("lost", lost), REPORT, FAIL),
            rows=_count(texts.get("rows", "0")),
            login=login_of(texts, texts.get("url", "")),
        )
        if sum(map(bool, (options.path, options.data, options.url))) != 1:
            raise InvalidValue(
                "invalid source of history: expected a path, or one of the options data and url"
            )
        if options.wanted != ALL and options.table == GAPS:
            raise InvalidValue(
                "subject or where with table=gaps: expected neither, because gaps have no message"
            )
        return options

    @property
    def wanted(self) -> ReadFilter:
        """Return the filter of `subject` and `where`. Raises `InvalidSelector`."""
        criteria = (("topic", self.subject),) if self.subject else ()
        if criteria or self.where:
            Selector.parse(criteria or (("all", None),), self.where)
        return ReadFilter(criteria, self.where)

    @property
    def is_export(self) -> bool:
        """Return whether an exported directory is read."""
        return bool(self.path)

    def all_columns(self) -> tuple[Column, ...]:
        """Return all columns of the source."""
        return GAP_COLUMNS if self.table == GAPS else all_columns(self.promoted())

    def read_columns(self) -> tuple[Column, ...]:
        """Return the requested columns. Raises `InvalidValue` for an unknown one."""
        there = {column.name: column for column in self.all_columns()}
        for name in self.columns:
            check_column(name, there)
        return tuple(there[name] for name in self.columns or there)

    def promoted(self) -> Promoted:
        """Return the headers with columns of their own.

        Raises:
            InvalidValue: the option does not go with an export, or two exports do not go together.
        """
        if not self.is_export:
            return self.promote  # type: ignore[return-value]  # parsed
        if self.promote:
            raise InvalidValue(
                "option promote for an export, which has promoted headers of its own: leave it out"
            )
        promoted: dict[str, str] = {}
        for manifest in self.manifests():
            for name, kind in manifest.promoted.items():
                if promoted.setdefault(name, kind) != kind:
                    raise InvalidValue(f"header {name!r} was promoted with two types: name one stream")
        return promoted  # type: ignore[return-value]  # as they were exported

    def manifests(self) -> list[Manifest]:
        """Return the manifests of the read streams. Raises `NotFound` for none, and `StoreTooNew`."""
        place = ExportLocation(self.path)
        names = [self.stream] if self.stream else exported_streams(place)
        found = [manifest for name in names if (manifest := described(place, name)) is not None]
        if not found:
            raise NotFound(f"no stream {self.stream!r} was exported to {place.root}".replace(" ''", ""))
        return found

    def bounds(self, now_ns: int) -> HistoryBounds:
        """Return the bounds of `since` and `until`. Raises `InvalidValue`."""
        bounds = HistoryBounds()
        if self.since:
            kind, value = _point(self.since, now_ns)
            bounds = bounds._replace(first=value) if kind == SEQ else bounds._replace(since=value)
        if self.until:
            kind, value = _point(self.until, now_ns)
            bounds = bounds._replace(last=value - 1) if kind == SEQ else bounds._replace(until=value)
        return bounds

    @contextmanager
    def history(self) -> Iterator[HistorySource]:
        """Open the data directory or the broker."""
        with open_history(data=self.data, url=self.url, login=self.login) as history:
            yield history


def _point(words: str, now_ns: int) -> tuple[str, int]:
    """Return a sequence, or a time in nanoseconds."""
    start = parse_point(words)
    return start.kind, now_ns - start.value if start.kind == SINCE else start.value


def check_column(name: str, there: Mapping[str, Column]) -> None:
    """Raise `InvalidValue` for an unknown column."""
    if name not in there:
        raise InvalidValue(f"unknown column {name!r}: expected {', '.join(there)}")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _one_of(name: str, value: str, *known: str) -> str:
    if value not in known:
        raise InvalidValue(f"invalid {name} {value!r}: expected {' or '.join(known)}")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidValue(f"invalid rows {text!r}: expected a number of messages")
    return int(text)
