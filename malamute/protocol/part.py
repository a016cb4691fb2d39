"""Messages that go out together, as values: encoded once by each codec, however many peers get them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from malamute.protocol.batch import Columns, Frame


class DeliveryPart:
    """Messages of a stream for all readers of exactly these.

    `stored` are the frames of a part with the same form on the disk. `encoded` is the slot of the codecs:
    each stores its form of the columns there, under a key of its own.
    """

    __slots__ = ("columns", "encoded", "stored")

    queued = False
    """Whether the messages come from a queue, and have attempts and properties."""

    def __init__(self, columns: Columns, stored: Sequence[Frame] | None = None) -> None:
        self.columns = columns
        self.stored = stored
        self.encoded: dict[Hashable, Sequence[Frame]] = {}


class QueuePart(DeliveryPart):
    """Messages of a mailbox or a service, for one consumer."""

    __slots__ = ()

    queued = True
