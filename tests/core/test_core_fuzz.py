"""Anything that clients say, and anything that the disk answers: the core never raises, and starts again.

The strategies are made from the tables of the protocol, so no command, no topic and no argument can be left
out. Names, sequences and sources are drawn from a few, so that commands meet what others have made. Now and
then a broker is killed or stopped, and another one starts on what is stored, perhaps with lower limits.

`MALAMUTE_DEPTH=50` looks longer, and `make fuzz` at what nobody has looked at.
"""

from __future__ import annotations

from typing import Any

import msgpack
import wire_strategies as wire
from core_bench import Bench, check_accounts, peer_id
from depth import DEPTH
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from malamute.core.queue.source import QueueSource
from malamute.errors import InternalError, StorageFull, StoreError
from malamute.protocol.batch import pack_record
from malamute.protocol.codec import encode
from malamute.protocol.limits import Limits
from malamute.protocol.messages import (
    BY_TYPE,
    SPECS,
    VERSION,
    Ack,
    Cancel,
    Change,
    Credit,
    Hello,
    Nak,
    Offer,
    Ping,
    Pong,
    Progress,
    Publish,
    Query,
    Reject,
    Release,
    Reply,
    Request,
    Rule,
    Send,
    Spec,
    Subscribe,
)
from malamute.store.policies import QueuePolicy, StreamRetention

CLIENTS = ("ann", "bob", "cat")
COMMANDS = [spec for spec in SPECS if spec.opcode < 64]
NAMES = st.sampled_from(["s", "t", "ann", "bob", "w", "$sys", "kept", "live"])
SEQUENCES = st.integers(1, 4)
RECORDS = st.sampled_from(
    [pack_record(None, b"x"), pack_record({"n": 1, "lat": 1.0, "lon": 2.0}, b"y" * 300), b"\xff", b""]
)
SCALARS = st.sampled_from([0, 1, -1, True, "", "a", "#", "n", 1.5, None, 2**63, b"x"])
CRITERIA = st.lists(
    st.tuples(
        st.sampled_from(["all", "exact", "prefix", "topic", "topic-amqp", "regex", "fields", "geo", "none"]),
        st.sampled_from(["", "a", "a.*", "#", "n=1", "(", {"n": 1}, {"circle": [1, 2, 300]}, ["n", True]])
        | wire.PLAIN,
    ).map(list),
    min_size=1,
    max_size=2,
)
WHERE = st.sampled_from(
    ["", "n = 1", "n > 0 or not exists m", "subject like 'a%'", "n =", "reason = 'rejected'"]
)
STARTS = st.sampled_from(
    [
        "new",
        "first",
        "last",
        "last-per-subject",
        "seq:1",
        "seq:9",
        "time:10000",
        "since:1s",
        "since:999999d",
        "x",
    ]
)
RANGES = st.lists(st.tuples(SEQUENCES, SEQUENCES).map(lambda pair: sorted(pair)), min_size=1, max_size=2)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "correlation": st.sampled_from([1, "c"]),
        "id": st.sampled_from(["i", "j"]),
        "tracker": st.sampled_from(["t", "u"]),
        "ttl": st.sampled_from([1, 1000, 10**9]),
        "priority": st.integers(0, 9),
        "delay": st.sampled_from([0, 1000, 10**9]),
        "at": st.sampled_from([0, 1_700_000_003 * 10**9, 2**63 - 1]),
        "reply_to": st.sampled_from(["ann", "bob", "$x"]),
        "key": st.sampled_from(["k", "l"]),
        "immediate": st.booleans(),
        "odd": SCALARS,
    },
)

