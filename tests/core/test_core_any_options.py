"""Whatever clients say about queued messages, the core never raises, and its books are right in the end."""

from __future__ import annotations

from core_bench import Bench
from depth import DEPTH
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from malamute.core.queue.entry import Entry, size_of
from malamute.protocol.batch import pack_record
from malamute.protocol.limits import Limits
from malamute.protocol.messages import (
    Ack,
    Cancel,
    Change,
    Credit,
    Error,
    Nak,
    Offer,
    Progress,
    Query,
    Reject,
    Release,
    Reply,
    Request,
    Send,
    Withdraw,
)
from malamute.store.policies import DURABLE, MEMORY, QueuePolicy

EXAMPLES = 45 * DEPTH
NAMES = ("ann", "bob")
POLICY = QueuePolicy(
    ack_timeout_seconds=4.0,
    attempts_max=2,
    backoff_seconds=(1.0,),
    messages_max=8,
    priority_step_messages=2,
    dedup_window_seconds=5.0,
    dedup_ids_max=2,
    dead_letters_max=2,
    idle_seconds=6.0,
)
RECORD = pack_record(None, (b"body",))
KINDS = st.sampled_from(["mailbox", "service"])
SMALL = st.integers(1, 6)
RANGES = st.lists(st.tuples(SMALL, SMALL).map(sorted), min_size=1, max_size=2)
SOURCES = st.integers(0, 2)
OPTIONS = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "correlation": st.integers(0, 1),
        "id": st.sampled_from(["i", "j"]),
        "tracker": st.sampled_from(["t", "u", "v"]),
        "ttl": st.sampled_from([0, 1000, 3000]),
        "priority": st.integers(0, 3),
        "delay": st.sampled_from([0, 2000]),
        "key": st.sampled_from(["k", "l"]),
        "immediate": st.booleans(),
        "reply_to": st.sampled_from(NAMES),
    },
)


def _batch(command, names):
    return st.lists(OPTIONS, min_size=1, max_size=3).flatmap(
        lambda options: names.map(
            lambda name: command(name, 0, ["a"] * len(options), [RECORD] * len(options), options)
        )
    )


QUEUE = st.sampled_from([{"kind": "service", "name": "w"}, {"kind": "mailbox", "name": "bob"}])
COMMANDS = st.one_of(
    _batch(Send, st.sampled_from(NAMES)),
    _batch(Request, st.just("w")),
    st.builds(lambda command, acks: command._replace(acks=acks), _batch(Request, st.just("w")), RANGES),
    st.builds(
        lambda source, n, ms: Offer(source, "w", [["all", ""]], n, -1, ms), SMALL, SMALL, st.just(2000)
    ),
    st.builds(Credit, SOURCES, SMALL, st.just(-1)),
    st.builds(Cancel, SMALL),
    st.builds(Ack, SOURCES, RANGES, st.sampled_from([0, 1]), st.just(0)),
    st.builds(Nak, SOURCES, RANGES, st.sampled_from([-1, 0, 500])),
    st.builds(Reject, SOURCES, RANGES, st.just("no")),
    st.builds(Progress, SOURCES, RANGES),
    st.builds(Release, SOURCES, RANGES),
    st.builds(
        lambda s, q, final, credit: Reply(s, 0, [q], [final], [RECORD], credit),
        st.integers(1, 2),
        SMALL,
        st.booleans(),
        st.sampled_from([0, 1]),
    ),
    st.builds(Withdraw, st.just(1), KINDS, st.sampled_from([*NAMES, "w"]), st.integers(0, 1)),
    QUEUE.map(lambda queue: Query(1, "messages", queue)),
    QUEUE.map(lambda queue: Change(0, "queue.redrive", queue)),
    st.builds(lambda queue, dead: Change(0, "queue.purge", {**queue, "dead": dead}), QUEUE, st.booleans()),
)
STEPS = st.lists(
    st.tuples(st.sampled_from(NAMES), COMMANDS, st.booleans())
    | st.sampled_from(["commit", "fail", "read", "settle", "crash", "lost", "wait 1", "wait 3"]),
    max_size=40,
)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(STEPS, st.sampled_from([1, 500, 1 << 26]), st.sampled_from([DURABLE, MEMORY]))
def test_the_books_are_right_whatever_is_said(steps, memory_bytes, persistence):
    policy = POLICY._replace(persistence=persistence)
    bench = Bench(Limits(queues_memory_bytes=memory_bytes), queues=policy)
    bench.open(*NAMES)
    numbers = dict.fromkeys(NAMES, 1)
    for step in steps:
        if isinstance(step, str):
            _happen(bench, *step.split())
            bench.open(*NAMES)
            for name in NAMES:
                session = bench.core.sessions.by_address[name]
                numbers[name] = session.numbers.next
        else:
            name, command, numbered = step
            if numbered and "number" in command._fields:
                command = command._replace(number=numbers[name])
                numbers[name] += 1
            bench.tell(name, command)
        check(bench)
    bench.settle()
    check(bench)
    answers = [m for _, m in bench.log if isinstance(m, Error)]
    assert all(error.code in (404, 416, 420, 421, 422, 503, 504, 507) for error in answers)


