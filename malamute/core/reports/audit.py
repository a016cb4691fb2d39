"""The audit: the stream `$audit`, which has every administrative change and every one that was refused.

The record of a change goes into the iteration that stores the change and its outcome, so it is in the same
transaction: a confirmed change is recorded, over any crash. `$audit` is a stream like `$sys`, with the broker
as its only publisher; its name is reserved, so it cannot be purged, shortened or deleted. The configuration
has its retention; the ring spares it when others need room (`journal.ring`).

A change that the disk refuses was no change, and its record is gone with it: another one says that it
failed. A change that takes several commits has a record in each.

Every other record (of a failed, refused or irreversible change) is true whether the disk takes it or not. So
refused records are written again, a little later, until they are stored or the broker ends.

Changes without a right to administer could displace records: refusals, and changes of cursors, which belong
to readers. Both are reported as refusals are in `$sys`: some of them, and the number of the others.

The subject of a record is the topic of the change. The headers have the user, the address and the outcome;
the body is JSON: the `arguments`, and the values `before` and `after`. None of them has a secret: an argument
that may be one has `…` in its place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from malamute.core.identity.needs import CHANGES
from malamute.core.iteration.effects import Effects
from malamute.core.iteration.timers import Timers
from malamute.core.reports.events import SENDER
from malamute.core.reports.refusal_log import Details, RefusalLog
from malamute.errors import MalamuteError
from malamute.protocol.admin import CHANGES as TAKEN
from malamute.protocol.admin import Row
from malamute.protocol.admin.topic import SECRET, arguments_of
from malamute.protocol.batch import pack_record
from malamute.protocol.names import AUDIT

if TYPE_CHECKING:
    from malamute.core.session.session import Session
    from malamute.core.stream.stream import Stream
    from malamute.core.stream.table import Streams

DONE, PARTIAL, REFUSED, FAILED = "done", "partial", "refused", "failed"
"""The outcome of a change: done; done in part, to be continued; refused, with nothing changed; or failed by
the disk, with nothing changed."""

ITEMS_MAX = 100
"""Items of a list or a map that a record has; of more it has the first ones, and how many there were."""

CHARACTERS_MAX = 1_000
"""Characters of a text that a record has."""

DEPTH_MAX = 5
"""Lists in lists that a record has."""

WAITING_MAX = 1_000
"""Records that wait to be written again; there is no room for more while the disk takes nothing."""

RETRY_SECONDS = 1.0
"""How long they wait."""
HIDDEN = "…"
"""In place of a secret."""

BY_SIGNAL = {"user": "", "by": "", "method": "signal", "origin": "", "client": "", "address": ""}
"""The user of a change that came over no connection."""

DROPPED_WORDS = "records of the audit are dropped: the disk has refused as many as can wait"

SAMPLED = frozenset(
    topic
    for topic, needs in CHANGES.items()
    if needs and not any(need.action in ("admin", "create") for need in needs)
)
"""Changes that take no right to administer or to create, of which there is no limit but time."""


def who(session: Session) -> dict[str, str]:
    """The user, the client and the network address of a session, as headers."""
    principal = session.may.principal
    return {
        "user": principal.user,
        "by": principal.by_user,
        "method": principal.method,
        "origin": session.origin,
        "client": session.ident,
        "address": session.address,
    }


class Audit:
    """Writes the records. Without being `on`, it writes none."""

    def __init__(self, effects: Effects, timers: Timers, streams: Streams, *, on: bool) -> None:
        self._effects = effects
        self._timers = timers
        self._stream: Stream | None = streams.keep(AUDIT) if on else None
        self._waiting: list[tuple[str, bytes]] = []
        """Records that the disk has refused, to be written again, with their topics."""
        self.dropped = 0
        """Records for which there was no room there."""
        self._sampled = RefusalLog(effects, timers, self._write)

    def record(
        self,
        by: Mapping[str, str],
        topic: str,
        arguments: Mapping[str, Any],
        outcome: str,
        *,
        bound: bool = False,
        **more: Any,
    ) -> None:
        """Write a record in the append of this iteration.

        A `bound` record belongs to that append, and is gone if the disk refuses it. `more` are `before` and
        `after`, as they are, and the `error`, if there is one. Dry runs are not recorded.
        """
        if self._stream is None or arguments.get("dry_run") is True:
            return
        details: dict[str, Any] = {
            **by,
            "topic": topic if topic in CHANGES else "unknown",
            "outcome": outcome,
        }
        shown = {n: HIDDEN if _is_secret(topic, n) else value for n, value in arguments.items()}
        details |= {"arguments": shown, "before": None, "after": None, "error": None} | more
        details["append"] = self._effects.stage.token if bound else 0
        if topic in SAMPLED or outcome == REFUSED:
            self._sampled.note(by["user"], details)
        else:
            self._write(details, 1)

    def close(self) -> None:
        """Write the omitted records at the shutdown."""
        self._sampled.close()
        self._write_again()

    def _write(self, details: Details, count: int) -> None:
        try:
            record = _packed(details, count)
            # A record that stands for others is true, even if the disk refuses the last of these.
            bound = count == 1 and details["append"] == self._effects.stage.token
            self._publish(details["topic"], record, bound=bound)
        except Exception as error:
            # A change without its record is none.
            self._effects.spoil("a record of the audit", error)

    def _publish(self, topic: str, record: bytes, *, bound: bool) -> None:
        assert self._stream is not None
        self._stream.publish(SENDER, [topic], [record])
        # The record belongs to this iteration, also at its end.
        self._stream.flush()
        if not bound:
            self._effects.stage.when_stored(partial(self._stored, topic, record), awaited=False)

    def _stored(self, topic: str, record: bytes, error: MalamuteError | None) -> None:
        if error is None:
            return
        if len(self._waiting) >= WAITING_MAX:
            self.dropped += 1
            if self.dropped == 1:
                self._effects.notice(DROPPED_WORDS)
            return
        if not self._waiting:
            self._timers.at(self._effects.now + RETRY_SECONDS, self._write_again)
        self._waiting.append((topic, record))

    def _write_again(self) -> None:
        waiting, self._waiting = self._waiting, []
        for topic, record in waiting:
            self._publish(topic, record, bound=False)


def _is_secret(topic: str, argument: str) -> bool:
    """Whether an argument may be a secret: by its name, or as one that its topic does not have."""
    return argument in SECRET or (topic in TAKEN and argument not in arguments_of(TAKEN[topic]).rules)


def _packed(details: Details, count: int) -> bytes:
    headers = dict(details)
    del headers["append"]
    body = {name: _short(headers.pop(name)) for name in ("arguments", "before", "after")}
    error = headers.pop("error")
    if isinstance(error, MalamuteError):
        headers |= {"code": error.code, "error": _short(error.text)}
    text = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
    return pack_record({**headers, "count": count}, text)


def _short(value: Any, depth: int = DEPTH_MAX) -> Any:
    """Return a value for JSON, cut to a small size."""
    if isinstance(value, Row):
        value = asdict(value)
    if isinstance(value, Mapping | list | tuple) and not depth:
        return f"{len(value)} items"
    if isinstance(value, Mapping):
        first = [*value.items()][:ITEMS_MAX]
        short = {str(_short(key, 0)): _short(item, depth - 1) for key, item in first}
        return {**short, "…": f"{len(value)} items"} if len(value) > ITEMS_MAX else short
    if isinstance(value, list | tuple):
        items = [_short(item, depth - 1) for item in value[:ITEMS_MAX]]
        return [*items, f"… {len(value)} items"] if len(value) > ITEMS_MAX else items
    if isinstance(value, str):
        return value if len(value) <= CHARACTERS_MAX else f"{value[:CHARACTERS_MAX]}…"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    return str(value) if isinstance(value, float) and not isfinite(value) else value
