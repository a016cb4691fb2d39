"""Messages whose records are on the disk only: they are dispatched, looked at and settled like all others."""

from __future__ import annotations

import pytest
from core_bench import Bench, ack, items, mail_credit, offer, reply, request, send

from malamute.core.queue import paging
from malamute.core.queue.entry import ENTRY_BYTES
from malamute.core.queue.paging import RETRY_SECONDS
from malamute.errors import StorageFull, StoreError
from malamute.protocol.limits import Limits
from malamute.protocol.messages import Change, Deliver, Error, Nak, Query, Recall, Reject, Release
from malamute.store.operations import FetchRecords
from malamute.store.policies import QueuePolicy

BODY = 100
SIZE = ENTRY_BYTES + 1 + BODY + 4
"""What a message with a body of this length takes: with its subject, and what its record adds."""


def body(number):
    return f"{number}:".encode().ljust(BODY, b".")


def bodies(*numbers):
    return [body(number) for number in numbers]


@pytest.fixture
def bench():
    """A broker that may keep two messages of one queue."""
    return opened(Bench(Limits(queues_memory_bytes=4 * SIZE)))


def opened(bench):
    bench.open("alice", "bob", "op")
    return bench


def filled(bench, count, **options):
    """So many messages are in the mailbox of bob."""
    for number in range(1, count + 1):
        bench.tell("alice", send("bob", body(number), number=number, **options))
        bench.settle()
    return bench


def mailbox(bench, name="bob"):
    return bench.core.mailboxes.by_name[name]


def paged_out(bench, name="bob"):
    return [sequence for sequence, entry in mailbox(bench, name).entries.items() if entry.paged_out]


def ask(bench, topic="messages", **arguments):
    bench.sent("op")
    bench.tell("op", Query(1, topic, {"kind": "mailbox", "name": "bob", **arguments}))
    bench.read_all()
    [answer] = bench.sent("op")
    return answer.value


def change(bench, topic, **arguments):
    bench.sent("op")
    bench.tell("op", Change(0, topic, {"kind": "mailbox", "name": "bob", **arguments}))
    bench.settle()
    [answer] = bench.sent("op")
    return answer.code if isinstance(answer, Error) else answer.value["messages"]


def damage(bench, *sequences):
    """The store can no longer read these messages of bob."""
    read = bench.store.fetch

    def fetch(kind, queue, wanted):
        found = read(kind, queue, wanted)
        return {s: m for s, m in found.items() if kind != "mailbox" or s not in sequences}

    bench.store.fetch = fetch


def accounts_hold(bench):
    """What is counted is what there is."""
    core = bench.core
    queues = [*core.mailboxes.by_name.values(), *core.services.by_name.values()]
    for queue in queues:
        found = sum(entry.size_bytes for entry in queue.entries.values() if entry.paged_out)
        assert queue.usage.paged_out_bytes == found, "no room is reserved in these tests"
        assert queue.dead_letters.paged_out_bytes == sum(
            entry.size_bytes for entry in queue.dead_letters.entries.values() if entry.paged_out
        )
        assert queue.usage.bytes == sum(entry.size_bytes for entry in queue.entries.values())
    assert core.queue_limits.memory.paged_out_bytes == sum(
        queue.usage.paged_out_bytes + queue.dead_letters.paged_out_bytes for queue in queues
    )
    assert core.queue_limits.messages == sum(
        len(queue.entries) + len(queue.dead_letters.entries) for queue in queues
    )


# What goes out of memory


def test_a_queue_keeps_as_much_as_it_leaves_free(bench):
    filled(bench, 2)
    assert paged_out(bench) == []
    bench.tell("alice", send("bob", body(3), number=3))
    bench.settle()
    assert paged_out(bench) == [3]
    accounts_hold(bench)


def test_the_next_queue_has_room_for_something_however_much_the_first_holds(bench):
    filled(bench, 10)
    bench.tell("alice", send("carl", body(1)))
    bench.settle()
    assert paged_out(bench, "carl") == []
    assert paged_out(bench) == [*range(3, 11)]