@settings(
    max_examples=EXAMPLES // 3,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(STEPS)
def test_until_the_broker_ends_nobody_can_tell_a_queue_in_memory_from_a_durable_one(steps):
    """The durable one is the oracle, without what the other one has not: trackers, and dead letters."""
    durable, memory = logs = [
        _log(steps, POLICY._replace(dead_letters_max=0, persistence=persistence))
        for persistence in (DURABLE, MEMORY)
    ]
    assert durable == memory, logs


def _log(steps, policy):
    """What is said to whom, where each step is durable before the next one."""
    bench = Bench(queues=policy)
    bench.open(*NAMES)
    for step in steps:
        if step in ("lost", "wait 1", "wait 3"):
            _happen(bench, *step.split())
            bench.open(*NAMES)
        elif not isinstance(step, str):
            name, command, _ = step
            for asked in filter(None, getattr(command, "properties", ())):
                asked.pop("tracker", None)
            bench.tell(name, command)
        bench.settle()
    return bench.log


def _happen(bench, what, seconds="0"):
    if what == "wait":
        bench.wait(float(seconds))
    elif what == "lost":
        bench.lost("bob")
    elif what in ("commit", "fail", "read"):
        if bench.reads if what == "read" else bench.appends:
            getattr(bench, what)()
    else:
        getattr(bench, what)()


def check(bench):
    """What the broker counts is what is there."""
    core = bench.core
    queues = [*core.mailboxes.by_name.values(), *core.services.by_name.values()]
    held = sum(len(s.outstanding) for queue in queues for s in queue.consumers.values())
    assert held == sum(session.holding for session in core.sessions.by_peer.values())
    # How many messages the room is for, and its bytes: an outcome that comes takes both.
    rooms = core.queue_limits.trackers._open
    # What is sent again has its room while its records are read.
    reading = bool(bench.reads)
    assert reading or sum(queue.usage.reserved for queue in queues) == sum(kept for kept, _ in rooms.values())
    total = messages = paged_out = 0
    for queue in queues:
        # A final reply has room where nothing else has.
        answers = sum(bool((e.message.properties or {}).get("final")) for e in queue.entries.values())
        assert len(queue.entries) - answers + queue.usage.reserved <= POLICY.messages_max
        mine = sum(
            room
            for (sender, _), (_, room) in rooms.items()
            if queue.kind == "mailbox" and queue.name == sender
        )
        usage = queue.usage
        assert reading or usage.bytes == sum(entry.size_bytes for entry in queue.entries.values()) + mine
        assert reading or usage.paged_out_bytes == _paged_out(queue.entries) + mine
        warm = [entry for entry in queue.entries.values() if not entry.paged_out]
        assert all(entry.size_bytes == Entry(entry.message).size_bytes for entry in warm)
        assert size_of(warm) == sum(entry.size_bytes for entry in warm)
        assert queue.not_durable <= queue.entries.keys()
        assert not any(queue.entries[sequence].paged_out for sequence in queue.not_durable)
        dead = sum(entry.size_bytes for entry in queue.dead_letters.entries.values())
        assert queue.dead_letters.paged_out_bytes == _paged_out(queue.dead_letters.entries)
        assert len(queue.dead_letters.entries) <= POLICY.dead_letters_max
        messages += len(queue.entries) + len(queue.dead_letters.entries) + queue.usage.reserved
        paged_out += queue.usage.paged_out_bytes + queue.dead_letters.paged_out_bytes
        total += queue.usage.bytes + dead
        queue.states.assert_these(queue.entries.values())
        states = [entry.state for entry in queue.entries.values()]
        assert states.count("ready") == queue.states.counts["ready"]
        assert states.count("delayed") == len(queue.schedule.delayed)
        assert states.count("pending") == queue.states.uncommitted
        outstanding = sum(len(consumer.outstanding) for consumer in queue.consumers.values())
        assert states.count("in-flight") == outstanding
        assert queue.options.keys() <= queue.entries.keys()
        assert queue.watermark.never_delivered <= queue.entries.keys()
    assert total == core.queue_limits.bytes
    assert messages == core.queue_limits.messages
    assert paged_out == core.queue_limits.memory.paged_out_bytes
    assert reading or not core.queue_limits.memory.prefetched_bytes
    assert core.queue_limits.queues == len(queues)


def _paged_out(entries):
    return sum(entry.size_bytes for entry in entries.values() if entry.paged_out)
