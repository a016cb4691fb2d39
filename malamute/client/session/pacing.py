"""The time for which the broker is busy with sent commands, estimated: the next message may wait that long.

A command costs the broker many times the cost of one more message in it. While the broker is busy with
earlier commands, a message that waits for others loses no time, and their common command saves some. So the
first messages of a burst go at once, each by itself; behind them, commands grow until the broker keeps up.

The measure is the sender's own time: encoding a command and giving it to the socket takes a third of the
broker's time for it, on any machine, as long as both have about the same processor to themselves. A busier
broker would gain from longer waits; no message waits for that.
"""

from __future__ import annotations

BROKER_RATIO = 3.0
"""The broker's time for a command, as a multiple of the sender's."""

COMMAND_SECONDS_MAX = 1e-3
"""Maximum counted seconds of one command: the sender may have been held up itself."""


class Backlog:
    """The broker's remaining work. Times are in seconds, of any clock that does not jump."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until = 0.0
        """The time at which the broker is done with all sent commands."""

    def sent(self, begun: float, now: float) -> None:
        """Count a command, by the times before and after sending it."""
        seconds = BROKER_RATIO * (now - begun)
        begins = self.until if self.until > now else now
        self.until = begins + (seconds if seconds < COMMAND_SECONDS_MAX else COMMAND_SECONDS_MAX)
