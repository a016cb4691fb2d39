"""taskiq on Malamute: a broker, results with progress, schedules, and dead letters.

    broker = MalamuteBroker("tcp://127.0.0.1:9999").with_result_backend(MalamuteResultBackend())
    broker.add_middlewares(DeadLetters(max_tries=3))

    @broker.task(priority=5)
    async def add(a: int, b: int) -> int: ...

A queue of tasks is a shared mailbox: the subject of a message is the name of its task, the correlation the id
of the task. Labels with a meaning for the broker are `priority` (0 to 9), `delay` and `ttl` (seconds), `key`
(tasks of one key go to one worker) and `queue_name`.

Design: the message of a task has an `id`, so that a task kicked twice under one id within the broker's
window of ids runs once. A requeue and a retry keep the id of the task, so their number is a part of it. Tasks
of a recurring schedule may all have the same id of a task, and have no `id`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from math import inf
from time import monotonic
from typing import Any, TypeVar
from uuid import uuid4

from taskiq import (
    AckableMessage,
    AsyncBroker,
    AsyncResultBackend,
    BrokerMessage,
    ScheduledTask,
    ScheduleSource,
    TaskiqMessage,
    TaskiqMiddleware,
    TaskiqResult,
)
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import NoResultError, ResultGetError, TaskRejectedError
from taskiq.serializers import JSONSerializer
from taskiq.utils import maybe_awaitable

import malamute.aio
from malamute import Closed, InvalidValue, MalamuteError, NotAsExpected, TooLarge
from malamute.aio import Client, Mail, Mailbox

DEFAULT_URL = "tcp://127.0.0.1:9999"
RESULT_SECONDS = 24 * 3600.0
CREDIT = 100
"""The credit of a worker: the default of `taskiq worker --max-async-tasks`."""

Result = TypeVar("Result")

_REPEATS = ("X-Taskiq-requeue", "_retries")
"""The labels that count requeues, and retries of the middlewares of taskiq."""

_REASON_CHARACTERS = 60
_LABELS: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], bool], str]] = {
    "priority": (int, lambda found: 0 <= found <= 9, "a whole number from 0 to 9"),
    "delay": (float, lambda found: 0 <= found < inf, "seconds, 0 or more"),
    "ttl": (float, lambda found: 0 < found < inf, "seconds above 0"),
    "key": (str, lambda found: 0 < len(found.encode()) <= 255, "text of 1 to 255 bytes"),
    "queue_name": (str, bool, "the name of a queue"),
}
"""The labels for the broker: the type, the test and the expectation of each."""


def _options_of(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a message with these labels. Raises `InvalidValue`."""
    options = {}
    for label, (kind, fits, expected) in _LABELS.items():
        if label in labels:
            try:
                found = kind(labels[label])
                if not fits(found):
                    raise ValueError
            except (TypeError, ValueError):
                raise InvalidValue(
                    f"invalid label {label}={labels[label]!r:.100}: expected {expected}"
                ) from None
            options[label] = found
    return options


def _identity(task_id: str, labels: Mapping[str, Any]) -> str:
    """Return the id of one run of a task: requeues and retries of a task differ in it."""
    return ":".join([task_id, *(f"{label[-1]}{labels[label]}" for label in _REPEATS if label in labels)])


class _OpenClient:
    """A client that is connected at startup."""

    def __init__(self, owner: str, url: str | Sequence[str], options: dict[str, Any]) -> None:
        self._owner = owner
        self._url = url
        self._options = options
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """Return the client. Raises `Closed` before startup."""
        if self._client is None:
            raise Closed(f"{self._owner} is not connected: expected `await broker.startup()` before")
        return self._client

    async def open(self) -> None:
        """Connect, unless that was done. Raises as `malamute.aio.connect`."""
        if self._client is None:
            self._client = await malamute.aio.connect(self._url, **self._options)

    async def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()


class _Delivery:
    """A task in the hands of this worker, and how it is settled when taskiq acknowledges it."""

    __slots__ = ("_held", "begun", "identity", "mail", "reason")

    def __init__(self, mail: Mail, identity: str, held: dict[str, _Delivery]) -> None:
        self.mail = mail
        self.begun = monotonic()
        self.identity = identity
        self.reason = ""
        self._held = held
        held[identity] = self

    def settle(self) -> None:
        """Acknowledge the message, or reject it if there is a reason to."""
        if self.reason:
            self.mail.reject(self.reason)
        else:
            self.mail.ack()
        self.forget()

    def forget(self) -> None:
        """Report no more progress on a message that is settled."""
        if self._held.get(self.identity) is self:
            del self._held[self.identity]