def test_what_is_not_on_the_disk_stays_in_memory(bench):
    bench.tell("alice", send("bob", *bodies(1, 2, 3, 4)))
    assert paged_out(bench) == []
    bench.commit()
    assert paged_out(bench) == [3, 4]
    bench.tell("alice", send("bob", body(5)))
    bench.fail()
    assert paged_out(bench) == [3, 4]
    bench.tell("bob", mail_credit())
    bench.settle()
    assert bench.bodies("bob") == bodies(1, 2, 3, 4, 5)


def test_what_nobody_awaited_and_the_disk_refused_is_never_let_go(bench):
    bench.tell("alice", send("bob", *bodies(1, 2, 3, 4), number=1), send("bob", *bodies(5, 6)))
    bench.fail()
    assert [*mailbox(bench).entries] == [5, 6]
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("alice", send("bob", *bodies(7, 8)))
    bench.settle()
    bench.tell("bob", Nak(0, [[1, 99]], 0))
    bench.settle()
    assert {5, 6} & {*paged_out(bench)} == set()


def test_nor_is_it_where_it_is_dispatched_in_steps(bench, monkeypatch):
    monkeypatch.setattr("malamute.core.queue.steps.Steps.step_messages", 2)
    bench.tell("bob", mail_credit(1))
    sent = bodies(*range(2, 9))
    bench.tell("alice", send("bob", body(1), number=1), send("bob", *sent))
    bench.fail()
    bench.settle()
    assert paged_out(bench) == []
    bench.tell("bob", mail_credit())
    bench.settle()
    assert bench.bodies("bob") == sent


def test_records_of_deliveries_leave_memory_when_they_are_sent(bench):
    bench.tell("bob", mail_credit())
    bench.tell("alice", send("bob", *bodies(*range(1, 11))))
    bench.settle()
    assert bench.bodies("bob") == bodies(*range(1, 11))
    bench.tell("alice", send("bob", *bodies(11, 12), number=1))
    bench.settle()
    assert len(mailbox(bench).entries) - len(paged_out(bench)) == 2
    bench.tell("bob", ack(0, (1, 12)))
    bench.settle()
    assert not mailbox(bench).entries
    accounts_hold(bench)


# Delivery


def test_paged_out_messages_are_delivered_whole_and_in_order(bench):
    filled(bench, 10)
    bench.tell("bob", mail_credit())
    bench.settle()
    got = bench.got("bob")
    assert [item.body for item in got] == bodies(*range(1, 11))
    assert {item.attempt for item in got} == {1}
    bench.tell("bob", ack(0, (1, 10)))
    bench.settle()
    assert (
        bench.core.queue_limits.bytes
        == bench.core.queue_limits.memory.paged_out_bytes
        == bench.core.queue_limits.memory.prefetched_bytes
        == 0
    )
    accounts_hold(bench)


def test_who_has_credit_waits_once_for_a_run(monkeypatch):
    bench = opened(
        Bench(Limits(queues_memory_bytes=100 * SIZE), queues=QueuePolicy(priority_step_messages=1))
    )
    monkeypatch.setattr(paging, "RUN_MESSAGES", 10)
    filled(bench, 90)
    first = paged_out(bench)[0]
    bench.tell("bob", mail_credit(first - 1))
    bench.settle()
    bench.tell("bob", ack(0, (1, first - 1)))
    bench.settle()
    asked = []
    for number in range(first, 91):
        bench.tell("bob", mail_credit(1))
        asked += [question.sequences for question in bench.reads]
        bench.settle()
        bench.tell("bob", ack(0, (number, number)))
        bench.settle()
    assert sorted(bench.bodies("bob")) == sorted(bodies(*range(1, 91)))
    assert len(asked) <= 2 * (91 - first) // 10 + 2, "neighbours are asked for together"


def test_workers_share_paged_out_requests_by_what_they_can_do(bench):
    for number in range(1, 21):
        subject = "ab"[number % 2]
        bench.tell("alice", request(body(number), number=number, subject=subject))
        bench.settle()
    bench.tell("bob", offer(pattern="a", credit=100))
    bench.tell("op", offer(pattern="b", credit=100))
    bench.settle()
    assert bench.bodies("bob") == bodies(*range(2, 21, 2))
    assert bench.bodies("op") == bodies(*range(1, 21, 2))
    bench.tell("bob", reply(1, *range(2, 21, 2)))
    bench.tell("op", reply(1, *range(1, 21, 2), number=1))
    bench.settle()
    assert not bench.core.services.by_name["w"].entries
    accounts_hold(bench)


