"""Waiting without sleeping blindly: everything has a deadline that only a failure reaches."""

import time
from collections.abc import Callable

PATIENCE = 40.0
"""Seconds after which what was waited for counts as not coming. No promise is measured with it."""

GIVEN_UP_SECONDS = 10.0
"""How long a peer that hangs keeps its work at most, by the defaults."""

SLOW_MACHINE_SECONDS = 10.0
"""What a machine may add whose processes wait for a processor."""


def eventually(condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    """Wait until the condition holds, and fail by its name if it does not."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience:.0f} s: {what}"
        time.sleep(0.01)


def in_time(what: str, stopped: float) -> None:
    """See that a peer that was stopped at this moment was given up within the time for that."""
    seconds = time.monotonic() - stopped
    print(f"{what} after {seconds:.3f} s")
    assert seconds < GIVEN_UP_SECONDS + SLOW_MACHINE_SECONDS
