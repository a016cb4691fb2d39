"""The connections of a gateway: as many as its files allow, and who waits longest goes when there are more.

A connection is a file. Without one left, a new connection could be neither served nor refused. So there are
files for the sessions with the broker, some spare ones, and the rest is for connections. When one too many
comes, one that waits for a request ends: of the address with the most of them the one that has waited
longest. If none waits, the address with the most connections loses its oldest one.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import NamedTuple, Protocol

from malamute.door.addresses import network_of

FILES_OF_SESSION = 6
"""FilePlan that a session with the broker takes: those of libzmq, and its connection."""

OTHER_FILES = 64
"""FilePlan besides: listeners, logs, threads, what the console reads."""

SPARE_SHARE = 8
"""The part of all files that is left for connections that are accepted before others have ended."""

BACKLOG_MAX = 2048

log = logging.getLogger("malamute.gateway")


class FilePlan(NamedTuple):
    """How many connections, sessions, and connections at once the files of a process are for."""

    connections: int
    sessions: int
    backlog: int


def files_for(files: int, sessions: int) -> FilePlan:
    """Return the division of so many files, at most half of them for that many sessions."""
    backlog = max(1, min(BACKLOG_MAX, files // SPARE_SHARE))
    sessions = max(1, min(sessions, (files // 2 - OTHER_FILES) // FILES_OF_SESSION))
    connections = max(1, files - backlog - OTHER_FILES - sessions * FILES_OF_SESSION)
    return FilePlan(connections, sessions, backlog)


class OpenConnection(Protocol):
    """A connection, as its protocol has it."""

    client: tuple[str, int] | None

    def end(self) -> None:
        """End it at once."""


class Connections:
    """The connections that are open, by the addresses that they come from."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.ended = 0
        """How many were ended for others."""
        self._open: dict[str, OrderedDict[OpenConnection, None]] = {}
        self._waiting: dict[str, OrderedDict[OpenConnection, None]] = {}
        self._senders: dict[OpenConnection, str] = {}
        self._said = False

    def __len__(self) -> int:
        return len(self._senders)

    def add(self, connection: OpenConnection) -> None:
        """A connection was made."""
        address = connection.client[0] if connection.client else ""
        sender = network_of(address).hex() or address
        self._senders[connection] = sender
        self._open.setdefault(sender, OrderedDict())[connection] = None
        if len(self) > self.most:
            self._make_room()

    def waits(self, connection: OpenConnection) -> None:
        """Note that a connection waits for a request, without an answer under way."""
        if (sender := self._senders.get(connection)) is not None:
            self._waiting.setdefault(sender, OrderedDict())[connection] = None

    def works(self, connection: OpenConnection) -> None:
        """Note that a connection has a request."""
        if (sender := self._senders.get(connection)) is not None:
            _drop(self._waiting, sender, connection)

    def remove(self, connection: OpenConnection) -> None:
        """Forget a connection that has ended or was handed over."""
        if (sender := self._senders.pop(connection, None)) is not None:
            _drop(self._open, sender, connection)
            _drop(self._waiting, sender, connection)

    def _make_room(self) -> None:
        if not self._said:
            self._said = True
            log.warning(
                "%d connections, as many as there may be: those that wait longest for a request end. Raise "
                "the limit of open files, such as by `ulimit -n`, if so many clients are to be connected",
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
