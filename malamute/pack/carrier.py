"""The messages of one link, on their way from the source to the target."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from time import time_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from malamute.client.aio.client import Client
from malamute.client.aio.driver import AioDriver
from malamute.client.events import Connected, Event, Gap, log_event
from malamute.client.link.client import open_driver
from malamute.client.session.outbox import Command
from malamute.client.session.session import State
from malamute.client.session.sources import StreamSource
from malamute.errors import ConnectionLost, MalamuteError, NotAsExpected, NotFound, TimedOut, TooLarge
from malamute.pack.credentials import credentials_for
from malamute.protocol.admin import (
    LinkAdvance,
    LinkOrigin,
    LinkOriginQuery,
    LinkReport,
    LinkRow,
    LinkStop,
    LinkVerdict,
)
from malamute.protocol.batch import Columns
from malamute.protocol.position import StorePosition, broker_of
from malamute.version import __version__

if TYPE_CHECKING:
    from malamute.client.link.client import ConnectOptions

REPORT_SECONDS, REST_SECONDS = 5.0, 120.0
"""Time between two reports about a link: while messages come, and at most, as it doubles while none do."""

RETRY_SECONDS, RETRY_SECONDS_MAX = 0.1, 1.0
"""Time before another attempt, which doubles with each."""

QUIET_SECONDS = 3.0
"""Time without a step of the link after which one that another runner carried is taken over."""

CREDIT_MESSAGES, CREDIT_BYTES = 160_000, 16 * 1024 * 1024
"""The window of the source: messages that the target has not confirmed."""

COMMAND_MESSAGES, COMMAND_BYTES = 2_000, 1024 * 1024
"""Messages of one command, about."""

COMMANDS_MAX = 32
"""Commands without an answer. Messages that come meanwhile go together."""

TIMEOUT_SECONDS = 5.0

_log = logging.getLogger("malamute.pack")


class Ended(Exception):
    """Raised when a link carries nothing until it is set otherwise."""


class Passage(NamedTuple):
    """A command under way, and the credit that the window of the source has back when it is confirmed."""

    command: Command
    size: tuple[int, int]
    upto: str
    time_ns: int


class Survey(NamedTuple):
    """The answers of the source and of the target to a look at a link."""

    origin: LinkOrigin
    verdict: LinkVerdict


class Carrier:
    """One link at work, until it is stopped or set otherwise."""

    def __init__(self, row: LinkRow, url: str, options: ConnectOptions, own: Client) -> None:
        """`url` and `options` are those of the target, and `own` is a client of it for questions."""
        self.row = row
        self._url = url
        self._options = options
        self._own = own
        self._trouble = ""
        self._step_at = ""

    async def run(self) -> None:
        """Carry until the link ends, over all failures of both brokers."""
        wait = RETRY_SECONDS
        while True:
            try:
                await self._attempt()
            except Ended as end:
                _log.info("link %s ends: %s", self.row.name, end)
                return
            except NotAsExpected as overtaken:
                _log.info("link %s is carried by another runner: %s", self.row.name, overtaken.text)
                await self._stand_by()
                wait = RETRY_SECONDS
            except (MalamuteError, OSError) as error:
                text = error.text if isinstance(error, MalamuteError) else str(error)
                if text != self._trouble:
                    _log.warning("link %s: %s", self.row.name, text)
                self._trouble = text
                await self._tell_trouble()
                await asyncio.sleep(wait)
                wait = min(2 * wait, RETRY_SECONDS_MAX)
            else:
                wait = RETRY_SECONDS

    async def _tell_trouble(self) -> None:
        try:
            await self._report("", (), trouble=self._trouble)
        except MalamuteError as error:
            _log.warning("link %s: its broker does not answer: %s", self.row.name, error.text)

    async def _stand_by(self) -> None:
        """Wait until the link stands still: the other runner may have ended."""
        still, before = 0.0, ""
        while still < QUIET_SECONDS:
            await asyncio.sleep(1.0)
            try:
                position = (await self._own.query("link", link=self.row.name))["position"]
            except NotFound as error:
                raise Ended(error.text) from error
            except MalamuteError:
                continue
            still = still + 1.0 if position == before else 0.0
            before = position

    async def _report(self, broker: str, ways: Any, **more: Any) -> LinkVerdict:
        return await self._own.query(LinkReport(**self._given, broker=broker, ways=ways, **more))

    @property
    def _given(self) -> dict[str, Any]:
        """The arguments of a runner's topics that name the link."""
        return {"link": self.row.name, "generation": self.row.generation, "stream": self.row.stream}

    async def _attempt(self) -> None:
        """Carry over one pair of sessions. Raises the error that ends them."""
        row = self.row
        proof = credentials_for(row.context, row.urls, os.environ)
        source = await open_driver(
            AioDriver,
            row.urls,
            timeout=TIMEOUT_SECONDS,
            software=f"malamute-pack/{__version__}",
            environ={},
            **proof,  # type: ignore[arg-type]  # these are text
        )
        try:
            target = await open_driver(AioDriver, self._url, **self._options)
            try:
                await Voyage(self, source, target).run()
            finally:
                target.close()
        finally:
            source.close()

    # Of one pair of sessions

    async def look(self, source: Client, lag_of: Callable[[int], tuple[int, int]]) -> Survey:
        """Ask the source for its ways, and report them. Raises `Ended` if the link may not carry on.

        `lag_of` returns the lag in messages and in milliseconds by the end of the source.
        """
        origin = await source.query(LinkOriginQuery(stream=self.row.remote), timeout=TIMEOUT_SECONDS)
        lag, lag_ms = lag_of(origin.last)
        verdict = await self._report(origin.broker, origin.ways, lag=lag, lag_ms=lag_ms)
        if verdict.state != "running" or verdict.generation != self.row.generation:
            raise Ended(verdict.reason or f"it is {verdict.state}, of the generation {verdict.generation}")
        if self._trouble:
            _log.info("link %s runs again", self.row.name)
            self._trouble = ""
        known = StorePosition.parse(verdict.position)
        if known is not None and known.broker != origin.broker:
            await self.stop_at(origin.broker, known.broker)
        return Survey(origin, verdict)

    async def advance(self, after: str, upto: str, gap: str = "") -> None:
        """Move the link without a message."""
        await self._own.change(LinkAdvance(**self._given, after=after, upto=upto, gap=gap))

    async def stop_at(self, stranger: str, before: str) -> None:
        """Have the link stopped at another broker than the one before, and raise `Ended`."""
        reason = (
            f"the broker at {', '.join(self.row.urls)} is {stranger}, and not {before} as before: set "
            "the link again with a start"
        )
        await self._own.change(LinkStop(**self._given, reason=reason))
        raise Ended(reason)