class MalamuteBroker(AsyncBroker):
    """Broker of taskiq whose queues are shared mailboxes.

    `url` and further keyword arguments are those of `malamute.connect`. Tasks go to the mailbox `queue_name`
    with `prefix` before it, unless their label says otherwise; a worker consumes from `queues`, which are
    `queue_name` by default. `credit` is how many tasks a worker may hold of each: the sum of
    `--max-async-tasks` and `--max-prefetch`. `assurance` is `stored` or `none`.
    """

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        *,
        queue_name: str = "taskiq",
        queues: Sequence[str] = (),
        prefix: str = "",
        credit: int = CREDIT,
        ack_timeout: float | None = None,
        assurance: str = "stored",
        **options: Any,
    ) -> None:
        super().__init__()
        if assurance not in ("stored", "none"):
            raise InvalidValue(f"invalid assurance {assurance!r}: expected 'stored' or 'none'")
        if isinstance(queues, str):
            raise InvalidValue(f"invalid queues {queues!r}: expected a list, such as [{queues!r}]")
        self._connection = _OpenClient("the broker", url, options)
        self._queue_name = queue_name
        self._queues = [prefix + name for name in queues or (queue_name,)]
        self._prefix = prefix
        self._consume_options: dict[str, Any] = {
            "credit": credit,
            "auto_ack": False,
            "ack_timeout": ack_timeout,
        }
        self._assurance: Any = assurance
        self._held: dict[str, _Delivery] = {}
        self._reporter: asyncio.Task[None] | None = None

    @property
    def client(self) -> Client:
        """Return the client of the broker, for other calls. Raises `malamute.Closed` before startup."""
        return self._connection.client

    async def startup(self) -> None:
        """Connect. Raises `malamute.InvalidValue` for invalid labels of a task, and as `malamute.connect`."""
        for task in self.get_all_tasks().values():
            if task.broker is self:
                _options_of(task.labels)
        await self.connect()
        await super().startup()

    async def connect(self) -> None:
        """Connect alone, without the events of taskiq."""
        await self._connection.open()

    async def shutdown(self) -> None:
        """Close the connection: tasks that are not acknowledged go to other workers at once."""
        await super().shutdown()
        if self._reporter is not None:
            self._reporter.cancel()
        await self._connection.close()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task, and return when it is durable.

        Raises:
            malamute.InvalidValue: a label is invalid.
            malamute.MalamuteError: the broker did not take the task. As `malamute.Client.send`.
        """
        labels = message.labels
        options = _options_of(labels)
        if "X-Taskiq-requeue" in labels and "_retries" not in labels:
            # The delay was that of the first run.
            options.pop("delay", None)
        if "schedule_id" not in labels:
            options["id"] = _identity(message.task_id, labels)
        await self.send(message, options)

    async def send(self, message: BrokerMessage, options: dict[str, Any]) -> str:
        """Send a task with these options of a message, and return the mailbox. Raises as `kick`."""
        mailbox = self._prefix + str(options.pop("queue_name", self._queue_name))
        await self.client.send(
            mailbox,
            message.task_name,
            message.message,
            assurance=self._assurance,
            correlation=message.task_id,
            **options,
        )
        return mailbox

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks. A message that is no task, or an unknown one, becomes a dead letter.

        At the end no more are received, and those in hand can still be acknowledged.
        """
        boxes = [await self.client.consume(name, **self._consume_options) for name in self._queues]
        self._reporter = asyncio.create_task(self._report(min(box.report_seconds for box in boxes)))
        try:
            async with aclosing(_received(boxes)) as received:
                async for mail in received:
                    if identity := self._identity_of(mail):
                        delivery = _Delivery(mail, identity, self._held)
                        yield AckableMessage(data=mail.body, ack=delivery.settle)
        finally:
            for box in boxes:
                box.drain()

    def _identity_of(self, mail: Mail) -> str:
        """Return the id of a run; reject a message that is no task of this worker, and return nothing."""
        try:
            message = self.formatter.loads(mail.body)
        except Exception as error:  # of any serializer
            mail.reject(f"no task of taskiq: {type(error).__name__}")
            return ""
        if self.find_task(message.task_name) is None:
            mail.reject(
                f"unknown task {message.task_name[:_REASON_CHARACTERS]!r}: expected one of this worker"
            )
            return ""
        return _identity(message.task_id, message.labels)

    async def _report(self, every: float) -> None:
        """Report progress on the tasks in hand, so that their ack timeout begins anew."""
        while True:
            await asyncio.sleep(every)
            for delivery in [*self._held.values()]:
                if delivery.begun <= monotonic() - every / 2:
                    delivery.mail.in_progress()

    def delivery_of(self, message: TaskiqMessage) -> _Delivery | None:
        """Return the delivery of a task in hand."""
        return self._held.get(_identity(message.task_id, message.labels))


async def _pump(box: Mailbox, arrived: asyncio.Queue[Mail | MalamuteError]) -> None:
    try:
        async for mail in box:
            arrived.put_nowait(mail)
    except MalamuteError as error:
        arrived.put_nowait(error)


