"""History published again into streams of a broker, in its order, each message exactly once.

One task replays one stream, from the first file to the last; streams are replayed side by side. A message has
the subject, headers and body that it had, and headers that say where it came from:

    malamute.replay      the name of the replay        malamute.time      the broker's time of then, in ns
    malamute.stream      the stream of then            malamute.sender    the sender of then
    malamute.sequence    the sequence of then          malamute.store     the store that it counts in

A broker knows the ids of published messages for a day, and a replay may continue later. So the *target* shows
the progress of the replay: its last message of this replay names its original sequence. That is a position in
one stream of one store, so a replay of that name from another one is refused. A start, the first or after any
failure, takes three steps:

1. *Fence*. The writer connects under the address of this replay and stream. The broker ends the session that
   had the address; its commands in flight are refused from then on.
2. *Barrier*. The writer commits the cursor of the replay where it is and waits until that is stored. Commits
   are stored in order, so everything that came before is on the disk as well, or refused.
3. *Look*. From the cursor to the end it looks for its own messages. The highest sequence of then is the
   position; everything up to it is there, and nothing behind it.

Then it publishes one batch after the other. A batch is one command, stored as a whole or not at all, and the
next one leaves when it is stored: a batch that is refused leaves no gap. The cursor follows now and then,
always one message behind, so that a look finds a message of the replay. When the connection breaks, the
writer does not let the client send again by itself, but begins anew with the fence: there is one way to
continue, after the loss of a driver, executor, broker or network. Two writers cannot get in each other's way:
the later one has the address, and the earlier one, when it notices, ends with `AddressTaken`.
"""

from __future__ import annotations

import hashlib
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from malamute.client.events import Event, Gap, Lost
from malamute.client.session.message import Message
from malamute.client.sync.client import Client
from malamute.client.sync.consumers import Subscription
from malamute.errors import (
    AddressTaken,
    ConnectionLost,
    Failed,
    InvalidValue,
    LinkError,
    MalamuteError,
    NotFound,
    StoreError,
    TimedOut,
    from_wire,
)
from malamute.matching import Index, Selector, load_plugins
from malamute.protocol.admin import CursorsQuery, StreamQuery
from malamute.protocol.limits import BATCH_MESSAGES_MAX
from malamute.protocol.time_units import to_seconds
from malamute.spark.encoding import encoded
from malamute.spark.history import counts_in
from malamute.spark.login import ANYBODY, Login
from malamute.spark.match import decoded
from malamute.spark.scan import ExportDamage, ExportedHistory, HistoryBounds, HistoryPart, Piece, read, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ("sequence", "time_ns", "sender", "subject", "headers", "body", "frames")
BATCH = BATCH_MESSAGES_MAX
BATCH_BYTES = 4 << 20
STREAMS_TOGETHER = 8
"""Streams that one process replays at the same time."""

CURSOR_EVERY = 50_000
"""Messages after which the cursor is advanced; a look reads as many of the replay, and others' messages."""

TIMEOUT_SECONDS = 30.0
"""Seconds that a broker may take to answer."""

CONNECT_TIMEOUT_SECONDS = 5.0
PATIENCE_SECONDS = 60.0
"""Seconds that a broker may be away or full before a task gives up."""

RETRY = 0.2
NAMESPACE = "malamute."
REPLAY, STREAM, SEQUENCE, TIME, SENDER, STORE = (
    NAMESPACE + name for name in ("replay", "stream", "sequence", "time", "sender", "store")
)

SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("target", pa.string()),
        ("published", pa.int64()),
        ("position", pa.int64()),
        ("path", pa.string()),  # path of an unreadable part, as the following
        ("row_group", pa.int64()),
        ("messages", pa.int64()),
        ("reason", pa.string()),
        ("code", pa.int64()),  # code of the error that ended this stream
    ]
)


class ReplaySettings(NamedTuple):
    """Source, target and speed of a replay: `speed` 2 is twice the original, 0 as fast as possible.

    Without a name the replay has one derived from its source and target, so that the same command continues.
    """

    url: str
    into: str = ""
    patterns: tuple[str, ...] = ()
    where: str = ""
    speed: float = 0.0
    name: str = ""
    patience_seconds: float = PATIENCE_SECONDS
    login: Login = ANYBODY

    def selector(self) -> Selector:
        """Return the selector of messages. Raises `InvalidSelector`."""
        return Selector.parse(
            [["topic", pattern] for pattern in self.patterns] or [["all", None]], self.where
        )

    def named(self, history: ExportedHistory) -> ReplaySettings:
        """Return the settings with a name."""
        what = repr((history.location, history.bounds, self.selector(), self.into))
        return self._replace(name=self.name or hashlib.sha256(what.encode()).hexdigest()[:12])


