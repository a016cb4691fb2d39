"""The effects of one iteration of the loop, which the edge carries out.

The engines never act, but note sends, appends and reads in the `Effects`, and the actions after the commit
(`stage`). At the end of the iteration the edge takes all as one `Ready`. The edge hands `appends` to the
writer, which commits them as one transaction and answers by `Core.stored(token)`, runs `reads` and answers by
`Core.answered`, and sends `sends` in their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from malamute.core.iteration.counters import Counters
from malamute.core.iteration.faults import Faults
from malamute.core.iteration.stage import StoreStage
from malamute.errors import InternalError, MalamuteError
from malamute.protocol.messages import Error, Message
from malamute.protocol.time_units import to_ns
from malamute.store.commit import Append
from malamute.store.operations import StoreRead

T = TypeVar("T")

WORK_MAX = 4_000
"""The work of one iteration that can continue in the next, in units of about a microsecond."""


Then = Callable[[Any], None]
Failed = Callable[[MalamuteError], None]


@dataclass(frozen=True, eq=False)
class LoadConfiguration:
    """Read the configuration and check it: a `settings.ConfigurationLoaded`, or why it is refused.

    With `dry_run` nobody is to go by it. None equals another, and so none shares the answer of another: the
    files may have changed since that was begun.
    """

    dry_run: bool = False


Question = StoreRead | LoadConfiguration
"""A request of the core. Each is answered by `Core.answered`, in any order."""


class Event(NamedTuple):
    """An event of the broker, for the stream of its own events.

    `subject` is `kind.what` or `kind.what.NAME`, and the name may hold anything. `details` become headers.
    """

    subject: str
    body: bytes
    details: Mapping[str, Any]


class ClockStep(NamedTuple):
    """The wall clock was set by `seconds`: it has `stepped`, `returned`, or is `followed` from now on.

    `ahead` is how far the times of messages are ahead of the counted ones.
    """

    what: str
    seconds: float
    ahead: float


class Notice(NamedTuple):
    """Something that an operator should know: an event in words, with its details."""

    event: str
    details: Mapping[str, Any]


class Ready(NamedTuple):
    """All there is to do after an iteration. `closed` are the peers whose sessions ended."""

    appends: Sequence[Append]
    reads: Sequence[Question]
    sends: Sequence[tuple[bytes, Message]]
    closed: Sequence[bytes]
    notices: Sequence[Notice] = ()


class Effects:
    """The iteration under way: the engines' shared note pad.

    `now` is seconds since the epoch, UTC, as they were counted since the start: durations go by it. `ahead`
    is how far the wall clock was set ahead of it meanwhile.
    """

    def __init__(self, now: float, seed: int = 0) -> None:
        """`seed` is where the turns of equals begin."""
        self.now = now
        self.ahead = 0.0
        self._turn = seed
        self.sends: list[tuple[bytes, Message]] = []
        self.reads: list[Question] = []
        self.closed: list[bytes] = []
        self.notices: list[Notice] = []
        self.events: list[Event] = []
        self.events_max = 0
        """Events that one iteration may have; the others are counted. 0 while there are to be none."""
        self.events_dropped = 0
        self.faults = Faults(self.notice)
        self.stage = StoreStage(self.fault)
        """The operations to store."""
        self.counters = Counters()
        self.on_failure: Failed | None = None
        """The function called if the store cannot answer a read, unless the read names another."""
        self.broken: dict[bytes, None] = {}
        """Peers whose connections have to begin anew, since a fault has left them half done."""
        self.ended: list[Any] = []
        """Subscriptions that a fault has ended, and that are still to be taken apart."""
        self._fault: MalamuteError | None = None
        self.work = WORK_MAX
        """The work left in this iteration; work beyond it continues `later`."""
        self.replay_work = WORK_MAX
        """The same for replay, which must not wait for anything else."""
        self.reviewing = False
        """Whether sessions are still to be reviewed."""
        self.replaying = 0
        """Reads for replay whose results are still being served."""
        self.chores: deque[tuple[Callable[[], None], Failed | None]] = deque()
        """The work that continues in the next iterations, one after the other."""
        # Tuples of two types can be equal.
        self._asked: dict[tuple[type[Question], Question], list[tuple[Then, Failed | None]]] = {}

    @property
    def time_ns(self) -> int:
        """The wall clock in nanoseconds UTC: the time of messages and events."""
        return to_ns(self.now + self.ahead)

    @property
    def ahead_ns(self) -> int:
        """How far that is ahead of the time that is counted."""
        return to_ns(self.ahead)

    def send(self, peer: bytes, message: Message) -> None:
        """Send a message to a peer at the end of the iteration."""
        self.sends.append((peer, message))

    def refuse(self, peer: bytes, error: Error) -> None:
        """Send an ERROR to a peer at the end of the iteration, and count it."""
        self.counters.refuse(error.code, self.now)
        self.send(peer, error)

    def in_turn(self, equals: Collection[T]) -> list[T]:
        """Two or more that are equal, from any one of them on: nobody is always the first."""
        # Knuth's linear congruential generator, of which the upper bits are good.
        self._turn = (self._turn * 6364136223846793005 + 1442695040888963407) % 2**64
        first = (self._turn >> 32) * len(equals) >> 32
        found = [*equals]
        return found[first:] + found[:first]

    def ask(self, read: Question, then: Then, failed: Failed | None = None) -> None:
        """Ask the store, and call back with its answer, or with why there is none.

        Another that asks the same meanwhile shares the answer.
        """
        waiting = self._asked.setdefault((type(read), read), [])
        waiting.append((then, failed or self.on_failure))
        if len(waiting) == 1:
            self.reads.append(read)

    def answer(self, read: Question, result: Any) -> None:
        """The store has answered, or could not."""
        for then, failed in self._asked.pop((type(read), read)):
            if not isinstance(result, MalamuteError):
                self.guard("an answer of the store", then, result, failed=failed)
            elif failed is not None:
                self.guard("a failure of the store", failed, result)

    # Faults

    def fault(self, what: str, error: Exception) -> InternalError:
        """Count and report an exception that nobody expected."""
        return self.faults.note(what, error, self.now)

    def guard(self, what: str, action: Callable[..., Any], *given: Any, failed: Failed | None = None) -> bool:
        """Do something that must not keep anything else from being done. Returns whether it went well."""
        before, self.on_failure = self.on_failure, failed
        try:
            action(*given)
        except Exception as error:
            fault = self.fault(what, error)
            if failed is not None:
                self.guard(what, failed, fault)
            return False
        finally:
            self.on_failure = before
        return True

    @contextmanager
    def failing(self, failed: Failed) -> Iterator[None]:
        """Reads requested meanwhile call `failed` if there is no answer."""
        before, self.on_failure = self.on_failure, failed
        try:
            yield
        finally:
            self.on_failure = before

    def spoil(self, what: str, error: Exception) -> None:
        """Give up this iteration: nothing of it is stored, and all that wait for that learn it."""
        self._fault = self.fault(what, error)

    @property
    def spoiled(self) -> bool:
        """Whether nothing of this iteration is stored."""
        return self._fault is not None

    def notice(self, event: str, **details: Any) -> None:
        """Notify the operator."""
        self.notices.append(Notice(event, details))

    def family_failed(self, family: str, error: Exception, times: int, **where: str) -> None:
        """A family of patterns has failed so many times there. The operator is notified of the first one."""
        self.counters.family_failures[family] += 1
        if times == 1:
            self.notice("a family of the index failed", **where, family=family, error=str(error))

    def event(self, subject: str, body: bytes = b"", /, **details: Any) -> None:
        """Publish one of the broker's own events."""
        if len(self.events) < self.events_max:
            self.events.append(Event(subject, body, details))
        else:
            self.events_dropped += self.events_max > 0

    def later(self, chore: Callable[[], None]) -> None:
        """Continue some work in the next iteration, behind earlier work."""
        self.chores.append((chore, self.on_failure))

    def go_on(self) -> None:
        """Continue the deferred work, each in its turn, until the work of this iteration is used up.

        One of them continues in any case.
        """
        for number in range(len(self.chores)):
            if number and self.work <= 0:
                return
            chore, failed = self.chores.popleft()
            self.guard("what goes on later", chore, failed=failed)

    def finish(self) -> Ready:
        """Hand over the effects, and begin the next iteration."""
        # The handed lists get nothing of the next iteration; most are empty.
        appends = self.stage.hand_over(self._fault, self.now)
        ready = Ready(appends, self.reads or (), self.sends, self.closed or (), self.notices or ())
        self.sends = []
        if self.reads:
            self.reads = []
        if self.closed:
            self.closed = []
        if self.notices:
            self.notices = []
        self._fault = None
        self.work = self.replay_work = WORK_MAX
        return ready
