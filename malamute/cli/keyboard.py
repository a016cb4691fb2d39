"""Keys as they are pressed, without Enter."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

KEY_BYTES = 8
"""More bytes than any key sends at once."""

LEAVING = frozenset(("q", "Q", "\x03", "\x04", "\x1b"))
"""Keys that leave a program: q, Control-C, Control-D and Escape."""


@contextmanager
def keys() -> Iterator[int]:
    """Switch the terminal to single keys without echo. Earlier input is preserved."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard, termios.TCSADRAIN)
    try:
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def pressed(keyboard: int, seconds: float | None) -> list[str]:
    """Return the pressed keys, after waiting for one (None: without end); none if none came.

    An arrow is one key of three characters, of which the first is an Escape.
    """
    ready, _, _ = select.select([keyboard], [], [], None if seconds is None else max(seconds, 0.0))
    if not ready:
        return []
    text = os.read(keyboard, KEY_BYTES).decode("utf-8", "replace")
    if not text:
        return ["q"]  # the keyboard is gone
    return [text] if text.startswith("\x1b") else [*text]
