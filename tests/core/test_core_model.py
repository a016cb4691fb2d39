"""The promises, whatever clients and the disk do: the core against a naive model.

`MALAMUTE_EXAMPLES=2000` looks longer.
"""

from __future__ import annotations

import os
import sys

from core_model import NAMES, PATTERNS, SERVICE, STREAMS, SUBJECTS, Client, World, mailbox_of
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from malamute.protocol.messages import Publish, Reply, Request, Send

CLIENTS = st.sampled_from(NAMES)
ADDRESSES = st.sampled_from([name for name in NAMES if name != "nobody"])
CREDITS = st.tuples(st.sampled_from([1, 2, 5, -1]), st.sampled_from([0, 9, 60, -1]))
PATTERN = st.sampled_from(PATTERNS)
BOOLEANS = st.booleans()
OPTIONS = st.none() | st.fixed_dictionaries(
    {"correlation": st.integers(1, 2)},
    optional={"priority": st.integers(0, 2), "delay": st.sampled_from([0, 2000])},
)
SOURCES_MAX = 3


class Brokers(RuleBasedStateMachine):
    """Clients that keep the protocol, a disk that is slow and fails, and a broker that dies."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    def client(self, name: str) -> Client:
        client = self.world.clients[name]
        if not client.open:
            self.world.hello(client)
        return client

    def columns(self, data, number):
        subjects = data.draw(st.lists(st.sampled_from(SUBJECTS), min_size=number, max_size=number))
        return subjects, self.world.bodies(number)

    def options(self, data, number):
        return data.draw(st.none() | st.lists(OPTIONS, min_size=number, max_size=number))

    @rule(
        name=CLIENTS,
        stream=st.sampled_from(STREAMS),
        number=st.integers(1, 4),
        numbered=BOOLEANS,
        data=st.data(),
    )
    def publish(self, name, stream, number, numbered, data):
        message = Publish(stream, 0, *self.columns(data, number))
        self.world.new_command(self.client(name), message, numbered=numbered)

    @rule(name=CLIENTS, to=ADDRESSES, number=st.integers(1, 3), numbered=BOOLEANS, data=st.data())
    def send(self, name, to, number, numbered, data):
        message = Send(to, 0, *self.columns(data, number), self.options(data, number))
        self.world.new_command(self.client(name), message, numbered=numbered)

    @rule(name=CLIENTS, number=st.integers(1, 3), numbered=BOOLEANS, data=st.data())
    def request(self, name, number, numbered, data):
        message = Request("work", 0, *self.columns(data, number), self.options(data, number))
        self.world.new_command(self.client(name), message, numbered=numbered)

    @rule(name=CLIENTS, stream=st.sampled_from(STREAMS), pattern=PATTERN, credit=CREDITS, data=st.data())
    def subscribe(self, name, stream, pattern, credit, data):
        client = self.client(name)
        if len(client.sources) < SOURCES_MAX:
            starts = ["new", "first", f"seq:{data.draw(st.integers(1, self.world.next[stream] + 1))}"]
            start = data.draw(st.sampled_from(starts))
            self.world.subscribe(client, max(client.sources, default=0) + 1, stream, pattern, start, credit)

    @rule(name=CLIENTS, pattern=PATTERN, credit=CREDITS, timeout=st.sampled_from([0, 4000]))
    def offer(self, name, pattern, credit, timeout):
        client = self.client(name)
        if len(client.sources) < SOURCES_MAX:
            self.world.offer(client, max(client.sources, default=0) + 1, pattern, credit, timeout)

    @rule(name=CLIENTS, worker=CLIENTS, number=st.integers(1, 3), data=st.data())
    def put_to_work(self, name, worker, number, data):
        """What follows needs a worker that holds requests, which chance alone seldom brings about."""
        self.offer(worker, "#", (-1, -1), 0)
        self.request(name, number, True, data)
        self.world.settle()

    @rule(name=CLIENTS, credit=CREDITS, data=st.data())
    def credit(self, name, credit, data):
        client = self.client(name)
        self.world.credit(client, data.draw(st.sampled_from(sorted({0, *client.sources}))), *credit)

    @rule(name=CLIENTS, data=st.data())
    def cancel(self, name, data):
        client = self.client(name)
        if sources := sorted(client.sources.keys() - {0}):
            self.world.cancel(client, data.draw(st.sampled_from(sources)))

    def held(self, client, kinds):
        """What a client holds: pairs of a source id and a sequence."""
        return sorted(
            (message.holder[1], sequence)
            for key, queue in self.world.queues.items()
            for sequence, message in queue.items()
            if key[0] in kinds and message.holder and message.holder[0] == client.name
        )

    def some_held(self, client, kinds, data):
        """A source id, and some of what the client holds from it."""
        held = self.held(client, kinds)
        if not held:
            return None
        source_id = data.draw(st.sampled_from(held))[0]
        sequences = [sequence for source, sequence in held if source == source_id]
        return source_id, data.draw(st.lists(st.sampled_from(sequences), min_size=1, max_size=3, unique=True))

    @rule(name=CLIENTS, data=st.data())
    def acknowledge(self, name, data):
        client = self.client(name)
        if some := self.some_held(client, ("mailbox", "service"), data):
            self.world.ack(client, *some)

    @rule(name=CLIENTS, data=st.data(), delay=st.sampled_from([-1, 0, 1000]))
    def give_back(self, name, data, delay):
        client = self.client(name)
        if some := self.some_held(client, ("mailbox", "service"), data):
            self.world.nak(client, *some, delay)

    @rule(name=CLIENTS, data=st.data(), verb=st.sampled_from(["release", "reject", "progress"]))
    def say(self, name, data, verb):
        client = self.client(name)
        if some := self.some_held(client, ("mailbox", "service"), data):
            getattr(self.world, verb)(client, *some)

    @rule(name=CLIENTS, to=st.none() | ADDRESSES, correlation=st.integers(1, 2))
    def withdraw(self, name, to, correlation):
        self.world.withdraw(self.client(name), mailbox_of(to) if to else SERVICE, correlation)

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0]))
    def wait(self, seconds):
        self.world.wait(seconds)

    @rule(name=CLIENTS, numbered=BOOLEANS, data=st.data())
    def reply(self, name, numbered, data):
        client = self.client(name)
        if some := self.some_held(client, ("service",), data):
            source_id, sequences = some
            finals = [data.draw(st.booleans()) for _ in sequences]
            message = Reply(source_id, 0, sequences, finals, self.world.bodies(len(sequences)))
            self.world.new_command(client, message, numbered=numbered)

    @rule(name=CLIENTS)
    def say_hello(self, name):
        self.world.hello(self.world.clients[name])

    @rule(name=CLIENTS)
    def lose(self, name):
        self.world.lost(self.client(name))

    @rule(name=CLIENTS)
    def block(self, name):
        self.world.block(self.client(name))

    @rule(name=CLIENTS)
    def unblock(self, name):
        self.world.unblock(self.client(name))

    @precondition(lambda self: self.world.bench.appends)
    @rule()
    def commit(self):
        self.world.commit()

    @precondition(lambda self: self.world.bench.appends)
    @rule()
    def fail(self):
        self.world.fail()

    @precondition(lambda self: self.world.bench.reads)
    @rule()
    def read(self):
        self.world.read()

    @rule()
    def settle(self):
        self.world.settle()

    @precondition(lambda self: any(client.open for client in self.world.clients.values()))
    @rule()
    def crash(self):
        self.world.crash()

    def teardown(self):
        if sys.exc_info()[0] is None:
            self.world.drain()


EXAMPLES = int(os.environ.get("MALAMUTE_EXAMPLES", "250"))
PARTS = 5
"""The examples are several tests, each with others: for one alone they take too long where much else runs."""


def part(number: int) -> type:
    """A test with a part of the examples. Which these are goes by the name of the class."""
    machine = type(f"Brokers{number}", (Brokers,), {})
    machine.TestCase.settings = settings(
        max_examples=EXAMPLES // PARTS,
        stateful_step_count=60,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    return machine.TestCase


for number in range(PARTS):
    globals()[f"TestTheBrokerKeepsItsPromises{number}"] = part(number)
