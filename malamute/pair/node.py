"""A node of a pair: the thread that carries out what the rules decide.

The thread owns the rules, the link, and the directory while the node does not serve. The broker of a primary
runs elsewhere, and has the directory then: it asks for its role (`role`), and tells when it has opened its
store (`opened`) and closed it (`closed`). Calls of the register may take seconds, and have a thread of their
own. Any other thread only notes its request, and wakes this one.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import zmq

from malamute.errors import ConfigError, MalamuteError, Malformed
from malamute.journal import format as journal_format
from malamute.journal.catch_up import Asking, CatchUpSource, catch_up
from malamute.journal.disk import DiskStore
from malamute.journal.pair_record import Timelines, parting
from malamute.journal.standby import Standby
from malamute.journal.tail import Item, LogRecord, Tail
from malamute.journal.write_set import decode as decode_write_set
from malamute.journal.write_set import encode as encode_write_set
from malamute.pair import codec, rules
from malamute.pair.link import PairLink
from malamute.pair.register import Register
from malamute.pair.replication import Began, History, Shipment
from malamute.pair.rules import PairRules, Report, Role
from malamute.pair.state import Level, Member
from malamute.store.codec import CODES

SENT_BYTES = 1 << 20
"""Bytes of write sets in one frame, unless one has more."""

LEVEL = Level(journal_format.VERSION, len(CODES), codec.VERSION)
"""The level of this version."""

TICK_SECONDS = 0.1

NO_TIMELINE = 2**63 - 1
"""The timeline in the answer of a node that does not follow."""


class Serving(NamedTuple):
    """The timeline to serve in, if any; `details` of the node are for ERROR 509, and `reason` for people."""

    timeline: int
    reason: str
    details: Mapping[str, Any]
    drains: bool = False
    """Whether a primary that serves no more is to answer all that it has accepted."""
    admits: bool = False
    """Whether all that the directory had at the start is on both disks, so that clients may be let in."""


class Served(NamedTuple):
    """The store of the primary that runs, and the call that releases its outcomes up to a number.

    `lsn` is its last number before it serves.
    """

    store: DiskStore
    tail: Tail
    advance: Callable[[int], None]
    lsn: int


def now() -> float:
    """Return the seconds of a clock that counts while the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class PairNode(threading.Thread):
    """The life of a node in its pair, from `start` to `stop`; `say` tells people of an event."""

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        size: int,
        listen: str,
        urls: tuple[str, ...],
        register: Register,
        mode: rules.Mode,
        times: rules.PairTimes,
        say: Callable[[str, bool], None],
        changed: Callable[[], None],
    ) -> None:
        super().__init__(name="malamute-pair", daemon=True)
        self._directory, self._size = directory, size
        self._standby: Standby | None = Standby.open(directory, size=size)
        record = self._standby.record
        self._listen = listen
        self._member = Member(record.replica, LEVEL, listen, urls)
        self.pair = record.pair
        self._rules = PairRules(
            name,
            self._member,
            record.pair,
            self._history(self._standby),
            mode=mode,
            times=times,
            fresh=lambda: secrets.token_bytes(16),
        )
        self._rules.is_whole = record.whole
        self._times = times
        self._say, self._changed = say, changed
        self._link = PairLink(listen)
        self._register = RegisterThread(register, self._post)
        self._inbox: deque[Callable[[], None]] = deque()
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._role = Serving(0, self._rules.reason, {})
        # Of a primary
        self._serve = 0
        """The timeline that the broker is to serve in; 0 for none."""
        self._is_open = False
        """Whether a broker has the directory."""
        self._served: Served | None = None
        self._shipment: Shipment | None = None
        self._stored = 0
        self._source: CatchUpSource | None = None
        self._sent_set = self._sent = -1
        """The last write set and the last item sent to a standby that follows; -1 if none does."""
        self._drains = self._drained = self._admits = False
        # Of a standby
        self._primary: codec.Greeting | None = None
        self._asking: Asking | None = None
        self._heartbeat: codec.Heartbeat | None = None
        self._greeted: tuple[bytes, int] | None = None
        self._greets = True
        self._error: BaseException | None = None
        self._beat_at = self._asked_at = 0.0
        self._answered_at = now()

    # Calls of other threads

    def role(self) -> Serving:
        """Return the role of this node. Raises the fault that has ended its thread."""
        if self._error is not None:
            raise self._error
        with self._lock:
            return self._role

    def opened(self, served: Served) -> None:
        """Note the store that a broker has opened to serve."""
        with self._lock:
            self._served, self._stored = served, served.lsn
        self._post(self._begin_shipment)

    def stored(self, lsn: int) -> None:
        """Note that the own disk has all up to a number. Called by the writer of the broker."""
        self._stored = lsn
        self.wake()

    def drained(self) -> None:
        """Note that the broker has answered all, and has ended for a switch-over."""
        self._post(self._note_drained)

    def closed(self) -> None:
        """Note that the broker has released the directory."""
        self._post(self._take_directory)

    def switch(self, refused: Callable[[], None] = lambda: None) -> None:
        """Hand over, if this is the primary; `refused` is called without a standby in sync."""

        def ask() -> None:
            self._act(self._rules.switch_asked(now()))
            if not self._rules.is_draining:
                refused()

        self._post(ask)

    def stop(self) -> None:
        """End the thread, with a word to the other node."""
        self._ending.set()
        self.wake()
        self.join()

    def _post(self, call: Callable[[], None]) -> None:
        self._inbox.append(call)
        self.wake()

    def wake(self) -> None:
        """Have the thread look what is to be sent."""
        with suppress(BlockingIOError, OSError):
            self._sender.send(b"!")

    # The loop

    def run(self) -> None:
        """Take part in the pair until `stop`."""
        try:
            self._register.start()
            self._act(self._rules.started(now()))
            poller = zmq.Poller()
            poller.register(self._link.input, zmq.POLLIN)
            poller.register(self._receiver.fileno(), zmq.POLLIN)
            while not self._ending.is_set():
                poller.poll(int(TICK_SECONDS * 1000))
                with suppress(BlockingIOError):
                    self._receiver.recv(4096)
                self._iterate()
            self._link.send(codec.Goodbye("it stops"))
        except BaseException as error:  # raised again by `role`, in the thread of the broker
            self._error = error
        finally:
            self._end()

    def _end(self) -> None:
        self._register.finish()
        if self._source is not None:
            self._source.close()
        if self._standby is not None:
            self._standby.close()
        self._link.close()
        self._changed()

    def _iterate(self) -> None:
        while self._inbox:
            self._inbox.popleft()()
        items: list[Item] = []
        for frame in self._link.receive():
            items = self._handle(frame, items)
        self._take(items)
        self._ship()
        if self._shipment is not None:
            self._shipment.acked(self._rules.name, self._stored)
        unsynced = self._shipment.unsynced_since if self._shipment is not None and self._sent >= 0 else None
        if not self._is_waiting_for_broker:
            self._act(self._rules.tick(now(), unsynced))
        self._release()
        self._beat()
        self._show()

    @property
    def _is_waiting_for_broker(self) -> bool:
        """Whether a broker that is not to serve any more has the directory still."""
        return self._is_open and not self._serve

    def _beat(self) -> None:
        at = now()
        value = self._rules.value
        other = None if value is None else value.other(self._rules.name)
        if value is not None and other is not None:
            self._link.connect(value.members[other].link)
        if at < self._beat_at:
            return
        self._beat_at = at + self._times.heartbeat
        released = 0
        if self._shipment is not None:
            released = self._shipment.released(self._rules.counts())
        if self._greets and self._asking is None and not self._is_waiting_for_broker:
            self._greets = not self._link.send(self._greeting())
        self._link.send(codec.Heartbeat(self._rules.announces, at, max(self._sent, 0), released))
        if at - self._answered_at > 1.2 * self._times.heartbeat and self._link.is_refused():
            self._act(self._rules.connection_refused(now()))

    def _show(self) -> None:
        value, node = self._rules.value, self._rules
        primary = None if value is None else value.members.get(value.primary)
        urls = [*primary.urls] if primary is not None and node.role is Role.STANDBY else []
        lag = 0
        if self._heartbeat is not None and self._standby is not None:
            lag = max(0, self._heartbeat.lsn - self._standby.synced)
        reason = node.reason or (f"it follows {value.primary}" if value is not None else "it starts")
        serves = self._serve if not node.is_closed and not self._drains else 0
        if node.role is Role.PRIMARY and not serves:
            reason = "it hands over" if self._drains else "the standby and the register do not answer"
        role = Serving(
            serves,
            reason,
            {
                "urls": urls,
                "role": node.role.value,
                "timeline": 0 if value is None else value.timeline,
                "lag": lag,
                "reason": reason,
            },
            self._drains,
            self._admits,
        )
        with self._lock:
            is_other, self._role = self._role[:2] != role[:2], role
        if is_other:
            self._changed()

    # Actions of the rules

    def _act(self, actions: list[rules.Action]) -> None:
        for action in actions:
            match action:
                case rules.Read() | rules.Swap():
                    self._register.put(action, self._answered)
                case rules.Serve(timeline=timeline):
                    self._begin_serving(timeline)
                case rules.Follow():
                    self._greets = True
                case rules.StopIntake():
                    self._drains = True
                case rules.StopServing(reason=reason):
                    self._say(f"this node serves no more: {reason}", True)
                    self._stop_serving()
                case rules.Say(text=text, is_loud=is_loud):
                    self._say(text, is_loud)
                case _:  # CloseClients and OpenClients: the rules keep that state
                    pass

    def _answered(self, event: str, *arguments: Any) -> None:
        self._act(getattr(self._rules, event)(*arguments, now()))

    def _begin_serving(self, timeline: int) -> None:
        if self._standby is not None:
            self._standby.close()
            self._standby = None
        self._asking, self._primary = None, None
        self._serve, self._is_open, self._greets = timeline, True, True
        self._drains = self._drained = self._admits = False

    def _stop_serving(self) -> None:
        self._serve, self._sent = 0, -1
        self._drains = self._drained = False
        if self._source is not None:
            self._source.close()
            self._source = None
        with self._lock:
            self._served = None
        self._shipment = None
        if not self._is_open and self._standby is None:
            self._open_standby()

    def _take_directory(self) -> None:
        """Open the directory that a broker has released, if this node is not to serve again."""
        self._is_open = False
        if not self._serve:
            self._open_standby()
        elif not self._drains:  # clients were sent away for a while
            self._served, self._shipment, self._sent = None, None, -1

    def _open_standby(self) -> None:
        if self._standby is not None:
            self._standby.close()
            self._standby = None
        self._standby = Standby.open(self._directory, size=self._size)
        self._rules.history = self._history(self._standby)
        self._rules.is_whole = self._standby.record.whole
        self._asking, self._greets, self._greeted = None, True, None

    @staticmethod
    def _history(standby: Standby) -> History:
        return History(tuple(Began(*one) for one in standby.record.timelines), standby.synced)

    # The primary

    def _begin_shipment(self) -> None:
        served = self._served
        if served is None or not self._serve:
            return
        self._is_open, self._admits = True, False
        self._stored = max(self._stored, served.lsn)
        self._shipment = Shipment(self._rules.name, served.lsn)
        self._source, self._sent, self._greets = None, -1, True
        # Where the standby is to be, is in its answer.

    def _note_drained(self) -> None:
        self._drained = True

    def _release(self) -> None:
        served, shipment = self._served, self._shipment
        if served is None or shipment is None:
            return
        if self._drained and shipment.lsn >= served.store.lsn:
            other = self._rules.value and self._rules.value.other(self._rules.name)
            if other and shipment.synced(other) >= served.store.lsn:
                self._act(self._rules.drained(now()))
        if self._shipment is not None:
            released = self._shipment.released(self._rules.counts())
            self._admits = released >= self._shipment.began
            served.advance(released)

    def _greeting(self) -> codec.Greeting:
        timelines: Timelines = ()
        synced, applied, whole = 0, 0, True
        if self._standby is not None:
            record = self._standby.record
            timelines, whole = record.timelines, record.whole
            synced, applied = self._standby.synced, self._standby.lsn
        elif self._served is not None and self._served.store.pair_record is not None:
            timelines = self._served.store.pair_record.timelines
            synced = applied = self._served.store.lsn
        return codec.Greeting(
            self.pair,
            self._rules.name,
            self._member.replica,
            LEVEL,
            tuple(Began(*one) for one in timelines[-codec.TIMELINES_MAX :]),
            synced,
            applied,
            self._rules.announces if self._served is not None else 0,
            whole,
            self._size,
        )

    def _welcome(self, greeting: codec.Greeting) -> None:
        """Have a standby follow from where it is, or catch up."""
        served, shipment = self._served, self._shipment
        if served is None or shipment is None or not self._serve:
            return
        if self._source is not None:
            self._source.close()
        self._source, self._sent = served.store.catch_up_source(served.tail), -1
        record = served.store.pair_record
        theirs = tuple((one.timeline, one.lsn) for one in greeting.history.timelines)
        part = parting(theirs, record.timelines if record else ())
        follows = greeting.is_whole and (part is None or part > greeting.applied)
        if not self._link.send(self._greeting()):
            self._greets = True
            return
        if follows and served.tail.since(greeting.applied) is not None:
            shipment.joined(greeting.name, greeting.applied)
            self._sent_set = self._sent = greeting.applied
        else:
            self._link.send(codec.CatchUp(self._serve, b""))

    def _ship(self) -> None:
        served, shipment = self._served, self._shipment
        if served is None or shipment is None or self._sent < 0:
            return
        items = served.tail.since(self._sent_set)
        if items is None:
            self._sent = -1
            self._link.send(codec.CatchUp(self._serve, b""))
            return
        for item in items:
            if shipment.is_full:
                return
            if isinstance(item, LogRecord) and item.lsn <= self._sent:
                continue
            if not self._send_item(shipment, item):
                return

    def _send_item(self, shipment: Shipment, item: Item) -> bool:
        frame: codec.Frame
        if isinstance(item, LogRecord):
            size = len(item.data)
            frame = codec.RecordFrame(self._serve, self._sent, item.lsn, item.data)
        else:
            data = encode_write_set(item)
            size = len(data)
            frame = codec.WriteSets(self._serve, item.after, item.lsn, (data,))
        if not self._link.send(frame):
            return False
        shipment.sent(item.lsn, size, now())
        self._sent = max(self._sent, item.lsn)
        if not isinstance(item, LogRecord):
            self._sent_set = item.lsn
        return True

    # The standby

    def _take(self, items: list[Item]) -> None:
        """Make items durable, and say so."""
        standby = self._standby
        if standby is None or not items:
            return
        try:
            standby.take(items)
        except MalamuteError as error:
            self._failed(f"the standby begins again: {error.text}")
            return
        self._rules.history = self._history(standby)
        self._tell_synced()

    def _failed(self, text: str) -> None:
        self._say(text, False)
        self._open_standby()

    def _tell_synced(self) -> None:
        """Answer a heartbeat; with how far the directory is in the timeline of the primary, if it follows.

        Records of before that timeline are no part of it: the primary may have lost them.
        """
        standby, beat = self._standby, self._heartbeat
        if standby is None or beat is None:
            return
        timelines = standby.record.timelines
        last, begin = timelines[-1] if timelines else (0, 0)
        if self._asking is not None or not standby.record.whole or not beat.serves or last != beat.serves:
            self._link.send(codec.Synced(NO_TIMELINE, 0, 0, beat.at))
            return
        synced = standby.synced if standby.lsn >= begin else standby.lsn
        self._link.send(codec.Synced(beat.serves, synced, standby.lsn, beat.at))

    # Frames

    def _handle(self, frame: codec.Frame, items: list[Item]) -> list[Item]:
        """Handle a frame; return the items that are to be made durable together."""
        self._answered_at = now()
        if isinstance(frame, codec.RecordFrame | codec.WriteSets):
            if self._primary is not None and frame.timeline == self._primary.serves and self._asking is None:
                if isinstance(frame, codec.RecordFrame):
                    return [*items, LogRecord(frame.lsn, frame.data)]
                return [*items, *map(decode_write_set, frame.data)]
            return items
        # Any other frame is behind the items before it.
        self._take(items)
        handler = _HANDLERS[type(frame)]
        handler(self, frame)
        return []

    def _greeted_by(self, greeting: codec.Greeting) -> None:
        report = Report(
            greeting.pair,
            greeting.name,
            greeting.replica,
            greeting.level,
            greeting.history,
            greeting.serves,
            greeting.is_whole,
        )
        if refusal := self._rules.refusal(report):
            self._say(f"the other node is refused: {refusal}", True)
            self._link.send(codec.GreetingRefused(401, refusal))
            return
        if self._is_waiting_for_broker:
            return
        self._act(self._rules.peer_greeted(report, now()))
        if self._serve:
            if not greeting.serves:
                self._welcome(greeting)
            return
        is_other = self._greeted != (greeting.replica, greeting.serves)
        self._greeted = (greeting.replica, greeting.serves)
        self._greets |= is_other
        if greeting.serves:
            self._follow(greeting)

    def _follow(self, greeting: codec.Greeting) -> None:
        standby = self._standby
        self._primary = greeting
        if standby is None or not standby.record.whole:
            return
        # Its history is another one if this raises: the primary has it catch up.
        with suppress(MalamuteError):
            standby.follow(tuple((one.timeline, one.lsn) for one in greeting.history.timelines))
            self._rules.history = self._history(standby)

    def _beaten(self, beat: codec.Heartbeat) -> None:
        self._heartbeat = beat
        self._act(self._rules.peer_heard(beat.serves, now()))
        if self._standby is not None:
            is_other = bool(beat.serves) and (self._primary is None or self._primary.serves != beat.serves)
            is_late = now() - self._asked_at > self._times.lease
            if self._asking is not None and (is_other or is_late):
                self._failed("the catch-up begins again: the primary did not answer")
            # Where the primary has sent more, something was lost on the way.
            lacks = beat.lsn > self._standby.synced and bool(beat.serves)
            self._greets |= is_other or (self._asking is None and lacks)
            self._tell_synced()

    def _synced(self, synced: codec.Synced) -> None:
        shipment = self._shipment
        self._act(self._rules.peer_answered(synced.at, now()))
        value = self._rules.value
        other = None if value is None else value.other(self._rules.name)
        if shipment is None or other is None or self._sent < 0 or synced.timeline != self._serve:
            return
        with suppress(Malformed):
            shipment.acked(other, synced.synced)
            released = shipment.released(self._rules.counts())
            self._act(self._rules.peer_synced(synced.synced, released, now()))

    def _caught_up(self, part: codec.CatchUp) -> None:
        if self._serve:
            if self._source is not None:
                try:
                    answer = self._source.answer(part.data)
                except MalamuteError as error:
                    self._say(f"a catch-up is given up: {error.text}", True)
                    return
                self._link.send(codec.CatchUp(self._serve, answer))
            return
        standby = self._standby
        # A second word to begin is an answer to a greeting of before the first one.
        if standby is None or bool(part.data) == (self._asking is None):
            return
        try:
            if not part.data:
                self._say("the standby catches up", False)
                self._rules.is_whole = False
                self._asking = catch_up(standby)
                request = next(self._asking)
            else:
                assert self._asking is not None
                request = self._asking.send(part.data)
            self._asked_at = now()
            self._link.send(codec.CatchUp(part.timeline, request))
        except StopIteration:
            self._say("the standby has caught up", False)
            self._asking, self._greets = None, True
            self._rules.history, self._rules.is_whole = self._history(standby), True
        except Exception as error:  # answers come from another process, and may be anything
            self._failed(f"the catch-up begins again: {error}")

    def _left(self, goodbye: codec.Goodbye) -> None:
        self._sent = -1
        self._act(self._rules.peer_left(now(), goodbye.reason))

    def _handed_over(self, frame: codec.HandOver) -> None:
        if self._serve:
            self._act(self._rules.switch_asked(now()))
        else:
            self._act(self._rules.handed_over(now()))

    def _refused(self, refused: codec.GreetingRefused) -> None:
        self._say(f"the other node refuses this one: {refused.text}", True)