def test_what_a_worker_loses_while_its_records_come_goes_to_another(bench):
    for number in range(1, 9):
        bench.tell("alice", request(body(number), number=number))
        bench.settle()
    bench.tell("bob", offer(credit=8))
    assert any(isinstance(question, FetchRecords) for question in bench.reads)
    bench.lost("bob")
    bench.settle()
    assert bench.got("bob") == []
    bench.tell("op", offer(credit=8))
    bench.settle()
    assert [(item.body, item.attempt) for item in bench.got("op")] == [(body(n), 1) for n in range(1, 9)]
    accounts_hold(bench)


def test_what_is_read_ahead_leaves_with_the_last_consumer(bench):
    filled(bench, 10)
    bench.tell("bob", mail_credit(3))
    bench.settle()
    bench.lost("bob")
    bench.settle()
    assert bench.core.queue_limits.memory.prefetched_bytes == 0
    accounts_hold(bench)


def test_nobody_is_given_more_at_once_than_may_be_in_memory():
    bench = opened(Bench(Limits(queues_memory_bytes=10 * SIZE)))
    filled(bench, 100)
    bench.tell("bob", mail_credit())
    most = 0
    while bench.appends or bench.reads:
        bench.commit() if bench.appends else bench.read()
        most = max(most, bench.core.queue_limits.memory.prefetched_bytes)
        assert mailbox(bench).usage.bytes - mailbox(bench).usage.paged_out_bytes <= 10 * SIZE
    assert bench.bodies("bob") == bodies(*range(1, 101))
    assert 0 < most <= 10 * SIZE


@pytest.mark.parametrize("is_read", ["before", "after"])
@pytest.mark.parametrize("is_told", ["before", "after"])
def test_what_leaves_while_it_is_read_ahead_is_not_damaged(bench, is_read, is_told):
    """Its record is read, and the broker gets it, before or after it is removed."""
    filled(bench, 10)
    bench.tell("bob", mail_credit(paged_out(bench)[0]))
    bench.tell("op", Change(0, "queue.purge", {"kind": "mailbox", "name": "bob"}))
    appends, [question] = [*bench.appends], bench.reads
    bench.appends.clear()
    bench.reads.clear()

    def read():
        return bench.store.fetch(question.kind, question.queue, question.sequences)

    found = read()
    bench.store.write([operation for append in appends for operation in append.operations])
    found = found if is_read == "before" else read()
    if is_told == "before":
        bench.core.answered(question, found, bench.now)
    for append in appends:
        bench.core.stored(append.token, bench.now)
    if is_told == "after":
        bench.core.answered(question, found, bench.now)
    bench.settle()
    assert not bench.notices
    assert mailbox(bench).usage.counts["damaged"] == 0
    accounts_hold(bench)
    assert bench.core.queue_limits.memory.prefetched_bytes == 0


def test_a_consumer_goes_on_when_all_that_the_store_could_not_read_has_left(bench):
    filled(bench, 5)
    bench.tell("bob", mail_credit())
    while bench.reads:
        bench.core.answered(bench.reads.popleft(), StoreError("busy"), bench.now)
    assert change(bench, "queue.purge") == 5
    bench.wait(RETRY_SECONDS)
    bench.sent("bob")
    bench.tell("alice", send("bob", body(6), delay=1_000))
    bench.wait(1)
    bench.settle()
    assert bench.bodies("bob") == bodies(6)


def test_what_is_asked_for_twice_counts_once(monkeypatch):
    """A worker leaves while its records come, and the next one asks for what follows again."""
    monkeypatch.setattr(paging, "RUN_MESSAGES", 4)
    bench = opened(Bench(Limits(queues_memory_bytes=20 * SIZE)))
    for number in range(1, 31):
        bench.tell("alice", request(body(number), number=number))
        bench.settle()
    asked = len(bench.core.services.by_name["w"].entries) - 10
    bench.tell("bob", offer(credit=asked))
    bench.commit()
    bench.lost("bob")
    bench.tell("op", offer(credit=asked))
    bench.settle()
    assert {item.body for item in bench.got("op")} == {*bodies(*range(1, asked + 1))}
    accounts_hold(bench)
    assert bench.core.queue_limits.memory.prefetched_bytes == 0


