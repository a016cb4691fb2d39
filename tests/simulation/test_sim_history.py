"""The history of a run: each promise is broken on purpose, and the checker notices it by the history alone.

The books see what happens inside of the broker, and would be there first: here they see nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from depth import DEPTH, some
from history import PURGE, PURGE_REFUSED, PURGED, RULES
from sim_admin import CHANGED, CHANGES
from sim_client import Client
from sim_clock import Wall
from sim_history import History, Notes, broken_promises
from sim_machine import Watch
from sim_plan import THEMES, Plan, Step, plan_of
from sim_shrink import failure_of
from sim_story import Story
from sim_streams import Reader
from sim_world import World, run
from test_simulation import offer_at_once

from malamute.client.session.outbox import Outbox
from malamute.client.session.questions import PendingChange
from malamute.client.session.sources import StreamSource
from malamute.core.broker import Core
from malamute.core.queue.state import MessageStates
from malamute.core.queue.trackers import Trackers
from malamute.core.session.confirmations import Confirmations
from malamute.core.stream.cursors import Cursors
from malamute.core.stream.stream import Stream
from malamute.core.stream.subscription import Subscription
from malamute.errors import StorageFull
from malamute.journal.memory import MemoryStore
from malamute.protocol.messages import Change
from malamute.store.operations import DeleteMessages

SEEDS_BROKEN = range(150)

KEPT = 0
"""The stream `kept` among those that an operator may name."""


def operated(seed):
    """The run of a seed in which one operator purges and publishes, and loses his connection meanwhile."""
    plan, chance = plan_of(seed, THEMES[0]), Random(seed)
    steps = list(plan.steps)
    purge, values = [*CHANGES].index("stream.purge"), len(CHANGED["stream"])
    for kind in ("administer", "publish", "cut", "connect", "client", "turn", "write") * 20:
        a = chance.randrange(20) * plan.setup.clients
        if kind == "administer":
            a = plan.setup.clients * (purge + len(CHANGES) * values * a)
        steps.insert(chance.randrange(len(steps)), Step(kind, a, KEPT, chance.getrandbits(16) * values))
    return plan._replace(setup=plan.setup._replace(kept_messages=1_000), steps=steps)


def refused(seed):
    """The run of a seed in which the disk often fails, and all that it has taken is kept."""
    plan, chance = plan_of(seed, THEMES[0]), Random(seed)
    steps = list(plan.steps)
    for kind in ("fail", "write", "turn", "client") * 20:
        bits = chance.getrandbits
        steps.insert(chance.randrange(len(steps)), Step(kind, bits(16), bits(16), bits(16)))
    return plan._replace(setup=plan.setup._replace(kept_messages=1_000, wishes=0), steps=steps)


WATCHED = [name for name in vars(Watch) if not name.startswith("_")]
BLIND = {
    Story: (*WATCHED, "committed", "damaged", "stranded", "numbered"),
    World: ("check", "check_left", "_check_answers"),
    Client: ("_check_held", "_check_lost", "_check_reply"),
    Reader: ("look", "taken"),
}
"""What holds a run against the books."""


class Fault(NamedTuple):
    """What takes the place of what, the rule that notices it, and the run in which it does soon."""

    target: str
    substitute: Any
    rule: str
    make: Callable[[int], Plan]
    seed: int


def _nothing(*arguments, **options):
    """What was to be done is not."""


@contextmanager
def blind() -> Iterator[None]:
    """Runs are held against their histories, and against nothing else."""
    with ExitStack() as stack:
        for owner, names in BLIND.items():
            for name in names:
                stack.enter_context(patch.object(owner, name, _nothing))
        stack.enter_context(patch("sim_world.check_limits", _nothing))
        yield


def _take_all_for_stored(core, token, error, now):
    core.stored(token, now)


def _publish_backwards(stream, sender, subjects, records, ttl=0):
    return _PUBLISH(stream, sender, subjects[::-1], records[::-1], ttl)


def _go_back_one(source):
    if source.last and source.had:
        source.last -= 1
        source.had = min(source.had, source.last)
    return _COMMAND(source)


def _send_again_backwards(outbox):
    return reversed([*_KEPT(outbox)])


def _count_once(states, holder, messages, now):
    _ASSIGN(states, holder, messages, now)
    for message in messages:
        message.attempts = 1


def _post_twice(trackers, usage, entries, outcome, reason, *, bound=True):
    entries = [*entries]
    _POST(trackers, usage, entries, outcome, reason, bound=bound)
    trackers._use = _nothing
    _POST(trackers, usage, entries, outcome, reason, bound=bound)
    del trackers._use


def _commit_one_less(cursors, cursor, sequence, user=None):
    _COMMIT(cursors, cursor, max(0, sequence - 1), user)


def _leave_out(subscription, part):
    if part.columns.each_sequence()[0] % 3:
        _SEND(subscription, part)


def _call_it_a_gap(subscription, part):
    sequences = part.columns.each_sequence()
    if sequences[0] % 3:
        _SEND(subscription, part)
    else:
        subscription.missed(sequences[0], sequences[-1], "restart")
        subscription.after = sequences[-1]


_SEND = Subscription._send


def _refuse_some(core, token, now):
    if token % 5:
        _STORED(core, token, now)
    else:
        core.store_failed(token, StorageFull("the disk is full"), now)


def _confirm_the_next_one(sessions, session, message, count, sequence, **more):
    _ACCEPT(sessions, session, message, count, sequence and sequence + 1, **more)


def _delete_nothing(store, operations):
    _WRITE(store, [operation for operation in operations if not isinstance(operation, DeleteMessages)])


_STORED = Core.stored
_ACCEPT = Confirmations.accept
_WRITE = MemoryStore.write
_PUBLISH = Stream.publish
_COMMIT = Cursors.commit
_COMMAND = StreamSource.command
_KEPT = Outbox.kept
_ASSIGN = MessageStates.assign
_POST = Trackers.post

BROKEN = {
    "what the disk refuses is confirmed": Fault(
        "malamute.core.broker.Core.store_failed", _take_all_for_stored, "lost", refused, 0
    ),
    "what the disk has taken is refused": Fault(
        "malamute.core.broker.Core.stored", _refuse_some, "invented", plan_of, 0
    ),
    "what was sent again is stored again": Fault(
        "malamute.core.session.confirmations.Confirmations.admit",
        lambda *arguments: True,
        "duplicate",
        plan_of,
        40,
    ),
    "a batch is stored backwards": Fault(
        "malamute.core.stream.stream.Stream.publish", _publish_backwards, "order", plan_of, 0
    ),
    "a client sends again backwards": Fault(
        "malamute.client.session.outbox.Outbox.kept", _send_again_backwards, "order", plan_of, 10
    ),
    "the sequence of another message is confirmed": Fault(
        "malamute.core.session.confirmations.Confirmations.accept",
        _confirm_the_next_one,
        "sequence used again",
        plan_of,
        0,
    ),
    "a client goes on where it was before": Fault(
        "malamute.client.session.sources.StreamSource.command",
        _go_back_one,
        "monotonic reads",
        plan_of,
        2,
    ),
    "messages are left out": Fault(
        "malamute.core.stream.subscription.Subscription._send", _leave_out, "skipped", plan_of, 4
    ),
    "messages are called a gap": Fault(
        "malamute.core.stream.subscription.Subscription._send", _call_it_a_gap, "false gap", plan_of, 4
    ),
    "a durable reader does not wait": Fault(
        "malamute.core.stream.live.LiveDelivery._offer", offer_at_once, "taken back untold", refused, 23
    ),
    "what was taken back is not told": Fault(
        "malamute.core.stream.subscription.Subscription.refused", _nothing, "taken back untold", refused, 35
    ),
    "a commit is one less": Fault(
        "malamute.core.stream.cursors.Cursors.commit", _commit_one_less, "cursor", plan_of, 11
    ),
    "a commit is nothing": Fault(
        "malamute.core.stream.cursors.Cursors.commit", _nothing, "cursor", plan_of, 11
    ),
    "a queue is removed with its messages": Fault(
        "malamute.core.queue.queue.Queue.used",
        property(lambda queue: bool(queue.consumers)),
        "lost",
        plan_of,
        22,
    ),
    "no attempt is counted": Fault(
        "malamute.core.queue.state.MessageStates.assign", _count_once, "repeated delivery", plan_of, 6
    ),
    "no attempt is counted of one consumer": Fault(
        "malamute.core.queue.state.MessageStates.assign", _count_once, "attempts", plan_of, 6
    ),
    "what was settled is not deleted": Fault(
        "malamute.journal.memory.MemoryStore.write", _delete_nothing, "after settlement", plan_of, 0
    ),
    "a reply completes nothing": Fault(
        "malamute.core.queue.source.QueueSource.complete", _nothing, "settled twice", plan_of, 0
    ),
    "outcomes are posted twice": Fault(
        "malamute.core.queue.trackers.Trackers.post", _post_twice, "settled twice", plan_of, 21
    ),
    "outcomes are not posted": Fault(
        "malamute.core.queue.trackers.Trackers.post", _nothing, "no outcome", plan_of, 94
    ),
    "an identity is always new": Fault(
        "malamute.core.queue.deduplication.DedupWindow.seen",
        lambda *arguments: False,
        "deduplication",
        plan_of,
        16,
    ),
    "a change is made as often as it comes": Fault(
        "malamute.core.session.confirmations.Confirmations.admit_change",
        lambda sessions, session, number: number not in session.numbers.outcomes.running,
        "change repeated",
        operated,
        39,
    ),
    "a purge is answered and not made": Fault(
        "malamute.core.admin.changes.purge_history", _nothing, "change undone", operated, 0
    ),
}


def rules_broken(plan):
    """The rules that the history of a run breaks, by itself."""
    found: set[str] = set()
    with (
        blind(),
        patch("sim_world.check_history", lambda world: found.update(v.rule for v in broken_promises(world))),
    ):
        run(plan)
    return found


@pytest.mark.parametrize("make", [operated, refused])
def test_every_promise_is_kept_where_much_is_purged_or_refused(make):
    for seed in range(6 * DEPTH):
        assert failure_of(make(seed)) is None, f"{make.__name__}({seed})"


@pytest.mark.parametrize("make", [plan_of, operated, refused])
def test_who_sees_nothing_but_histories_finds_nothing_in_good_ones(make):
    for seed in range(3 * DEPTH):
        assert rules_broken(make(seed)) == set()


def test_a_deletion_of_a_stream_that_only_ended_its_feeds_has_purged_nothing():
    arguments = {"stream": "kept", "cascade": True}
    for value, kinds in (({"partial": True}, [PURGE, PURGE_REFUSED]), ({}, [PURGE, PURGED])):
        history = History(Wall(0.0))
        notes, pending = Notes(history, "operator"), PendingChange(Change(1, "stream.delete", arguments))
        notes.changes(pending, "stream.delete", arguments)
        pending.value = value
        pending.settle()
        notes.looks(())
        found = [record.kind for record in history.records]
        assert [kind for kind in found if kind in (PURGE, PURGED, PURGE_REFUSED)] == kinds


@pytest.mark.parametrize("name", some(BROKEN, *[*BROKEN][::2]))
def test_the_history_alone_shows_a_broken_promise(name):
    fault = BROKEN[name]
    with patch(fault.target, fault.substitute):
        plans = map(fault.make, (fault.seed, *SEEDS_BROKEN))
        assert any(fault.rule in rules_broken(plan) for plan in plans)


def test_each_rule_has_a_fault():
    assert {fault.rule for fault in BROKEN.values()} == {rule for _, rules in RULES for rule in rules}
