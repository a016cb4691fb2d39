"""The checker of histories: it finds nothing in good ones, and each kind of fault that is put into one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random

import pytest
from history import (
    AT_ONCE,
    BACK,
    COMMIT,
    COMMITTED,
    DELIVERED,
    DISK_FAILS,
    DISK_WORKS,
    DURABLE,
    ENDED,
    EXPIRES,
    FINISHED,
    FORGOTTEN,
    GAP,
    KILLED,
    LEFT,
    LOOKED,
    OUTCOME,
    PUBLISH,
    PUBLISH_REFUSED,
    PUBLISHED,
    PURGE,
    PURGE_REFUSED,
    PURGED,
    READ,
    REDRIVE,
    RELEASED,
    REMOVED,
    RESTORED,
    RULES,
    SEND,
    SEND_REFUSED,
    SENT,
    SETTLED,
    STATE,
    STORED,
    SUBSCRIBE,
    SUBSCRIBED,
    FileRecorder,
    Record,
    check,
    read_history,
)
from hypothesis import given
from hypothesis import strategies as st

STREAM, QUEUE, PURGED_STREAM = "stream", "queue", "purged"
History = list[Record]


class Good:
    """A history that a good broker makes: some of what was asked has no answer, and some of that was done."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.records: History = []
        self._time = count(1)
        self.publish()
        self.read()
        self.queue()
        self.change()

    def note(self, client: str, kind: str, name: str, key: str = "", **fields: int | str) -> None:
        self.records.append(Record(next(self._time), client, kind, name, key, **fields))  # type: ignore[arg-type]

    def publish(self) -> None:
        """Two publishers. One message is read and then lost with its broker; refused ones take no place."""
        self.stored: list[tuple[int, str]] = []
        self.taken_back: list[tuple[int, str]] = []
        sequence = 0
        for number in range(30):
            client = f"publisher {number % 2}"
            key = f"{client}.{number}"
            self.note(client, PUBLISH, STREAM, key)
            fate = self.chance.choice(["confirmed", "confirmed", "stored", "refused", "nothing"])
            if number in (0, 1, 28, 29):
                fate = "confirmed"
            if fate == "refused":
                self.note(client, PUBLISH_REFUSED, STREAM, key)
            elif number == 15:
                sequence += 1
                self.taken_back.append((sequence, key))
            elif fate != "nothing":
                sequence += self.chance.choice([1, 1, 3])
                self.stored.append((sequence, key))
            if fate == "confirmed" and number != 15:
                self.note(client, PUBLISHED, STREAM, key, sequence=sequence)
        self.note("last reader", STATE, STREAM)
        for sequence, key in self.stored:
            self.note("last reader", STORED, STREAM, key, sequence=sequence)

    def read(self) -> None:
        end = self.chance.randint(2, len(self.stored))
        self.note("durable", SUBSCRIBE, STREAM, sequence=1, text=DURABLE)
        self.note("reader", SUBSCRIBE, STREAM, sequence=1)
        for sequence, key in self.stored[:end]:
            self.note("durable", READ, STREAM, key, sequence=sequence)
        for sequence, key in sorted(self.stored + self.taken_back):
            self.note("reader", READ, STREAM, key, sequence=sequence)
        for sequence, _ in self.taken_back:
            self.note("reader", GAP, STREAM, sequence=sequence, last=sequence, text="taken-back")
        self.note("reader", FINISHED, STREAM)
        place = 0
        for life in range(3):
            client = f"cursor {life}"
            self.note(client, SUBSCRIBE, STREAM, "blue")
            for sequence, key in self.stored[place : place + 4]:
                self.note(client, READ, STREAM, key, sequence=sequence)
            sequence = self.stored[min(place + 1, len(self.stored) - 1)][0]
            self.note(client, COMMIT, STREAM, "blue", sequence=sequence)
            if life == 0 or self.chance.random() < 0.5:
                self.note(client, COMMITTED, STREAM, "blue", sequence=sequence)
                place += 2
            self.note("rig", ENDED, "", client)

    def queue(self) -> None:
        for number in range(20):
            key = f"mail.{number}"
            for _ in range(self.chance.choice([1, 1, 2])):
                self.note("sender", SEND, QUEUE, key)
                if number == 19:
                    self.note("sender", SEND_REFUSED, QUEUE, key)
                elif number < 2 or self.chance.random() < 0.7:
                    self.note("sender", SENT, QUEUE, key)
            if number == 19:
                continue
            if number == 18:
                self.note("operator", LEFT, QUEUE, key)
                continue
            attempts = self.chance.choice([1, 2, 3]) if number else 2
            for attempt in range(1, attempts + 1):
                at = {"sequence": number + 1, "attempts": attempt}
                self.note(f"worker {attempt % 2}", DELIVERED, QUEUE, key, **at)
            self.note(f"worker {attempts % 2}", SETTLED, QUEUE, key, attempts=attempts)
            self.note("sender", OUTCOME, QUEUE, key, text="acknowledged")

        self.note("sender", FINISHED, QUEUE)

    def change(self) -> None:
        for number in range(1, 12, 2):
            self.note("operator", PUBLISH, PURGED_STREAM, f"{number}")
            self.note("operator", PUBLISHED, PURGED_STREAM, f"{number}", sequence=number)
            self.note("operator", PURGE, PURGED_STREAM, f"{number}")
            done = number != 7
            self.note("operator", PURGED if done else PURGE_REFUSED, PURGED_STREAM, f"{number}")
            self.note("operator", PUBLISH, PURGED_STREAM, f"{number + 1}")
            self.note("operator", PUBLISHED, PURGED_STREAM, f"{number + 1}", sequence=number + 1)
            first = number + 1 if done else number - 1
            self.note("operator", LOOKED, PURGED_STREAM, sequence=first, last=number + 1)

    # The faults

    def pick(self, kind: str, where: Callable[[Record], bool] = lambda record: True) -> Record:
        return self.chance.choice([r for r in self.records if r.kind == kind and where(r)])

    def drop(self, record: Record) -> None:
        self.records.remove(record)

    def alter(self, record: Record, **fields: int | str) -> None:
        self.records[self.records.index(record)] = record._replace(**fields)  # type: ignore[arg-type]

    def again(self, record: Record, **fields: int | str) -> None:
        self.records.append(record._replace(at_ns=next(self._time), **fields))  # type: ignore[arg-type]


