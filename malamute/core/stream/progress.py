"""The progress of a stream: how far it is numbered, reserved, offered, stored, and dropped."""

from __future__ import annotations


class StreamProgress:
    """The sequences that the parts of a stream go by. Each is changed by one of them."""

    __slots__ = (
        "behind",
        "durable",
        "first_kept",
        "known",
        "last",
        "last_stored",
        "next",
        "next_dispatch",
        "reserved",
    )

    def __init__(self, reserved: int, first_kept: int, last: int) -> None:
        """A stream goes on behind all that is `reserved`."""
        self.reserved = reserved
        """The last sequence that no crash gives out once more."""
        self.next = reserved + 1
        """The sequence of the next message."""
        self.next_dispatch = reserved + 1
        """The first message that was not offered to readers that are LIVE."""
        self.behind = False
        """Whether chunks wait to be offered, for work that was left to a later iteration."""
        self.first_kept = first_kept
        self.last = last
        """The newest message that was ever published."""
        self.last_stored = last
        """The newest message that a read of the journal finds."""
        self.durable = last
        """The newest message that is on the disk."""
        self.known = reserved
        """The newest message of which it is known whether it is on the disk."""