FEW: dict[str, st.SearchStrategy[Any]] = {
    "name": NAMES,
    "address": NAMES | st.just(""),
    "number": st.integers(0, 4),
    "ref": st.integers(0, 4),
    "sequence": SEQUENCES,
    "source": st.integers(0, 3),
    "new source": st.integers(1, 3),
    "credit": st.sampled_from([-1, 0, 1, 2, 500]),
    "criteria": CRITERIA,
    "long text": WHERE,
    "words": STARTS,
    "ranges": RANGES,
    "duration": st.sampled_from([0, 1, 1000]),
    "delay": st.sampled_from([-1, 0, 1000]),
    "correlation": st.sampled_from([1, "c"]),
    "rows": st.integers(1, 3),
    "state": st.sampled_from(["", "ready", "in-flight", "dead-lettered"]),
    "place": st.tuples(st.sampled_from(["stream", "mailbox", "service"]), NAMES).map("/".join),
    "feed": NAMES,
    "seconds": st.sampled_from([0, 0.001, 5.0, 10**9]),
}
"""What many commands have in common; all else is as wide as its rule."""

FEW_COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "subjects": st.sampled_from(["a", "b", "a.b", ""]),
    "records": RECORDS,
    "senders": NAMES,
    "flags": st.booleans(),
    "sequences": SEQUENCES,
    "properties": st.none() | OPTIONS,
}


def field(rule: Rule, count: int) -> st.SearchStrategy[Any]:
    """A value of a field of a command: of the few, or any."""
    if rule.words in FEW_COLUMNS:
        column = st.lists(FEW_COLUMNS[rule.words], min_size=count, max_size=count)
        return column | st.none() if rule.words == "properties" else column
    any_value = wire.BY_WORDS[rule.words]
    return FEW[rule.words] | FEW[rule.words] | any_value if rule.words in FEW else any_value


@st.composite
def commands(draw: st.DrawFn, spec: Spec) -> Any:
    count = draw(st.integers(1, 3))
    return spec.message(*[draw(field(rule, count)) for rule in spec.rules])


def argument(rule: Rule) -> st.SearchStrategy[Any]:
    if rule.words in FEW_COLUMNS:
        return st.lists(FEW_COLUMNS[rule.words], min_size=1, max_size=3)
    return field(rule, 1)


def arguments(key: tuple[Any, str]) -> st.SearchStrategy[dict[str, Any]]:
    takes = wire.ARGUMENTS[key]
    return st.fixed_dictionaries(
        {name: argument(rule) for name, rule in takes.required.items()},
        optional={name: argument(rule) for name, rule in takes.optional.items()},
    )


def asked(key: tuple[Any, str]) -> st.SearchStrategy[Any]:
    """A question or a change of one topic."""
    return arguments(key).map(lambda drawn: key[0](0, key[1], drawn))


SAYABLE = [spec for spec in COMMANDS if spec.message not in (Hello, Query, Change)]
# By their places: hypothesis shows the values of a strategy, and all commands are too long for that.
ANY_COMMAND = st.sampled_from(range(len(SAYABLE))).map(lambda place: SAYABLE[place])
SAID = ANY_COMMAND.flatmap(commands)
ASKED = st.sampled_from(list(wire.ARGUMENTS)).flatmap(asked)
LOW = Limits(streams=1, cursors=0, sessions=2, sources=1, feeds=0, queues=1)
LIMITS = st.sampled_from(
    [
        Limits(),
        LOW,
        Limits(queue_messages=2, queues_messages=3, queue_bytes=500, queues_bytes=800),
        Limits(queues_memory_bytes=1, backlog_bytes=400),
        Limits(unconfirmed=1, message_bytes=400),
    ]
)
POLICIES = st.sampled_from(
    [
        QueuePolicy(),
        QueuePolicy(
            ack_timeout_seconds=2.0,
            attempts_max=1,
            backoff_seconds=(1.0,),
            idle_seconds=5.0,
            dead_letters_max=2,
        ),
        QueuePolicy(
            ack_timeout_seconds=0,
            attempts_max=0,
            dedup_window_seconds=3.0,
            dedup_ids_max=1,
            dead_letters_max=0,
            messages_max=2,
        ),
    ]
)
FEW_RECORDS = st.lists(RECORDS, min_size=1, max_size=3)


