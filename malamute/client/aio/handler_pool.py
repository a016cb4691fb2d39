"""Handlers on an event loop: a task for each simultaneous call, and one that reports progress.

There is no task for a message: the tasks of a handler take one after the other from its consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from inspect import isawaitable
from time import monotonic
from typing import Any

from malamute.client.link.consumers import QueueConsumer
from malamute.client.link.handlers import Registration, settle, untouched
from malamute.client.session.message import Mail


class HandlerSlot:
    """One handler at work: its consumer, and a task for each simultaneous call."""

    def __init__(self, registration: Registration, consumer: Any) -> None:
        self._registration = registration
        self._consumer = consumer
        self._held: dict[Mail, float] = {}
        self._busy: set[asyncio.Task[Any] | None] = set()
        self._stopping = False
        self.workers = [asyncio.create_task(self._work()) for _ in range(registration.concurrency)]
        self._reporter = asyncio.create_task(self._report())

    async def _work(self) -> None:
        async for message in self._consumer:
            task = asyncio.current_task()
            self._busy.add(task)
            try:
                await self._handle(message)
            finally:
                self._busy.discard(task)
            if self._stopping:
                return

    async def _handle(self, message: Any) -> None:
        if isinstance(message, Mail):
            self._held[message] = monotonic()
        result: Any = None
        error: Exception | None = None
        try:
            result = self._registration(message)
            if isawaitable(result):
                result = await result
        except Exception as failure:
            error = failure
        except asyncio.CancelledError as end:
            if self._is_cancelled():
                untouched(message)
                raise
            error = RuntimeError("what the handler waited for was cancelled")
            error.__cause__ = end
        except KeyboardInterrupt:
            untouched(message)
            raise
        finally:
            self._held.pop(message, None)
        await settle(self._consumer, message, result, error, self._registration)

    def _is_cancelled(self) -> bool:
        """Return whether `run` has ended, and not a wait of the handler."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    async def _report(self) -> None:
        while isinstance(self._consumer, QueueConsumer):
            every = self._consumer.report_seconds
            await asyncio.sleep(every)
            due = monotonic() - every / 2
            for message, begun in self._held.items():
                if begun <= due:
                    message.in_progress()

    def stop(self) -> None:
        """Receive no more messages; running handlers continue."""
        self._stopping = True
        for worker in self.workers:
            if worker not in self._busy:
                worker.cancel()

    async def close(self) -> None:
        """End the handler at once. Messages in its hands are released to their queue."""
        tasks = [*self.workers, self._reporter]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._consumer.cancel()


async def serve(registrations: Sequence[Registration], stopped: asyncio.Event) -> None:
    """Serve until `stopped`, then until the running handlers are done.

    Raises the error of a stream handler, or of the session.
    """
    slots: list[HandlerSlot] = []
    stop = asyncio.create_task(stopped.wait())
    try:
        for registration in registrations:
            slots.append(HandlerSlot(registration, await registration.open()))
        workers = [worker for slot in slots for worker in slot.workers]
        await asyncio.wait({stop, *workers}, return_when=asyncio.FIRST_COMPLETED)
        for slot in slots:
            slot.stop()
        if workers:
            await asyncio.wait(workers)
        for worker in workers:
            if not worker.cancelled():
                worker.result()
    finally:
        stop.cancel()
        for slot in slots:
            await slot.close()
