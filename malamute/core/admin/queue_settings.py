"""The settings of a mailbox or a service that are made at run time, in place of the configuration's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from malamute.core.admin.outcome import ChangeOutcome
from malamute.core.admin.queues import queue_of, settings_of
from malamute.errors import InvalidValue
from malamute.protocol.admin import QueueSet, QueueSettingsRow
from malamute.protocol.names import RESERVED_PREFIX
from malamute.store.policies import QueueSettings

if TYPE_CHECKING:
    from malamute.core.queue.queue import Queue
    from malamute.core.queue.table import QueueTables
    from malamute.errors import MalamuteError


def set_queue(queues: QueueTables, wanted: QueueSet, outcome: ChangeOutcome) -> None:
    """Set the attempts, the backoff and the time-out of a queue; `reset` takes back earlier settings.

    Raises:
        NotFound: there is no such queue.
        InvalidValue: the queue is a client's own, or nothing is to be set.
        TooMany: too many queues have settings of their own.
    """
    queue = queue_of(queues, wanted.kind, wanted.name)
    if queue.name.startswith(RESERVED_PREFIX):
        raise InvalidValue(f"{queue.kind} {queue.name!r} is a client's own: it has no settings")
    given = QueueSettings(
        wanted.attempts, None if wanted.backoff is None else (*wanted.backoff,), wanted.ack_timeout
    ).given
    if not given and not wanted.reset:
        raise InvalidValue("nothing to set: expected attempts, backoff, ack_timeout or reset")
    limits, name = queue.limits, (queue.kind, queue.name)
    before = _row(queue, limits.settings.get(name))
    known = QueueSettings() if wanted.reset else limits.settings.get(name, QueueSettings())
    settings = known._replace(**given)
    if settings.given:
        limits.check_settings(*name)
    if not wanted.dry_run:
        limits.set(*name, settings if settings.given else None)
        _apply(queues, queue)
    outcome.answered(_row(queue, settings), before=before)


def _apply(queues: QueueTables, queue: Queue) -> None:
    """Have a queue go by its settings, and by the earlier ones if the disk refuses these."""
    table = queues[queue.kind]
    table.configure(queue)

    def stored(error: MalamuteError | None) -> None:
        if error is not None:
            table.configure(queue)

    queue.effects.stage.when_stored(stored)


def _row(queue: Queue, settings: QueueSettings | None) -> QueueSettingsRow:
    return QueueSettingsRow(kind=queue.kind, name=queue.name, **settings_of(queue, settings))