async def _received(boxes: Sequence[Mailbox]) -> AsyncGenerator[Mail, None]:
    """Yield the messages of several mailboxes as they are received."""
    if len(boxes) == 1:
        # Messages that wait in the consumer let it acknowledge others together.
        async for mail in boxes[0]:
            yield mail
        return
    arrived: asyncio.Queue[Mail | MalamuteError] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(box, arrived)) for box in boxes]
    try:
        while True:
            found = await arrived.get()
            if isinstance(found, MalamuteError):
                raise found
            yield found
    finally:
        for task in pumps:
            task.cancel()
        while not arrived.empty():
            if isinstance(found := arrived.get_nowait(), Mail):
                found.release()


class DeadLetters(TaskiqMiddleware):
    """Middleware that tries a failed task again, and makes it a dead letter after the last try.

    A try counts each delivery, those to a worker that died included. Between tries `delay` seconds pass, or
    the broker's backoff. The result with the error is saved after the last try alone. A task that rejects
    itself, by `Context.reject`, is a dead letter at once. The broker's `max_deliver` is a limit beside this.
    """

    def __init__(self, max_tries: int = 3, *, delay: float | None = None) -> None:
        super().__init__()
        if isinstance(max_tries, bool) or not isinstance(max_tries, int) or max_tries < 1:
            raise InvalidValue(f"invalid max_tries {max_tries!r}: expected a whole number from 1 on")
        if delay is not None and not 0 <= delay < inf:
            raise InvalidValue(f"invalid delay {delay!r}: expected seconds, 0 or more, or None")
        self._max_tries = max_tries
        self._delay = delay

    def set_broker(self, broker: AsyncBroker) -> None:
        """Take the broker. Raises `InvalidValue` for another one than Malamute's."""
        if not isinstance(broker, MalamuteBroker):
            raise InvalidValue(f"DeadLetters on {type(broker).__name__}: expected a MalamuteBroker")
        super().set_broker(broker)
        self._deliveries = broker

    def on_error(self, message: TaskiqMessage, result: TaskiqResult[Any], exception: BaseException) -> None:
        """Return a failed task to its queue, or have it rejected when taskiq is done with it."""
        delivery = self._deliveries.delivery_of(message)
        # A middleware for retries has kicked the task again, or the message was acknowledged before.
        if isinstance(result.error, NoResultError) or delivery is None or delivery.mail.settled:
            return
        if isinstance(exception, TaskRejectedError) or delivery.mail.attempts >= self._max_tries:
            delivery.reason = f"{type(exception).__name__}: {exception}"[:_REASON_CHARACTERS]
            return
        delivery.mail.nak(self._delay)
        delivery.forget()
        result.error = NoResultError()

    def post_save(self, message: TaskiqMessage, result: TaskiqResult[Any]) -> None:
        """Reject a failed task whose result is saved, also if its own code had to acknowledge it."""
        delivery = self._deliveries.delivery_of(message)
        if delivery is not None and delivery.reason:
            delivery.settle()


class MalamuteResultBackend(AsyncResultBackend[Result]):
    """Results of tasks, and their progress, in a bucket.

    `url` and further keyword arguments are those of `malamute.connect`. A result is gone after `result_ttl`
    seconds; None keeps it. With the default `serializer` a result has to be JSON: for another one the error
    is the result.
    """

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        *,
        prefix: str = "",
        result_ttl: float | None = RESULT_SECONDS,
        serializer: TaskiqSerializer | None = None,
        **options: Any,
    ) -> None:
        if result_ttl is not None and not 0 < result_ttl < inf:
            raise InvalidValue(f"invalid result_ttl {result_ttl!r}: expected seconds above 0, or None")
        self._connection = _OpenClient("the result backend", url, options)
        self._prefix = prefix
        self._ttl = result_ttl
        self._serializer = serializer or JSONSerializer()
        # Other serializers, such as that of pickle, take values that are no JSON.
        self._mode: Any = "python" if serializer else "json"

    async def startup(self) -> None:
        """Connect. Raises as `malamute.connect`."""
        await self._connection.open()

    async def shutdown(self) -> None:
        """Close the connection."""
        await self._connection.close()

    def _bucket(self, name: str) -> malamute.aio.Bucket:
        return self._connection.client.bucket(f"{self._prefix}taskiq.{name}")

    async def set_result(self, task_id: str, result: TaskiqResult[Result]) -> None:
        """Save a result. Raises as `malamute.Bucket.put`."""
        try:
            await self._put("results", task_id, result)
        except (TypeError, ValueError, TooLarge) as error:
            words = f"result of {type(result.return_value).__name__} cannot be saved: {error}"
            failure: dict[str, Any] = {
                "is_err": True,
                "return_value": None,
                "error": InvalidValue(words[:1000]),
            }
            await self._put("results", task_id, result.model_copy(update=failure))

    async def _put(self, bucket: str, task_id: str, value: TaskiqResult[Any] | TaskProgress[Any]) -> None:
        packed = self._serializer.dumpb(value.model_dump(mode=self._mode))
        await self._bucket(bucket).put(task_id, packed, ttl=self._ttl)

    async def is_result_ready(self, task_id: str) -> bool:
        """Return whether a result is there."""
        return await self._bucket("results").get(task_id) is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[Result]:
        """Return a result. Raises `ResultGetError` without one."""
        found = await self._bucket("results").get(task_id)
        if found is None:
            raise ResultGetError
        result = TaskiqResult[Any].model_validate(self._serializer.loadb(found.value))
        if not with_logs:
            result.log = None
        return result

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        """Save the progress of a task. Raises as `malamute.Bucket.put`."""
        await self._put("progress", task_id, progress)

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        """Return the progress of a task, if there is any."""
        found = await self._bucket("progress").get(task_id)
        return found and TaskProgress[Any].model_validate(self._serializer.loadb(found.value))