def columns(message: Any, options: bool) -> st.SearchStrategy[Any]:
    """Messages for a stream or a queue."""

    def build(records: list[bytes], name: str, asked: dict[str, Any] | None) -> Any:
        subjects = ["a", "b", "a.b"][: len(records)]
        more = ([asked] * len(records),) if options else ()
        return message(name, 0, subjects, records, *more)

    names = st.sampled_from(["ann", "bob", "w"] if options else ["s", "t", "live"])
    return st.builds(build, FEW_RECORDS, names, SOUND_OPTIONS)


SOUND_OPTIONS = (
    st.none()
    | st.fixed_dictionaries(
        {"correlation": st.integers(1, 2)},
        optional={
            "id": st.sampled_from(["i", "j"]),
            "ttl": st.sampled_from([1000, 3000]),
            "priority": st.integers(0, 2),
            "delay": st.sampled_from([0, 1000]),
            "key": st.sampled_from(["k", "l"]),
        },
    )
    | st.builds(lambda n: {"tracker": f"t{n}"}, st.integers(0, 99))
)
CHANGES = [
    ("feed.set", {"source": "stream/s", "feed": "w", "target": "service/w"}),
    (
        "feed.set",
        {
            "source": "stream/s",
            "feed": "w",
            "target": "service/w",
            "start": "first",
            "criteria": [["topic", "a"]],
        },
    ),
    ("feed.delete", {"source": "stream/s", "feed": "w"}),
    ("cursor.set", {"stream": "s", "cursor": "c", "start": "first"}),
    ("cursor.set", {"stream": "s", "cursor": "c", "start": "time:10000"}),
    ("cursor.delete", {"stream": "s", "cursor": "c"}),
    ("stream.retain", {"stream": "t", "count": 2, "age": 5.0}),
    ("stream.create", {"stream": "new", "bytes": 1000}),
    ("stream.purge", {"stream": "s"}),
    ("stream.delete", {"stream": "t"}),
    ("stream.delete-messages", {"stream": "s", "subject": "#"}),
    ("stream.delete-messages", {"stream": "s", "sequence": 1}),
    ("queue.purge", {"kind": "service", "name": "w"}),
    ("queue.purge", {"kind": "service", "name": "w", "dead": True, "where": "n = 1"}),
    ("queue.redrive", {"kind": "service", "name": "w"}),
    ("queue.delete", {"kind": "service", "name": "w"}),
    ("queue.delete", {"kind": "mailbox", "name": "bob", "cascade": True}),
    ("queue.redrive", {"kind": "mailbox", "name": "bob"}),
    ("queue.set", {"kind": "service", "name": "w", "attempts": 2, "backoff": []}),
    ("client.disconnect", {"id": "ann"}),
]
SENSIBLE = st.one_of(
    columns(Publish, options=False),
    columns(Send, options=True),
    columns(Request, options=True),
    st.builds(
        lambda stream, start, cursor, credit: Subscribe(
            1, stream, [["all", ""]], "", start, credit, -1, cursor
        ),
        st.sampled_from(["s", "t", "live", "$sys"]),
        st.sampled_from(["new", "first", "last", "last-per-subject", "seq:2", "time:10000"]),
        st.sampled_from(["", "c"]),
        st.sampled_from([-1, 1, 2]),
    ),
    st.builds(
        lambda pattern, credit: Offer(1, "w", [["topic", pattern]], credit),
        st.sampled_from(["#", "a", "b"]),
        st.sampled_from([-1, 1]),
    ),
    st.builds(Credit, st.integers(0, 2), st.sampled_from([-1, 1, 2]), st.just(-1)),
    st.sampled_from([Change(0, topic, arguments) for topic, arguments in CHANGES]),
)
VERBS = [
    lambda source, first, last: Ack(source, [[first, last]]),
    lambda source, first, last: Nak(source, [[first, last]], 1000),
    lambda source, first, last: Reject(source, [[first, first]], "no"),
    lambda source, first, last: Progress(source, [[first, last]]),
    lambda source, first, last: Release(source, [[first, last]]),
    lambda source, first, last: Reply(max(source, 1), 0, [first], [first < last], [pack_record(None, b"r")]),
    lambda source, first, last: Reply(max(source, 1), 0, [first], [True], [pack_record(None, b"r")], 1),
    lambda source, first, last: Request("w", 0, ["a"], [pack_record(None, b"r")], None, [[first, last]]),
    lambda source, first, last: Cancel(max(source, 1)),
]
ERRORS = st.sampled_from([StorageFull("full"), StoreError("input/output error"), InternalError("a fault")])


