"""Text from elsewhere, made so that a terminal shows all of it and obeys none of it.

Subjects, bodies, headers, the words of clients and of errors are other people's. On a terminal a control
character in them could move the cursor, rewrite what was printed, or set the title. So it is shown as an
escape. What is piped to a program is passed on as it is.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

_UNSEEN = re.compile(r"[^\x20-\x7e]")
_KEPT = "\n\t"
"""What is no character to be seen, and does no more than to part others."""


def printable(text: str) -> str:
    """A text on one line, with nothing in it that a terminal would obey."""
    return _escaped(text, "")


def visible(text: str) -> str:
    """The same for a text of several lines."""
    return _escaped(text, _KEPT)


def _escaped(text: str, kept: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode("ascii") for c in text
    )


def for_terminal(data: bytes) -> bytes:
    """What is to be written to standard output: made visible if that is a terminal."""
    if not sys.stdout.isatty():
        return data
    return visible(data.decode("utf-8", "backslashreplace")).encode()


def to_json(value: Any) -> str:
    """JSON on one line. What cannot be seen is escaped, as JSON has it: the value is the same."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if text.isprintable() else _UNSEEN.sub(_json_escape, text)


def _json_escape(found: re.Match[str]) -> str:
    character = found[0]
    return character if character.isprintable() else json.dumps(character)[1:-1]
