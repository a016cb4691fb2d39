"""How long the broker is busy with what was sent to it, by an estimate: so long, the next message may wait.

A command costs the broker many times what one more message in it does. While it is still at the commands that
went before, a message that waits for others loses no time, and the command that they make together saves
some. So the first messages of a burst go at once, each by itself; behind them, commands grow until the broker
keeps up.

The measure is the sender's own time: encoding a command and giving it to the socket takes a third of what
the broker needs for it, on whatever machine, as long as both have about the same processor to themselves. A
broker that has more to do than that would gain from longer waiting; no message is kept waiting for it.
"""

from __future__ import annotations

BROKER_RATIO = 3.0
"""What a command costs the broker, in times of what sending it costs."""

COMMAND_SECONDS_MAX = 1e-3
"""What one command counts at the most: the sender may have been held up itself."""


class Backlog:
    """What the broker still has to do. Times are in seconds, of any clock that does not jump."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until = 0.0
        """When it is done with all that was sent."""

    def sent(self, begun: float, now: float) -> None:
        """Count a command, by when sending it was begun, and when it was done."""
        self.until = max(self.until, now) + min(BROKER_RATIO * (now - begun), COMMAND_SECONDS_MAX)
