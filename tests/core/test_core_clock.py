"""Clocks that are set: stream times never go back, and no step ends what has a duration."""

from __future__ import annotations

import pytest
from core_bench import START, Bench, mail_credit, offer, publish, request, send, subscribe

from malamute.core.iteration.effects import ClockStep
from malamute.core.iteration.grace_period import GRACE_SECONDS
from malamute.errors import StorageFull
from malamute.protocol.messages import Ack, Change, Nak, Recall
from malamute.store.operations import Chunk, NextTooOld
from malamute.store.policies import QueuePolicy, StreamRetention
from malamute.store.tables import CLOCK

HOUR = 3_600.0


def times(bench, stream="s"):
    found = bench.store.read(stream, 1, bytes_max=1 << 30).found
    return [chunk.time_ns for chunk in found if isinstance(chunk, Chunk)]


def tell(bench, *bodies):
    """Publish each message in a chunk of its own."""
    for body in bodies:
        bench.tell("alice", publish(body))
        bench.settle()


def restart(bench, seconds):
    """Restart the broker with a clock that was set meanwhile."""
    bench.restart_at(seconds)
    bench.open("alice", "bob")


def step(bench, seconds):
    bench.core.clock(ClockStep("followed", seconds, seconds), bench.now)
    bench.iterate()


@pytest.fixture
def bench():
    bench = Bench(
        queues=QueuePolicy(ack_timeout_seconds=60.0, dedup_window_seconds=120.0), lifecycle=True, expiry=600.0
    )
    bench.open("alice", "bob")
    return bench


# Streams


def test_the_times_of_a_stream_do_not_go_back_with_the_clock_of_another_start(bench):
    tell(bench, b"1")
    restart(bench, -HOUR)
    for body in (b"2", b"3", b"4"):
        tell(bench, body)
        bench.now += 10
    assert times(bench) == sorted(times(bench))
    # They go on at half the pace, until the clock has caught up.
    assert [t / 1e9 - START for t in times(bench)[1:]] == [0.0, 5.0, 10.0]
    bench.now += 2 * HOUR
    tell(bench, b"5")
    assert times(bench)[-1] == int(bench.now * 1e9)


def test_a_start_at_a_time_is_right_though_the_clock_was_set_back(bench):
    tell(bench, b"1")
    bench.now += 60
    tell(bench, b"2")
    restart(bench, -HOUR)
    bench.now += 20
    tell(bench, b"3")
    bench.tell("bob", subscribe(start=f"time:{int((START + 65) * 1e9)}"))
    bench.tell("bob", subscribe(source=2, start="since:12s"))
    bench.settle()
    assert sorted(bench.bodies("bob")) == [b"2", b"3", b"3"]


def test_retention_by_age_continues_though_the_clock_was_set_back():
    bench = Bench(retention=StreamRetention(age_seconds=100.0))
    bench.open("alice", "bob")
    tell(bench, b"1")
    restart(bench, -HOUR)
    for _ in range(5):
        bench.now += 100
        tell(bench, b"x")
    assert len(times(bench)) <= 3


def test_the_times_of_messages_follow_the_clock_when_it_is_believed(bench):
    tell(bench, b"1")
    step(bench, HOUR)
    tell(bench, b"2")
    bench.tell("alice", send("bob", b"mail"))
    bench.settle()
    assert [t / 1e9 - START for t in times(bench)] == [0.0, HOUR]
    (entry,) = bench.core.mailboxes.by_name["bob"].entries.values()
    assert entry.time_ns / 1e9 == START + HOUR
    step(bench, -HOUR)
    tell(bench, b"3")
    assert times(bench) == sorted(times(bench))


# Durations


def test_no_step_ends_what_has_a_duration(bench):
    """Time to live, ack deadlines, the window of identities, the expiry of sessions, delays."""
    bench.open("carol")
    bench.tell(
        "alice", request(b"held"), send("bob", b"ttl", ttl=30_000), send("bob", b"delayed", delay=20_000)
    )
    bench.tell("alice", send("bob", b"once", id="one"))
    bench.tell("carol", offer())
    bench.settle()
    bench.sent("carol")
    bench.lost("alice")
    step(bench, 24 * HOUR)
    bench.wait(10)
    bench.open("alice")
    bench.tell("alice", send("bob", b"again", id="one"))
    bench.settle()
    assert not [m for m in bench.sent("carol") if isinstance(m, Recall)]
    bench.tell("bob", mail_credit())
    bench.settle()
    assert bench.bodies("bob") == [b"ttl", b"once"]
    bench.wait(10)
    bench.settle()
    assert bench.bodies("bob") == [b"delayed"]
    assert not [event for event in bench.events if event.startswith(("client.expired", "service.expired"))]