def test_records_are_read_ahead_in_runs_however_small_the_credit(monkeypatch):
    monkeypatch.setattr(paging, "RUN_MESSAGES", 10)
    monkeypatch.setattr(paging, "RUN_BYTES", 20 * SIZE)
    bench = filled(opened(Bench(Limits(queues_memory_bytes=60 * SIZE))), 200)
    left = len(paged_out(bench))
    fetches = []
    read = bench.store.fetch
    bench.store.fetch = lambda kind, queue, wanted: fetches.append(len(wanted)) or read(kind, queue, wanted)
    for number in range(1, 201):
        bench.tell("bob", mail_credit(1))
        bench.settle()
        [item] = bench.got("bob")
        assert (item.sequence, item.body) == (number, body(number))
        bench.tell("bob", ack(0, (number, number)))
    assert 100 < left == sum(fetches)
    assert len(fetches) <= left / 10 + 2
    accounts_hold(bench)


def test_one_message_larger_than_the_memory_is_delivered():
    bench = opened(Bench(Limits(queues_memory_bytes=50)))
    filled(bench, 3)
    assert paged_out(bench) == [1, 2, 3]
    bench.tell("bob", mail_credit())
    bench.settle()
    assert bench.bodies("bob") == bodies(1, 2, 3)


def recalls(bench):
    return [message.ranges for message in bench.sent("bob") if isinstance(message, Recall)]


def test_what_waits_behind_a_paged_out_message_has_its_time_from_when_it_is_sent():
    policy = QueuePolicy(ack_timeout_seconds=10.0)
    bench = opened(Bench(Limits(queues_memory_bytes=4 * SIZE), queues=policy))
    filled(bench, 3)
    bench.core.queue_limits.memory.evict(mailbox(bench).usage, [mailbox(bench).entries[1]])
    bench.tell("bob", mail_credit())
    bench.wait(4)
    bench.tell("alice", send("bob", body(4)))
    bench.wait(4)
    bench.settle()
    assert bench.bodies("bob") == bodies(1, 2, 3, 4)
    bench.wait(8)
    assert recalls(bench) == []
    bench.wait(2)
    assert recalls(bench) == [[[1, 4]]]


def test_paged_out_messages_go_by_priority(bench):
    filled(bench, 5)
    bench.tell("alice", send("bob", body(6), number=6, priority=9))
    bench.settle()
    bench.tell("bob", mail_credit())
    bench.settle()
    assert bench.bodies("bob") == bodies(6, 1, 2, 3, 4, 5)


def test_a_paged_out_message_that_comes_back_is_delivered_again(bench):
    filled(bench, 6)
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.sent("bob")
    bench.tell("bob", Nak(0, [[4, 4]], 0), Release(0, [[5, 5]]))
    bench.settle()
    assert [(item.body, item.attempt) for item in bench.got("bob")] == [(body(4), 2), (body(5), 1)]


def test_credit_in_bytes_counts_paged_out_records(bench):
    filled(bench, 6)
    bench.tell("bob", mail_credit()._replace(bytes=3 * (BODY + 5)))
    bench.settle()
    assert bench.bodies("bob") == bodies(1, 2, 3)


# Settlement


def test_a_paged_out_message_is_a_whole_dead_letter(bench):
    filled(bench, 6)
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", Reject(0, [[1, 6]], "no"))
    bench.settle()
    assert [row["body"] for row in ask(bench, dead=True)] == bodies(*range(1, 7))
    accounts_hold(bench)
    assert change(bench, "queue.redrive") == 6
    bench.sent("bob")
    bench.tell("bob", ack(0, (7, 12)))
    bench.settle()
    assert not mailbox(bench).entries
    assert not mailbox(bench).dead_letters.entries
    accounts_hold(bench)


