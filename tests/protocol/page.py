"""The specification as data: the tables and the examples of docs/protocol.md."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from malamute.protocol.batch import Columns, pack, pack_record, pack_stream_payload
from malamute.protocol.messages import BY_TYPE

TEXT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
_BYTES = re.compile(r"([0-9a-f]{2})(?:\*([0-9]+))?")


class Example(NamedTuple):
    """The words of an example, and its frames."""

    words: str
    frames: list[bytes]

    @property
    def value(self) -> Any:
        """The thing that the words describe: a message, or bytes."""
        return eval(self.words, dict(_WORDS))

    @property
    def kind(self) -> str:
        return self.words.partition("(")[0]


def _record(headers: Any, *body: bytes) -> bytes:
    return pack_record(headers, body)


def _stream_payload(*columns: Any) -> bytes:
    return pack_stream_payload(Columns(*columns))[0]


_WORDS: dict[str, Callable[..., Any]] = {
    **{message.__name__: message for message in BY_TYPE},
    "record": _record,
    "stream_payload": _stream_payload,
    "queue_payload": lambda *columns: pack(columns),
}


def examples() -> list[Example]:
    blocks = re.findall(r"```hex\n(.*)\n((?:.*\n)*?)```", TEXT)
    return [Example(words, [_frame(part) for part in text.split("+")]) for words, text in blocks]


def _frame(text: str) -> bytes:
    words = [_BYTES.fullmatch(word) for word in text.split()]
    assert all(words), f"not hex: {text}"
    return b"".join(bytes.fromhex(word[1]) * int(word[2] or 1) for word in words if word)


def section(heading: str) -> str:
    """The text below a heading, up to the next heading of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"no heading {heading}"
    return found[1]


def table(text: str, first_column: str) -> list[list[str]]:
    """The rows of the table whose first column has this heading; none if there is no such table."""
    found = re.search(rf"^\| {first_column} \|.*\n\|[-|]+\n((?:\|.*\n?)*)", text, re.MULTILINE)
    rows = found[1].splitlines() if found else []
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]