def test_what_begins_after_a_step_lasts_as_long_as_it_should(bench):
    step(bench, HOUR)
    bench.tell("alice", send("bob", b"ttl", ttl=30_000), send("bob", b"later", delay=20_000))
    bench.settle()
    bench.wait(19)
    bench.tell("bob", mail_credit())
    bench.settle()
    assert bench.bodies("bob") == [b"ttl"]
    bench.wait(1)
    bench.settle()
    assert bench.bodies("bob") == [b"later"]


def test_a_moment_is_for_the_clock_on_the_wall(bench):
    step(bench, HOUR)
    bench.tell("alice", send("bob", b"at", at=int((START + HOUR + 10) * 1e9)))
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.wait(9)
    bench.settle()
    assert bench.bodies("bob") == []
    bench.wait(1)
    bench.settle()
    assert bench.bodies("bob") == [b"at"]


def test_what_is_delayed_over_a_restart_comes_when_the_clock_on_the_wall_says(bench):
    step(bench, HOUR)
    bench.tell("alice", send("bob", b"later", delay=20_000))
    bench.settle()
    restart(bench, HOUR)
    bench.tell("bob", mail_credit())
    bench.wait(19)
    bench.settle()
    assert bench.bodies("bob") == []
    bench.wait(1)
    bench.settle()
    assert bench.bodies("bob") == [b"later"]


# A start on a clock that may be wrong

YEAR = 365 * 24 * HOUR


@pytest.fixture
def mail(bench):
    """A broker that starts a year ahead, with mail that lasts for an hour, and with an identity."""
    bench.tell("alice", send("bob", b"ttl", ttl=3_600_000), send("bob", b"once", id="one"))
    bench.settle()
    restart(bench, YEAR)
    return bench


def seen(bench, seconds, what="stepped"):
    """The wall clock is set, which nobody believes yet."""
    bench.core.clock(ClockStep(what, seconds, bench.core.effects.ahead), bench.now)
    bench.iterate()


def wait_for_the_end_of_the_grace_period(bench):
    bench.wait(GRACE_SECONDS - 1)
    bench.settle()
    assert bench.bodies("bob") == [b"once"]
    bench.wait(1)
    bench.settle()


def test_a_start_far_ahead_ends_nothing_if_the_clock_is_set_back_in_time(mail):
    mail.tell("bob", mail_credit())
    seen(mail, -YEAR)
    wait_for_the_end_of_the_grace_period(mail)
    assert mail.bodies("bob") == [b"ttl"]
    assert "clock.corrected" in mail.events


def test_what_continues_after_a_wrong_start_lasts_as_long_as_it_should(mail):
    seen(mail, -YEAR)
    mail.wait(HOUR - 1)
    mail.settle()
    assert len(mail.core.mailboxes.by_name["bob"].entries) == 2
    mail.wait(2)
    mail.settle()
    mail.tell("bob", mail_credit())
    mail.settle()
    assert mail.bodies("bob") == [b"once"]


@pytest.mark.parametrize("steps", [(), ((-YEAR, "stepped"), (YEAR, "returned"))])
def test_a_start_far_ahead_is_believed_in_the_end_and_delivers_nothing_that_is_over(mail, steps):
    mail.tell("bob", mail_credit())
    for seconds, what in steps:
        seen(mail, seconds, what)
    wait_for_the_end_of_the_grace_period(mail)
    assert mail.bodies("bob") == []
    assert len(mail.core.mailboxes.by_name["bob"].entries) == 1  # which bob has
    assert "clock.corrected" not in mail.events


def test_what_waits_when_its_time_is_over_in_the_grace_period_is_kept_back(bench):
    bench.tell("alice", send("bob", b"ttl", ttl=int((HOUR + 60) * 1000)))
    bench.settle()
    restart(bench, HOUR)
    bench.wait(61)
    bench.tell("bob", mail_credit())
    bench.settle()
    assert bench.bodies("bob") == []
    seen(bench, -HOUR)
    bench.wait(GRACE_SECONDS - 61)
    bench.settle()
    assert bench.bodies("bob") == [b"ttl"]


