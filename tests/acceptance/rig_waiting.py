"""Waiting without sleeping blindly: everything has a deadline that only a failure reaches."""

import time
from collections.abc import Callable

PATIENCE = 40.0
"""Seconds after which what was waited for counts as not coming. No promise is measured with it."""


def eventually(condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    """Wait until the condition holds, and fail by its name if it does not."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience:.0f} s: {what}"
        time.sleep(0.01)
