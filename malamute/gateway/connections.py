"""The connections of a gateway: as many as its files allow; beyond that the longest idle one is closed.

A connection is a file. Without one left, a new connection could be neither served nor refused. So some files
are reserved for sessions with the broker, some are spare, and connections use the rest. One connection too
many closes an idle one: that which has waited longest for a request, of the address with the most of them. If
none is idle, the address with the most connections loses its oldest one.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import NamedTuple, Protocol

from malamute.door.addresses import network_of

FILES_OF_SESSION = 6
"""Files for a session with the broker: those of libzmq, and its connection."""

OTHER_FILES = 64
"""Other files: listeners, logs, threads, console files."""

SPARE_SHARE = 8
"""Fraction of all files reserved for connections accepted before others have closed."""

BACKLOG_MAX = 2048

log = logging.getLogger("malamute.gateway")


class FilePlan(NamedTuple):
    """Numbers of connections, sessions and simultaneous connects that the files of a process allow."""

    connections: int
    sessions: int
    backlog: int


def files_for(files: int, sessions: int) -> FilePlan:
    """Return the division of `files`, with at most half of them for `sessions`."""
    backlog = max(1, min(BACKLOG_MAX, files // SPARE_SHARE))
    sessions = max(1, min(sessions, (files // 2 - OTHER_FILES) // FILES_OF_SESSION))
    connections = max(1, files - backlog - OTHER_FILES - sessions * FILES_OF_SESSION)
    return FilePlan(connections, sessions, backlog)


class OpenConnection(Protocol):
    """A connection, in the form that its protocol keeps."""

    client: tuple[str, int] | None

    def end(self) -> None:
        """Close the connection at once."""


class Connections:
    """The open connections, by the addresses of their clients."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.ended = 0
        """Number of connections closed to make room."""
        self._open: dict[str, OrderedDict[OpenConnection, None]] = {}
        self._waiting: dict[str, OrderedDict[OpenConnection, None]] = {}
        self._senders: dict[OpenConnection, str] = {}
        self._said = False

    def __len__(self) -> int:
        return len(self._senders)

    def add(self, connection: OpenConnection) -> None:
        """Add a new connection."""
        address = connection.client[0] if connection.client else ""
        sender = network_of(address).hex() or address
        self._senders[connection] = sender
        self._open.setdefault(sender, OrderedDict())[connection] = None
        if len(self) > self.most:
            self._make_room()

    def waits(self, connection: OpenConnection) -> None:
        """Note that a connection is idle: no answer is under way."""
        if (sender := self._senders.get(connection)) is not None:
            self._waiting.setdefault(sender, OrderedDict())[connection] = None

    def works(self, connection: OpenConnection) -> None:
        """Note that a connection has a request."""
        if (sender := self._senders.get(connection)) is not None:
            _drop(self._waiting, sender, connection)

    def remove(self, connection: OpenConnection) -> None:
        """Remove a connection that was closed or handed over."""
        if (sender := self._senders.pop(connection, None)) is not None:
            _drop(self._open, sender, connection)
            _drop(self._waiting, sender, connection)

    def _make_room(self) -> None:
        if not self._said:
            self._said = True
            log.warning(
                "the limit of %d connections is reached: the longest idle ones are closed; raise the limit "
                "of open files, as with `ulimit -n`, for more clients",
                self.most,
            )
        held = [*(self._waiting or self._open).values()]
        most: OrderedDict[OpenConnection, None] = max(held, key=len)
        connection = next(iter(most))
        self.ended += 1
        self.remove(connection)
        connection.end()


def _drop(
    held: dict[str, OrderedDict[OpenConnection, None]], sender: str, connection: OpenConnection
) -> None:
    if (of_sender := held.get(sender)) is not None:
        of_sender.pop(connection, None)
        if not of_sender:
            del held[sender]