def test_what_somebody_holds_is_not_recalled_in_the_grace_period():
    bench = Bench(queues=QueuePolicy(ack_timeout_seconds=2 * HOUR))
    bench.open("alice", "bob")
    bench.tell("alice", send("bob", b"ttl", ttl=int((HOUR + 60) * 1000)))
    bench.settle()
    restart(bench, HOUR)
    bench.tell("bob", mail_credit())
    bench.settle()
    assert bench.bodies("bob") == [b"ttl"]
    bench.wait(GRACE_SECONDS - 1)
    bench.settle()
    assert not [m for m in bench.sent("bob") if isinstance(m, Recall)]
    bench.wait(2)
    bench.settle()
    assert [m for m in bench.sent("bob") if isinstance(m, Recall)]


@pytest.mark.parametrize(("seconds", "held"), [(GRACE_SECONDS, False), (GRACE_SECONDS + 1, True)])
def test_a_start_has_a_grace_period_when_it_is_further_ahead_than_the_grace_period_lasts(
    bench, seconds, held
):
    bench.tell("alice", send("bob", b"ttl", ttl=1_000))
    bench.settle()
    restart(bench, seconds)
    bench.wait(1)
    bench.settle()
    assert bool(bench.core.mailboxes.by_name["bob"].entries) is held


def test_an_identity_is_known_for_a_window_after_a_start_with_a_grace_period(mail):
    mail.tell("alice", send("bob", b"again", id="one"))
    mail.wait(119)
    mail.tell("alice", send("bob", b"again", id="one"))
    mail.settle()
    assert len(mail.core.mailboxes.by_name["bob"].entries) == 2
    mail.wait(2)
    mail.tell("alice", send("bob", b"another", id="one"))
    mail.settle()
    assert len(mail.core.mailboxes.by_name["bob"].entries) == 3


def test_a_delay_gets_the_time_back_that_it_has_lost_by_a_wrong_start(bench):
    """It is that of a message, a moment, or one after a NAK."""
    bench.open("carl")
    bench.tell("alice", send("carl", b"nak"))
    bench.tell("carl", mail_credit())
    bench.settle()
    bench.tell("carl", Nak(0, [[1, 1]], 7_200_000))
    at = int((START + 2 * HOUR) * 1e9)
    bench.tell("alice", send("bob", b"delay", delay=7_200_000), send("bob", b"at", at=at))
    bench.settle()
    restart(bench, HOUR)
    bench.open("carl")
    bench.bodies("carl")
    for name in ("bob", "carl"):
        bench.tell(name, mail_credit())
    seen(bench, -HOUR)
    for seconds, found in ((2 * HOUR - 10, ([], [])), (20, ([b"delay", b"at"], [b"nak"]))):
        bench.wait(seconds)
        bench.settle()
        assert (sorted(bench.bodies("bob"), reverse=True), bench.bodies("carl")) == found
    assert "clock.corrected" in bench.events


def test_a_delay_that_begins_after_a_wrong_start_gets_no_time_beyond_its_own(bench):
    bench.tell("alice", send("bob", b"1"))
    bench.settle()
    restart(bench, YEAR)
    bench.tell("bob", mail_credit())
    bench.settle()
    assert bench.bodies("bob") == [b"1"]
    bench.tell("bob", Nak(0, [[1, 1]], 3_600_000))
    bench.settle()
    seen(bench, -YEAR)
    bench.wait(HOUR - 1)
    bench.settle()
    assert bench.bodies("bob") == []
    bench.wait(2)
    bench.settle()
    assert bench.bodies("bob") == [b"1"]


# A start on a clock that was set back, or forward while the broker ran


def test_what_has_a_duration_lasts_no_longer_after_a_start_on_a_clock_that_was_set_back(bench):
    """It cannot have come later than now."""
    bench.tell("alice", send("carol", b"ttl", ttl=30_000), send("bob", b"delayed", delay=20_000))
    bench.settle()
    restart(bench, -HOUR)
    bench.tell("bob", mail_credit())
    bench.wait(19)
    bench.settle()
    assert bench.bodies("bob") == []
    bench.wait(2)
    bench.settle()
    assert bench.bodies("bob") == [b"delayed"]
    assert bench.core.mailboxes.by_name["carol"].entries
    bench.wait(10)
    bench.settle()
    assert not bench.core.mailboxes.by_name["carol"].entries


def test_what_is_redelivered_comes_in_time_after_a_start_on_a_clock_that_was_set_back(bench):
    bench.tell("alice", send("bob", b"again"))
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", Nak(0, [[1, 1]], 20_000))
    bench.settle()
    restart(bench, -HOUR)
    bench.bodies("bob")
    bench.tell("bob", mail_credit())
    bench.settle()
    assert bench.bodies("bob") == []
    bench.wait(21)
    bench.settle()
    assert bench.bodies("bob") == [b"again"]


