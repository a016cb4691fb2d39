"""The runner: it follows the links that its broker defines, with a carrier for each."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from malamute.client.aio.client import Client
from malamute.client.aio.driver import AioDriver
from malamute.client.link.client import open_driver
from malamute.errors import ConnectTimeout, MalamuteError, TryLater
from malamute.pack import discovery, zre
from malamute.pack.carrier import Carrier
from malamute.protocol.admin import LinkRow, LinksQuery

if TYPE_CHECKING:
    from malamute.client.link.client import ConnectOptions

FOLLOW_SECONDS, ASK_SECONDS = 60.0, 2.0
"""Time between two questions for the links, with the events of the broker and without them."""

EVENTS = ["link." + what + ".#" for what in ("created", "set", "resumed", "paused", "stopped", "removed")]

_log = logging.getLogger("malamute.pack")


class Announcement(NamedTuple):
    """The name and the URLs by which the broker is announced, on the interfaces with these addresses."""

    name: str
    urls: Sequence[str]
    interfaces: Sequence[str]
    by_zre: bool = False
    """Whether it is a peer of the network by ZRE, too."""


async def run(
    url: str,
    options: ConnectOptions,
    started: Callable[[], None] = lambda: None,
    announcement: Announcement | None = None,
) -> None:
    """Carry the links of a broker until SIGTERM or SIGINT, and call `started` when it has answered."""
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    driver = await _connected(url, options, over)
    if driver is None:
        return
    async with AsyncExitStack() as stack:
        stack.callback(driver.close)
        if announcement is not None:
            name, urls, interfaces, by_zre = announcement
            known = name, driver.session.broker.hex(), urls
            await stack.enter_async_context(discovery.announced(*known, interfaces))
            if by_zre:
                await stack.enter_async_context(zre.announced(*known))
        started()
        await _carry(Runner(url, options, Client(driver), driver.check), over)


async def _connected(url: str, options: ConnectOptions, over: asyncio.Event) -> AioDriver | None:
    """Return a session with the broker, as soon as there is one: it may start later than this process."""
    while not over.is_set():
        try:
            return await open_driver(AioDriver, url, **options)
        except (ConnectTimeout, TryLater) as error:
            _log.warning("waiting for the broker: %s", error.text)
    return None


async def _carry(runner: Runner, over: asyncio.Event) -> None:
    tasks = [asyncio.ensure_future(call) for call in (runner.follow(), over.wait())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await _ended(tasks)
        await runner.end()


class Runner:
    """The carriers of the links of one broker."""

    def __init__(self, url: str, options: ConnectOptions, own: Client, check: Callable[[], None]) -> None:
        """`check` raises if the session with the broker has ended."""
        self._check = check
        self._url = url
        self._options = options
        self._own = own
        self._carriers: dict[tuple[str, int], asyncio.Task[None]] = {}
        """The carriers by the names and generations of their links."""
        self._changed = asyncio.Event()

    async def follow(self) -> None:
        """Follow the definitions. Raises the error that ends the session with the broker."""
        events = asyncio.ensure_future(self._listen())
        try:
            while True:
                self._changed.clear()
                with suppress(TimeoutError, MalamuteError):
                    await self._fit(await self._own.query(LinksQuery()))
                self._check()
                wait = ASK_SECONDS if events.done() else FOLLOW_SECONDS
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), wait)
        finally:
            await _ended([events])

    async def _listen(self) -> None:
        """Note each event about a link."""
        try:
            async for _ in self._own.subscribe("$sys", *EVENTS):
                self._changed.set()
        except MalamuteError as error:
            _log.warning("the events of the broker cannot be read, it is asked now and then: %s", error.text)

    async def _fit(self, rows: list[LinkRow]) -> None:
        """Begin the carriers of links that may run, and end all others."""
        wanted = {(row.name, row.generation): row for row in rows if row.state not in ("paused", "stopped")}
        await _ended([self._carriers.pop(key) for key in [*self._carriers] if key not in wanted])
        for key, row in wanted.items():
            task = self._carriers.get(key)
            if task is None or task.done():
                carrier = Carrier(row, self._url, self._options, self._own)
                self._carriers[key] = task = asyncio.ensure_future(carrier.run())
                task.add_done_callback(_report_fault)

    async def end(self) -> None:
        """End all carriers."""
        await _ended([*self._carriers.values()])


def _report_fault(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a link has ended by a fault: %r", error, exc_info=error)


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
