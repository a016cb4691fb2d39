"""When messages may be delivered: not before the delay of each is over, and not after its time.

During the grace period of a start (`malamute.core.iteration.grace_period`) expired messages are delayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from malamute.core.queue.state import READY, MessageStates
from malamute.protocol.time_units import to_seconds

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.grace_period import GracePeriod
    from malamute.core.iteration.timers import Timer, Timers
    from malamute.core.queue.entry import Entry
    from malamute.core.queue.options import Options

RETRY_SECONDS = 1.0
"""How long a message whose time is over is kept, when the disk would not let it go."""


class Times(NamedTuple):
    """Messages by their times; `later` with the delivery time of each, in seconds since 1970."""

    ready: list[int]
    later: list[tuple[int, float]]
    over: list[int]


class Schedule:
    """The times of one queue's messages: delays messages, and reports those that are due or over."""

    def __init__(
        self,
        effects: Effects,
        timers: Timers,
        grace_period: GracePeriod,
        entries: Mapping[int, Entry],
        options: Mapping[int, Options],
        states: MessageStates,
        due: Callable[[Sequence[int]], None],
        over: Callable[[Sequence[int]], object],
    ) -> None:
        """`due` is called with a message whose delay is over, and `over` with one whose time to live is."""
        self.delayed: dict[int, Timer] = {}
        self.claimed: dict[int, float] = {}
        """When those are redelivered that were delayed before they were to leave, or before a restart."""
        self._restored: dict[int, float] = {}
        """When messages are due by the clock of the start, of which nobody knows yet whether it was right."""
        self._effects = effects
        self._timers = timers
        self._grace_period = grace_period
        self._entries = entries
        self._options = options
        self._states = states
        self._due = due
        self._over = over
        # One bound method for all.
        self._when_due = self._end_delay
        self._when_over = self._end_life

    def restore(self, due: Mapping[int, int], now_ns: int) -> None:
        """Restore the stored times of redelivery, in ns. None came later than now."""
        entries = self._entries
        self.claimed = {
            sequence: to_seconds(time - max(0, entries[sequence].time_ns - now_ns))
            for sequence, time in due.items()
        }
        if self._grace_period.until:
            self._restored = dict(self.claimed)

    def times_of(self, sequences: Iterable[int]) -> Times:
        """Which of some messages may be delivered now."""
        now = self._effects.now
        times = Times([], [], [])
        for sequence in sequences:
            asked = self._options.get(sequence)
            if asked is not None and asked.expires and asked.expires <= now:
                if self.is_in_grace_period(sequence):
                    times.later.append((sequence, self._grace_period.until))
                else:
                    times.over.append(sequence)
            elif asked is not None and asked.due > now:
                times.later.append((sequence, asked.due))
            else:
                times.ready.append(sequence)
        return times

    def is_over(self, sequence: int) -> bool:
        """Whether the time of a message is over, by the clock of now."""
        asked = self._options.get(sequence)
        return asked is not None and 0 < asked.expires <= self._effects.now

    def is_in_grace_period(self, sequence: int) -> bool:
        """Whether nobody knows if the time of a message is over."""
        return self._grace_period.holds(self._entries[sequence].time_ns)

    # Delays

    def delay(self, sequence: int, due: float) -> None:
        """Delay a message until a time, in seconds since the epoch."""
        self._states.delay(self._entries[sequence])
        self._set_timer(sequence, due)

    def _set_timer(self, sequence: int, due: float) -> None:
        self.delayed[sequence] = self._timers.at(due, self._when_due, sequence)

    def _end_delay(self, sequence: int) -> None:
        del self.delayed[sequence]
        self._states.due([self._entries[sequence]])
        self._due([sequence])

    def delay_later(self, times: Times) -> list[int]:
        """Delay the messages of `times` that are to be delivered later. Return those that are ready."""
        for sequence, due in times.later:
            self.delay(sequence, due)
        return times.ready

    def claim(self, sequence: int) -> None:
        """Prepare the settlement of a delayed message, which is delayed again if the disk refuses that."""
        timer = self.delayed.pop(sequence)
        self._timers.cancel(timer)
        self.claimed[sequence] = timer.due

    def returning(self, sequences: Iterable[int]) -> Times:
        """Which of some messages were delayed before, and their time has not come."""
        times = Times([], [], [])
        for sequence in sequences:
            due = self.claimed.pop(sequence, 0.0)
            if due > self._effects.now:
                times.later.append((sequence, due))
            else:
                times.ready.append(sequence)
        return times

    def refused(self, sequences: Iterable[int]) -> Times:
        """The same of messages that could not leave: those that are over are delayed as well."""
        for sequence in sequences:
            if self.is_over(sequence):
                self.claimed[sequence] = self._effects.now + RETRY_SECONDS
        return self.returning(sequences)

    # Expiry

    def watch(self, sequence: int, expires: float) -> None:
        """See to it that the end of a message's time is noticed, in seconds since the epoch."""
        self._options[sequence].timer = self._timers.at(expires, self._when_over, sequence)

    def _end_life(self, sequence: int) -> None:
        """Report a message whose time to live is over; during the grace period, delay it if it is ready.

        A consumer that holds it goes on. A message on its way from the disk is looked at when it is there.
        """
        if not self.is_in_grace_period(sequence):
            self._over([sequence])
            return
        until, entry = self._grace_period.until, self._entries[sequence]
        self.watch(sequence, until)
        if entry.state == READY:
            self._states.take_back([entry])
            self.delay(sequence, until)

    def give_time_back(self, seconds: float) -> None:
        """Add a correction of the clock at the start to the times of earlier messages."""
        restored, self._restored = self._restored, {}
        for sequence, asked in self._options.items():
            if self._entries[sequence].time_ns >= self._grace_period.began:
                continue
            if asked.due:
                restored.setdefault(sequence, asked.due)
                asked.due += seconds
            if asked.expires:
                asked.expires += seconds
                self._timers.cancel(asked.timer)
                self.watch(sequence, asked.expires)
        for sequence, due in restored.items():
            timer = self.delayed.get(sequence)
            # One that was delayed anew since has its time by the clock that counts.
            if timer is not None and timer.due == due:
                self._timers.cancel(timer)
                self._set_timer(sequence, due + seconds)

    def drop(self, sequences: Iterable[int]) -> None:
        """Messages are gone."""
        for sequence in sequences:
            self._timers.cancel(self.delayed.pop(sequence, None))
            self.claimed.pop(sequence, None)
