"""Text from elsewhere, escaped so that a terminal shows all of it and obeys none of it.

Subjects, bodies, headers, the words of clients and of errors are other people's. On a terminal a control
character in them could move the cursor, rewrite what was printed, or set the title. So such a character is
shown as an escape. Output to a pipe is passed on unchanged.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

_UNSEEN = re.compile(r"[^\x20-\x7e]")
_KEPT = "\n\t"
"""Control characters that only separate others."""


def printable(text: str) -> str:
    """Return a text on one line, without anything that a terminal would obey."""
    return _escaped(text, "")


def visible(text: str) -> str:
    """Return a text of several lines, without anything else that a terminal would obey."""
    return _escaped(text, _KEPT)


def _escaped(text: str, kept: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode("ascii") for c in text
    )


def for_terminal(data: bytes) -> bytes:
    """Return data for standard output: escaped if that is a terminal."""
    if not sys.stdout.isatty():
        return data
    return visible(data.decode("utf-8", "backslashreplace")).encode()


def to_json(value: Any) -> str:
    """Return JSON on one line. Invisible characters are escaped as in JSON: the value is the same."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if text.isprintable() else _UNSEEN.sub(_json_escape, text)


def _json_escape(found: re.Match[str]) -> str:
    character = found[0]
    return character if character.isprintable() else json.dumps(character)[1:-1]
