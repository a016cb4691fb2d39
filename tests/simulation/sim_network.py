"""The network: connections of two pipes, that break as those of libzmq do.

Within a connection nothing is lost, doubled or reordered. When it breaks, what is under way is lost, but
what has arrived at an end and was not read yet can still be read there: a client may read it even when a
new connection stands, and the broker may read it under a made-up routing id, because the new connection has
taken over the real one. The two ends learn of a break independently, each early or late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from malamute.errors import MalamuteError
from malamute.protocol.codec import PROTOCOL_2
from malamute.protocol.fields import Frame
from malamute.protocol.messages import Hello, Message, Received
from malamute.server.flow import Windows
from malamute.server.transport import Transport

Frames = Sequence[Frame]

PING_BYTES, WINDOW_BYTES, ALL_BYTES = 1_500, 4_000, 20_000
"""After how much a peer is asked what it has received, and how much it and all together may not have."""


class Connection:
    """One connection. `up` leads to the broker. `peer` is how the broker knows it."""

    def __init__(self, peer: bytes, capacity: int) -> None:
        self.peer = peer
        self.capacity = capacity
        self.up: deque[Frames] = deque()
        self.down: deque[Frames] = deque()
        self.broken = False


class Link:
    """The client's end: the connection that it believes in, those it still reads from, and the monitor."""

    def __init__(self, identity: bytes) -> None:
        self.identity = identity
        self.current: Connection | None = None
        self.reading: list[Connection] = []
        self.changes: deque[bool] = deque()

    def connect(self, connection: Connection) -> None:
        """A connection stands."""
        self.current = connection
        self.reading.append(connection)
        self.changes.append(True)

    def disconnect(self) -> None:
        """The connection is found broken."""
        self.current = None
        self.changes.append(False)

    @property
    def is_settled(self) -> bool:
        """Whether the monitor has told of everything, and nothing is left of an older connection."""
        return not self.changes and all(c is self.current or not c.down for c in self.reading)

    def send(self, frames: Frames) -> bool:
        """Send a command without waiting. False if the connection takes none now."""
        connection = self.current
        if connection is None or len(connection.up) >= connection.capacity:
            return False
        if not connection.broken:
            connection.up.append([bytes(frame) for frame in frames])
        return True

    def receive(self, choice: int) -> Frames | None:
        """One command, from the new connection or from what an old one left behind.

        Nothing comes from one that the monitor has not told of: each connection has a socket of its own,
        which is made when the one before is known to be over.
        """
        self.reading = [c for c in self.reading if c.down or c is self.current]
        untold = self.current if True in self.changes else None
        filled = [connection for connection in self.reading if connection.down and connection is not untold]
        return filled[choice % len(filled)].down.popleft() if filled else None


class Router(Transport):
    """The broker's end. What a full pipe means is the real transport's; the socket is not there."""

    def __init__(self) -> None:
        self._begin(Windows(WINDOW_BYTES, ALL_BYTES))
        self.connections: dict[bytes, Connection] = {}
        self._left: list[Connection] = []
        self._strangers = 0

    def accept(self, connection: Connection) -> None:
        """A new connection, which takes over the routing id of an older one."""
        if older := self.connections.get(connection.peer):
            self._strangers += 1
            older.peer = b"\0" + self._strangers.to_bytes(4, "big")
            self._left.append(older)
        self.connections[connection.peer] = connection

    def leave(self, connection: Connection) -> None:
        """A connection is found broken; what has arrived on it can still be read."""
        if self.connections.get(connection.peer) is connection:
            del self.connections[connection.peer]
            self._left.append(connection)
            self._disconnected(connection.peer)

    def receive_from(self, choice: int, most: int) -> Iterator[tuple[bytes, Message | MalamuteError]]:
        """Up to `most` commands, one by one from the pipes that hold any, from a chosen one on."""
        self._left = [connection for connection in self._left if connection.up]
        pipes = [c for c in (*self.connections.values(), *self._left) if c.up]
        for place in range(most):
            pipes = [connection for connection in pipes if connection.up]
            if not pipes:
                return
            connection = pipes[(choice + place) % len(pipes)]
            message = _decoded(connection.peer, connection.up.popleft())
            if isinstance(message, Received):
                self.received(connection.peer, message.token)
            yield connection.peer, message

    @property
    def waiting(self) -> bool:
        """Whether anything has arrived that was not read."""
        return any(c.up for c in (*self.connections.values(), *self._left))

    def _transmit(self, peer: bytes, frames: Frames) -> bool:
        connection = self.connections.get(peer)
        if connection is None:
            self._gone(peer)
            return True
        if connection.broken:
            return True
        if len(connection.down) >= connection.capacity:
            return False
        connection.down.append([bytes(frame) for frame in frames])
        return True


def cut(connection: Connection, arrived_up: int, arrived_down: int) -> None:
    """Break a connection: of what is in its pipes, so much has arrived, and the rest is lost."""
    connection.broken = True
    for pipe, arrived in ((connection.up, arrived_up), (connection.down, arrived_down)):
        while len(pipe) > arrived:
            pipe.pop()


def _decoded(peer: bytes, frames: Frames) -> Message | MalamuteError:
    try:
        message = PROTOCOL_2.decode(frames)
        if isinstance(message, Hello):
            PROTOCOL_2.check_hello(peer, message)
        return message
    except MalamuteError as error:
        return error
