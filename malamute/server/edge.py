"""Edge: the interface of the loop to peers.

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
    """Refused connection: its address, mechanism and reason.

    `claimed` is the user that it named: any text, without proof. The public `key` is proved, and no account
    has it. A refusal by a `busy` broker is no fault of the connection.
    """

    address: str
    mechanism: str
    reason: str
    claimed: str = ""
    busy: bool = False
    key: str = ""


class Edge(Protocol):
    """Edge of the broker, from its first listener until it is closed. For the loop's thread only."""

    endpoints: list[str]
    """Endpoints, as clients have to name them."""
    drained: bool
    """Whether the last `receive` found no more."""
    lost: list[bytes]
    """Peers that are gone, until they are taken."""

    @property
    def inputs(self) -> Sequence[Any]:
        """Sockets to poll for input, the same all the time: of libzmq, or with a `fileno`.

        There is no one descriptor for all, since that of a libzmq socket reports changes only, and each send
        may swallow one.
        """
        ...

    def arrivals(self) -> int:
        """Descriptor that has input with the next byte, if the edge rests until then; or -1."""
        ...

    def arrived(self, now: float) -> float:
        """Wake the edge on its first byte. Returns the most seconds to wait for a complete command."""
        ...

    def watch(self, now: float, ready: Collection[Any]) -> None:
        """Supervise the connections. `ready` are the `inputs` with input."""
        ...

    def next_check(self, now: float) -> float | None:
        """Return the time of the next `watch` and `retry` without input, or None."""
        ...

    def owns(self, peer: bytes) -> bool:
        """Whether a peer belongs to this edge. Not called for the first edge."""
        ...

    def receive(self) -> Iterator[tuple[bytes, Message | Exception]]:
        """Return commands of peers, up to the limits of an iteration: messages, or errors in their place.

        An error that is no `MalamuteError` is a fault of the decoder.
        """
        ...

    def principal(self, peer: bytes) -> Principal:
        """Return the principal of a peer with a HELLO."""
        ...

    def origin(self, peer: bytes) -> str:
        """Return the network address of such a peer; empty if there is none, or it is unknown."""
        ...

    def send(self, peer: bytes, message: Message) -> bool:
        """Send a message, or keep it for a full peer. Returns whether the peer is full since now.

        Raises:
            TypeError, ValueError, OverflowError: the message cannot be encoded.
        """
        ...

    def retry(self) -> list[bytes]:
        """Send kept messages to some peers of many. Returns those that are full no more."""
        ...

    def pop_lost(self) -> list[bytes]:
        """Return the peers of `lost`, and empty it."""
        ...

    def forget(self, peer: bytes) -> None:
        """Keep only the last message for a peer whose session has ended: it has the reason."""
        ...

    def close(self, linger_ms: int) -> None:
        """End all connections; messages on their way have `linger_ms` milliseconds to leave."""
        ...
