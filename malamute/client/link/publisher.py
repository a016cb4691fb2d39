"""Publishing in bulk: batched, pipelined, and confirmed on request; the common part of both edges.

A batch is shipped when it is full (by messages or bytes), when a call waits, and a *linger* after the last
one; small batches go several at a time. So a fast publisher fills its batches, and a slow one has every
message sent at once. A blocking program needs no timer: at most the messages of one linger stay behind when
it stops publishing without leaving the `with`, flushing, or waiting. On an event loop a timer sends them.

With the assurance `stored` every batch has a number, and is kept until the broker has it on disk. When the
window of unconfirmed batches is full, publishing waits before the message is added: a call that fails or is
cancelled has added nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from malamute.client.link.driver import Driver
from malamute.client.options import (
    BATCH_MESSAGES,
    LINGER_SECONDS,
    PUBLISHER_TIMEOUT_SECONDS,
    PublisherOptions,
    SendOptions,
    Span,
    checked,
    patience,
    properties_of,
    refuse_unknown,
)
from malamute.client.session.batch import (
    Batch,
    check_columns,
    check_subjects,
    is_stored,
    records_of,
    split_evenly,
)
from malamute.client.session.outbox import Command
from malamute.errors import Closed, InvalidValue, MalamuteError, TooLarge
from malamute.protocol.batch import Body, Frame, Headers
from malamute.protocol.texts import shown

TOGETHER = 32
"""Minimum messages that are shipped together, if batches are smaller."""

Carry = Callable[..., None]
"""Submits a batch to the session: a publish to one stream, or a send to one mailbox.