def sent_once_more(bench):
    """Whether a message under an identity that was used before is taken for another one."""
    before = len(bench.core.mailboxes.by_name["bob"].entries)
    bench.tell("alice", send("bob", b"x", id="one"))
    bench.settle()
    return len(bench.core.mailboxes.by_name["bob"].entries) > before


@pytest.mark.parametrize("restarts", [1, 2])
def test_an_identity_is_known_for_a_window_after_each_start_on_a_clock_that_was_set_back(bench, restarts):
    bench.tell("alice", send("bob", b"x", id="one"))
    bench.settle()
    restart(bench, -HOUR)
    for _ in range(restarts - 1):
        bench.settle()
        bench.wait(60)
        restart(bench, 0)
    bench.wait(119)
    assert not sent_once_more(bench)
    bench.wait(2)
    assert sent_once_more(bench)


def test_a_start_on_a_wrong_clock_ends_no_window_when_the_clock_is_right_again(bench):
    bench.tell("alice", send("bob", b"x", id="one"))
    bench.settle()
    restart(bench, -HOUR)
    bench.settle()
    restart(bench, HOUR)
    assert not sent_once_more(bench)


@pytest.mark.parametrize("later", [False, True])
def test_a_window_that_a_broker_on_a_clock_set_back_has_ended_is_over(bench, later):
    bench.tell("alice", send("bob", b"x", id="one"))
    bench.settle()
    restart(bench, -HOUR)
    bench.wait(121)
    bench.settle()
    if later:
        restart(bench, 0)
    assert sent_once_more(bench)


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_an_identity_is_known_for_its_window_after_a_step_that_is_believed_and_a_start(bench, seconds):
    """The times that the store has are those of the wall clock."""
    step(bench, seconds)
    bench.tell("alice", send("bob", b"x", id="one"))
    bench.settle()
    restart(bench, seconds)
    bench.wait(119)
    assert not sent_once_more(bench)
    bench.wait(2)
    assert sent_once_more(bench)


def test_the_store_forgets_no_identity_within_its_window_when_the_clock_was_set_back(bench):
    step(bench, HOUR)
    bench.tell("alice", send("bob", b"x", id="first"))
    bench.wait(60)
    step(bench, 0)
    bench.tell("alice", send("bob", b"x", id="one"))
    bench.settle()
    bench.wait(61)
    bench.settle()
    bench.tell("alice", send("bob", b"x", id="third"))
    bench.settle()
    restart(bench, 0)
    assert not sent_once_more(bench)


# A clock that was ahead once: the newest message does not tell when the last broker ran


def noted(bench):
    """What the store has of the clock, in seconds; 0 for nothing."""
    return bench.store.recover().table(CLOCK).get(("",), 0) / 1e9


def crash_at(bench, seconds):
    """Kill the broker and start another one, with a clock that was set by so many seconds."""
    bench.now += seconds
    bench.appends.clear()
    bench.crash()
    bench.open("alice", "bob")


def test_a_start_far_ahead_is_doubted_though_an_older_message_has_that_time(bench):
    bench.tell("alice", send("bob", b"x"))
    bench.settle()
    restart(bench, YEAR)
    bench.tell("alice", send("bob", b"x"))
    bench.settle()
    restart(bench, -YEAR)
    assert sent_once_more(bench)
    bench.wait(5)
    crash_at(bench, YEAR)
    assert not sent_once_more(bench)


def test_a_start_far_ahead_is_doubted_though_that_clock_was_believed_once(bench):
    bench.tell("alice", send("bob", b"x"))
    bench.settle()
    restart(bench, YEAR)
    bench.wait(GRACE_SECONDS)
    bench.tell("alice", send("bob", b"x"))
    bench.settle()
    step(bench, -YEAR)
    assert sent_once_more(bench)
    # The wall clock is where it was counted: ahead again.
    crash_at(bench, 0)
    assert not sent_once_more(bench)