def lose(good: Good) -> None:
    key = good.pick(PUBLISHED, lambda record: record.name == STREAM).key
    good.records = [record for record in good.records if (record.kind, record.key) != (STORED, key)]


def invent(good: Good) -> None:
    last = max(record.sequence for record in good.records if record.kind == STORED)
    good.note("last reader", STORED, STREAM, "nobody's", sequence=last + 1)


def keep_refused(good: Good) -> None:
    record = good.pick(STORED)
    good.note("publisher", PUBLISH_REFUSED, STREAM, record.key)


def duplicate(good: Good) -> None:
    last = max(record.sequence for record in good.records if record.kind == STORED)
    good.again(good.pick(STORED), sequence=last + 1)


def swap(good: Good) -> None:
    """Two messages change their places, for all who see them."""
    one, two = (good.pick(STORED, lambda r, c=c: r.key.startswith(f"publisher 0.{c}")) for c in ("0", "28"))
    keys = {one.key: two.key, two.key: one.key}
    good.records = [
        record._replace(key=keys.get(record.key, record.key)) if record.kind in (STORED, READ) else record
        for record in good.records
    ]
    good.records = [r._replace(sequence=0) if r.kind == PUBLISHED else r for r in good.records]


def reuse(good: Good) -> None:
    good.alter(good.pick(READ, lambda record: record.client != "reader"), key="another")


