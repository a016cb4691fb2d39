"""What the loop needs of a way by which peers come.

The ROUTER socket (`transport.py`) is one edge. Another one, such as a link to a standby, is a class with
these methods in a file of its own, and one more entry in the list that `daemon.py` hands to the loop.

A peer is named by some bytes that name no peer of another edge. The first edge of a loop has every peer that
none of the others owns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from malamute.core.identity.access import Principal
from malamute.protocol.messages import Message


class RefusedConnection(NamedTuple):
    """A connection that was refused: from where, how it tried to prove who it is, and why.

    `claimed` is who it said to be: any text, of which nothing is proved. The public `key` is that of a client
    which has proved to have it, and which no account has. If the broker was `busy`, that is no fault of the
    connection's.
    """

    address: str
    mechanism: str
    reason: str
    claimed: str = ""
    busy: bool = False
    key: str = ""


class Edge(Protocol):
    """One way to the broker, from when it listens until it is closed. Only the loop's thread calls it."""

    endpoints: list[str]
    """Where it listens, as clients have to name it."""
    drained: bool
    """Whether `receive` found no more last time."""
    lost: list[bytes]
    """Peers that turned out to be gone, and that nobody has taken yet."""

    @property
    def inputs(self) -> Sequence[Any]:
        """What to poll for input, the same all the time: sockets of libzmq, or whatever has a `fileno`.

        Not one descriptor for all, since that of a libzmq socket tells of changes only, and each send may
        swallow one.
        """
        ...

    def arrivals(self) -> int:
        """A descriptor that has input as soon as any byte comes, if the edge rests until then; or -1."""
        ...

    def arrived(self, now: float) -> float:
        """It has input. Returns for how many seconds at the most to wait for a command to be complete."""
        ...

    def watch(self, now: float, ready: Collection[Any]) -> None:
        """Look after the connections. `ready` are those of all `inputs` that have any."""
        ...

    def next_check(self, now: float) -> float | None:
        """When to call `watch` and `retry` though nothing happens; None for not at all."""
        ...

    def owns(self, peer: bytes) -> bool:
        """Whether a peer is one of its own. Not asked of the first edge."""
        ...

    def receive(self) -> Iterator[tuple[bytes, Message | Exception]]:
        """What peers have sent, up to the limits of an iteration: messages, or the error that they are.

        An error that is no `MalamuteError` is a fault of the decoder.
        """
        ...

    def principal(self, peer: bytes) -> Principal:
        """The principal of a peer that says HELLO."""
        ...

    def origin(self, peer: bytes) -> str:
        """The network address that such a peer comes from; empty if it has none, or it is not known."""
        ...

    def send(self, peer: bytes, message: Message) -> bool:
        """Send a message, or keep it if the peer takes none. Returns whether the peer is full since now.

        Raises:
            TypeError, ValueError, OverflowError: the message cannot be encoded.
        """
        ...

    def retry(self) -> list[bytes]:
        """Send what was kept, to some peers of many. Returns those that are full no more."""
        ...

    def pop_lost(self) -> list[bytes]:
        """Those of `lost`, which is empty then."""
        ...

    def forget(self, peer: bytes) -> None:
        """Keep no more than the last message for a peer whose session has ended: it says why."""
        ...

    def close(self, linger_ms: int) -> None:
        """End all connections; what is under way has `linger_ms` milliseconds to leave."""
        ...