def test_a_dead_letter_that_is_not_stored_leaves_a_paged_out_message_where_it_was(bench):
    filled(bench, 4)
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.sent("bob")
    bench.tell("bob", Reject(0, [[4, 4]], "no"))
    bench.read_all()
    bench.fail()
    bench.settle()
    assert bench.bodies("bob") == [body(4)]
    assert ask(bench, dead=True) == []
    bench.crash()
    assert [*mailbox(bench).entries] == [1, 2, 3, 4]


def test_a_burial_is_tried_again_when_the_store_could_not_read(bench):
    filled(bench, 6)
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", Reject(0, [[3, 6]], "no"))
    for _ in range(2):
        question = bench.reads.popleft()
        assert isinstance(question, FetchRecords)
        bench.core.answered(question, StoreError("the disk failed"), bench.now)
        bench.settle()
        assert (ask(bench, dead=True), [*mailbox(bench).entries]) == ([], [1, 2, 3, 4, 5, 6])
        bench.wait(RETRY_SECONDS)
    bench.settle()
    assert [row["body"] for row in ask(bench, dead=True)] == bodies(3, 4, 5, 6)
    assert [*mailbox(bench).entries] == [1, 2]
    accounts_hold(bench)


def test_a_paged_out_message_expires(bench):
    filled(bench, 4, ttl=1000)
    assert paged_out(bench) != []
    bench.wait(1)
    bench.settle()
    assert mailbox(bench).usage.counts["expired"] == 4
    assert not mailbox(bench).entries
    accounts_hold(bench)


def test_a_delayed_message_waits_on_the_disk(bench):
    filled(bench, 6, delay=1000)
    assert paged_out(bench) == [2, 3, 4, 5, 6], "each option takes room as well"
    bench.tell("bob", mail_credit())
    bench.wait(1)
    bench.settle()
    assert bench.bodies("bob") == bodies(*range(1, 7))


def test_a_paged_out_message_is_withdrawn_and_purged(bench):
    filled(bench, 6)
    assert change(bench, "queue.purge", sequences=[4, 5]) == 2
    assert [row["sequence"] for row in ask(bench)] == [1, 2, 3, 6]
    assert change(bench, "queue.purge") == 4
    accounts_hold(bench)


# Looking at them


def test_an_operator_sees_paged_out_messages_whole(bench):
    filled(bench, 6)
    rows = ask(bench)
    assert [row["body"] for row in rows] == bodies(*range(1, 7))
    assert {row["size"] for row in rows} == {BODY + 4}
    assert [row["sequence"] for row in ask(bench, after=3, limit=2)] == [4, 5]


def test_a_page_of_many_is_all_that_is_brought(bench, monkeypatch):
    monkeypatch.setattr(paging, "RUN_MESSAGES", 4)
    filled(bench, 20)
    bench.sent("op")
    bench.tell("op", Query(1, "messages", {"kind": "mailbox", "name": "bob", "after": 10, "limit": 3}))
    [question] = bench.reads
    assert question.sequences == (11, 12, 13)


def test_what_meets_an_expression_is_found_among_paged_out_messages(bench, monkeypatch):
    monkeypatch.setattr(paging, "RUN_MESSAGES", 3)
    filled(bench, 10)
    assert len(ask(bench, where="subject = 'a'")) == 10
    assert ask(bench, where="subject = 'b'") == []
    assert change(bench, "queue.purge", where="subject = 'a'", limit=4) == 4
    assert [*mailbox(bench).entries] == [*range(5, 11)]


# Damage


def test_a_record_that_cannot_be_read_is_an_end_and_no_loss_in_silence(bench):
    filled(bench, 6)
    damage(bench, 4)
    bench.tell("bob", mail_credit())
    bench.settle()
    assert sorted(bench.bodies("bob")) == bodies(1, 2, 3, 5, 6)
    [notice] = bench.notices
    assert notice.details["sequences"] == [[4, 4]]
    assert "mailbox.damaged.bob" in bench.events
    [row] = ask(bench, dead=True)
    assert row["properties"]["dead"]["reason"] == "corrupt"
    assert (row["subject"], row["sender"], row["body"]) == ("a", "alice", b"")
    bench.crash()
    assert 4 not in mailbox(bench).entries