def reread(good: Good) -> None:
    good.again(good.pick(READ))


def skip(good: Good) -> None:
    reads = [record for record in good.records if record.client == "reader" and record.kind == READ]
    stored = {record.sequence for record in good.records if record.kind == STORED}
    good.drop(good.chance.choice([record for record in reads if record.sequence in stored]))


def lie_of_gaps(good: Good) -> None:
    sequence = good.pick(STORED).sequence
    good.note("reader", GAP, STREAM, sequence=sequence, last=sequence, text="restart")


def lie_of_stores(good: Good) -> None:
    good.note("reader", GAP, STREAM, sequence=1, last=0, text="another-store")


def tell_nobody(good: Good) -> None:
    sequence = max(record.sequence for record in good.records) + 1
    good.note("reader", READ, STREAM, "publisher 0.0 again", sequence=sequence)


def deliver_early(good: Good) -> None:
    sequence = max(record.sequence for record in good.records) + 1
    good.note("durable", READ, STREAM, "publisher 0.0 again", sequence=sequence)
    good.note("durable", GAP, STREAM, sequence=sequence, last=sequence, text="taken-back")


def lose_cursor(good: Good) -> None:
    first = good.pick(STORED, lambda record: record.key == "publisher 0.0")
    good.note("cursor 9", SUBSCRIBE, STREAM, "blue")
    good.note("cursor 9", READ, STREAM, first.key, sequence=first.sequence)


def lose_mail(good: Good) -> None:
    key = good.pick(SENT).key
    good.records = [r for r in good.records if r.kind not in (DELIVERED, LEFT) or r.key != key]


def read_invented(good: Good) -> None:
    good.alter(good.pick(READ), key="another")


def invent_mail(good: Good) -> None:
    good.note("worker 0", DELIVERED, QUEUE, "nobody's", attempts=1)


def deliver_refused(good: Good) -> None:
    good.note("worker 0", DELIVERED, QUEUE, "mail.19", attempts=1)


def repeat(good: Good) -> None:
    good.again(good.pick(DELIVERED), client="worker 2")


def count_down(good: Good) -> None:
    record = good.pick(DELIVERED)
    good.again(record, attempts=record.attempts - 1)


def settle_twice(good: Good) -> None:
    good.again(good.pick(SETTLED), client="worker 2")


def two_outcomes(good: Good) -> None:
    good.again(good.pick(OUTCOME), text="expired")


def deliver_settled(good: Good) -> None:
    settled = good.pick(SETTLED)
    before = good.pick(
        DELIVERED, lambda record: (record.key, record.attempts) == (settled.key, settled.attempts)
    )
    place = {"sequence": before.sequence, "attempts": before.attempts + 1}
    good.note("worker 2", DELIVERED, QUEUE, before.key, **place)


def keep_settled(good: Good) -> None:
    good.note("operator", LEFT, QUEUE, good.pick(SETTLED).key)


def no_outcome(good: Good) -> None:
    sent = {record.key for record in good.records if record.kind == SENT}
    good.drop(good.pick(OUTCOME, lambda record: record.key in sent))


def forget_identity(good: Good) -> None:
    good.note("worker 0", DELIVERED, QUEUE, "mail.0", sequence=1000, attempts=7)


def purge_nothing(good: Good) -> None:
    record = good.pick(LOOKED, lambda record: record.sequence == record.last)
    good.alter(record, sequence=record.sequence - 1)


def purge_again(good: Good) -> None:
    record = good.pick(LOOKED)
    good.alter(record, sequence=record.last + 1)


