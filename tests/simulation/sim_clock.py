"""The wall clock: it is set, forward and back, by seconds and by years, and what must not hang on it.

The broker has its real `Clock`, on two clocks of the simulation's own. `Machine.now` is the time as the
broker counts it. Each start begins with what the wall clock says then, so a step that was not mended,
or not believed, is in `Machine.now` from the next start on.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim_origin import Violation

from malamute.core.iteration import grace_period
from malamute.server.clock import STEP_MAX
from malamute.store.commit import Append
from malamute.store.operations import AppendChunk, Operation, PutValue, Recovered, StoredMessage
from malamute.store.tables import CLOCK

HOUR, YEAR = 3_600.0, 365 * 86_400.0
STEPS = (-5.0, 5.0, HOUR, -HOUR, 9 * YEAR, -YEAR)
HOLD_SECONDS = 1.0
"""How long a step must stand, and a grace period lasts, here: the steps of a run are short."""

AGE_SECONDS = 20_000
"""For how long streams keep their messages: more than twice the length of a run, so no jump may drop any."""


class Wall:
    """What the broker has in place of its two clocks: the wall clock, and the one that counts.

    `now` is what the broker counts, and `ahead` how far the wall clock is ahead of that.
    """

    def __init__(self, now: float) -> None:
        self.now = now
        self.ahead = 0.0
        self._set_by = 0.0
        """The part of `now` that was not counted, but set over a restart."""

    def time(self) -> float:
        """The wall clock."""
        return self.now + self.ahead

    def monotonic(self) -> float:
        """The seconds that have gone by."""
        return self.now - self._set_by

    def set(self, choice: int) -> str:
        """Set the clock: right again, or by a step."""
        if choice % 3:
            self.ahead += STEPS[choice // 3 % len(STEPS)]
        else:
            self.ahead = -self._set_by
        return f"the wall clock is {self.ahead:+,.1f} s off"

    def begin(self) -> None:
        """A broker begins to count where the wall clock is."""
        self.now += self.ahead
        self._set_by += self.ahead
        self.ahead = 0.0


def is_note(operation: Operation) -> bool:
    """Whether it stores what the clock says."""
    return isinstance(operation, PutValue) and operation.table == CLOCK


class MailTimes:
    """When mail came and what time it was then, as the broker must have it.

    What was stored has the times of the wall clock, and a start takes them as they are. But nothing
    came later than now; and if the clock is far ahead, what was there before does not end until the grace
    period is over.
    """

    def __init__(self, wall: Wall) -> None:
        self.wall = wall
        self.ahead = self._before = 0.0
        """How far the clock is ahead that the broker believes in, now and in the last iteration."""
        self.began = wall.now
        self.grace_until = 0.0
        self._stored_at: float | None = None
        """The time of what was stored last, as far as it must count at the next start."""
        self._handed_out: dict[int, tuple[Operation, float | None]] = {}
        self._with_note: dict[int, int] = {}
        """The operations that were handed out with a note of the clock, and that note, by their ids."""
        self._is_refused = False

    def now(self) -> float:
        """The time as it is counted."""
        return self.wall.now

    def started(self, recovered: Recovered) -> None:
        """A broker begins."""
        self.ahead = self._before = 0.0
        self.began = self.wall.now
        newest = max([state.time_ns for state in recovered.streams.values()], default=0)
        for queue in recovered.queues.values():
            newest = max([newest, *(message.time_ns for message in queue.messages[-1:])])
        noted = recovered.table(CLOCK).get(("",), 0)
        if noted and not 0 <= newest - noted <= grace_period.GRACE_SECONDS / 2 * 1e9:
            newest = noted
        far = newest > 0 and self.began - newest / 1e9 > grace_period.GRACE_SECONDS
        if not far and self._stored_at and self.began - self._stored_at > 2 * grace_period.GRACE_SECONDS:
            raise Violation("a start far ahead is not doubted", stored_at=self._stored_at, began=self.began)
        self.forget()
        self.grace_until = self.began + grace_period.GRACE_SECONDS if far else 0.0

    def handed_out(self, append: Append) -> None:
        """The broker wants to store something now. In a grace period it does not believe its clock."""
        if self.wall.now >= self.grace_until:
            for operation in append.operations:
                self._handed_out[id(operation)] = operation, self.wall.now + self.ahead
        for note in filter(is_note, append.operations):
            self._with_note |= dict.fromkeys(map(id, append.operations), id(note))

    def committed(self, operations: Sequence[Operation]) -> None:
        """Something is on the disk: the next start is to go by the time at which it was handed out."""
        here, is_part = {*map(id, operations)}, False
        for operation in operations:
            self._stored_at = self._handed_out.pop(id(operation), (operation, self._stored_at))[1]
            self._is_refused &= not is_note(operation)
            # What gives room is done of an append that is refused, without the note that came with it.
            is_part |= self._with_note.pop(id(operation), id(operation)) not in here
        if self._is_refused or is_part:
            self._stored_at = None

    def failed(self, append: Append) -> None:
        """The disk has refused something. A note of the clock is stored again after a while."""
        self._is_refused |= any(map(is_note, append.operations))
        if self._is_refused:
            # What only gave room may be on the disk by now.
            self._stored_at = None

    def forget(self) -> None:
        """The store is another one, or is damaged: what was noted may be gone."""
        self._stored_at, self._is_refused = None, False
        self._handed_out.clear()
        self._with_note.clear()

    def iterated(self) -> None:
        """An iteration is over."""
        self._before = self.ahead

    def is_now(self, time: int) -> bool:
        """Whether a message that comes in this iteration may have this time."""
        return time in {int((self.wall.now + ahead) * 1e9) for ahead in (self._before, self.ahead)}

    def span(self, since: float) -> tuple[float, float]:
        """From when to when it was on the wall clock, since a moment of this iteration."""
        aheads = self._before, self.ahead
        return since + min(aheads), self.wall.now + max(aheads)

    def came(self, message: StoredMessage) -> float:
        """When a message came that was there before the broker began."""
        return min(message.time_ns / 1e9, self.began)

    def early(self, message: StoredMessage) -> float:
        """By how much a message has a later time than the start."""
        return message.time_ns / 1e9 - self.came(message)

    def is_old(self, message: StoredMessage) -> bool:
        """Whether a message was there when the broker began, as far as its time says."""
        return message.time_ns < int(self.began * 1e9)

    def holds(self, message: StoredMessage) -> bool:
        """Whether a message is in the grace period of this start."""
        return self.wall.now < self.grace_until and self.is_old(message)

    def check_given_back(self, seconds: float) -> None:
        """The broker takes the clock of its start for wrong by so much."""
        if not self.grace_until or abs(seconds + self.wall.ahead) > 2 * STEP_MAX:
            raise Violation("time was given back for no reason", seconds=seconds, ahead=self.wall.ahead)


class TimeBook:
    """The times of all that is on the disk."""

    def __init__(self) -> None:
        self._times: dict[str, list[tuple[int, int, int]]] = {}

    def committed(self, append: AppendChunk) -> None:
        """A chunk is on the disk."""
        chunk = append.chunk
        times = self._times.setdefault(append.stream, [])
        if times and chunk.time_ns < times[-1][2]:
            raise Violation(
                "the times of a stream go back", stream=append.stream, chunk=chunk, before=times[-1]
            )
        times.append((chunk.first, chunk.last, chunk.time_ns))

    def forget(self, stream: str, sequences: set[int]) -> None:
        """These are no more."""
        times = self._times.get(stream, [])
        self._times[stream] = [row for row in times if row[0] not in sequences]

    def began(self, stream: str, time: int, first: int, there: range) -> None:
        """A subscription that begins at a time begins with this sequence, among those that were there.

        Whatever comes later is new, and so are its times, where the clock was set back.
        """
        for start, last, sent in self._times.get(stream, ()):
            too_late, too_early = start < first and sent >= time, last >= first and sent < time
            if start in there and (too_late or too_early):
                raise Violation(
                    "a start at a time is elsewhere", stream=stream, time=time, first=first, at=start
                )
