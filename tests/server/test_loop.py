"""The loop goes on after a fault of ours, ends with a worker of its own, and confirms what it took."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic

import pytest
import zmq

from malamute.core.broker import Core
from malamute.core.iteration.effects import ClockStep
from malamute.core.iteration.settings import Settings
from malamute.journal.disk import DiskStore
from malamute.journal.memory import MemoryStore
from malamute.journal.store import Store, no_progress
from malamute.protocol.batch import pack_record
from malamute.protocol.codec import Protocol2, decode, encode
from malamute.protocol.messages import (
    MAILBOX,
    Change,
    Credit,
    Deliver,
    Error,
    Hello,
    Ping,
    Pong,
    Progress,
    Publish,
    Query,
    Send,
    Stored,
    Welcome,
)
from malamute.server.clock import Clock
from malamute.server.loop import DRAIN_MS, LOOK_SECONDS, SUSPENDED_SECONDS, WAKING_SECONDS, Loop
from malamute.server.supervisor import Supervisor
from malamute.server.transport import Transport
from malamute.server.worker import Load, no_configuration
from malamute.store.policies import QueuePolicy

WAIT_MS = 60_000


class Disk(MemoryStore):
    """A store with a fault of ours in it, for one stream, and the end of its thread, for another.

    For a third one it is slow, until `slow` is set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writing, self.slow = threading.Event(), threading.Event()

    def write(self, operations):
        streams = {getattr(operation, "stream", "") for operation in operations}
        if "slow" in streams:
            self.writing.set()
            assert self.slow.wait(WAIT_MS / 1000)
        assert "broken" not in streams, "a fault"
        if "lost" in streams:
            raise SystemExit
        super().write(operations)


class Running:
    """A loop on a thread of its own, and a client of it."""

    def __init__(
        self,
        context: zmq.Context,
        store: Store | None = None,
        settings: Settings | None = None,
        load: Load = no_configuration,
    ) -> None:
        self.store = store or Disk()
        transport = Transport(context, {})
        clock = Clock()
        recovered = self.store.recover()
        core = Core(clock(), settings, recovered)
        self.loop = Loop(core, self.store, [transport], clock=clock, load=load)
        endpoint = transport.bind("tcp://127.0.0.1:*")
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        self.client = context.socket(zmq.DEALER)
        self.client.setsockopt(zmq.ROUTING_ID, b"\x01" * 16)
        self.client.connect(endpoint)

    def _run(self) -> None:
        try:
            self.loop.run()
        except BaseException as error:
            self.failure = error

    def say(self, message) -> None:
        self.client.send_multipart(encode(message))

    def hear(self):
        assert self.client.poll(WAIT_MS), "the broker is silent"
        return decode(self.client.recv_multipart())

    def join(self) -> None:
        self.thread.join(WAIT_MS / 1000)
        assert not self.thread.is_alive()


@pytest.fixture
def running(context) -> Iterator[Running]:
    running = Running(context)
    yield running
    running.loop.stop()
    running.join()


def publish(stream: str, number: int = 1) -> Publish:
    return Publish(stream, number, ["a"], [pack_record(None, b"x")])


def test_it_serves(running):
    running.say(Hello([2], "alice"))
    assert isinstance(running.hear(), Welcome)
    running.say(publish("s"))
    assert running.hear() == Stored([[1, 1, 1]])


def test_it_measures_its_iterations(running):
    running.say(Hello([2], "alice"))
    assert isinstance(running.hear(), Welcome)
    running.say(Query(1, "totals", {}))
    found = running.hear().value["iterations"]
    assert found["count"] >= 1
    assert found["seconds"] >= found["longest_seconds"] > 0


def test_what_is_no_command_is_answered_and_the_loop_continues(running):
    running.client.send_multipart([b"\xc1"])
    error = running.hear()
    assert isinstance(error, Error)
    assert error.code == 400
    running.say(Hello([2], "alice"))
    running.say(Ping())
    assert isinstance(running.hear(), Welcome)
    assert running.hear() == Pong()