FAULTS: dict[Callable[[Good], None], str] = {
    lose: "lost",
    invent: "invented",
    keep_refused: "invented",
    read_invented: "invented",
    duplicate: "duplicate",
    swap: "order",
    reuse: "sequence used again",
    reread: "monotonic reads",
    skip: "skipped",
    lie_of_gaps: "false gap",
    lie_of_stores: "false gap",
    tell_nobody: "taken back untold",
    deliver_early: "taken back untold",
    lose_cursor: "cursor",
    lose_mail: "lost",
    invent_mail: "invented",
    deliver_refused: "invented",
    repeat: "repeated delivery",
    count_down: "attempts",
    settle_twice: "settled twice",
    two_outcomes: "settled twice",
    deliver_settled: "after settlement",
    keep_settled: "after settlement",
    no_outcome: "no outcome",
    forget_identity: "deduplication",
    purge_nothing: "change undone",
    purge_again: "change repeated",
}

SEEDS = st.integers(0, 2**32)


@given(SEEDS)
def test_a_good_history_breaks_nothing(seed: int) -> None:
    assert check(Good(seed).records) == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@given(seed=SEEDS)
def test_each_fault_is_found(fault: Callable[[Good], None], seed: int) -> None:
    good = Good(seed)
    fault(good)
    assert FAULTS[fault] in {violation.rule for violation in check(good.records)}


@pytest.mark.parametrize(
    ("attempts", "kinds", "is_known"),
    [
        (2, (SEND, DELIVERED, KILLED, BACK, DELIVERED), True),
        (2, (SEND, DELIVERED, KILLED, DELIVERED, BACK), True),
        (2, (SEND, KILLED, DELIVERED, BACK, DELIVERED), True),
        (2, (SEND, KILLED, BACK, DELIVERED, DELIVERED), False),
        (2, (SEND, DELIVERED, DELIVERED, KILLED, BACK), False),
        (2, (SEND, DELIVERED, "other sent", "other stored", KILLED, BACK, DELIVERED), False),
        (2, (SEND, "other sent", DELIVERED, "other stored", KILLED, BACK, DELIVERED), True),
        (1, (SEND, DELIVERED, KILLED, BACK, DELIVERED), False),
        (1, (SEND, DISK_FAILS, DELIVERED, DISK_WORKS, KILLED, BACK, DELIVERED), True),
        (1, (DISK_FAILS, SEND, DELIVERED, KILLED, DISK_WORKS, BACK, DELIVERED), True),
        (1, (DISK_FAILS, DISK_WORKS, SEND, DELIVERED, KILLED, BACK, DELIVERED), False),
        (1, (SEND, DELIVERED, KILLED, BACK, DISK_FAILS, DISK_WORKS, DELIVERED), False),
    ],
)
def test_an_attempt_is_made_twice_only_where_a_kill_may_have_taken_the_note_of_it(
    attempts: int, kinds: tuple[str, ...], is_known: bool
) -> None:
    others = {"other sent": (SEND, QUEUE, "other"), "other stored": (SENT, QUEUE, "other")}
    fields = {SEND: (SEND, QUEUE, "mail"), DELIVERED: (DELIVERED, QUEUE, "mail", 1, 0, attempts)} | others
    history = [Record(at, "c", *fields.get(kind, (kind, ""))) for at, kind in enumerate(kinds, 1)]
    found = {violation.rule for violation in check(history) if violation.rule != "lost"}
    assert found == (set() if is_known else {"repeated delivery", "attempts"})


@pytest.mark.parametrize(
    ("kinds", "is_known"),
    [
        ((1, RELEASED, 2, 2), True),  # it crossed the recall of the first attempt
        ((1, 2, RELEASED, 2), True),
        ((RELEASED, 1, 2, 2), False),
        ((1, 2, 2, RELEASED), False),
    ],
)
def test_a_release_explains_one_attempt_more_if_it_may_have_met_it(
    kinds: tuple[int | str, ...], is_known: bool
) -> None:
    history = [
        Record(at, "c", RELEASED, QUEUE, "", 1)
        if kind == RELEASED
        else Record(at, f"c{at}", DELIVERED, QUEUE, "mail", 1, 0, int(kind))
        for at, kind in enumerate(kinds, 2)
    ]
    found = {violation.rule for violation in check([Record(1, "c", SEND, QUEUE, "mail"), *history])}
    assert ("repeated delivery" in found) != is_known


