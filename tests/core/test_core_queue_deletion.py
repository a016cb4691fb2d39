"""A mailbox or a service is deleted with what hangs on it, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from core_bench import Bench, mail_credit, offer, request, send

from malamute.core.iteration.effects import WORK_MAX
from malamute.core.queue import queue as queues
from malamute.errors import StorageFull
from malamute.protocol.messages import Change, Error, Ok, Recall, Reject
from malamute.store.tables import QUEUE_FEEDS


def feed(name: str, source: str = "service/w", target: str = "service/v", **more: Any) -> Change:
    return Change(0, "feed.set", {"source": source, "feed": name, "target": target, **more})


def delete(kind: str = "service", name: str = "w", **arguments: Any) -> Change:
    return Change(0, "queue.delete", {"kind": kind, "name": name, **arguments})


@pytest.fixture
def bench() -> Bench:
    """A service with a request that waits, one that a worker has, a dead letter, and two feeds."""
    bench = Bench(lifecycle=True)
    bench.open("alice", "bob")
    never = {"criteria": [["exact", "never"]]}
    bench.tell("alice", feed("out", **never), feed("in", "stream/s", "service/w", **never))
    bench.tell("bob", offer(7, credit=2))
    bench.settle()
    bench.tell("alice", request(b"1", b"2", b"3", number=1))
    bench.settle()
    bench.tell("bob", Reject(7, [[1, 1]], "no"))
    bench.settle()
    bench.sent("alice"), bench.sent("bob")
    return bench


def answers(bench: Bench, change: Change) -> list[Any]:
    bench.tell("alice", change)
    bench.settle()
    return [message for message in bench.sent("alice") if isinstance(message, Ok | Error)]


def hanging(bench: Bench, name: str = "w") -> tuple[int, int, int, int]:
    """How many feeds, messages, dead letters and offers of bob there are."""
    core = bench.core
    queue = core.services.by_name.get(name)
    here = (len(queue.entries), queue.dead_letters.count) if queue is not None else (0, 0)
    return len(core.feeds.by_name), *here, len(core.sessions.by_address["bob"].sources)


def test_what_hangs_on_a_queue_is_listed_and_nothing_ends(bench: Bench) -> None:
    (refused,) = answers(bench, delete())
    ident = bench.core.sessions.by_address["bob"].ident
    assert (refused.code, refused.text) == (
        423,
        f"service 'w' is in use: 1 consumer: {ident} (7); 2 feeds: out from service/w, "
        "in from stream/s; end them, or delete it with cascade",
    )
    assert hanging(bench) == (2, 2, 1, 1)


def test_what_a_cascade_would_end_is_told_and_nothing_ends(bench: Bench) -> None:
    (told,) = answers(bench, delete(cascade=True, dry_run=True))
    assert told.value == {
        "kind": "service",
        "name": "w",
        "messages": 2,
        "dead_letters": 1,
        "consumers": 1,
        "feeds": ["out from service/w", "in from stream/s"],
    }
    assert hanging(bench) == (2, 2, 1, 1)


def test_with_cascade_all_that_hangs_on_a_queue_ends_with_a_reason(bench: Bench) -> None:
    (told,) = answers(bench, delete(cascade=True))
    assert (told.value["messages"], told.value.get("partial")) == (2, None)
    sent = bench.sent("bob")
    assert [m.reason for m in sent if isinstance(m, Recall)] == ["purged"]
    (ended,) = [message for message in sent if isinstance(message, Error)]
    assert (ended.code, ended.text, ended.ref) == (404, "service 'w' was deleted", 7)
    assert hanging(bench) == (0, 0, 0, 0)
    assert "w" not in bench.core.services.by_name
    assert "service.deleted.w" in bench.events
    recovered = bench.store.recover()
    assert not recovered.table(QUEUE_FEEDS)
    assert not recovered.queues
    # The name is free.
    bench.tell("alice", request(b"4"))
    bench.settle()
    assert hanging(bench) == (0, 1, 0, 0)


def test_a_cascade_of_which_the_disk_takes_nothing_is_refused(bench: Bench) -> None:
    bench.tell("alice", delete(cascade=True))
    bench.fail(StorageFull("full"))
    assert [m.code for m in bench.sent("alice") if isinstance(m, Ok | Error)] == [507]
    bench.settle()
    assert bench.sent("alice") == []
    assert hanging(bench) == (2, 2, 1, 1)


def test_what_a_cascade_has_come_to_so_far_is_its_answer_whatever_the_disk_refuses(bench: Bench) -> None:
    bench.tell("alice", delete(cascade=True))
    while len(bench.core.feeds.by_name) == 2:
        bench.commit()
    while not (told := [m for m in bench.sent("alice") if isinstance(m, Ok | Error)]):
        bench.fail(StorageFull("full"))
    assert [message.value["partial"] for message in told] == [True]
    assert hanging(bench)[0] == 1


def test_what_nothing_hangs_on_is_deleted_with_its_messages(bench: Bench) -> None:
    bench.tell("alice", request(b"1", service="free"))
    bench.settle()
    (told,) = answers(bench, delete(name="free"))
    assert told.value["messages"] == 1
    assert "free" not in bench.core.services.by_name
    bench.crash()
    assert "free" not in bench.core.services.by_name


def test_a_tracked_message_of_it_ends_as_purged() -> None:
    bench = Bench()
    bench.open("alice")
    bench.tell("alice", request(b"1", tracker="t", number=1), mail_credit())
    bench.settle()
    bench.sent("alice")
    bench.tell("alice", delete())
    bench.settle()
    (outcome,) = bench.got("alice")
    assert outcome.properties is not None
    assert outcome.properties["outcome"] == "purged"


def test_very_many_messages_go_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malamute.core.admin.queue_deletion.STEP_MESSAGES", 1)
    (told,) = answers(bench, delete(cascade=True))
    assert (told.value["messages"], "w" in bench.core.services.by_name) == (2, False)


def test_what_comes_meanwhile_keeps_the_queue_and_that_is_told(bench: Bench) -> None:
    bench.tell("alice", delete(cascade=True))
    while len(bench.core.feeds.by_name):
        bench.commit()
    bench.commit()
    bench.tell("alice", request(b"late", number=2))
    bench.settle()
    told = [m for m in bench.sent("alice") if isinstance(m, Ok)]
    assert [m.value.get("partial") for m in told] == [True]
    assert hanging(bench)[1:3] == (1, 0)


def test_what_comes_all_the_time_is_not_purged_and_does_not_keep_a_deletion_going(bench: Bench) -> None:
    bench.tell("alice", delete(cascade=True))
    while len(bench.core.feeds.by_name):
        bench.commit()
    late = 0
    while not (told := [m for m in bench.sent("alice") if isinstance(m, Ok)]):
        bench.tell("alice", request(b"late"))
        bench.commit()
        late += 1
        assert late < 10
    assert told[0].value["partial"] is True
    assert hanging(bench)[1:3] == (late, 1)


def test_without_cascade_who_offers_meanwhile_keeps_the_queue(bench: Bench) -> None:
    bench.tell("alice", request(b"1", service="free"))
    bench.settle()
    bench.tell("alice", delete(name="free"))
    bench.tell("bob", offer(8, credit=-1, service="free"))
    bench.settle()
    assert [m.value["partial"] for m in bench.sent("alice") if isinstance(m, Ok)] == [True]
    bench.tell("alice", request(b"2", service="free"))
    bench.settle()
    assert bench.bodies("bob") == [b"2"]


def deleting_in_steps(monkeypatch: pytest.MonkeyPatch, kind: str = "service", name: str = "w") -> Bench:
    """A queue with two offers, of which the first was ended by its deletion."""
    monkeypatch.setattr("malamute.core.admin.queue_deletion.END_WORK", WORK_MAX)
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("bob", offer(1, service=name, kind=kind), offer(2, service=name, kind=kind))
    bench.settle()
    bench.receive("alice", delete(kind, name, cascade=True))
    assert len(bench.core.queues[kind].by_name[name].consumers) == 1
    return bench


def test_a_cascade_ends_offers_that_come_while_it_ends_others(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = deleting_in_steps(monkeypatch)
    bench.receive("bob", offer(3))
    bench.settle()
    assert [m.ref for m in bench.sent("bob") if isinstance(m, Error)] == [1, 2, 3]
    assert "w" not in bench.core.services.by_name
    assert not bench.core.sessions.by_address["bob"].sources


def test_the_owner_of_a_mailbox_who_comes_while_a_cascade_ends_offers_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = deleting_in_steps(monkeypatch, "mailbox", "alice")
    bench.receive("alice", mail_credit())
    bench.settle()
    assert [m.value.get("partial") for m in bench.sent("alice") if isinstance(m, Ok) and m.value] == [True]
    bench.tell("bob", send("alice", b"1"))
    bench.settle()
    assert bench.bodies("alice") == [b"1"]


def test_a_deletion_that_the_disk_breaks_off_says_that_a_part_has_ended(bench: Bench) -> None:
    bench.tell("alice", delete(cascade=True))
    while len(bench.core.feeds.by_name):
        bench.commit()
    bench.fail(StorageFull("full"))
    bench.settle()
    (told,) = [m for m in bench.sent("alice") if isinstance(m, Ok | Error)]
    assert told.value["partial"] is True
    assert hanging(bench) == (0, 2, 1, 1)
    (told,) = answers(bench, delete(cascade=True))
    assert (told.value.get("partial"), told.value["feeds"]) == (None, [])


def test_a_mailbox_stays_while_its_owner_is_there_or_outcomes_are_to_come() -> None:
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("bob", mail_credit())
    bench.tell("alice", send("bob", b"1", number=1))
    bench.settle()
    (refused,) = answers(bench, delete("mailbox", "bob", cascade=True))
    assert (refused.code, "is in use by its owner" in refused.text) == (423, True)
    bench.tell("alice", request(b"1", service="x", tracker="t", number=2))
    bench.settle()
    (refused,) = answers(bench, delete("mailbox", "alice", cascade=True))
    assert (refused.code, "1 messages that are still to come" in refused.text) == (503, True)


def test_the_private_mailbox_of_a_client_is_no_bodys_to_delete() -> None:
    bench = Bench()
    bench.open("alice", "")
    bench.tell("", mail_credit())
    (private,) = bench.core.mailboxes.by_name
    (refused,) = answers(bench, delete("mailbox", private, cascade=True))
    assert refused.code in (401, 416)
    assert private in bench.core.mailboxes.by_name


def test_a_queue_that_is_not_there_is_not_deleted() -> None:
    bench = Bench()
    bench.open("alice")
    assert [m.code for m in answers(bench, delete())] == [404]
    assert queues.STEP_MESSAGES > 1
