"""Celery on Malamute: the transport `malamute://`, a result backend of that name, and `revoke` in the broker.

import malamute.integrations.celery
app = celery.Celery("shop", broker="malamute://127.0.0.1", backend="malamute://127.0.0.1")
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Any

from celery import Celery, states
from celery.app.control import TERM_SIGNAME
from celery.app.control import Control as CeleryControl
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import BackendStoreError
from celery.exceptions import TimeoutError as ResultTimeout
from kombu.utils.encoding import bytes_to_str
from kombu.utils.url import parse_url

from malamute import Bucket, Client, LinkError, MalamuteError, NotAsExpected, TimedOut, TooLarge, TryLater
from malamute.integrations.kombu import CONNECT_OPTIONS, Transport, check_options, connect

KEYS_MAX = 1000
"""Keys of one call of a bucket."""

STORE_SECONDS = 300.0
"""Time for which a worker that has a result waits for a broker that is away."""

BACKEND_OPTIONS = CONNECT_OPTIONS | {"prefix", "global_keyprefix"}


class Control(CeleryControl):
    """Remote control that cancels tasks in the broker, too."""

    def revoke(
        self,
        task_id: str | list[str],
        destination: Any = None,
        terminate: bool = False,
        signal: str = TERM_SIGNAME,
        **options: Any,
    ) -> Any:
        """Revoke tasks: workers forget those that they have, and the broker cancels those that wait.

        A cancelled task gets the state `REVOKED` here, since no worker will see it.
        """
        result = super().revoke(task_id, destination, terminate, signal, **options)
        with self.app.connection_or_acquire(options.get("connection")) as connection:
            channel = connection.default_channel
            if isinstance(connection.transport, Transport):
                for cancelled in channel.cancel([task_id] if isinstance(task_id, str) else task_id):
                    self.app.backend.mark_as_revoked(cancelled, "revoked")
        return result


class ResultBackend(KeyValueStoreBackend):
    """Results in a bucket, where they expire after `result_expires`."""

    key_t = bytes_to_str
    implements_incr = True
    supports_autoexpire = True
    supports_native_join = True
    thread_safe = True

    def __init__(self, app: Any, expires: Any = None, url: str = "malamute://", **options: Any) -> None:
        super().__init__(app, expires_type=int, expires=expires, url=url, **options)
        chosen = app.conf.get("result_backend_transport_options") or {}
        check_options(chosen, BACKEND_OPTIONS)
        self._options = dict(chosen)
        self._name = f"{chosen.get('prefix', '')}celery.results"
        self._connected: Client | None = None

    @property
    def _bucket(self) -> Bucket:
        if self._connected is None:
            first, *others = self.url.split(";")
            self._connected = connect(parse_url(first), others, self._options, None)
        # Made anew, since the client of a forked child is another one.
        return self._connected.bucket(self._name)

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        """Return whether the broker was away, or busy."""
        return isinstance(exc, LinkError | TryLater)

    # Keys

    def get(self, key: str) -> bytes | None:
        """Return the value of a key."""
        found = self._bucket.get(key)
        return None if found is None else found.value

    def mget(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the values of the keys that are there."""
        wanted, found = [*keys], {}
        for start in range(0, len(wanted), KEYS_MAX):
            found.update(self._read(wanted[start : start + KEYS_MAX]))
        return found

    def _read(self, keys: list[str]) -> dict[str, bytes]:
        """Read keys at once; in two halves if their values are too much for one answer."""
        try:
            return {key: found.value for key, found in self._bucket.get_many(keys).items()}
        except TooLarge:
            if len(keys) == 1:
                raise
            half = len(keys) // 2
            return self._read(keys[:half]) | self._read(keys[half:])

    def set(self, key: str, value: bytes | str) -> None:
        """Set a key, until `result_expires` is over.

        Raises:
            BackendStoreError: the result is too large.
        """
        try:
            self._bucket.put(key, value, ttl=self.expires or None, timeout=STORE_SECONDS)
        except TooLarge as error:
            raise BackendStoreError(str(error)) from error

    def delete(self, key: str) -> None:
        """Delete a key."""
        self._bucket.delete(key)

    def incr(self, key: str) -> int:
        """Add one to a counter, once in spite of broken connections, and return the sum."""
        return self._bucket.add(key, 1, ttl=self.chord_expires or None, timeout=STORE_SECONDS)

    def expire(self, key: str, value: float | None) -> None:
        """Set the time to live of a key. One that has about that already is left alone."""
        bucket = self._bucket
        found = bucket.get(key)
        if found is None or (value and found.ttl and 0.9 * value < found.ttl <= value):
            return
        # A counter that has changed meanwhile has its time already.
        with suppress(NotAsExpected):
            bucket.put(key, found.value, ttl=value or None, expect=found.revision)

    # Chords

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Note the number of tasks of a chord, those of nested groups among them.

        Celery calls this before it sends the last of the tasks.
        """
        key = self.get_key_for_group(group_id, ".size")
        self._bucket.put(key, str(chord_size), ttl=self.chord_expires or None)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **options: Any) -> None:
        """Count a task of a chord, and send its body after the last one."""
        if request.group and request.chord:
            size = self.get(self.get_key_for_group(request.group, ".size"))
            # Without a size some tasks are not sent yet.
            request.chord["chord_size"] = sys.maxsize if size is None else int(size)
        super().on_chord_part_return(request, state, result, **options)

    # Results

    def _store_result(self, *args: Any, **options: Any) -> Any:
        """Store a result, and wait for a broker that is away meanwhile: the task is done already."""
        by = monotonic() + STORE_SECONDS
        while True:
            try:
                return super()._store_result(*args, **options)
            except LinkError:
                if monotonic() > by:
                    raise

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float | None = 0.5,
        no_ack: bool = True,
        on_interval: Callable[[], object] | None = None,
    ) -> Any:
        """Return the result of a task once it is there. Raises `ResultTimeout`, which is Celery's."""
        self._ensure_not_eager()
        for _, meta in self.get_many([task_id], timeout, interval, on_interval=on_interval):
            return meta
        raise ResultTimeout("The operation timed out.")

    def get_many(
        self,
        task_ids: Iterable[str],
        timeout: float | None = None,
        interval: float | None = 0.5,
        no_ack: bool = True,
        on_message: Callable[[Any], object] | None = None,
        on_interval: Callable[[], object] | None = None,
        max_iterations: int | None = None,
        READY_STATES: frozenset[str] = states.READY_STATES,  # noqa: N803
    ) -> Iterator[tuple[str, Any]]:
        """Yield each task with its result, as soon as that is there. Raises `ResultTimeout`."""
        by = None if timeout is None else monotonic() + timeout
        left = [*dict.fromkeys(task_ids)]
        for task_id in [*left]:
            if (meta := self._cache.get(task_id)) is not None and meta["status"] in READY_STATES:
                left.remove(task_id)
                yield bytes_to_str(task_id), meta
        for start in range(0, len(left), KEYS_MAX):
            keys = {self.get_key_for_task(task_id): task_id for task_id in left[start : start + KEYS_MAX]}
            for key, meta in self._watched([*keys], by, interval or 0.5, on_interval, READY_STATES):
                if on_message is not None:
                    on_message(meta)
                self._cache[keys[key]] = meta
                yield bytes_to_str(keys[key]), meta

    def _watched(
        self,
        keys: list[str],
        by: float | None,
        interval: float,
        on_interval: Callable[[], object] | None,
        ready: frozenset[str],
    ) -> Iterator[tuple[str, Any]]:
        """Yield the results of keys, as the broker notifies of them."""
        waiting = {*keys}
        with self._bucket.watch(*keys) as changes:
            while waiting:
                left = interval if by is None else min(interval, by - monotonic())
                is_late, found = False, {}
                try:
                    key, state = changes.receive(timeout=max(0.0, left))
                    found = {} if state is None else {key: state.value}
                except TimedOut:
                    if is_late := by is not None and monotonic() >= by:
                        # Results that are there count, however short the time is.
                        found = self.mget(waiting)
                    elif on_interval is not None:
                        on_interval()
                for key in waiting & found.keys():
                    meta = self.decode_result(found[key])
                    if meta["status"] in ready:
                        if on_interval is not None and meta["status"] in states.PROPAGATE_STATES:
                            # Celery raises the error of a parent there, which is the cause of this one.
                            on_interval()
                        waiting.discard(key)
                        yield key, meta
                if is_late and waiting:
                    raise ResultTimeout("The operation timed out.")


Celery.control_cls = "malamute.integrations.celery:Control"
__all__ = ["Control", "MalamuteError", "ResultBackend"]