@pytest.mark.parametrize("is_before", [True, False])
def test_more_attempts_than_at_the_settlement_are_known_if_a_kill_took_the_note_of_them(
    is_before: bool,
) -> None:
    more, end = (DELIVERED, QUEUE, "mail", 1, 0, 3), (SETTLED, QUEUE, "mail", 0, 0, 2)
    fault = ((DISK_FAILS, ""), (KILLED, ""), (DISK_WORKS, ""), (BACK, ""))
    made = [(SEND, QUEUE, "mail"), *((more, *fault, end) if is_before else (*fault, end, more))]
    found = check(Record(at, "c", *fields) for at, fields in enumerate(made, 1))
    assert [violation.rule for violation in found] == ([] if is_before else ["after settlement"])


Made = tuple[str, str, dict[str, int | str]]
"""A kind of record, its key, and the rest of it."""

EXPLAINED: dict[str, tuple[str, list[Made], int, Made]] = {
    "a message that is removed is not lost": (
        "lost",
        [(PUBLISH, "a", {}), (PUBLISHED, "a", {"sequence": 7}), (STATE, "", {})],
        3,
        (REMOVED, "", {"sequence": 5, "last": 7}),
    ),
    "what its sender has withdrawn is not lost": (
        "lost",
        [(SEND, "a", {}), (SENT, "a", {})],
        2,
        (REMOVED, "a", {}),
    ),
    "what may expire is not lost": ("lost", [(SEND, "a", {}), (SENT, "a", {})], 1, (EXPIRES, "a", {})),
    "what is purged is not lost": (
        "lost",
        [(PUBLISH, "a", {}), (PUBLISHED, "a", {"sequence": 1}), (STATE, "", {})],
        2,
        (PURGE, "1", {}),
    ),
    "what may expire may be left out": (
        "skipped",
        [
            (SUBSCRIBE, "", {"sequence": 1}),
            (PUBLISH, "a", {}),
            (STATE, "", {}),
            (STORED, "a", {"sequence": 1}),
            (FINISHED, "", {}),
        ],
        2,
        (EXPIRES, "a", {}),
    ),
    "what a forgotten session has asked for may be stored twice": (
        "duplicate",
        [
            (PUBLISH, "a", {}),
            (STATE, "", {}),
            (STORED, "a", {"sequence": 1}),
            (STORED, "a", {"sequence": 2}),
        ],
        1,
        (FORGOTTEN, "a", {}),
    ),
    "what is released was not delivered": (
        "repeated delivery",
        [
            (SEND, "a", {}),
            (DELIVERED, "a", {"sequence": 3, "attempts": 1}),
            (DELIVERED, "a", {"sequence": 3, "attempts": 1}),
        ],
        2,
        (RELEASED, "", {"sequence": 3}),
    ),
    "a dead letter that is sent again is another message": (
        "deduplication",
        [
            (SEND, "a", {}),
            (DELIVERED, "a", {"sequence": 3, "attempts": 1}),
            (DELIVERED, "a", {"sequence": 4, "attempts": 1}),
        ],
        2,
        (REDRIVE, "", {}),
    ),
    "an operator may set a cursor": (
        "cursor",
        [
            (PUBLISH, "a", {}),
            (COMMIT, "blue", {"sequence": 7}),
            (COMMITTED, "blue", {"sequence": 7}),
            (SUBSCRIBE, "blue", {}),
            (SUBSCRIBED, "blue", {"sequence": 3}),
            (STATE, "", {}),
            (STORED, "a", {"sequence": 7}),
        ],
        3,
        (COMMIT, "blue", {}),
    ),
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_a_record_explains_what_breaks_no_promise_then(name: str) -> None:
    rule, made, place, explanation = EXPLAINED[name]
    assert rule in rules_of(made)
    assert rule not in rules_of([*made[:place], explanation, *made[place:]])


@pytest.mark.parametrize("sequence", [3, 4])
def test_attempts_begin_anew_when_a_dead_letter_is_sent_again(sequence: int) -> None:
    made: list[Made] = [
        (SEND, "a", {}),
        (DELIVERED, "a", {"sequence": 3, "attempts": 2}),
        (REDRIVE, "", {}),
        (DELIVERED, "a", {"sequence": sequence, "attempts": 1}),
        (SETTLED, "a", {"attempts": 1}),
    ]
    assert ("after settlement" in rules_of(made)) == (sequence == 3)


def rules_of(made: list[Made]) -> set[str]:
    records = [Record(at, "c", kind, STREAM, key, **rest) for at, (kind, key, rest) in enumerate(made, 1)]  # type: ignore[arg-type]
    return {violation.rule for violation in check(records)}


@pytest.mark.parametrize(
    ("how", "client", "is_lost"),
    [(AT_ONCE, "c", True), (AT_ONCE, "another", False), ("", "c", False)],
)
def test_a_purge_at_once_takes_nothing_that_its_client_sends_behind_it(
    how: str, client: str, is_lost: bool
) -> None:
    history = [
        Record(1, client, PURGE, STREAM, "1", text=how),
        Record(2, "c", PUBLISH, STREAM, "a"),
        Record(3, "c", PUBLISHED, STREAM, "a", sequence=1),
        Record(4, client, PURGED, STREAM, "1"),
        Record(5, "c", STATE, STREAM),
    ]
    assert {violation.rule for violation in check(history)} == (
        {"lost", "change repeated"} if is_lost else set()
    )


@pytest.mark.parametrize("is_inside", [True, False])
def test_what_was_confirmed_since_the_copy_that_takes_the_place_of_the_store_is_not_promised(
    is_inside: bool,
) -> None:
    history = [
        Record(1, "c", PUBLISH, STREAM, "a"),
        Record(3, "c", PUBLISHED, STREAM, "a", sequence=1),
        Record(5, "rig", KILLED, ""),
        Record(6, "rig", RESTORED, "", sequence=2 if is_inside else 4),
        Record(7, "rig", BACK, ""),
        Record(8, "c", STATE, STREAM),
    ]
    assert [violation.rule for violation in check(history)] == ([] if is_inside else ["lost"])


@pytest.mark.parametrize(("window", "is_one"), [(10, True), (1, False)])
def test_of_messages_with_one_identity_there_is_one_while_it_counts(window: int, is_one: bool) -> None:
    history = [
        Record(1, "c", SEND, QUEUE, "a", text="i", last=window),
        Record(2, "c", SEND, QUEUE, "b", text="i", last=window),
        Record(3, "c", DELIVERED, QUEUE, "a", sequence=1, attempts=1),
        Record(4, "c", DELIVERED, QUEUE, "b", sequence=2, attempts=1),
    ]
    assert [violation.rule for violation in check(history)] == (["deduplication"] if is_one else [])


def test_each_rule_has_a_fault() -> None:
    assert set(FAULTS.values()) == {rule for _, rules in RULES for rule in rules}


def test_what_is_recorded_is_read_back_in_the_order_of_time(tmp_path: Path) -> None:
    one, two = (FileRecorder(tmp_path / name, name) for name in ("one", "two"))
    one(PUBLISH, STREAM, "a")
    two(READ, STREAM, "a", sequence=1, text="b")
    one(PUBLISHED, STREAM, "a", sequence=1)
    for recorder in (one, two):
        recorder.close()
    records = read_history(sorted(tmp_path.iterdir()))
    assert [(record.client, record.kind, record.sequence) for record in records] == [
        ("one", PUBLISH, 0),
        ("two", READ, 1),
        ("one", PUBLISHED, 1),
    ]
    assert records[1].text == "b"
