"""The end of a command that runs without end: by a signal, or by a closed pipe at its output."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import click


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM interrupt the block as SIGINT does, for its cleanup."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def until_stopped() -> Iterator[None]:
    """Let SIGINT, SIGTERM, or a closed pipe at the output end the block without an error."""
    with interruptible():
        try:
            yield
        except KeyboardInterrupt:
            pass
        except BrokenPipeError:
            drop_output()


def drop_output() -> None:
    """Discard buffered output, of which Python would complain at the exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def echo_if_read(text: str) -> None:
    """Print the greeting of a server, which serves even if its output is closed."""
    try:
        click.echo(text)
    except BrokenPipeError:
        drop_output()