Its arguments are the subjects, the records, the command or None, and the properties of each message if any
has some, which only mail may.
"""


class PublisherBase:
    """Messages to one stream, or to one mailbox."""

    def __init__(
        self,
        driver: Driver,
        carry: Carry,
        *,
        assurance: str = "stored",
        batch: int = BATCH_MESSAGES,
        linger: Span = LINGER_SECONDS,
        timeout: Span = PUBLISHER_TIMEOUT_SECONDS,
        is_mail: bool = False,
        **unknown: Any,
    ) -> None:
        refuse_unknown("sender" if is_mail else "publisher", PublisherOptions, unknown)
        given = checked(batch=batch, linger=linger, timeout=timeout)
        batch = given["batch"]
        self._driver = driver
        self._carry = carry
        self._is_mail = is_mail
        self._stored = is_stored(assurance)
        self._linger: float = given["linger"]
        self._timeout: float = given["timeout"]
        self._most = batch
        # Several small commands go to the socket together: waking its thread costs more than one of them.
        window = driver.session.outbox.window_commands
        together = max(1, min(TOGETHER // batch, window // 4)) if 1 <= batch <= TOGETHER else 1
        self._batch = Batch(batch * together, driver.session.sending.limits.message_bytes)
        self._properties: dict[int, Mapping[str, Any]] = {}
        """Properties of messages in the batch, by place."""
        self._commands: list[Command] = []
        self._unsettled: list[Command] = []
        self._due = 0.0
        self._closed = False
        driver.before_wait[self] = self._before_wait

    @property
    def unseen_error(self) -> MalamuteError | None:
        """Return the first refusal since the last flush."""
        return next((command.error for command in self._unsettled if command.error is not None), None)

    @property
    def has_pending(self) -> bool:
        """Return whether messages wait for others to join them."""
        return bool(self._batch.records)

    async def _publish(
        self, subject: str, body: Body, headers: Headers | None, options: SendOptions | None
    ) -> tuple[Command, int]:
        """Publish one message; return the command that carries it, and its place there."""
        due = self._is_due()
        if due:
            await self._admit()
        placed = self._add(subject, body, headers, options)
        if due or self._batch.full:
            await self._ship()
        return placed

    # Three steps, of which only the first and the last may wait.

    def _is_due(self) -> bool:
        """Return whether the next message is shipped at once. `_admit` has to admit it then."""
        return self._batch.last or monotonic() >= self._due

    def _check(self) -> None:
        self._driver.check_owner()
        if self._closed:
            raise Closed("publisher is closed: make another one with Client.publisher")

    async def _admit(self) -> None:
        """Wait until one more message can be added. Raises as `publish` does."""
        self._check()
        await self._make_room()
        while self._batch.full:
            # A batch with one more message could be too large.
            await self._ship()
            await self._make_room()

    async def _make_room(self) -> None:
        await self._driver.make_room(numbered=self._stored, timeout=self._timeout)

    def _add(
        self, subject: str, body: Body, headers: Headers | None, options: SendOptions | None
    ) -> tuple[Command, int]:
        """Add a message."""
        properties = self._properties_of(options) if options else None
        place = self._batch.add(subject, body, headers)
        if properties:
            self._properties[place] = properties
            self._batch.size_bytes += sum(len(value) for value in properties.values() if type(value) is str)
        within = place % self._most
        if self._batch.apart:
            within = 0
        if not within:
            self._commands.append(Command())
        return self._commands[-1], within

    def _properties_of(self, options: SendOptions) -> Mapping[str, Any]:
        if not self._is_mail:
            raise InvalidValue(
                f"option {shown(next(iter(options)))} of a message to a stream: expected none, or a message "
                "to a mailbox by Client.sender"
            )
        if "tracker" in options:
            raise InvalidValue("tracker without an outcome: expected Client.send with assurance='confirmed'")
        return properties_of(options)

    async def _ship(self) -> None:
        """Ship the batch. A batch without room goes with the next."""
        if self._batch.records and self._driver.session.outbox.room(numbered=self._stored):
            self._hand_over()
            await self._driver.ship()
        self._due = monotonic() + self._linger

    async def _ship_all(self) -> None:
        self._check()
        if self._batch.records:
            await self._make_room()
        await self._ship()

    async def _publish_many(
        self,
        subjects: Sequence[str],
        bodies: Sequence[Body],
        headers_list: Sequence[Headers | None] | None = None,
    ) -> None:
        check_columns(subjects, bodies, headers_list)
        subjects = check_subjects(subjects)
        records, most_bytes = records_of(headers_list, bodies), self._batch.most_bytes
        if (largest := max(map(len, records), default=0)) > most_bytes:
            raise TooLarge(f"message of {largest} bytes is too large: expected at most {most_bytes}")
        await self._ship_all()
        for some_subjects, some_records in split_evenly(subjects, records, self._most, most_bytes):
            await self._make_room()
            self._carry_on(some_subjects, some_records, Command())
            await self._driver.ship()

    async def _flush(self, timeout: Span | None = None) -> None:
        timeout = patience("timeout", timeout)
        await self._ship_all()
        unsettled = tuple(self._unsettled)
        await self._driver.wait_for_broker(
            lambda: not unsettled or (unsettled[-1].done and all(command.done for command in unsettled)),
            self._timeout if timeout is None else timeout,
            "waiting for confirmations",
        )
        settled = set(unsettled)
        self._unsettled = [command for command in self._unsettled if command not in settled]
        for command in unsettled:
            if command.error is not None:
                raise command.error

    async def _close(self) -> None:
        if not self._closed:
            try:
                await self._flush()
            finally:
                self._closed = True
                self._due = 0.0  # later messages are due at once, and refused
                self._driver.before_wait.pop(self, None)

    async def _wait(self, command: Command, timeout: Span | None) -> None:
        if not self._closed:
            await self._ship_all()
        await self._driver.wait(lambda: command.done, timeout, "waiting for a confirmation")

    def _before_wait(self) -> bool:
        if self._batch.records and self._driver.session.outbox.room(numbered=self._stored):
            self._hand_over()
        return not self._batch.records

    def _hand_over(self) -> None:
        apart = self._batch.apart
        subjects, records = self._batch.pop()
        commands, self._commands = self._commands, []
        properties, self._properties = self._properties, {}
        together = len(records) - apart
        firsts = [*range(0, together, self._most), *range(together, len(records))]
        for first, last, command in zip(firsts, [*firsts[1:], len(records)], commands, strict=True):
            each = [[properties.get(place) for place in range(first, last)]] if properties else ()
            self._carry_on(subjects[first:last], records[first:last], command, *each)

    def _carry_on(
        self, subjects: Sequence[str], records: Sequence[Frame], command: Command, *properties: Any
    ) -> None:
        if not self._stored:
            self._carry(subjects, records, None, *properties)
            command.settle()
            return
        try:
            self._carry(subjects, records, command, *properties)
        except MalamuteError as error:
            command.settle(error=error)
            raise
        self._keep(command)

    def _keep(self, command: Command) -> None:
        # Successful commands are dropped now and then, so that a long run does not collect them all.
        self._unsettled.append(command)
        if len(self._unsettled) > 2 * self._driver.session.outbox.window_commands:
            self._unsettled = [c for c in self._unsettled if not c.done or c.error is not None]