class ReplayOrigin(NamedTuple):
    """The origin of replayed messages; the store is empty if it is unknown."""

    stream: str = ""
    store: str = ""


class ReplaySource(NamedTuple):
    """One stream of the history, and its target."""

    stream: str
    target: str
    pieces: tuple[Piece, ...]

    @property
    def origin(self) -> ReplayOrigin:
        """Return the origin of its messages."""
        stores = [piece.file.part.store for piece in self.pieces if piece.file]
        return ReplayOrigin(self.stream, stores[-1] if stores else "")


class ReplayPlan(NamedTuple):
    """The remaining work for one stream, with the times of its first and last message."""

    stream: str
    target: str
    position: int
    messages: int
    size_bytes: int
    first_time: int
    last_time: int


def sources(history: ExportedHistory, options: ReplaySettings) -> list[ReplaySource]:
    """Return the streams to replay: without `into` all but the broker's own, each under its name.

    Raises `InvalidValue` when several would become one.
    """
    streams = [name for name in history.streams if options.into or not name.startswith("$")]
    if options.into and len(streams) > 1:
        raise InvalidValue(f"{len(streams)} streams to replay into one: expected one; name it")
    return [ReplaySource(name, options.into or name, tuple(history.of(name))) for name in streams]


def plan(history: ExportedHistory, options: ReplaySettings) -> list[ReplayPlan]:
    """Return the plan of a replay now. Nothing is changed, at the broker or elsewhere."""
    options = options.named(history)
    with options.login.connect(options.url, timeout=CONNECT_TIMEOUT_SECONDS) as client:
        return [
            _left(history, source, options, _position(client, source, options))
            for source in sources(history, options)
        ]


def _left(
    history: ExportedHistory, source: ReplaySource, options: ReplaySettings, position: int
) -> ReplayPlan:
    count = size_bytes = first_time = last_time = 0
    for batch in _selected(history, source, options, position, ("time_ns", "size")):
        if isinstance(batch, pa.RecordBatch) and batch.num_rows:
            first_time = first_time or batch.column("time_ns")[0].as_py()
            last_time = batch.column("time_ns")[-1].as_py()
            count += batch.num_rows
            size_bytes += int(batch.column("size").to_numpy().sum())
    return ReplayPlan(source.stream, source.target, position, count, size_bytes, first_time, last_time)


def _position(client: Client, source: ReplaySource, options: ReplaySettings) -> int:
    """Return the position of a replay, without a fence: it may advance at this moment."""
    begin = known_cursor(client, source.target, options.name)
    return _look(client, source.target, options.name, begin, source.origin)


def known_cursor(client: Client, target: str, name: str) -> int | None:
    """Return the cursor of a replay; None without one."""
    cursors = client.query(CursorsQuery(stream=target), timeout=TIMEOUT_SECONDS)
    return next((row.sequence for row in cursors if row.name == _cursor(name)), None)


def replay(
    spark: SparkSession, history: ExportedHistory, options: ReplaySettings
) -> Sequence[Mapping[str, Any]]:
    """Replay by Spark. Returns rows of `SCHEMA`: one for each stream, and one for each unreadable part."""
    todo, work = _work(history, options)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(todo[number])

    return _checked([row.asDict() for row in run(spark, len(todo), task, SCHEMA).collect()])


def replay_here(history: ExportedHistory, options: ReplaySettings) -> Sequence[Mapping[str, Any]]:
    """Replay by threads of this process, one for each stream. Returns rows as `replay`."""
    todo, work = _work(history, options)
    with ThreadPoolExecutor(STREAMS_TOGETHER) as threads:
        found = threads.map(lambda source: [*work(source)], todo)
        return _checked([row for batches in found for batch in batches for row in batch.to_pylist()])


Work = Callable[["ReplaySource"], Iterator[pa.RecordBatch]]


def _work(history: ExportedHistory, options: ReplaySettings) -> tuple[list[ReplaySource], Work]:
    """Return the streams, and the function that replays one of them."""
    options = options.named(history)
    options.selector()
    todo = sources(history, options)
    pace = _first_pace(history, options, todo) if options.speed else None
    return todo, lambda source: _replay(history, source, options, pace)


