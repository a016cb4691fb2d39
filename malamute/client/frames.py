"""Messages as a table of Arrow, pandas or polars. The libraries are imported when they are used."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Literal, get_args

from malamute.client.session.message import Message
from malamute.errors import InvalidValue, NotInstalled
from malamute.protocol.texts import shown

Library = Literal["arrow", "pandas", "polars"]
"""The library of a table."""

FIXED = ("sequence", "time", "sender", "subject", "body")
"""The columns of each table. A header of such a name has the prefix `header.`."""


class MessageTable:
    """The columns of messages: the fixed ones, and one for each header, with None where it is absent."""

    def __init__(self, library: Library) -> None:
        """Raise `InvalidValue` for an unknown library, and `NotInstalled` for a missing one."""
        if library not in get_args(Library):
            known = ", ".join(map(repr, get_args(Library)))
            raise InvalidValue(f"invalid library {shown(library)}: expected {known}")
        self._library = library
        name = "pyarrow" if library == "arrow" else library
        try:
            self._module = import_module(name)
        except ImportError:
            raise NotInstalled(f"{name} is missing: pip install {name}") from None
        self._columns: dict[str, list[Any]] = {name: [] for name in FIXED}
        self._rows = 0

    def add(self, messages: Iterable[Message]) -> None:
        """Add messages, each as a row."""
        columns = self._columns
        for message in messages:
            for name in FIXED:
                columns[name].append(getattr(message, name))
            for name, value in message.headers.items():
                column = columns.setdefault(f"header.{name}" if name in FIXED else name, [])
                column += [None] * (self._rows - len(column))
                column.append(value)
            self._rows += 1

    def made(self) -> Any:
        """Return the table, as one of the library."""
        for column in self._columns.values():
            column += [None] * (self._rows - len(column))
        if self._library == "arrow":
            return self._module.table(self._columns)
        if self._library == "polars":
            return self._module.DataFrame(self._columns, strict=False)
        return self._module.DataFrame(self._columns)