def test_a_fault_in_a_thread_refuses_what_met_it_and_the_broker_continues(running):
    running.say(Hello([2], "alice"))
    assert isinstance(running.hear(), Welcome)
    running.say(publish("broken"))
    error = running.hear()
    assert (error.code, error.about, error.ref) == (500, 2, 1)
    running.say(publish("s", 2))
    assert running.hear() == Stored([[2, 2, 1]])
    running.say(Query(1, "status", {}))
    assert running.hear().value["faults"] > 0


def test_a_worker_that_is_no_more_ends_the_loop_with_its_error(running):
    running.say(Hello([2], "alice"))
    assert isinstance(running.hear(), Welcome)
    running.say(publish("lost"))
    running.join()
    assert isinstance(running.failure, SystemExit)


def test_a_fault_of_the_decoder_is_an_error_and_the_broker_continues(running, monkeypatch):
    monkeypatch.setattr(Protocol2, "decode", staticmethod(lambda frames: 1 // 0))
    running.say(Hello([2], "alice"))
    assert running.hear().code == 500
    monkeypatch.undo()
    running.say(Hello([2], "alice"))
    assert isinstance(running.hear(), Welcome)


def test_what_cannot_be_encoded_is_an_error_and_the_broker_continues(running, monkeypatch):
    running.say(Hello([2], "alice"))
    assert isinstance(running.hear(), Welcome)
    monkeypatch.setitem(running.loop.core.commands.queries.at_once, "status", lambda query: 2**80)
    running.say(Query(5, "status", {}))
    error = running.hear()
    assert (error.code, error.about, error.ref) == (500, 11, 5)
    running.say(Ping())
    assert running.hear() == Pong()


def test_a_loop_that_is_stopped_confirms_what_it_has_taken(running):
    running.say(Hello([2], "alice"))
    for number in range(1, 101):
        running.say(publish("s", number))
    assert isinstance(running.hear(), Welcome)
    confirmed = running.hear().ranges[-1][1]
    running.loop.stop()
    running.join()
    assert running.failure is None
    taken = running.loop.core.streams.by_name["s"].messages
    while confirmed < taken:
        confirmed = running.hear().ranges[-1][1]
    assert confirmed == taken


class Counted(Supervisor):
    """Counts the iterations from when the loop is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped = threading.Event()
        self.several = threading.Event()
        self.count = 0

    def stopping(self) -> None:
        self.stopped.set()

    def iterated(self) -> None:
        self.count += self.stopped.is_set()
        if self.count == 20:
            self.several.set()


def test_what_peers_say_while_the_broker_stops_does_not_keep_its_loop_busy(running):
    """The disk is slow, and input waits that is not read any more."""
    supervisor = running.loop._supervisor = Counted()
    running.say(Hello([2], "alice"))
    assert isinstance(running.hear(), Welcome)
    running.store.slow.clear()
    running.say(publish("slow"))
    assert running.store.writing.wait(WAIT_MS / 1000)
    running.loop.stop()
    assert supervisor.stopped.wait(WAIT_MS / 1000)
    begun = monotonic()
    for number in range(2, 100):
        running.say(publish("s", number))
    assert supervisor.several.wait(WAIT_MS / 1000)
    assert monotonic() - begun > 20 * DRAIN_MS / 1000 / 2
    running.store.slow.set()
    running.join()
    assert running.hear() == Stored([[1, 1, 1]])


class Copied(DiskStore):
    """A store of which a backup takes for ever."""

    def backup(self, directory, progress=no_progress):
        self.copying.set()
        while True:
            progress(1, 2)


def test_a_broker_that_is_stopped_does_not_complete_a_backup(context, tmp_path):
    store = Copied.open(tmp_path / "data", size=1 << 20, preallocate=False)
    store.copying = threading.Event()
    running = Running(context, store, Settings(backups=str(tmp_path)))
    running.say(Hello([2], "alice"))
    assert isinstance(running.hear(), Welcome)
    running.say(Change(1, "journal.backup", {"directory": "monday"}))
    assert store.copying.wait(WAIT_MS / 1000)
    running.loop.stop()
    running.join()
    assert running.failure is None


def test_a_broker_that_is_stopped_does_not_wait_for_a_file_that_cannot_be_read(context):
    """As a configuration on a disk that hangs, or in a pipe that nobody writes to."""
    reading, done = threading.Event(), threading.Event()

    def load():
        reading.set()
        done.wait()
        return no_configuration()

    running = Running(context, load=load)
    running.loop.reload()
    assert reading.wait(WAIT_MS / 1000)
    running.loop.stop()
    running.thread.join(WAIT_MS / 1000)
    stopped = not running.thread.is_alive()
    done.set()
    running.join()
    assert stopped
    assert running.failure is None


PEER = b"\x01" * 16
STEP_SECONDS = 1.9
"""Less than what is taken for a host that stood still."""
ACK_TIMEOUT = 20.0


class Told(Clock):
    """A clock that is set, and what there is to report of the wall clock."""

    def __init__(self, now) -> None:
        super().__init__()
        self.now = now
        self.step = None

    def __call__(self) -> float:
        return self.now()

    def look(self, now: float) -> ClockStep | None:
        step, self.step = self.step, None
        return step


class Stepped:
    """A loop that iterates when asked to, with a clock that is set."""

    def __init__(self, context: zmq.Context) -> None:
        self.context = context
        self.now = 1_000.0
        self.transport = Transport(context, {})
        self.store = Disk()
        self.clock = Told(lambda: self.now)
        settings = Settings(queues=lambda kind, name: QueuePolicy(ack_timeout_seconds=ACK_TIMEOUT))
        self.loop = Loop(Core(self.now, settings), self.store, [self.transport], clock=self.clock)
        self.endpoint = self.transport.bind("tcp://127.0.0.1:*")
        self.loop._threads.start()

    def connect(self) -> zmq.Socket:
        client = self.context.socket(zmq.DEALER)
        client.setsockopt(zmq.ROUTING_ID, PEER)
        client.setsockopt(zmq.RECONNECT_IVL, -1)
        client.connect(self.endpoint)
        return client

    def go_round(self, seconds: float = 0.0) -> None:
        """Once, without waiting, so many seconds later."""
        self.now += seconds
        self.loop._results.wake()
        self.loop._iterate()

    def take(self, client: zmq.Socket, *messages) -> None:
        """Have messages there, and go round once."""
        for message in messages:
            client.send_multipart(encode(message))
        assert self.transport.socket.poll(WAIT_MS)
        self.loop._iterate()

    @property
    def session(self):
        return self.loop.core.sessions.by_peer[PEER]


@pytest.fixture
def stepped(context) -> Iterator[Stepped]:
    stepped = Stepped(context)
    yield stepped
    stepped.loop._close()


def hear(client: zmq.Socket):
    assert client.poll(WAIT_MS), "the broker is silent"
    return decode(client.recv_multipart())


def test_a_hello_counts_that_is_there_when_the_loss_of_the_old_connection_is_found(stepped):
    old = stepped.connect()
    stepped.take(old, Hello([2], "alice"))
    assert isinstance(hear(old), Welcome)
    new = stepped.connect()
    new.send_multipart(encode(Hello([2], "alice")))
    assert stepped.transport.socket.poll(WAIT_MS)
    stepped.transport.lost.append(PEER)  # as a send to the old connection finds it
    stepped.loop._iterate()
    assert hear(new).resumed
    assert stepped.session.open
    stepped.take(new, Ping())
    while (message := hear(new)) != Pong():
        assert isinstance(message, Ping)


def test_a_new_connection_with_a_known_routing_id_takes_over_and_the_old_one_is_nobody(stepped):
    old = stepped.connect()
    stepped.take(old, Hello([2], "alice"))
    assert isinstance(hear(old), Welcome)
    new = stepped.connect()
    stepped.take(new, Hello([2], "alice"))
    assert hear(new).resumed
    old.send_multipart(encode(publish("s")))
    old.close(0)
    stepped.take(new, publish("t"))
    assert stepped.session.open
    assert "s" not in stepped.loop.core.streams.by_name
    assert stepped.loop.core.streams.by_name["t"].messages == 1


def test_what_came_while_the_host_stood_still_is_read_before_anybody_is_late(stepped):
    """The worker reported in time, and its report waits in the socket."""
    client = stepped.connect()
    stepped.take(client, Hello([2], "alice"), Send("alice", 0, ["a"], [pack_record(None, b"x")]))
    stepped.take(client, Credit(MAILBOX, 1, -1))
    assert isinstance(hear(client), Welcome)
    while not client.poll(1) or not isinstance(hear(client), Deliver):
        stepped.go_round(0.01)
    stepped.go_round(100 * ACK_TIMEOUT)
    stepped.now += WAKING_SECONDS / 2
    stepped.take(client, Progress(MAILBOX, [[1, 1]]))
    stepped.go_round(WAKING_SECONDS / 2)
    assert stepped.session.holding == 1, "nobody was late: the time stood still"
    while stepped.session.holding:
        stepped.go_round(STEP_SECONDS)
    assert stepped.now >= 1_000 + 101 * ACK_TIMEOUT


def test_a_step_of_the_clock_on_the_wall_is_shown_to_the_core_once(stepped):
    stepped.clock.step = ClockStep("followed", 3_600.0, 3_600.0)
    stepped.go_round()
    stepped.go_round()
    assert stepped.loop.core.effects.ahead == 3_600.0


def due_in(stepped: Stepped, monkeypatch, seconds: float) -> None:
    monkeypatch.setattr(stepped.loop.core, "next_deadline", lambda: stepped.now + seconds)


@pytest.mark.parametrize(
    ("seconds", "timeout_ms"),
    [(-5.0, 0), (0.0, 0), (0.0004, 1), (0.0025, 3), (0.9985, 999), (5.0, 1_000)],
)
def test_the_loop_waits_until_something_is_due_and_no_longer(stepped, monkeypatch, seconds, timeout_ms):
    """libzmq counts whole milliseconds: it wakes at most one too late, and never before."""
    due_in(stepped, monkeypatch, seconds)
    assert stepped.loop._timeout_ms(stepped.now) == timeout_ms


@pytest.mark.parametrize(("seconds", "ticks"), [(-5.0, 1), (0.0, 1), (0.0004, 0), (5.0, 0)])
def test_the_core_is_told_that_time_has_passed_only_when_something_is_due(
    stepped, monkeypatch, seconds, ticks
):
    ticked = []
    monkeypatch.setattr(stepped.loop.core, "tick", ticked.append)
    due_in(stepped, monkeypatch, seconds)
    stepped.go_round()
    assert len(ticked) == ticks


def test_what_is_due_is_no_reason_to_hurry_while_it_reads_what_came_before(stepped, monkeypatch):
    """No peer is late then, so that nothing is done about it: the loop would go round without an end."""
    due_in(stepped, monkeypatch, -1.0)
    stepped.go_round(SUSPENDED_SECONDS + 2.0)
    assert stepped.loop._timeout_ms(stepped.now) == LOOK_SECONDS * 1000


def test_an_edge_is_asked_for_commands_only_where_there_is_input(stepped, monkeypatch):
    stepped.go_round()  # the monitor reports the listeners
    asked = []
    receive = stepped.transport.receive
    monkeypatch.setattr(stepped.transport, "receive", lambda: asked.append(1) or receive())
    stepped.go_round()
    assert not asked
    client = stepped.connect()
    stepped.take(client, Hello([2], "alice"))
    assert asked
    assert isinstance(hear(client), Welcome)
