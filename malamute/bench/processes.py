"""Processes that begin together, each with a workload, and return their measurements."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from malamute.errors import MalamuteError, TimedOut

WAIT_SECONDS = 300.0
"""How long a process may take to answer."""

READY, GO = "ready", "go"

Measured = dict[str, Any]
WorkloadFunction = Callable[..., Measured]
"""A workload: it is given `begin`, to be called when it is ready, and its arguments."""

_context = multiprocessing.get_context("spawn")
"""A forked child would share the sockets of its parent."""


class WorkloadProcess:
    """A process that runs a workload."""

    def __init__(self, workload: WorkloadFunction, *arguments: Any) -> None:
        self._channel, theirs = _context.Pipe()
        self._process = _context.Process(target=_run, args=(theirs, workload, arguments), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid or 0

    def get(self) -> Any:
        """The next message from it.

        Raises:
            MalamuteError: It failed, or its process ended.
            TimedOut: It has not answered within `WAIT_SECONDS`.
        """
        if not self._channel.poll(WAIT_SECONDS):
            raise TimedOut(f"no answer from a process of the benchmark within {WAIT_SECONDS} s")
        try:
            said = self._channel.recv()
        except EOFError:
            raise MalamuteError("a process of the benchmark was lost") from None
        if isinstance(said, BaseException):
            raise said
        return said

    def go(self) -> None:
        """Let it begin."""
        self._channel.send(GO)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """End its process at once."""
        self._process.terminate()
        self._process.join()
        self._process.close()
        self._channel.close()


def _run(channel: Connection, workload: WorkloadFunction, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def begin(words: str = READY) -> None:
        channel.send(words)
        channel.recv()

    try:
        channel.send(workload(begin, *arguments))
    except EOFError:
        pass  # the process that started this one has ended
    except MalamuteError as error:
        channel.send(MalamuteError(str(error)))
    except BaseException as error:
        channel.send(MalamuteError(f"{type(error).__name__}: {error}"))
        raise


def run_together(*parts: tuple[Any, ...]) -> list[Measured]:
    """Run workloads, each with its arguments, in processes that begin together; return their measurements."""
    with ExitStack() as stack:
        processes = [stack.enter_context(WorkloadProcess(*part)) for part in parts]
        for process in processes:
            process.get()
        for process in processes:
            process.go()
        return [process.get() for process in processes]