class Fuzz(RuleBasedStateMachine):
    """A broker, three clients that say anything, and a disk."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(
            retention=StreamRetention(messages_max=6),
            no_journal=("live",),
            lifecycle=True,
            settled=True,
            expiry=20.0,
            queues=QueuePolicy(
                ack_timeout_seconds=2.0, attempts_max=3, backoff_seconds=(1.0,), idle_seconds=30.0
            ),
        )

    def hello(self, name: str, address: str = "") -> None:
        self.bench.receive(name, Hello([VERSION], address or name))

    def ensure_open(self, name: str) -> None:
        session = self.bench.core.sessions.by_peer.get(peer_id(name))
        if session is None or not session.open:
            self.hello(name)

    @rule(name=st.sampled_from(CLIENTS), address=st.sampled_from(["", *CLIENTS, "$x"]), unsettled=SEQUENCES)
    def say_hello(self, name, address, unsettled):
        self.bench.receive(name, Hello([VERSION], address, "fuzz", unsettled))

    @rule(name=st.sampled_from(CLIENTS), message=SAID, proper=st.booleans())
    def say(self, name, message, proper):
        self.ensure_open(name)
        self.bench.receive(name, self.numbered(name, message) if proper else message)

    @rule(name=st.sampled_from(CLIENTS), messages=st.lists(SAID, min_size=2, max_size=6))
    def say_much(self, name, messages):
        self.ensure_open(name)
        self.bench.receive(name, *messages)

    def numbered(self, name, message):
        session = self.bench.core.sessions.by_peer.get(peer_id(name))
        if session is not None and "number" in message._fields:
            return message._replace(number=session.numbers.next)
        return message

    @rule(
        name=st.sampled_from(CLIENTS),
        messages=st.lists(SENSIBLE, min_size=1, max_size=4),
        number=st.booleans(),
        settle=st.booleans(),
    )
    def say_sensible_things(self, name, messages, number, settle):
        """What makes something to happen: chance alone seldom does."""
        self.ensure_open(name)
        session = self.bench.core.sessions.by_peer.get(peer_id(name))
        for message in messages:
            if isinstance(message, (Subscribe, Offer)) and session is not None:
                free = max(session.sources, default=0) + 1
                message = message._replace(source=free)
            self.bench.receive(name, self.numbered(name, message) if number else message)
        self.bench.settle() if settle else self.bench.iterate()

    @rule(
        name=st.sampled_from(CLIENTS),
        verb=st.sampled_from(VERBS),
        place=st.integers(0, 9),
        many=st.booleans(),
    )
    def settle_a_delivery(self, name, verb, place, many):
        """Say something about what a client holds."""
        session = self.bench.core.sessions.by_peer.get(peer_id(name))
        if session is None:
            return
        held = [
            (number, sequence)
            for number, source in session.sources.items()
            if isinstance(source, QueueSource)
            for sequence in source.consumer.outstanding
        ]
        if held:
            source, sequence = held[place % len(held)]
            last = sequence + 1 if many else sequence
            self.bench.receive(name, self.numbered(name, verb(source, sequence, last)))
            self.bench.iterate()

    @rule(name=st.sampled_from(CLIENTS), message=ASKED, proper=st.booleans())
    def ask(self, name, message, proper):
        self.ensure_open(name)
        self.bench.receive(name, self.numbered(name, message) if proper else message)

    @rule(name=st.sampled_from(CLIENTS), message=SAID | ASKED, value=wire.ANYTHING, data=st.data())
    def say_something_odd(self, name, message, value, data):
        """A field, or an argument, with any value at all."""
        self.ensure_open(name)
        if isinstance(message, (Query, Change)):
            key = data.draw(st.sampled_from(sorted(message.arguments) or ["name"]))
            frames = encode(message._replace(arguments={**message.arguments, key: value}))
        else:
            first, *more = encode(message)
            fields = msgpack.unpackb(first)
            fields[data.draw(st.integers(0, len(fields) - 1))] = value
            frames = [msgpack.packb(fields), *more]
        self.bench.receive_frames(name, [bytes(frame) for frame in frames])

    @rule(name=st.sampled_from(CLIENTS))
    def lose(self, name):
        self.bench.lost(name)

    @rule(name=st.sampled_from(CLIENTS))
    def block(self, name):
        self.bench.block(name)

    @rule(name=st.sampled_from(CLIENTS))
    def unblock(self, name):
        self.bench.unblock(name)

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.0, 5.0, 25.0, 10_000.0]))
    def wait(self, seconds):
        self.bench.wait(seconds)

    @rule()
    def end_the_iteration(self):
        self.bench.iterate()

    @precondition(lambda self: self.bench.appends)
    @rule()
    def commit(self):
        self.bench.commit()

    @precondition(lambda self: self.bench.appends)
    @rule(error=ERRORS)
    def fail(self, error):
        self.bench.fail(error)

    @precondition(lambda self: self.bench.reads)
    @rule()
    def read(self):
        self.bench.read()

    @precondition(lambda self: self.bench.reads)
    @rule(error=ERRORS)
    def fail_to_read(self, error):
        question = self.bench.reads.popleft()
        self.bench.core.answered(question, error, self.bench.now)
        self.bench.iterate()

    @rule()
    def settle(self):
        self.bench.settle()

    @rule(limits=LIMITS, policy=POLICIES, lifecycle=st.booleans(), good=st.booleans())
    def start_again(self, limits, policy, lifecycle, good):
        """Kill the broker, or stop it cleanly, and start one with other settings on its store."""
        bench = self.bench
        bench.settings = bench.settings._replace(
            limits=limits,
            queues=lambda kind, name: policy,
            lifecycle_events=lifecycle,
            settled_events=lifecycle,
        )
        bench.restart() if good else bench.crash()
        assert bench.core.recovery.skipped == 0, [notice.details for notice in bench.notices]
        bench.iterate()

    @invariant()
    def nothing_was_raised(self):
        faults = self.bench.core.effects.faults
        assert not faults.by_place, faults.by_place

    @invariant()
    def the_accounts_are_right(self):
        check_accounts(self.bench.core)

    def teardown(self):
        bench = self.bench
        bench.settle()
        self.nothing_was_raised()
        self.the_accounts_are_right()
        # Whatever was said, the next broker starts, and somebody else is served.
        for limits in (LOW, Limits()):
            bench.settings = bench.settings._replace(limits=limits, lifecycle_events=False)
            bench.crash()
            assert bench.core.recovery.skipped == 0
        bench.open("dan")
        assert bench.ask("dan", Ping()) == [Pong()]
        for key in wire.ARGUMENTS:
            if key[0] is Query and not wire.ARGUMENTS[key].required:
                bench.sent("dan")
                bench.tell("dan", Query(7, key[1], {}))
                bench.settle()
                assert [m for m in bench.sent("dan") if getattr(m, "ref", 0) == 7], key
        bench.settle()


def test_every_field_of_every_command_has_few_values_or_all():
    words = {rule.words for spec in COMMANDS for rule in spec.rules}
    words |= {rule.words for takes in wire.ARGUMENTS.values() for rule in takes.rules.values()}
    assert words <= {*wire.BY_WORDS, *FEW_COLUMNS}
    assert {*FEW, *FEW_COLUMNS} <= words
    assert {spec.message for spec in COMMANDS} == {
        message for message in BY_TYPE if BY_TYPE[message].opcode < 64
    }


Fuzz.TestCase.settings = settings(
    max_examples=15 * DEPTH,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestAnythingAtAll = Fuzz.TestCase
