"""Processes forked from one that has everything imported: a new interpreter takes longer than most tests."""

from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from typing import Any

FORKS = get_context("forkserver")


def fork(target: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """A process that calls the target, which is a function of a module."""
    process = FORKS.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def end(process: ForkServerProcess) -> None:
    """End it at once, if it has not ended, and forget it."""
    process.kill()
    process.join()
    process.close()
