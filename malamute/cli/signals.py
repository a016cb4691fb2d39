"""How a command that runs without end is ended: by a signal, or when nobody reads its output any more."""

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
    """Let SIGTERM interrupt the block as SIGINT does, so that it cleans up."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def until_stopped() -> Iterator[None]:
    """Let SIGINT, SIGTERM, or a closed pipe at the output end the block, which is no error."""
    with interruptible():
        try:
            yield
        except KeyboardInterrupt:
            pass
        except BrokenPipeError:
            drop_output()


def drop_output() -> None:
    """Send what is still buffered nowhere: Python would complain of it when it exits."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def echo_if_read(text: str) -> None:
    """Print what a server has to say when it starts: it serves, whether somebody reads that or not."""
    try:
        click.echo(text)
    except BrokenPipeError:
        drop_output()