@pytest.mark.parametrize("is_set_back", [False, True])
def test_a_start_in_the_grace_period_of_another_one_is_doubted_too(mail, is_set_back):
    mail.wait(60)
    mail.tell("alice", send("bob", b"new"))
    mail.settle()
    if is_set_back:
        seen(mail, -YEAR)
        mail.wait(50)
        mail.tell("alice", send("bob", b"newer"))
        mail.settle()
    crash_at(mail, 0)
    assert not sent_once_more(mail)
    mail.tell("bob", mail_credit())
    mail.wait(GRACE_SECONDS - 1)
    mail.settle()
    bodies = [entry.record for entry in mail.core.mailboxes.by_name["bob"].entries.values()]
    assert any(b"ttl" in body for body in bodies)


def test_no_start_is_doubted_when_the_clock_was_noted_with_what_was_stored(bench):
    """However long ago the newest message is."""
    bench.tell("alice", send("bob", b"x", ttl=10 * 3_600_000))
    bench.settle()
    bench.wait(9 * HOUR)
    bench.open("carol")
    bench.tell("carol", send("bob", b"y", id="one"))
    bench.tell("bob", mail_credit())
    bench.settle()
    crash_at(bench, HOUR / 10)
    assert not bench.core.queue_limits.grace_period.until


def test_an_identity_is_known_for_a_window_more_after_a_start_far_ahead_though_no_message_is_left(bench):
    bench.tell("alice", send("bob", b"x", id="one"))
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", Ack(0, [[1, 1]]))
    bench.settle()
    crash_at(bench, YEAR)
    assert not sent_once_more(bench)


def test_a_start_far_ahead_is_doubted_though_a_step_was_not_believed_when_the_first_was_stored():
    """The note of an empty store is of the clock of its first start."""
    bench = Bench(queues=QueuePolicy(dedup_window_seconds=120.0), expiry=600.0)
    seen(bench, -HOUR)
    bench.open("alice", "bob")
    bench.tell("alice", send("bob", b"x", id="one"))
    bench.tell("bob", mail_credit())
    bench.settle()
    assert noted(bench) == START
    bench.tell("bob", Ack(0, [[1, 1]]))
    bench.settle()
    crash_at(bench, YEAR)
    assert bench.core.queue_limits.grace_period.until
    assert not sent_once_more(bench)


def test_a_start_far_ahead_is_doubted_though_the_clock_was_behind_and_a_step_not_believed(bench):
    """The note is no later than the start of who stores it, so mail with a time to live outlasts the next."""
    bench.settle()
    bench.restart_at(-HOUR)
    seen(bench, -YEAR)
    bench.open("alice", "bob")
    bench.tell("alice", send("bob", b"ttl", ttl=1_800_000))
    bench.settle()
    crash_at(bench, HOUR)
    bench.settle()
    assert bench.core.queue_limits.grace_period.until
    assert len(bench.core.mailboxes.by_name["bob"].entries) == 1


def test_the_clock_is_noted_now_and_then_and_only_with_something_else(bench):
    bench.settle()
    start = noted(bench)
    assert start == bench.now
    bench.wait(GRACE_SECONDS / 2 - 1)
    tell(bench, b"1")
    assert noted(bench) == start
    bench.wait(1)
    bench.settle()
    assert noted(bench) == start
    tell(bench, b"2")
    assert noted(bench) == bench.now
    crash_at(bench, GRACE_SECONDS / 2 - 1)
    tell(bench, b"3")
    assert noted(bench) == bench.now - GRACE_SECONDS / 2 + 1


def test_the_clock_is_noted_again_when_the_disk_has_refused_it(bench):
    bench.settle()
    start = noted(bench)
    bench.wait(GRACE_SECONDS)
    bench.tell("alice", publish(b"1"))
    bench.fail(StorageFull("the disk is full"))
    bench.wait(9)
    tell(bench, b"2")
    assert noted(bench) == start
    bench.wait(1)
    tell(bench, b"3")
    assert noted(bench) == bench.now


# Retention by age


def aged():
    """A broker that keeps 100 s, and has ten messages of the last 100 s."""
    bench = Bench(retention=StreamRetention(age_seconds=100.0))
    bench.open("alice", "bob")
    for number in range(11):
        tell(bench, b"%d" % number)
        bench.now += 10
    return bench


def jump_at_a_start(bench):
    restart(bench, YEAR)


def jump_while_it_runs(bench):
    step(bench, YEAR)


@pytest.mark.parametrize("jump", [jump_at_a_start, jump_while_it_runs])
def test_no_jump_of_the_clock_drops_a_history(jump):
    bench = aged()
    jump(bench)
    tell(bench, b"ahead")
    assert len(times(bench)) >= 10
    # What was there loses two seconds in each, and so at least half of its time is left to it.
    bench.now += 30
    tell(bench, b"ahead")
    assert 5 <= len(times(bench)) <= 9