def test_the_sender_learns_of_a_tracked_message_that_cannot_be_read(bench):
    filled(bench, 3)
    bench.tell("alice", send("bob", body(4), number=4, tracker="t"))
    bench.settle()
    damage(bench, 4)
    bench.tell("bob", mail_credit())
    bench.tell("alice", mail_credit())
    bench.settle()
    [outcome] = bench.got("alice")
    assert outcome.properties["outcome"] == "dead-lettered"
    assert outcome.properties["reason"] == "corrupt"


def test_a_damaged_message_is_seen_as_such_and_can_be_dropped(bench):
    filled(bench, 4)
    damage(bench, 4)
    assert [row["damaged"] for row in ask(bench)] == [False, False, False, True]
    assert change(bench, "queue.purge", sequences=[4]) == 1


def test_a_damaged_dead_letter_is_not_sent_again(bench):
    filled(bench, 2)
    bench.tell("bob", mail_credit(2))
    bench.settle()
    bench.tell("bob", Reject(0, [[1, 2]], "no"))
    bench.settle()
    read = bench.store.fetch
    bench.store.fetch = lambda kind, queue, wanted: {
        s: m for s, m in read(kind, queue, wanted).items() if kind != "mailbox-dead" or s != 1
    }
    assert change(bench, "queue.redrive") == 1
    assert [*mailbox(bench).dead_letters.entries] == [1]


# Restart


def test_a_broker_that_starts_leaves_on_the_disk_what_is_too_much(bench):
    filled(bench, 10)
    bench.crash()
    assert paged_out(bench) == [*range(3, 11)], "it keeps as much as it leaves free"
    accounts_hold(bench)
    bench.open("bob")
    bench.tell("bob", mail_credit())
    bench.settle()
    assert bench.bodies("bob") == bodies(*range(1, 11))


def test_small_messages_that_were_there_at_the_start_leave_room_for_others():
    """What they take beside their records counts as well, and nobody may come to fetch them."""
    bench = opened(Bench(Limits(queues_memory_bytes=4 * ENTRY_BYTES, backlog_bytes=2 * ENTRY_BYTES)))
    for number in range(1, 11):
        bench.tell("alice", send("bob", b"", number=number))
        bench.settle()
    bench.crash()
    assert bench.core.queue_limits.memory.excess_bytes(mailbox(bench).usage) <= 0
    accounts_hold(bench)
    bench.open("alice")
    bench.tell("alice", send("carl", b"", number=11))
    bench.settle()
    assert not [answer for answer in bench.sent("alice") if isinstance(answer, Error)]


def test_a_broker_that_starts_knows_paged_out_dead_letters(bench):
    filled(bench, 6)
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", Reject(0, [[1, 6]], "no"))
    bench.settle()
    bench.crash()
    bench.open("op")
    accounts_hold(bench)
    assert [row["body"] for row in ask(bench, dead=True)] == bodies(*range(1, 7))


def test_a_redrive_of_which_a_part_is_not_stored_shows_it(bench, monkeypatch):
    monkeypatch.setattr(paging, "RUN_MESSAGES", 2)
    filled(bench, 6)
    bench.tell("bob", mail_credit(6))
    bench.settle()
    bench.tell("bob", Reject(0, [[1, 6]], "no"))
    bench.settle()
    bench.sent("op")
    bench.tell("op", Change(0, "queue.redrive", {"kind": "mailbox", "name": "bob"}))
    bench.read()
    bench.commit()
    bench.read()
    bench.fail(StorageFull("full"))
    bench.settle()
    [answer] = bench.sent("op")
    assert answer.value == {"kind": "mailbox", "name": "bob", "messages": 2, "partial": True}
    assert [*mailbox(bench).dead_letters.entries] == [3, 4, 5, 6]
    assert [*mailbox(bench).entries] == [7, 8]
    accounts_hold(bench)
    assert change(bench, "queue.redrive") == 4


def test_a_delivery_of_paged_out_messages_has_their_properties(bench):
    filled(bench, 6, correlation=7)
    bench.tell("bob", mail_credit())
    bench.settle()
    got = [item for m in bench.sent("bob") if isinstance(m, Deliver) for item in items(m)]
    assert [item.properties for item in got] == [{"correlation": 7}] * 6