def _checked(rows: list[dict[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the rows, unless one has an error, which is raised."""
    for row in rows:
        if row["code"]:
            raise from_wire(row["code"], f"stream {row['stream']!r}: {row['reason']}")
    return rows


# In the executors


class ReplayPace(NamedTuple):
    """The time at which a message is due: its distance from `first_ns`, by `speed`.

    `begin_seconds` is the start of the replay, since the epoch.
    """

    first_ns: int
    begin_seconds: float
    speed: float

    def due(self, time_ns: int) -> float:
        """Return the due time in seconds since the epoch."""
        return self.begin_seconds + to_seconds(time_ns - self.first_ns) / self.speed


def _first_pace(
    history: ExportedHistory, options: ReplaySettings, todo: Sequence[ReplaySource]
) -> ReplayPace:
    """Return the pace of all streams: it begins now, with the first remaining message."""
    with options.login.connect(options.url, timeout=CONNECT_TIMEOUT_SECONDS) as client:
        first = [_first_time(history, source, options, _position(client, source, options)) for source in todo]
    return ReplayPace(min(filter(None, first), default=0), time.time(), options.speed)


def _first_time(
    history: ExportedHistory, source: ReplaySource, options: ReplaySettings, position: int
) -> int:
    """Return the time of the first remaining message; 0 if there is none."""
    for batch in _selected(history, source, options, position, ("time_ns",)):
        if isinstance(batch, pa.RecordBatch) and batch.num_rows:
            return int(batch.column("time_ns")[0].as_py())
    return 0


def _replay(
    history: ExportedHistory, source: ReplaySource, options: ReplaySettings, pace: ReplayPace | None
) -> Iterator[pa.RecordBatch]:
    """Replay one stream. Yields the rows of its result."""
    published = 0
    try:
        with ReplayWriter(
            options.url,
            source.target,
            options.name,
            options.patience_seconds,
            options.login,
            source.origin,
        ) as writer:
            selected = _selected(history, source, options, writer.position, COLUMNS)
            for found in _encoded(selected, source.origin, options.name):
                if isinstance(found, ExportDamage):
                    yield _row(source, found._asdict())
                else:
                    published += _publish(writer, found, pace)
            writer.mark()
            yield _row(source, {"published": published, "position": writer.position})
    except AddressTaken:
        raise  # so that Spark uses the result of the attempt that has replaced this one
    except MalamuteError as error:
        yield _row(source, {"reason": error.text, "code": error.code or 500})


def _row(source: ReplaySource, values: Mapping[str, Any]) -> pa.RecordBatch:
    known = {**values, "stream": source.stream, "target": source.target}
    return pa.RecordBatch.from_pylist([{name: known.get(name) for name in SCHEMA.names}], schema=SCHEMA)


def _selected(
    history: ExportedHistory,
    source: ReplaySource,
    options: ReplaySettings,
    position: int,
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch | ExportDamage]:
    """Yield the selected messages behind a position, in order and each once."""
    load_plugins()
    index = Index()
    index.add("replay", options.selector())
    bounds: HistoryBounds = history.bounds
    bounds = bounds._replace(first=max(bounds.first, position + 1))
    needed = {"sequence", "subject", *columns, *(("sender", "headers") if index.needs_headers else ())}
    last = position
    for part in read(history.location, source.pieces, sorted(needed), bounds):
        if isinstance(part, ExportDamage):
            yield part
            continue
        numbers = part.batch.column("sequence").to_numpy()
        # Messages in two files are published once, and the order of names is that of the sequences.
        wanted = (numbers > last) & _matching(index, part)
        last = max(last, int(numbers[-1]))
        yield part.batch.filter(pa.array(wanted))


def _matching(index: Index, part: HistoryPart) -> np.ndarray[Any, Any]:
    subjects = part.batch.column("subject")
    if not index.needs_headers:
        results = index.match_many(subjects.dictionary.to_pylist())
        matched: np.ndarray[Any, Any] = np.array([bool(found) for found in results], bool)
        found: np.ndarray[Any, Any] = matched.take(subjects.indices.to_numpy())
        return found
    headers, senders = decoded(part.batch.column("headers")), part.batch.column("sender").to_pylist()
    results = index.match_many(subjects.to_pylist(), headers, senders)
    return np.fromiter(map(bool, results), bool, len(results))


def _encoded(
    found: Iterator[pa.RecordBatch | ExportDamage], origin: ReplayOrigin, name: str
) -> Iterator[Messages | ExportDamage]:
    """Yield messages as they are published, and damage. The next ones are made while some are published."""
    made = (batch if isinstance(batch, ExportDamage) else Messages.of(origin, name, batch) for batch in found)
    with ThreadPoolExecutor(1, "malamute-replay") as thread:
        following = thread.submit(next, made, None)
        while (messages := following.result()) is not None:
            following = thread.submit(next, made, None)
            yield messages


def _publish(writer: ReplayWriter, messages: Messages, pace: ReplayPace | None) -> int:
    """Publish messages, at once or message by message when due. Returns their number."""
    if pace is None:
        return sum(map(writer.publish, messages.commands(writer.command_bytes)))
    published = start = 0
    while start < len(messages.sequences):
        wait = pace.due(messages.times[start]) - time.time()
        if wait > 0:
            time.sleep(wait)
        now = time.time()
        end = start + 1
        while end < len(messages.times) and pace.due(messages.times[end]) <= now:
            end += 1
        published += sum(map(writer.publish, messages.cut(start, end).commands(writer.command_bytes)))
        start = end
    return published


class Messages(NamedTuple):
    """Messages to publish, as columns."""

    sequences: Sequence[int]
    times: Sequence[int]
    subjects: Sequence[str]
    records: Sequence[bytes]

    @classmethod
    def of(cls, origin: ReplayOrigin, name: str, batch: pa.RecordBatch) -> Messages:
        """Return the messages of a batch, with headers of their origin."""
        sequences, times, subjects = (batch.column(name) for name in ("sequence", "time_ns", "subject"))
        about = {REPLAY: name, STREAM: origin.stream, SEQUENCE: sequences, TIME: times}
        about |= {SENDER: batch.column("sender"), **({STORE: origin.store} if origin.store else {})}
        names = np.array(subjects.dictionary.to_pylist(), object)[subjects.indices.to_numpy()]
        records = encoded(batch, about).to_pylist()
        return cls(sequences.to_pylist(), times.to_pylist(), names.tolist(), records)

    def behind(self, position: int) -> Messages:
        """Return the messages behind a position."""
        return self.cut(bisect_right(self.sequences, position))

    def cut(self, start: int, end: int | None = None) -> Messages:
        """Return a part of the messages."""
        columns: Any = (column[start:end] for column in self)
        return Messages(*columns)

    def commands(self, bytes_max: int) -> Iterator[Messages]:
        """Yield parts that fit into one command each."""
        sizes = np.cumsum([*map(len, self.records)])
        start = 0
        while start < len(sizes):
            before = sizes[start - 1] if start else 0
            end = int(np.searchsorted(sizes, before + bytes_max, "right"))
            end = min(max(end, start + 1), start + BATCH)
            yield self.cut(start, end)
            start = end


class ReplayWriter:
    """The only writer of a replay into a target. `position` is the last original sequence there."""

    def __init__(
        self,
        url: str,
        target: str,
        name: str,
        patience_seconds: float = PATIENCE_SECONDS,
        login: Login = ANYBODY,
        origin: ReplayOrigin = ReplayOrigin(),  # noqa: B008  # it is a value
    ) -> None:
        self.name = name
        self.position = 0
        self.command_bytes = BATCH_BYTES
        """Bytes of records in one command, or fewer if the broker's limit is lower."""
        self._origin = origin
        self._store = ""
        self._url = url
        self._login = login
        self._target = target
        self._patience_seconds = patience_seconds
        self._link: tuple[Client, Subscription] | None = None
        self._broken = False
        self._last = 0
        self._unmarked = 0

    def __enter__(self) -> ReplayWriter:
        self._patiently(self._linked)
        return self

    def __exit__(self, *error: object) -> None:
        self._drop()

    def publish(self, messages: Messages) -> int:
        """Publish new messages as one command. Returns their number."""
        before = self.position
        self._patiently(lambda: self._send(messages))
        if self._unmarked >= CURSOR_EVERY:
            self.mark()
        return len(messages.behind(before).sequences)

    def mark(self) -> None:
        """Advance the cursor: a look will begin with the last message there."""
        if self._unmarked:
            self._patiently(lambda: self._linked()[1].commit(self._last - 1, timeout=TIMEOUT_SECONDS))
            self._unmarked = 0

    def _send(self, messages: Messages) -> None:
        client, _ = self._linked()
        left = messages.behind(self.position)
        if not left.sequences:
            return
        # The records are packed already, which `publish_batch` would do one by one.
        command = client._publish_records(self._target, left.subjects, left.records, TIMEOUT_SECONDS)
        first = client._driver.run(command)
        count = len(left.sequences)
        self._last = first + count - 1
        self._unmarked += count
        self.position = left.sequences[-1]

    def _linked(self) -> tuple[Client, Subscription]:
        """Return the connection; a new one begins with fence, barrier and look."""
        if self._link is None:
            try:
                self._open()
            except BaseException:
                # Without its look no connection is usable, after any error.
                self._drop()
                raise
        assert self._link is not None
        return self._link

    def _open(self) -> None:
        self._broken = False
        address = _address(self.name, self._target)
        client = self._login.connect(
            self._url, address=address, timeout=CONNECT_TIMEOUT_SECONDS, software="malamute-replay"
        )
        client.on_event = self._guard
        try:
            # The subscription only holds the cursor, with credit for one message.
            cursor = client.subscribe(self._target, cursor=_cursor(self.name), credit=1)
        except BaseException:
            _abandon(client)
            raise
        self._link = client, cursor
        self.command_bytes = min(BATCH_BYTES, client._session.sending.limits.message_bytes)
        begin = known_cursor(client, self._target, self.name)
        assert begin is not None
        cursor.commit(begin, timeout=TIMEOUT_SECONDS)
        if self._store not in ("", client.store):
            raise StoreError(
                f"the broker's store was {self._store}, and is {client.store}: begin the same replay again"
            )
        self._store = client.store
        self.position = max(self.position, _look(client, self._target, self.name, begin, self._origin))

    def _guard(self, event: Event) -> None:
        # The client would reconnect, and repeat commands that another writer may have made by now.
        if self._broken or isinstance(event, Lost):
            self._broken = True
            raise ConnectionLost("connection to the broker was lost")

    def _patiently(self, attempt: Callable[[], object]) -> None:
        """Retry until success or the end of patience. A writer replaced by a newer one ends at once."""
        deadline = time.monotonic() + self._patience_seconds
        while True:
            try:
                attempt()
                return
            except (LinkError, Failed) as error:
                if isinstance(error, LinkError):
                    self._drop()
                if time.monotonic() >= deadline:
                    raise
            # A broker that is unreachable or full notifies nobody when it is back.
            time.sleep(RETRY)

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._broken = True
            _abandon(link[0])


def _abandon(client: Client) -> None:
    """Close at once. No message is lost by not waiting: the look finds unconfirmed ones."""
    with suppress(MalamuteError):
        client.close(timeout=0)


def _address(name: str, target: str) -> str:
    return f"replay.{name}.{hashlib.sha256(target.encode()).hexdigest()[:12]}"


def _cursor(name: str) -> str:
    return f"replay.{name}"


def _look(
    client: Client,
    target: str,
    name: str,
    begin: int | None,
    origin: ReplayOrigin = ReplayOrigin(),  # noqa: B008
) -> int:
    """Return the highest original sequence of this replay behind `begin`; 0 without a cursor.

    Raises `NotFound` when the target has dropped them, with the position unknown; and `InvalidValue` for
    messages of another stream or store.
    """
    last = 0 if begin is None else client.query(StreamQuery(name=target), timeout=TIMEOUT_SECONDS).last
    if begin is None or last <= begin:
        return 0
    found, gaps = 0, []
    on_event = client.on_event

    def watch(event: Event) -> None:
        if isinstance(event, Gap):
            gaps.append(event)
        on_event(event)

    client.on_event = watch
    try:
        with client.subscribe(target, start=f"seq:{begin + 1}") as subscription:
            while (subscription.last or 0) < last:
                if (
                    not (batch := subscription.take(1000, TIMEOUT_SECONDS))
                    and (subscription.last or 0) < last
                ):
                    raise TimedOut(f"no sequence {last} from {target!r} within {TIMEOUT_SECONDS} s")
                found = max(found, _highest(batch, name, origin))
            while batch := subscription.take(1000, 0):
                found = max(found, _highest(batch, name, origin))
    finally:
        client.on_event = on_event
    if not found and any(gap.reason == "overwritten" for gap in gaps):
        raise NotFound(
            f"stream {target!r} has dropped the messages of the replay {name!r}, so it is unknown how far it"
            " has come: begin another replay under a new name, at the sequence where it is to continue"
        )
    return found


def _highest(messages: Sequence[Message], name: str, origin: ReplayOrigin) -> int:
    """Return the highest original sequence; 0 without a message of this replay. Raises `InvalidValue`."""
    own = [found for found in (message.headers for message in messages) if found.get(REPLAY) == name]
    for found in own:
        before = ReplayOrigin(found.get(STREAM, ""), found.get(STORE, ""))
        is_same = origin.stream in ("", before.stream) and counts_in(
            before.store, origin.store or before.store
        )
        if before.stream and not is_same:
            raise InvalidValue(
                f"the replay {name!r} is of the stream {before.stream!r} out of the store {before.store}, and"
                f" this history is of {origin.stream!r} out of {origin.store}: name the replay otherwise"
            )
    return max((found[SEQUENCE] for found in own), default=0)
