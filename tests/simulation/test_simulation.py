"""The simulation on a fixed set of seeds, and a look at the simulation itself.

A simulation that finds nothing proves nothing: some promises are broken on purpose, and it has to notice.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import product
from operator import attrgetter
from random import Random
from unittest.mock import patch

import pytest
from depth import DEPTH, nightly, some
from sim_admin import CHANGED, CHANGES, LEFT_OUT, QUERIES, VALUES, changing
from sim_client import FEED_STARTS, SUBJECTS
from sim_clock import Wall
from sim_dead import DeadBook
from sim_disk import Disk, Workers
from sim_mail import Mail
from sim_network import Connection, Link
from sim_options import Wishes
from sim_origin import Author, Order, Origin, Violation
from sim_plan import THEMES, Step, plan_of
from sim_shrink import failure_of, shrink
from sim_streams import Place, StreamBook
from sim_wants import CRITERIA, HEADERS
from sim_world import run

from malamute.core.admin import feeds as admin_feeds
from malamute.core.commands import ClientCommands
from malamute.core.feed.stream_feed import StreamFeed
from malamute.core.feed.table import Feeds
from malamute.core.iteration.stored_values import StoredValues
from malamute.core.queue import purge, redrive
from malamute.core.queue.dead_letters import UNREADABLE, DeadLetters
from malamute.core.queue.dispatch import Dispatcher
from malamute.core.queue.queue import Queue
from malamute.core.queue.recovery import RestoredQueue
from malamute.core.queue.settlement import Settlement
from malamute.core.queue.table import QueueTable
from malamute.core.reports.audit import Audit
from malamute.core.session.confirmations import Confirmations
from malamute.core.stream.cursors import Cursors
from malamute.core.stream.live import LiveDelivery
from malamute.core.stream.subscription import Position, Subscription
from malamute.journal.memory import MemoryStore
from malamute.matching import FAMILIES, Index, Selector
from malamute.protocol.admin.topic import arguments_of
from malamute.protocol.messages import Subscribe
from malamute.store.commit import Append
from malamute.store.operations import (
    AppendChunk,
    Chunk,
    DeleteMessages,
    MarkDelivered,
    PutValue,
    ReadChunks,
    StoredMessage,
)
from malamute.store.policies import QueuePolicy, StreamRetention
from malamute.store.tables import CURSORS

SEEDS = 36 * DEPTH
CHUNKS = 6
SEEDS_BROKEN = 120
SEEDS_PRESSED = range(40, 120)
SEEDS_SET_BACK = range(40)
SEEDS_RARE = range(SEEDS_BROKEN, 1_000)


PRESSED = (
    THEMES[1],
    frozenset({"request", "offer", "take_request", "report"}),
    THEMES[2],
    frozenset({"publish", "feed", "offer"}),
)


def pressed(seed):
    """The run of a seed in a world of few habits: most messages ask for something, and much has to wait."""
    plan = plan_of(seed, PRESSED[seed % len(PRESSED)])
    queues = plan.setup.queues._replace(
        ack_timeout_seconds=1.0, priority_step_messages=100_000, attempts_max=0, idle_seconds=0.5
    )
    setup = plan.setup._replace(clients=4, wishes=40, queue_messages=100, unconfirmed=1_000, queues=queues)
    return plan._replace(setup=setup)


def set_back(seed):
    """The run of a seed in which feeds begin in the past, and what is stored of that is damaged."""
    plan, chance = plan_of(seed, THEMES[3]), Random(seed)
    steps = list(plan.steps)
    starts = [place for place, start in enumerate(FEED_STARTS) if start in ("first", "last", "")]
    for kind in ("damage_block",) * 4 + ("round",) * 30 + ("feed",) * 20:
        c = chance.choice(starts) if kind == "feed" else 4 + chance.randrange(1, 4)
        bits = chance.getrandbits
        steps.insert(chance.randrange(60, len(steps)), Step(kind, bits(16), bits(16), c))
    return plan._replace(setup=plan.setup._replace(flaws=True, kept_messages=1_000), steps=steps)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_promise_is_kept(chunk):
    for seed in range(chunk, SEEDS, CHUNKS):
        try:
            run(plan_of(seed))
        except Exception as error:
            error.add_note(f"make it again with: make simulate SEED={seed}")
            raise


@pytest.mark.parametrize("theme", range(len(PRESSED)))
def test_every_promise_is_kept_where_much_has_to_wait(theme):
    for seed in range(40 + theme, 40 + 12 * DEPTH, len(PRESSED)):
        assert failure_of(pressed(seed)) is None, f"pressed({seed})"


def test_every_promise_is_kept_where_feeds_begin_in_the_past_and_records_are_damaged():
    for seed in range(5 * DEPTH):
        assert failure_of(set_back(seed)) is None, f"set_back({seed})"


def test_a_chunk_that_was_committed_minutes_late_ages_as_late():
    run(plan_of(905498949721))


def test_each_argument_of_operators_has_values():
    asked = {name for kind in QUERIES.values() for name in arguments_of(kind).rules}
    assert asked == VALUES.keys()
    changed = {name for kind in CHANGES.values() for name in arguments_of(kind).rules}
    assert changed == CHANGED.keys() | {"criteria", "where", "body"}


def test_a_seed_makes_the_same_run_again():
    plan = plan_of(11)
    assert plan == plan_of(11)
    logs: list[list[str]] = [[], []]
    for log in logs:
        run(plan, log.append)
    assert logs[0] == logs[1]
    assert len(logs[0]) > 100


def _nothing(*arguments, **options):
    """What was to be done is not."""


def _skip_in_silence(subscription, last, reason):
    subscription.cursor = max(subscription.cursor, last + 1)


def _told_of_nothing(trackers, usage, entries, outcome, reason, *, bound=True):
    """Outcomes are not told."""


def _mark_in_memory_only(watermark, held, last):
    for entry in watermark._entries.values():
        entry.marked = True


def _always_ready(queue, sequences, delay):
    queue.make_ready(sorted(sequences))


def _forget_the_reason(dead, entries, records, reason):
    _ADD_DEAD(dead, entries, records, "")


def _keep_what_is_sent_again(queue, entries, records, body):
    dead = queue.dead_letters
    with patch.object(dead, "removal", lambda sequences: DeleteMessages(dead.kind, queue.name, [])):
        _PUT_BACK(queue, entries, records, body)


def _spare_the_paged_out(settlement, entries, outcome, reason, worker):
    if outcome == "rejected" and any(entry.paged_out for entry in entries):
        settlement._refused([entry.message.sequence for entry in entries])
    else:
        _DEAD_LETTER(settlement, entries, outcome, reason, worker)


def _recall_as_purged(queue, consumer, sequences, reason):
    _RECALL(queue, consumer, sequences, "purged" if reason == "expired" else reason)


def _needless(reason):
    """`Queue.used` without one of the reasons."""
    reasons = {"entries", "consumers", "usage.reserved", "feeds", "dead_letters.entries", "dedup.known"}
    getters = [attrgetter(other) for other in sorted(reasons - {reason})]
    return property(lambda queue: any(get(queue) for get in getters))


def _collect_early(table, queue, seen):
    _COLLECT(table, queue, queue.next_sequence)


def _confirm_twice(sessions, stage, confirmations, error):
    _CONFIRM(sessions, stage, confirmations, error)
    _CONFIRM(sessions, stage, confirmations, error)


def _send_behind_another(subscription, part):
    subscription.after -= 1
    _SEND(subscription, part)


def _report_one_more(queue, sender, correlation, told, failed):
    def more(count, before, **how):
        told(count + bool(count), before, **how)

    _WITHDRAW(queue, sender, correlation, more, failed)


def _take_without_a_position(feed, columns):
    with patch.object(Cursors, "commit", _nothing):
        _TAKE(feed, columns)


def _take_all_for_stored(feed, error):
    _SETTLED(feed, None)


def _begin_anywhere(streams, feeds, name, source, position):
    with patch.object(Cursors, "check_known", _nothing):
        return _START_FEED(streams, feeds, name, source, position)


def _leave_one_out(sequence):
    return Position(sequence + 1)


def _is_impatient(feed):
    return feed.cursor <= feed.stream.progress.durable and not feed.full and feed.effects.now >= feed.retry_at


def _go_on_with_old_numbers(restored, state):
    _RESTORE_QUEUE(restored, state)
    restored.queue.next_sequence = state.next


def _is_there(entry, records):
    return entry.sequence in records


def _trust_any_position(feeds, name, value, doubtful):
    _RESTORE_FEED(feeds, name, value, False)


def _begin_restored_at(position):
    def restore(feeds, name, value, doubtful):
        if feeds.streams.incarnation:
            found = feeds.streams.keep(name.source.name)
            found.commit(name.cursor, position(found))
        _RESTORE_FEED(feeds, name, value, False)

    return restore


def _leave_out_changes(audit, details, count):
    if details["outcome"] not in ("done", "partial"):
        _WRITE_RECORD(audit, details, count)


def _record_later(audit, details, count):
    if details["outcome"] in ("done", "partial"):
        audit._effects.stage.when_stored(lambda error: _WRITE_RECORD(audit, details, count))
    else:
        _WRITE_RECORD(audit, details, count)


def _record_twice(audit, details, count):
    _WRITE_RECORD(audit, details, count)
    _WRITE_RECORD(audit, details, count)


def _end_nobody(*arguments):
    yield from ()


def _delete_nothing(effects, sessions, sources, queues, feeds, queue, gone, answered, cascade):
    answered(gone, before=gone)
    yield from ()


def _dispatch_by_subject(dispatcher, sequences):
    dispatcher._by_sender = False
    _DISPATCH(dispatcher, sequences)


def _make_what_was_to_be_there(commands, peer, message, now):
    if isinstance(message, Subscribe):
        message = message._replace(existing=False)
    _RECEIVE(commands, peer, message, now)


def _find_no_stream(commands, peer, message, now):
    hidden = isinstance(message, Subscribe) and message.existing
    with patch.object(commands.streams, "by_name", {}) if hidden else nullcontext():
        _RECEIVE(commands, peer, message, now)


def _let_retentions_stand(values, name, value, pending, error):
    if isinstance(value, StreamRetention):
        error = None
    _VALUE_SETTLED(values, name, value, pending, error)


_WRITE_RECORD = Audit._write
_VALUE_SETTLED = StoredValues._settled
_RECEIVE = ClientCommands.receive
_DISPATCH = Dispatcher.dispatch
_RESTORE_QUEUE = RestoredQueue.restore
_DEAD_LETTER = Settlement._dead_letter
_ADD_DEAD = DeadLetters.add
_PUT_BACK = redrive._put_back
_RECALL = Queue._recall
_COLLECT = QueueTable._collect_unless_used
_START_FEED = admin_feeds._start
_OFFER = LiveDelivery._offer
_RESTORE_FEED = Feeds._restore
_TAKE = StreamFeed._put
_CONFIRM = Confirmations._confirm
_SEND = Subscription._send
_WITHDRAW = purge.withdraw
_SETTLED = StreamFeed._settled


def offer_at_once(live, loaded, part, readers):
    """Durable readers do not wait."""
    committed = [reader for reader in readers if reader.committed]
    for reader in committed:
        reader.committed = False
    _OFFER(live, loaded, part, readers)
    for reader in committed:
        reader.committed = True


FEED = "malamute.core.feed.stream_feed.StreamFeed"

BROKEN = {
    "what has expired is delivered": (
        "malamute.core.stream.subscription.Reader.give",
        lambda reader, part: reader.offer(part),
    ),
    "what has expired is left out in silence": (
        "malamute.core.stream.subscription.Reader.announce_expired",
        _nothing,
    ),
    "a stream at rest does not age": ("malamute.core.stream.ageing.Ageing.stored", _nothing),
    "a delivery takes no credit": (
        "malamute.core.iteration.credit.CreditBalance.consume",
        lambda *arguments: None,
    ),
    "a gap is not told": ("malamute.core.stream.subscription.Subscription.skip", _skip_in_silence),
    "what was taken back is not told": ("malamute.core.stream.subscription.Subscription.refused", _nothing),
    "a committed subscription does not wait for the disk": (
        "malamute.core.stream.live.LiveDelivery._offer",
        offer_at_once,
    ),
    "what a peer held is not given to others": (
        "malamute.core.queue.queue.Queue.make_ready",
        lambda *arguments: None,
    ),
    "an outcome is not told": ("malamute.core.queue.trackers.Trackers.post", _told_of_nothing),
    "a tracker may be used twice": ("malamute.core.queue.trackers.Trackers.check", _nothing),
    "a tracker is never given free": ("malamute.core.queue.trackers.Trackers.close", _nothing),
    "a message outlives its time": ("malamute.core.queue.schedule.Schedule._end_life", _nothing),
    "a message comes before it is due": (
        "malamute.core.queue.queue.Queue._in_time",
        lambda queue, sequences: sorted(sequences),
    ),
    "an identity is always new": (
        "malamute.core.queue.deduplication.DedupWindow.seen",
        lambda *arguments: False,
    ),
    "an identity does not survive a restart": (
        "malamute.core.queue.deduplication.DedupWindow.restore",
        _nothing,
    ),
    "priority counts for nothing": (
        "malamute.core.queue.dispatch.Dispatcher._rank",
        lambda dispatcher, sequence: sequence,
    ),
    "a key belongs to nobody": ("malamute.core.queue.affinity.KeyAffinity.bind", _nothing),
    "somebody is always there": (
        "malamute.core.queue.dispatch.Dispatcher.has_consumer",
        lambda *arguments: True,
    ),
    "no delivery is ever late": ("malamute.core.queue.delivery.Deliveries._watch", _nothing),
    "a report is not heard": ("malamute.core.queue.source.QueueSource.report", _nothing),
    "what comes back does not wait and never dies": (
        "malamute.core.queue.queue.Queue.requeue",
        _always_ready,
    ),
    "what is marked ahead is not stored": (
        "malamute.core.queue.delivery.Watermark.advance_ahead",
        _mark_in_memory_only,
    ),
    "attempts are not stored": (
        "malamute.core.queue.delivery.SetAttempts",
        lambda kind, queue, sequence, attempts: MarkDelivered(kind, queue, sequence),
    ),
    "what dies is not kept": ("malamute.core.queue.dead_letters.DeadLetters.add", _nothing),
    "what is rejected is redelivered if it is paged_out": (
        "malamute.core.queue.settlement.Settlement._dead_letter",
        _spare_the_paged_out,
    ),
    "a dead letter does not say why": (
        "malamute.core.queue.dead_letters.DeadLetters.add",
        _forget_the_reason,
    ),
    "a dead letter that is sent again stays": (
        "malamute.core.queue.redrive._put_back",
        _keep_what_is_sent_again,
    ),
    "dead letters are never too many": (
        "malamute.core.queue.dead_letters.DeadLetters.drop_oldest",
        _nothing,
    ),
    "what was taken back is not told of": ("malamute.core.queue.queue.Queue._recall", _nothing),
    "what has expired is called purged": (
        "malamute.core.queue.queue.Queue._recall",
        _recall_as_purged,
    ),
    "a request is done without its reply": (
        "malamute.core.queue.service.Services._posts",
        lambda *arguments: [],
    ),
    "whoever has credit is not served": ("malamute.core.queue.dispatch.Dispatcher.serve", _nothing),
    "a change is made as often as it comes": (
        "malamute.core.session.confirmations.Confirmations.admit_change",
        lambda sessions, session, number: number not in session.numbers.outcomes.running,
    ),
    "what the disk refuses of a change stays": (
        "malamute.core.iteration.stored_values.StoredValues._settled",
        _nothing,
    ),
    "a number is answered twice": (
        "malamute.core.session.confirmations.Confirmations._confirm",
        _confirm_twice,
    ),
    "a delivery follows on another": (
        "malamute.core.stream.subscription.Subscription._send",
        _send_behind_another,
    ),
    "a withdrawal is reported of too much": ("malamute.core.commands.withdraw", _report_one_more),
    "a number is always new": (
        "malamute.core.session.confirmations.Confirmations.admit",
        lambda *arguments: True,
    ),
    "a client never says what it has got": (
        "malamute.client.session.inbox.Inbox.acknowledge",
        lambda *arguments: None,
    ),
    "a feed does not store where it is": (
        f"{FEED}._put",
        _take_without_a_position,
    ),
    "a feed takes its requests for stored": (
        f"{FEED}._settled",
        _take_all_for_stored,
    ),
    "a feed does not wait for its requests": (
        f"{FEED}.ready",
        property(_is_impatient),
    ),
    "a feed leaves a message out when it starts": ("malamute.core.feed.table.Position", _leave_one_out),
    "a feed leaves out what has no room": (
        "malamute.core.feed.target.QueueTarget.never_fits",
        lambda *arguments: True,
    ),
    "a feed that is full does not go on": (f"{FEED}.wake", _nothing),
    "a feed does not tell what it cannot have": (
        f"{FEED}.missed",
        _nothing,
    ),
    "a feed stays as it was": (f"{FEED}.change", _nothing),
    "a feed does not survive a restart": ("malamute.core.feed.table.Feeds.restore", _nothing),
    "an idle queue stays": ("malamute.core.queue.table.QueueTable._collect", _nothing),
    "an idle queue stays on the disk": ("malamute.core.queue.table._delete_stored", _nothing),
    "a queue is removed too early": (
        "malamute.core.queue.table.QueueTable._collect_unless_used",
        _collect_early,
    ),
    "a queue is removed with its messages": ("malamute.core.queue.queue.Queue.used", _needless("entries")),
    "a queue is removed with its workers": ("malamute.core.queue.queue.Queue.used", _needless("consumers")),
    "a queue is removed though an outcome may come": (
        "malamute.core.queue.queue.Queue.used",
        _needless("usage.reserved"),
    ),
    "a queue is removed that a stream feeds": ("malamute.core.queue.queue.Queue.used", _needless("feeds")),
    "a queue is removed with its dead letters": (
        "malamute.core.queue.queue.Queue.used",
        _needless("dead_letters.entries"),
    ),
    "a queue is removed with its identities": (
        "malamute.core.queue.queue.Queue.used",
        _needless("dedup.known"),
    ),
    "a mailbox is deleted though its owner is there": ("malamute.core.admin.queue_deletion._check", _nothing),
    "a queue is deleted with what has come meanwhile": (
        "malamute.core.admin.queue_deletion._check_empty",
        _nothing,
    ),
    "a queue is deleted and its consumers are not told": (
        "malamute.core.admin.queue_deletion._end_consumers",
        _end_nobody,
    ),
    "a queue in use is deleted without a cascade": (
        "malamute.protocol.admin.QueueDelete.cascade",
        property(lambda wanted: True, _nothing),
    ),
    "a queue that is deleted stays": ("malamute.core.admin.queue_deletion._deletion", _delete_nothing),
    "who shares a mailbox selects by the subject": (
        "malamute.core.queue.dispatch.Dispatcher.dispatch",
        _dispatch_by_subject,
    ),
    "a subscription makes the stream that was to be there": (
        "malamute.core.commands.ClientCommands.receive",
        _make_what_was_to_be_there,
    ),
    "a subscription is refused that finds its stream": (
        "malamute.core.commands.ClientCommands.receive",
        _find_no_stream,
    ),
    "a stream is deleted and its readers are not told": (
        "malamute.core.admin.deletion._end",
        _end_nobody,
    ),
    "a start at a time is at the head": (
        "malamute.core.stream.start.at_time",
        lambda asked, time, found: Position(asked.head),
    ),
    "the times of a stream go back with the clock": (
        "malamute.core.stream.stream.Stream._at",
        lambda stream, now: now,
    ),
    "what a jump of the clock makes old is dropped": (
        "malamute.journal.ring.Ring.time_passed",
        lambda ring, stream, age, time_ns: (time_ns, 0.0),
    ),
    "the clock is not noted": ("malamute.core.iteration.grace_period.ClockNote.store", _nothing),
    "a restored queue goes on where the backup ends": (
        "malamute.core.queue.recovery.RestoredQueue.restore",
        _go_on_with_old_numbers,
    ),
    "a sequence of a queue is used again after a crash": (
        "malamute.core.queue.limits.QueueSequences.covers",
        lambda sequences, last: True,
    ),
    "a lost cursor begins at the head": ("malamute.core.stream.cursors.Cursors.check_known", _nothing),
    "a lost cursor that is set again stays lost": (
        "malamute.core.stream.cursors.Cursors._find_again",
        _nothing,
    ),
    "a feed that is set again is reported as lost": (
        "malamute.core.iteration.recovery.Recovery.settled",
        _nothing,
    ),
    "a lost feed begins anywhere": ("malamute.core.admin.feeds._start", _begin_anywhere),
    "what cannot be read is not settled": (
        "malamute.core.queue.settlement.Settlement.dead_letter_unreadable",
        _nothing,
    ),
    "what cannot be read dies for another reason": ("malamute.core.queue.settlement.CORRUPT", "max-deliver"),
    "nobody is notified that a request is lost": ("malamute.core.queue.trackers.Trackers.answer", _nothing),
    "what could not be read is sent again": ("malamute.core.queue.redrive._is_whole", _is_there),
    "what a damaged block held is forgotten": ("malamute.core.broker.Core._store_again", _nothing),
    "a session that a damaged block held is forgotten": (
        "malamute.core.session.confirmations.Confirmations.store_again",
        _nothing,
    ),
    "a change has no record": ("malamute.core.reports.audit.Audit._write", _leave_out_changes),
    "the record of a change is not stored with it": (
        "malamute.core.reports.audit.Audit._write",
        _record_later,
    ),
    "a change has two records": ("malamute.core.reports.audit.Audit._write", _record_twice),
    "a refused change has no record": ("malamute.core.reports.audit.RefusalLog.note", _nothing),
    "a record that the disk refuses is gone": ("malamute.core.reports.audit.Audit._stored", _nothing),
    "a retention that the disk refuses is in force": (
        "malamute.core.iteration.stored_values.StoredValues._settled",
        _let_retentions_stand,
    ),
    "damage is not reported": ("malamute.core.iteration.health.Health.damaged", _nothing),
    "a session may have any selectors": (
        "malamute.core.session.selectors.SelectorBudget.check",
        lambda budget, selector, session=None, beside=0: selector.cost_bytes + beside,
    ),
    "a cursor that waits for its position has room": (
        "malamute.core.stream.cursors.Cursors.check",
        _nothing,
    ),
    "a session may have any answers": ("malamute.core.session.answers.Answers.check", _nothing),
    "identities may take any memory": ("malamute.core.iteration.dedup_quota.DedupQuota.evict", _nothing),
    "caches may take any memory": ("malamute.matching.cache.CacheBudget._reclaim", _nothing),
    "a restored broker goes on where the backup ends": (
        "malamute.journal.store.next_incarnation",
        lambda now, used, newest: 0,
    ),
    "a feed that was set back goes on where it was before": (
        "malamute.core.feed.table.Feeds._restore",
        _trust_any_position,
    ),
    "a restored feed goes on at the head": (
        "malamute.core.feed.table.Feeds._restore",
        _begin_restored_at(lambda stream: stream.progress.next - 1),
    ),
    "a restored feed begins again": (
        "malamute.core.feed.table.Feeds._restore",
        _begin_restored_at(lambda stream: 0),
    ),
    "a restore is reported as a restart": (
        "malamute.core.stream.gaps.Gaps._is_restored",
        lambda *arguments: False,
    ),
}


NOTICED = {
    "a sequence of a queue is used again after a crash": (pressed, 109),
    "a committed subscription does not wait for the disk": (plan_of, 35),
    "a dead letter that is sent again stays": (plan_of, 343),
    "a tracker may be used twice": (plan_of, 19),
    "a message outlives its time": (pressed, 46),
    "an identity is always new": (plan_of, 16),
    "an identity does not survive a restart": (plan_of, 30),
    "priority counts for nothing": (pressed, 84),
    "a key belongs to nobody": (pressed, 94),
    "somebody is always there": (plan_of, 13),
    "a report is not heard": (pressed, 65),
    "what is rejected is redelivered if it is paged_out": (plan_of, 54),
    "what has expired is called purged": (pressed, 73),
    "dead letters are never too many": (plan_of, 335),
    "a feed does not store where it is": (plan_of, 18),
    "a feed takes its requests for stored": (pressed, 107),
    "a feed does not wait for its requests": (plan_of, 218),
    "a feed leaves out what has no room": (plan_of, 40),
    "a feed that is full does not go on": (plan_of, 40),
    "a feed does not tell what it cannot have": (plan_of, 12),
    "a feed stays as it was": (plan_of, 218),
    "a feed does not survive a restart": (plan_of, 0),
    "a queue is removed too early": (plan_of, 53),
    "a queue is removed though an outcome may come": (plan_of, 24),
    "a queue is removed with its dead letters": (plan_of, 30),
    "a queue is removed with its identities": (pressed, 105),
    "the times of a stream go back with the clock": (plan_of, 100),
    "the clock is not noted": (plan_of, 4),
    "what a jump of the clock makes old is dropped": (plan_of, 132),
    "a restored queue goes on where the backup ends": (plan_of, 619),
    "a lost cursor begins at the head": (plan_of, 58),
    "a lost feed begins anywhere": (plan_of, 218),
    "what a damaged block held is forgotten": (plan_of, 58),
    "a session that a damaged block held is forgotten": (plan_of, 58),
    "a feed that was set back goes on where it was before": (set_back, 51),
    "a restored feed goes on at the head": (plan_of, 1883),
    "a restored feed begins again": (plan_of, 155),
    "a lost cursor that is set again stays lost": (plan_of, 888),
    "a feed that is set again is reported as lost": (plan_of, 178),
    "a record vouches for what is on its way to another store": (plan_of, 301),
    "a change has no record": (plan_of, 2),
    "the record of a change is not stored with it": (plan_of, 2),
    "a change has two records": (plan_of, 6),
    "a refused change has no record": (plan_of, 2),
    "a record that the disk refuses is gone": (plan_of, 2),
    "a retention that the disk refuses is in force": (plan_of, 202),
    "what cannot be read is not settled": (plan_of, 8),
    "what cannot be read dies for another reason": (plan_of, 8),
    "nobody is notified that a request is lost": (plan_of, 188),
    "what could not be read is sent again": (plan_of, 2958),
    "a session may have any selectors": (plan_of, 5),
    "a cursor that waits for its position has room": (plan_of, 32),
    "a session may have any answers": (plan_of, 68),
    "identities may take any memory": (plan_of, 95),
    "caches may take any memory": (plan_of, 14),
    "a restored broker goes on where the backup ends": (plan_of, 11),
    "a restore is reported as a restart": (plan_of, 11),
    "a queue is removed with its messages": (plan_of, 21),
    "a message comes before it is due": (plan_of, 13),
    "a start at a time is at the head": (plan_of, 35),
    "a withdrawal is reported of too much": (plan_of, 13),
    "damage is not reported": (plan_of, 8),
    "a dead letter does not say why": (plan_of, 8),
    "what dies is not kept": (plan_of, 8),
    "what has expired is delivered": (plan_of, 25),
    "what has expired is left out in silence": (plan_of, 25),
    "a stream at rest does not age": (plan_of, 41),
    "what was taken back is not told": (plan_of, 118),
    "a mailbox is deleted though its owner is there": (plan_of, 197),
    "a queue is deleted with what has come meanwhile": (plan_of, 1368),
    "a queue is deleted and its consumers are not told": (plan_of, 1352),
    "a queue in use is deleted without a cascade": (plan_of, 112),
    "a queue that is deleted stays": (plan_of, 1122),
    "who shares a mailbox selects by the subject": (plan_of, 79),
    "a stream is deleted and its readers are not told": (plan_of, 127),
    "a subscription makes the stream that was to be there": (plan_of, 83),
    "a subscription is refused that finds its stream": (plan_of, 64),
}
"""Where the search for what these do begins: by itself it comes there late. What is noticed elsewhere, when
something has changed, takes longer and is noticed as well."""


def _plans(fault):
    if fault in NOTICED:
        make, seed = NOTICED[fault]
        yield make(seed)
    yield from map(plan_of, range(SEEDS_BROKEN))
    yield from map(pressed, SEEDS_PRESSED)
    yield from map(set_back, SEEDS_SET_BACK)
    yield from filter(_is_rare, map(plan_of, SEEDS_RARE))


def _is_rare(plan):
    return plan.setup.clocks or plan.setup.restores


@pytest.mark.parametrize("fault", some(BROKEN, *[*BROKEN][::3]))
def test_a_broken_promise_is_noticed(fault):
    target, substitute = BROKEN[fault]
    with patch(target, substitute):
        assert any(failure_of(plan) is not None for plan in _plans(fault))


@nightly
def test_a_failing_run_is_shrunk_to_what_it_needs():
    target, substitute = BROKEN["a delivery takes no credit"]
    with patch(target, substitute):
        plan = next(plan for plan in map(plan_of, range(SEEDS_BROKEN)) if failure_of(plan))
        small = shrink(plan)
        assert failure_of(small) == failure_of(plan)
        assert len(small.steps) < len(plan.steps) / 4


def test_an_answer_overtakes_no_more_than_what_the_writer_reports_last():
    # What was refused is reported before anything behind it is in the store, where a read could find it.
    reported = []
    disk = Disk(MemoryStore(), lambda operations: reported.append(workers.has_results))
    workers = Workers(disk)
    disk.failures.extend((True, True, False))
    workers.appends += [Append(token, [PutValue(CURSORS, ("s", "c"), token)]) for token in (1, 2)]
    workers.write(2)
    assert reported == [False, True]
    workers.questions += [ReadChunks("s", start, 1) for start in (1, 2)]
    assert workers.read(2)
    assert workers.read(0)
    refused, overtaking = workers.take_results()
    assert (refused.tokens, refused.error is None, overtaking.question.start) == ([1], False, 1)
    stored, behind = workers.take_results()
    assert (stored.tokens, stored.error, behind.question.start) == ([2], None, 2)
    assert not workers.has_results


@pytest.mark.parametrize(("marked", "record"), [(False, UNREADABLE), (True, UNREADABLE), (False, b"?")])
def test_an_outcome_dies_whole_from_memory_or_marked_as_damaged(marked, record):
    # The record of an outcome is empty, as is that of a letter whose record was lost.
    key = ("mailbox", "ann", 1)
    properties = {"outcome": "purged", "kind": "mailbox", "name": "bob", "tracker": "t"}
    outcome = StoredMessage(1, 5, "", "a", UNREADABLE, properties)
    mail = Mail(key, b"outcome-1", outcome, Wishes(outcome, 0.0, 0.0), tied=True)
    mail.damaged = mail.stranded = True
    died = {"reason": "max-deliver", "attempts": 0, "sequence": 1, "time": 5, "died": 7}
    letter = outcome._replace(
        sequence=9,
        record=record,
        properties={**properties, "dead": died | ({"damaged": True} if marked else {})},
    )
    with nullcontext() if record == UNREADABLE else pytest.raises(Violation):
        DeadBook(QueuePolicy()).check(key, mail, letter, "max-deliver", (0.0, 1.0))


def test_what_was_on_its_way_when_a_deletion_began_reserves_nothing_for_what_came_behind():
    store = MemoryStore()
    book = StreamBook(Author(), store, "live", Wall(0.0))
    on_its_way, behind = (AppendChunk("s", Chunk(s, 1, 1, b""), s + 1_000) for s in (1, 2))
    for append in (on_its_way, behind):
        sequence = append.chunk.first
        if sequence == 2:
            book.begin_to_forget("s")
        order = Order("publish", b"", "s", numbered=False)
        book.places.setdefault("s", {})[sequence] = Place(
            Origin(order, b"%d" % sequence, "a", "", {}), 0, 0, 0, 0
        )
        book.order.setdefault("s", []).append(sequence)
        book._waiting["s", sequence] = [sequence]
    store.write([on_its_way])
    book.committed(on_its_way)
    book.failed(behind)
    assert book.unsent == {"s": {2}}


def test_nothing_is_read_of_a_connection_before_the_monitor_has_told_of_it():
    link, old, new = Link(b"ann"), Connection(b"ann", 9), Connection(b"ann", 9)
    link.connect(old)
    link.changes.clear()
    link.disconnect()
    link.connect(new)
    old.down.append([b"left over"])
    new.down.append([b"new"])
    assert [link.receive(choice) for choice in (1, 1)] == [[b"left over"], None]
    link.changes.clear()
    assert link.receive(0) == [b"new"]


def test_every_change_is_given_with_every_argument_that_it_takes():
    given: dict[str, set[str]] = {}
    for a, b in product(range(len(CHANGES)), (0, *(1 << place for place in range(16)))):
        topic, arguments = changing(a, b, 0)
        CHANGES[topic].parse(arguments)
        given.setdefault(topic, set()).update(arguments)
    for topic, change in CHANGES.items():
        left_out = {name for of, name in LEFT_OUT if of == topic}
        assert given[topic] == {*arguments_of(change).required, *arguments_of(change).optional} - left_out, (
            topic
        )


def test_programs_use_every_family_and_the_plain_words_say_the_same_as_each():
    used = {family for criteria, _, _ in CRITERIA.values() for family, _ in criteria}
    assert used == {*FAMILIES} - {"sender"}  # messages here have no sender
    for name, (criteria, where, wants) in CRITERIA.items():
        index: Index = Index()
        group = index.add(1, Selector.parse(criteria, where))
        told = {
            (subject, place): group in index.match(subject, headers)
            for subject, (place, headers) in product(SUBJECTS, enumerate(HEADERS))
        }
        order = Order("publish", b"", "", numbered=False)
        meant = {
            (subject, place): bool(wants(Origin(order, b"", subject, "", headers)))
            for subject, (place, headers) in product(SUBJECTS, enumerate(HEADERS))
        }
        assert told == meant, name
        assert {*meant.values()} == ({True} if name == "all" else {True, False})