@pytest.mark.parametrize("jump", [jump_at_a_start, jump_while_it_runs])
def test_what_is_not_old_yet_has_its_time_after_a_jump(jump):
    bench = Bench(retention=StreamRetention(age_seconds=100.0))
    bench.open("alice", "bob")
    tell(bench, b"1")
    bench.now += 20
    tell(bench, b"2")
    jump(bench)
    bench.now += 39
    tell(bench, b"3")
    assert len(times(bench)) == 3
    bench.now += 2
    tell(bench, b"4")
    assert len(times(bench)) == 3


def test_no_second_start_drops_a_history_either():
    bench = aged()
    restart(bench, YEAR)
    tell(bench, b"ahead")
    restart(bench, 0)
    tell(bench, b"ahead")
    assert len(times(bench)) >= 12


def test_what_a_silent_stream_has_is_too_old_when_the_time_was_counted():
    bench = aged()
    bench.wait(YEAR)
    tell(bench, b"much later")
    assert len(times(bench)) == 1


def test_an_operator_who_sets_an_age_is_believed():
    bench = aged()
    restart(bench, YEAR)
    bench.tell("alice", Change(1, "stream.retain", {"stream": "s", "age": 55.0}))
    bench.settle()
    assert len(times(bench)) == 6


# Told


@pytest.mark.parametrize("what", ["stepped", "returned", "followed"])
def test_each_step_is_reported(bench, what):
    bench.core.clock(ClockStep(what, HOUR, 0.0), bench.now)
    bench.iterate()
    assert f"clock.{what}" in bench.events
    assert bench.notices[-1].details == {"seconds": HOUR}


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(-1.0, ""), (-2.0, "behind"), (86_400.0, ""), (86_401.0, "ahead")],
)
def test_a_clock_that_is_not_where_it_was_when_something_was_stored_is_reported_at_the_start(
    bench, seconds, told
):
    tell(bench, b"1")
    notices = len(bench.notices)
    bench.restart_at(seconds)
    bench.iterate()
    words = [notice.event for notice in bench.notices[notices:]]
    assert words == ([f"the clock is {told} since something was stored last"] if told else [])


def wait_for(bench, seconds):
    """Let time go by as the loop does: it comes back when the core has something to do."""
    end = bench.now + seconds
    bench.settle()
    while (due := bench.core.next_deadline()) is not None and due <= end:
        bench.wait(max(0.0, due - bench.now))
        bench.settle()
    bench.wait(end - bench.now)
    bench.settle()


def test_a_stream_at_rest_ages():
    bench = aged()
    # The last message is 10 s old.
    assert len(times(bench)) == 11
    wait_for(bench, 45)
    assert len(times(bench)) in (5, 6)
    wait_for(bench, 50)
    assert times(bench) == []
    bench.tell("bob", subscribe(start="seq:1"))
    tell(bench, b"new")
    assert bench.bodies("bob") == [b"new"]
    wait_for(bench, 102)
    assert times(bench) == []


@pytest.mark.parametrize("restarted", [True, False])
def test_a_stream_ages_by_a_limit_that_is_set_while_it_is_at_rest(restarted):
    bench = Bench()
    bench.open("alice")
    tell(bench, b"1")
    wait_for(bench, 30)
    bench.tell("alice", Change(1, "stream.retain", {"stream": "s", "age": 60}))
    wait_for(bench, 20)
    assert len(times(bench)) == 1
    if restarted:
        bench.restart()
    # What was not counted passes at twice the pace at the most.
    wait_for(bench, 42 if restarted else 12)
    assert times(bench) == []


def test_a_stream_at_rest_is_left_alone_until_something_is_too_old():
    bench = aged()
    wait_for(bench, 5)
    before = bench.store.status().lsn
    wait_for(bench, 4)
    assert bench.store.status().lsn == before
    wait_for(bench, 5)
    assert bench.store.status().lsn == before + 1
    other = Bench()
    other.open("alice")
    tell(other, b"1")
    assert not [read for read in other.reads if isinstance(read, NextTooOld)]
    assert not len(other.core.timers)


def test_a_disk_that_refuses_is_asked_again_later():
    bench = aged()
    wait_for(bench, 89)
    bench.wait(3)
    while bench.appends:
        bench.fail(StorageFull("the disk is full"))
        bench.iterate()
    assert bench.core.next_deadline() > bench.now + 5
    wait_for(bench, 30)
    assert times(bench) == []