_HANDLERS: Mapping[type[Any], Callable[[PairNode, Any], None]] = {
    codec.Greeting: PairNode._greeted_by,
    codec.Heartbeat: PairNode._beaten,
    codec.Synced: PairNode._synced,
    codec.CatchUp: PairNode._caught_up,
    codec.Goodbye: PairNode._left,
    codec.HandOver: PairNode._handed_over,
    codec.GreetingRefused: PairNode._refused,
}


class RegisterThread(threading.Thread):
    """Calls of the register, one after the other; each posts its outcome as an event of the rules."""

    def __init__(self, register: Register, post: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(name="malamute-register", daemon=True)
        self._register = register
        self._post = post
        self._is_proved = False
        self._calls: SimpleQueue[tuple[rules.Read | rules.Swap, Callable[..., None]] | None] = SimpleQueue()

    def put(self, action: rules.Read | rules.Swap, answered: Callable[..., None]) -> None:
        """Carry out an action, and call `answered` with the name of the event and its arguments."""
        self._calls.put((action, answered))

    def finish(self) -> None:
        """End the thread after its last call; nobody waits for it."""
        self._calls.put(None)

    def run(self) -> None:
        """Carry out actions until `finish`."""
        while (call := self._calls.get()) is not None:
            action, answered = call
            event = self._read() if isinstance(action, rules.Read) else self._swap(action)
            self._post(lambda event=event, answered=answered: answered(*event))  # type: ignore[misc]

    def _read(self) -> tuple[Any, ...]:
        """Read, and at the start of the node prove that the engine compares: each life begins by a read."""
        try:
            if not self._is_proved:
                self._register.prove()
                self._is_proved = True
            return ("register_read", *self._register.read())
        except (ConfigError, Malformed) as error:
            return "register_refused", error.text
        except Exception:  # libraries of engines raise anything
            return ("register_away",)

    def _swap(self, action: rules.Swap) -> tuple[Any, ...]:
        try:
            if not self._register.swap(action.value, action.version):
                return ("swap_refused",)
            value, version = self._register.read()
        except Exception:  # the swap may be done
            return ("swap_unknown",)
        if value is None or value.change != action.value.change:
            return ("swap_unknown",)
        return "swap_done", version