class MalamuteScheduleSource(ScheduleSource):
    """Schedules, at the broker of the tasks.

    A schedule with a time is a delayed message in the queue of its task: it needs no scheduler, and survives
    a restart of everything. Others, by cron or interval, are kept in a bucket for `taskiq scheduler`.
    """

    def __init__(self, broker: MalamuteBroker, *, prefix: str = "") -> None:
        if not isinstance(broker, MalamuteBroker):
            raise InvalidValue(f"schedules on {type(broker).__name__}: expected a MalamuteBroker")
        self._broker = broker
        self._prefix = prefix

    async def startup(self) -> None:
        """Connect the broker. Raises as `malamute.connect`."""
        await self._broker.connect()

    def _bucket(self) -> malamute.aio.Bucket:
        return self._broker.client.bucket(f"{self._prefix}taskiq.schedules")

    async def get_schedules(self) -> list[ScheduledTask]:
        """Return the recurring schedules."""
        return [ScheduledTask.model_validate(row) for row in (await self._recurring())[0]]

    async def _recurring(self) -> tuple[list[dict[str, Any]], int]:
        found = await self._bucket().get("recurring")
        return ([], 0) if found is None else (found.json(), found.revision)

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Add a schedule; one with the same id is replaced. Raises as `malamute.Client.send`."""
        await self.delete_schedule(schedule.schedule_id)
        if schedule.time is not None and schedule.cron is None and schedule.interval is None:
            await self._send_at(schedule, schedule.time)
        else:
            row = schedule.model_dump(mode="json")
            await self._change(lambda rows: [*rows, row])

    async def _send_at(self, schedule: ScheduledTask, time: datetime) -> None:
        message = TaskiqMessage(
            task_id=schedule.task_id or self._broker.id_generator(),
            task_name=schedule.task_name,
            labels={**schedule.labels, "schedule_id": schedule.schedule_id},
            args=schedule.args,
            kwargs=schedule.kwargs,
        )
        for middleware in self._broker.middlewares:
            message = await maybe_awaitable(middleware.pre_send(message))
        packed = self._broker.formatter.dumps(message)
        # taskiq takes a time without a zone as UTC, as the SDK does.
        options: dict[str, Any] = {**_options_of(packed.labels), "at": time, "id": f"schedule-{uuid4().hex}"}
        options.pop("delay", None)
        mailbox = await self._broker.send(packed, dict(options))
        left = (time if time.tzinfo else time.replace(tzinfo=UTC)) - datetime.now(UTC)
        key = f"once.{schedule.schedule_id}"
        ttl = max(left, timedelta()) + timedelta(days=1)
        await self._bucket().put(key, f"{options['id']} {mailbox}", ttl=ttl)
        for middleware in reversed(self._broker.middlewares):
            await maybe_awaitable(middleware.post_send(message))

    async def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule: its delayed message is taken back. Raises as `malamute.Client.cancel`."""
        once = await self._bucket().get(f"once.{schedule_id}")
        if once is not None:
            identity, _, mailbox = once.text.partition(" ")
            await self._broker.client.cancel("mailbox", mailbox, id=identity)
            await self._bucket().delete(f"once.{schedule_id}")
        await self._change(lambda rows: [row for row in rows if row["schedule_id"] != schedule_id])

    async def _change(self, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
        """Change the recurring schedules, over the newest state of them."""
        while True:
            rows, revision = await self._recurring()
            changed = change(rows)
            if changed == rows:
                return
            try:
                packed = JSONSerializer().dumpb(changed)
                await self._bucket().put("recurring", packed, expect=revision)
            except NotAsExpected:
                continue
            return
