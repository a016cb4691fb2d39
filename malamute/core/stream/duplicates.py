"""Duplicates: the ids that publishers give to their commands, and the messages that were stored under them.

An id counts for one stream and one user, for `WINDOW_SECONDS` from its first command. The store has it in the
transaction of the messages, so that neither a restart of the broker nor one of the publisher ends the window.
A digest of the content is kept with it: a command with the id and with another content is refused.

A user has at most `IDS_MAX` ids in a stream, and the ids of all users have a limit in bytes. Past it, the
user who has most loses the oldest, so that no user makes the broker forget the ids of another. A message
without an id takes nothing here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from heapq import merge
from typing import Any, NamedTuple, Protocol

from malamute.core.iteration.dedup_quota import DedupQuota
from malamute.core.iteration.effects import Effects
from malamute.core.iteration.grace_period import GracePeriod
from malamute.core.iteration.timers import Timer, Timers
from malamute.errors import InvalidValue, MalamuteError, Malformed, TooLarge
from malamute.protocol.batch import Frame, pack, unpack_record
from malamute.protocol.messages import Publish
from malamute.protocol.time_units import to_ns, to_seconds
from malamute.store.operations import DeleteValue, PutValue
from malamute.store.tables import PUBLISHED

WINDOW_SECONDS = 86_400.0
"""How long an id is remembered."""

IDS_MAX = 10_000
"""Ids of one user in one stream. Past it, the oldest is forgotten."""

ID_BYTES = 512
"""Bytes of an id in memory and in the store, besides its own text and the names of its stream and user."""

DIGEST_BYTES = 16

SWEEPS = 8
"""How often within a window the ids that have ended are dropped."""

SWEPT_MAX = 1_000
"""Ids of a window that are dropped in one iteration."""

TRACE_HEADERS = frozenset(("traceparent", "tracestate", "baggage"))
"""Headers that belong to one attempt to publish, and not to the content."""


class IdStream(Protocol):
    """A stream whose messages have ids; without a journal its ids are in memory alone."""

    name: str
    journaled: bool


class KnownId(NamedTuple):
    """A command under an id: its first sequence, until when that is remembered in ns, and its append."""

    sequence: int
    until_ns: int
    token: int
    """The token of the append, or 0 if the id is from before the start."""
    digest: bytes


class IdWindow:
    """The ids of one user in one stream, in the order in which they end."""

    __slots__ = ("_name_bytes", "known", "owner", "stream", "timer", "user")

    def __init__(self, owner: UserIds, stream: IdStream, user: str) -> None:
        self.owner = owner
        self.stream = stream
        self.user = user
        self._name_bytes = ID_BYTES + len(stream.name.encode()) + len(user.encode())
        self.known: OrderedDict[str, KnownId] = OrderedDict()
        self.timer: Timer | None = None

    def key(self, identity: str) -> tuple[str, str, str]:
        """Return the key of an id in the store."""
        return self.stream.name, self.user, identity

    def bytes_of(self, identity: str) -> int:
        """Return the bytes that an id takes."""
        return self._name_bytes + len(identity.encode())

    def ends(self) -> Iterator[tuple[int, str, str]]:
        """Yield until when each id is remembered, the stream and the id."""
        return ((known.until_ns, self.stream.name, identity) for identity, known in self.known.items())


class UserIds:
    """The ids of one user, by stream."""

    def __init__(self, duplicates: Duplicates) -> None:
        self.bytes = 0
        self.windows: dict[str, IdWindow] = {}
        self._duplicates = duplicates

    def evict(self, size_bytes: int) -> None:
        """Forget the oldest ids, of so many bytes at least."""
        oldest: list[tuple[IdWindow, str]] = []
        for _, stream, identity in merge(*(window.ends() for window in self.windows.values())):
            window = self.windows[stream]
            oldest.append((window, identity))
            size_bytes -= window.bytes_of(identity)
            if size_bytes <= 0:
                break
        for window, identity in oldest:
            self._duplicates.end(window, identity)


class Duplicates:
    """The ids of all streams."""

    def __init__(self, effects: Effects, timers: Timers, grace_period: GracePeriod, bytes_max: int) -> None:
        self.quota = DedupQuota(bytes_max)
        self._effects = effects
        self._timers = timers
        self._grace_period = grace_period
        self._users: dict[str, UserIds] = {}
        self._streams: dict[str, dict[str, IdWindow]] = {}
        """The windows of each stream, by user."""

    def find(self, user: str, message: Publish) -> int:
        """Return the first sequence that was stored under the id of a command, or 0 outside its window.

        The iteration is then stored only if that message is.

        Raises:
            InvalidValue: the id was used with another content.
        """
        window = self._streams.get(message.stream, {}).get(user)
        known = None if window is None else window.known.get(message.id)
        if known is None or known.until_ns <= to_ns(self._effects.now):
            return 0
        if known.digest != digest_of(message):
            raise InvalidValue(
                f"id {message.id!r} was used for another content: expected a new id, or the same subjects, "
                "headers and bodies"
            )
        self._effects.stage.rely_on(known.token)
        return known.sequence

    def add(self, user: str, stream: IdStream, message: Publish, sequence: int) -> None:
        """Store the id of a command with its messages, unless they are refused."""
        window, identity = self._window(stream, user), message.id
        until_ns = to_ns(self._effects.now + WINDOW_SECONDS)
        known = KnownId(sequence, until_ns, self._effects.stage.token, digest_of(message))
        self._put(window, identity, known)
        self._store(window, identity)

        def stored(error: MalamuteError | None) -> None:
            if error is not None and window.known.get(identity) is known:
                self._drop(window, identity)

        self._effects.stage.when_stored(stored, awaited=False)
        if len(window.known) > IDS_MAX:
            self.end(window, next(iter(window.known)))
        self.quota.evict()
        self._watch(window)

    def restore(self, values: Mapping[Any, Any], streams: Mapping[str, IdStream]) -> None:
        """Take up the ids that a store has.

        The clock may have been wrong, or be wrong now: none is remembered for longer than a window, and none
        ends in the grace period of the start.
        """
        most_ns = to_ns(self._effects.now + WINDOW_SECONDS)
        least_ns = min(to_ns(self._grace_period.until), most_ns)
        for key, (sequence, until_ns, digest) in sorted(values.items(), key=lambda item: item[1][1]):
            name, user, identity = map(str, key)
            if (stream := streams.get(name)) is None:
                self._effects.stage.store(DeleteValue(PUBLISHED, key))
                continue
            known = KnownId(sequence, min(max(until_ns, least_ns), most_ns), 0, digest)
            self._put(self._window(stream, user), identity, known)
        for windows in self._streams.values():
            for window in windows.values():
                self._watch(window)
        self.quota.evict()

    def store_again(self, keys: Iterable[tuple[str, str, str]]) -> None:
        """Store ids once more that the store has lost."""
        for name, user, identity in keys:
            window = self._streams.get(name, {}).get(user)
            if window is not None and identity in window.known:
                self._store(window, identity)

    def forget(self, stream: IdStream) -> None:
        """Forget the ids of a stream that is deleted, with its deletion."""
        windows = [*self._streams.get(stream.name, {}).values()]
        gone = [(window.user, [*window.known.items()]) for window in windows]
        if not gone:
            return
        for window in windows:
            for identity in [*window.known]:
                self._drop(window, identity)
        if stream.journaled:
            self._effects.stage.store_bound(DeleteValue(PUBLISHED, (stream.name,)))
        token = self._effects.stage.token

        def deleted(error: MalamuteError | None) -> None:
            for user, ids in gone if error is not None else ():
                window = self._window(stream, user)
                for identity, known in ids:
                    if window.known.get(identity, known).token in (known.token, token):
                        self._put(window, identity, known)
                self._watch(window)

        self._effects.stage.when_stored(deleted, awaited=False)

    def end(self, window: IdWindow, identity: str) -> None:
        """Forget an id, in the store too."""
        self._drop(window, identity)
        if window.stream.journaled:
            self._effects.stage.store(DeleteValue(PUBLISHED, window.key(identity)))

    def _window(self, stream: IdStream, user: str) -> IdWindow:
        windows = self._streams.setdefault(stream.name, {})
        window = windows.get(user)
        if window is None:
            owner = self._users.get(user)
            if owner is None:
                owner = self._users[user] = UserIds(self)
            window = windows[user] = owner.windows[stream.name] = IdWindow(owner, stream, user)
        return window

    def _store(self, window: IdWindow, identity: str) -> None:
        if window.stream.journaled:
            known = window.known[identity]
            until_ns = known.until_ns + self._effects.ahead_ns
            value = known.sequence, until_ns, known.digest
            self._effects.stage.store(PutValue(PUBLISHED, window.key(identity), value))

    def _put(self, window: IdWindow, identity: str, known: KnownId) -> None:
        if window.known.pop(identity, None) is None:
            self.quota.count(window.owner, window.bytes_of(identity))
        window.known[identity] = known

    def _drop(self, window: IdWindow, identity: str) -> None:
        del window.known[identity]
        self.quota.count(window.owner, -window.bytes_of(identity))
        if window.known:
            return
        name, user = window.stream.name, window.user
        self._timers.cancel(window.timer)
        del self._streams[name][user], window.owner.windows[name]
        if not self._streams[name]:
            del self._streams[name]
        if not window.owner.windows:
            del self._users[user]

    def _watch(self, window: IdWindow) -> None:
        if window.known and window.timer is None:
            first = to_seconds(next(iter(window.known.values())).until_ns)
            due = max(first, self._effects.now + WINDOW_SECONDS / SWEEPS)
            window.timer = self._timers.at(due, partial(self._sweep, window))

    def _sweep(self, window: IdWindow) -> None:
        window.timer = None
        now_ns = to_ns(self._effects.now)
        for _ in range(SWEPT_MAX):
            identity = next(iter(window.known), None)
            if identity is None or window.known[identity].until_ns > now_ns:
                self._watch(window)
                return
            self.end(window, identity)
        window.timer = self._timers.at(self._effects.now, partial(self._sweep, window))


def digest_of(message: Publish) -> bytes:
    """Return a digest of the content of a command: the subjects, the headers of the user and the bodies."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for subject, record in zip(message.subjects, message.records, strict=True):
        given: list[tuple[str, Any]] | None = None
        body: Sequence[Frame] = [record]
        # A record that cannot be read is stored as it is.
        with suppress(Malformed, TooLarge):
            headers, body = unpack_record(record)
            given = sorted((name, value) for name, value in headers.items() if name not in TRACE_HEADERS)
        digest.update(pack((subject, given, [*map(len, body)])))
        for frame in body:
            digest.update(frame)
    return digest.digest()
