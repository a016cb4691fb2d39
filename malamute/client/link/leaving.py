"""The end of a client that its program has not closed: the program ends, or has dropped the client.

Accepted messages that have not left yet are sent and confirmed first, for as long as a call may take. A loss
after that is reported on standard error, where a script's author looks, and by a `ResourceWarning`. A child
of a fork has nothing to do with its parent's clients; a child of `multiprocessing` ends without `atexit`,
by the finalizers of that module.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from contextlib import suppress
from time import monotonic

from malamute.client.link.driver import FORKED, Driver, drivers
from malamute.client.session.questions import PendingQuery
from malamute.errors import MalamuteError

LEAVING_SECONDS_MAX = 30.0
"""Maximum seconds for one client at the end of a program, even if its own calls may take longer."""

ADVICE = "close the client, or use `with malamute.connect() as client`"


def dropped(driver: Driver) -> None:
    """Leave a client that its program has dropped: in a thread, if the broker may lack something.

    The garbage collector may call this in the middle of anything, which must not wait for a broker that is
    away. The end of a program waits for the thread.
    """
    if driver.closed or driver.thread == FORKED:
        return
    if driver.session.error is None and _owes(driver):
        # No thread can begin while the interpreter shuts down.
        with suppress(RuntimeError):
            threading.Thread(target=leave, args=(driver,), name="malamute-leaving", daemon=False).start()
            return
    leave(driver)


def leave(driver: Driver) -> None:
    """Flush accepted messages, close the client, and report a loss."""
    driver.take_over()
    try:
        _take_leave(driver)
    finally:
        words = _lost(driver)
        driver.close()
        if words:
            say_lost(driver, words)


def say_lost(driver: Driver, words: str) -> None:
    """Report the loss of a client."""
    words = f"malamute: the client of {driver.connection.url} was not closed, and {words}: {ADVICE}"
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{words}\n")
            sys.stderr.flush()
    warnings.warn(words, ResourceWarning, stacklevel=2)


def _take_leave(driver: Driver) -> None:
    session, outbox = driver.session, driver.session.outbox
    if session.error is not None or not _owes(driver):
        return
    deadline = monotonic() + min(driver.timeout, LEAVING_SECONDS_MAX)
    ping: PendingQuery | None = None
    while session.error is None and (left := deadline - monotonic()) > 0:
        if driver.prepare() and ping is None and not session.closing:
            # The ping comes behind all held commands.
            ping = session.questions.ping()
            driver.send()
        if ping is not None and ping.done and not len(outbox):
            session.close()
            driver.send()
        due = max(0.0, driver.connection.due - monotonic())
        driver.link.wait(min(left, due), sending=bool(outbox.queue))
        driver.iterate_alone()


def _owes(driver: Driver) -> bool:
    """Return whether the broker may lack accepted messages."""
    outbox = driver.session.outbox
    return bool(driver.before_wait or outbox.messages or outbox.flow.under_way)


def _lost(driver: Driver) -> str:
    """Return the lost messages in words; nothing if there are none."""
    with suppress(MalamuteError):
        # Publishers submit their batches, so that these are counted.
        driver.prepare()
    refused = [error for owner in driver.before_wait if (error := getattr(owner, "unseen_error", None))]
    if refused:
        return f"messages were refused ({refused[0]})"
    return words_of_loss(driver)


def words_of_loss(driver: Driver) -> str:
    """Return the unconfirmed messages in words; nothing if there are none."""
    outbox = driver.session.outbox
    messages = outbox.lost or outbox.messages
    return f"{messages} messages were not confirmed and may be lost" if messages else ""


def leave_with_the_process() -> None:
    """Have the clients of this process left at its end, if it is a child of `multiprocessing`."""
    process, util = (sys.modules.get(f"multiprocessing.{name}") for name in ("process", "util"))
    if process is not None and util is not None and process.parent_process() and os.getpid() not in _prepared:
        _prepared.add(os.getpid())
        util.Finalize(None, _leave_all, exitpriority=0)


_prepared: set[int] = set()
"""The processes with such a finalizer: this one, and those that it is a fork of."""


def _leave_all() -> None:
    others = {thread.ident: thread for thread in threading.enumerate()}
    del others[threading.get_ident()]
    for driver in [*drivers]:
        if driver.closed or driver.thread == FORKED:
            continue
        if driver.thread not in others:
            leave(driver)
        elif others[driver.thread].daemon and (words := words_of_loss(driver)):
            # A daemon thread may be in the middle of a call. The other ones go on.
            say_lost(driver, words)


atexit.register(_leave_all)