class Voyage:
    """One pair of sessions of a link: messages are read, forwarded and confirmed at the same time."""

    def __init__(self, carrier: Carrier, source: AioDriver, target: AioDriver) -> None:
        self._carrier = carrier
        self._row = carrier.row
        self._source = source
        self._target = target
        self._position = ""
        """The position behind the last message that was forwarded."""
        self._confirmed = ""
        self._confirmed_ns = 0
        self._under_way: deque[Passage] = deque()
        self._gaps: deque[tuple[int, Gap]] = deque()
        """Gaps of the source, and how many of its messages come before each."""
        self._passed: StorePosition | None = None
        """A position behind the last message, up to which no message of the source is to come."""
        self._stream: StreamSource | None = None
        self._stirred = False
        """Whether the target is there again after an interruption: it may have forgotten the last report."""
        source.on_event = self._note
        target.on_event = self._stir

    def _note(self, event: Event) -> None:
        if isinstance(event, Gap) and self._stream is not None:
            self._gaps.append((self._stream.popped + self._stream.waiting, event))

    def _stir(self, event: Event) -> None:
        log_event(event)
        if isinstance(event, Connected) and event.again:
            self._stirred = True
            self._source.changed()

    async def run(self) -> None:
        """Carry until something fails, and raise that."""
        client = Client(self._source)
        look = await self._carrier.look(client, lambda last: (0, 0))
        position = look.verdict.position
        stream = self._stream = await self._subscribe(position)
        self._position = self._confirmed = position
        if not position:
            assert stream.first is not None, "the subscription is open"
            begin = str(StorePosition(stream.first - 1, stream.store))
            await self._carrier.advance("", begin)
            self._position = self._confirmed = begin
        await _all_of(self._read(stream), self._settle(stream), self._look_again(client, stream, look))

    async def _subscribe(self, position: str) -> StreamSource:
        row, source = self._row, self._source
        stream = source.session.inbox.subscribe(
            row.remote,
            [(family, pattern) for family, pattern in row.criteria],
            where=row.where,
            start=f"after:{position}" if position else row.start,
            credit=CREDIT_MESSAGES,
            credit_bytes=CREDIT_BYTES,
            committed=True,
        )
        await source.wait_for_broker(lambda: stream.open or stream.ended, None, "no answer of the source")
        if stream.error is not None:
            raise stream.error
        return stream

    async def _read(self, stream: StreamSource) -> None:
        """Forward messages as they come."""
        while True:
            await self._source.wait(
                lambda: stream.waiting or self._gaps or self._passed or stream.ended, None, "the next message"
            )
            if stream.ended and not stream.waiting:
                raise stream.error or ConnectionLost("the source has ended the subscription")
            if self._gaps and self._gaps[0][0] <= stream.popped:
                await self._pass_gap(self._gaps.popleft()[1])
            elif stream.waiting:
                await self._target.wait(
                    lambda: len(self._under_way) < COMMANDS_MAX, None, "room for a command"
                )
                most = self._gaps[0][0] - stream.popped if self._gaps else COMMAND_MESSAGES
                columns, store, size = stream.pop_run(min(most, COMMAND_MESSAGES), COMMAND_BYTES)
                await self._forward(columns, store, size)
            elif self._passed is not None:
                await self._advance(str(self._passed), "")
            self._passed = None

    async def _forward(self, columns: Columns, store: str, size: tuple[int, int]) -> None:
        await self._check_store(store)
        most = self._target.session.sending.limits.message_bytes
        if sum(map(len, columns.records)) > most:
            await self._forward_parts(columns, store, size)
            return
        last = columns.each_sequence()[-1]
        upto = str(StorePosition(last, store))
        command, row = Command(), self._row
        at = (row.name, row.generation, self._position, upto)
        self._target.session.sending.forward(row.stream, columns, command, *at)
        times = columns.times
        self._position = upto
        self._under_way.append(Passage(command, size, upto, times if isinstance(times, int) else times[-1]))
        self._target.send()
        self._target.changed()

    async def _forward_parts(self, columns: Columns, store: str, size: tuple[int, int]) -> None:
        """Forward too large a command as two, and leave out a message that is too large alone."""
        half, count = len(columns) // 2, len(columns)
        if half:
            await self._forward(columns.take(range(half)), store, (half, 0))
            await self._forward(columns.take(range(half, count)), store, (size[0] - half, size[1]))
            return
        sequence = columns.each_sequence()[0]
        _log.warning("link %s: message %s is too large for the target", self._row.name, sequence)
        await self._advance(str(StorePosition(sequence, store)), TooLarge.__name__)
        self._give_back(size)

    async def _check_store(self, store: str) -> None:
        known = StorePosition.parse(self._position)
        if known is not None and broker_of(store) != known.broker:
            await self._carrier.stop_at(broker_of(store), known.broker)

    async def _pass_gap(self, gap: Gap) -> None:
        _log.warning("link %s: messages %s to %s: %s", self._row.name, gap.first, gap.last, gap.reason)
        assert self._stream is not None, "the gap is of a subscription"
        store = gap.store or self._stream.store
        await self._check_store(store)
        known = StorePosition.parse(self._position)
        if known is None or known.store != store or gap.last > known.sequence:
            await self._advance(str(StorePosition(gap.last, store)), gap.reason)

    async def _advance(self, upto: str, gap: str) -> None:
        await self._target.wait(lambda: not self._under_way, None, "confirmations")
        await self._carrier.advance(self._position, upto, gap)
        self._position = self._confirmed = upto

    async def _settle(self, stream: StreamSource) -> None:
        """Give credit back to the source for messages that the target has confirmed."""
        under_way = self._under_way
        while True:
            await self._target.wait(lambda: under_way and under_way[0].command.done, None, "a confirmation")
            while under_way and under_way[0].command.done:
                passage = under_way[0]
                if passage.command.error is not None:
                    raise passage.command.error
                under_way.popleft()
                self._confirmed, self._confirmed_ns = passage.upto, passage.time_ns
                self._give_back(passage.size)
            self._target.changed()

    def _give_back(self, size: tuple[int, int]) -> None:
        assert self._stream is not None, "there is a subscription"
        self._stream.window.consumed(*size)
        self._source.session.inbox.refill(self._stream)
        if self._source.session.outbox.queue:
            self._source.send()

    async def _look_again(self, client: Client, stream: StreamSource, look: Survey) -> None:
        """Report again and again: soon while messages come, or ways change, and seldom at rest."""
        wait = REPORT_SECONDS
        while True:
            popped, before, store = stream.popped, look.origin, stream.store
            rests = (
                (lambda: self._stirred, REPORT_SECONDS),
                (partial(self._is_over, popped), wait - REPORT_SECONDS),
            )
            for is_over, seconds in rests:
                with suppress(TimedOut):
                    await self._source.wait(is_over, seconds, "a message")
            self._stirred = False
            if self._source.session.state is not State.READY:
                raise ConnectionLost(f"no broker answers at {', '.join(self._row.urls)}")
            look = await self._carrier.look(client, self._lag)
            if stream.popped > popped or look.origin.ways != before.ways:
                wait = REPORT_SECONDS
                continue
            wait = min(2 * wait, max(REST_SECONDS, REPORT_SECONDS))
            # Answers come after the messages that were there: all up to the earlier answer have come.
            known = StorePosition.parse(self._position)
            is_behind = known is not None and known.store == store and known.sequence < before.last
            if is_behind and store == stream.store and self._is_idle(stream):
                self._passed = StorePosition(before.last, store)
                self._source.changed()

    def _is_over(self, popped: int) -> bool:
        """Return whether a rest is over that began with so many messages."""
        assert self._stream is not None, "there is a subscription"
        return self._stirred or self._stream.popped > popped or self._source.session.state is not State.READY

    def _is_idle(self, stream: StreamSource) -> bool:
        return not (stream.waiting or self._under_way) and stream.state == "live"

    def _lag(self, last: int) -> tuple[int, int]:
        """Return the lag in messages and in milliseconds, by the last message of the source."""
        assert self._stream is not None, "there is a subscription"
        known = StorePosition.parse(self._confirmed)
        if known is None or self._is_idle(self._stream) or known.sequence >= last:
            return 0, 0
        since_ns = time_ns() - self._confirmed_ns if self._confirmed_ns else 0
        return last - known.sequence, max(0, since_ns // 1_000_000)


async def _all_of(*calls: Coroutine[Any, Any, None]) -> None:
    """Run calls that never end until one of them fails, end the others, and raise its error."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        # A refusal of the target tells more than the errors that follow from it.
        for task in (task for task in tasks if task in done):
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
