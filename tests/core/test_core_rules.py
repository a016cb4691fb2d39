"""Rules in the broker: every command goes by them, and a change of them reaches who is connected."""

from __future__ import annotations

from itertools import pairwise

import pytest
from core_bench import Bench, ack, mail_credit, offer, peer_id, publish, reply, request, send, subscribe
from hypothesis import given
from hypothesis import strategies as st

from malamute.access import AccessRule, Account, Accounts, Policy, User
from malamute.core.configuration import CONFIGURE_WORK
from malamute.core.identity import access
from malamute.core.identity.access import Principal
from malamute.core.identity.needs import QUERIES
from malamute.core.iteration.effects import WORK_MAX
from malamute.core.queue import table
from malamute.core.review import REVIEW_WORK, Review
from malamute.core.stream.stream import Stream
from malamute.core.stream.table import STREAMS_WORK
from malamute.protocol import admin
from malamute.protocol.admin.topic import arguments_of
from malamute.protocol.batch import pack_record
from malamute.protocol.messages import (
    BY_TYPE,
    Change,
    Commit,
    Error,
    Hello,
    Offer,
    Ok,
    Query,
    Subscribe,
    Switch,
    Welcome,
)


def policy(*rules, create="create */#", **users):
    """Rules, and one by which whatever is named may be made."""
    return Policy(
        map(AccessRule.parse, filter(None, (create, *rules))),
        users={n: User(rules=tuple(map(AccessRule.parse, r))) for n, r in users.items()},
    )


def configure(bench, found):
    bench.core.configure(bench.settings._replace(access=found), bench.now)
    bench.settle()


def bench_with(*rules, **users):
    bench = Bench(lifecycle=True)
    bench.settings = bench.settings._replace(access=policy(*rules, **users))
    bench.core.configure(bench.settings, bench.now)
    return bench


def hello(bench, user, address="", peer=""):
    """Say HELLO as a user. Returns the answer."""
    peer = peer or user
    bench._names[peer_id(peer)] = peer
    bench.core.receive(peer_id(peer), Hello([2], address), bench.now, Principal(user))
    bench.iterate()
    return bench.sent(peer)[-1]


def refusals(answers):
    return [message.text for message in answers if isinstance(message, Error) and message.code == 401]


def test_every_query_has_a_line_and_names_its_own_arguments():
    assert set(admin.QUERIES) == set(QUERIES)
    of_things = {"stream", "service", "name", "id", "source"}
    for topic, kind in admin.QUERIES.items():
        named = of_things & {*arguments_of(kind).required, *arguments_of(kind).optional}
        assert named == {line.field for line in QUERIES[topic]}, topic


NEEDED = [
    (publish(b"1"), "publish stream/s/a"),
    (send("bob", b"1"), "send mailbox/bob/a"),
    (request(b"1", service="w"), "request service/w/a"),
    (subscribe(1), "subscribe stream/s"),
    (offer(2, service="w"), "offer service/w"),
    (Commit("s", 0, "c", 0), "subscribe stream/s"),
    (Query(1, "status", {}), "view broker/status"),
    (Query(1, "streams", {}), "view broker/streams"),
    (Query(1, "stored", {}), "view broker/stored"),
    (Query(1, "stored", {"stream": "s"}), "view stream/s"),
    (Query(1, "cursors", {"stream": ""}), "view broker/cursors"),
    (Query(1, "client", {"id": "bob"}), "view client/bob"),
    (Query(1, "messages", {"kind": "service", "name": "w"}), "browse service/w"),
    (Query(1, "message", {"kind": "service", "name": "w", "sequence": 1}), "browse service/w"),
    (Query(1, "messages", {"kind": 7, "name": "w"}), "view broker/messages"),
    (Query(1, "nothing", {}), "view broker/nothing"),
    (Change(0, "stream.purge", {"stream": "s"}), "admin stream/s"),
    (Change(0, "queue.purge", {"kind": "mailbox", "name": "bob"}), "admin mailbox/bob"),
    (Change(0, "queue.delete", {"kind": "mailbox", "name": "bob"}), "admin mailbox/bob"),
    (Change(0, "cursor.delete", {"stream": "s", "cursor": "c"}), "subscribe stream/s"),
    (Change(0, "client.disconnect", {"id": "bob"}), "admin client/bob"),
    (Change(0, "broker.reload", {}), "admin broker/reload"),
    (Change(0, "journal.backup", {"directory": "x"}), "admin broker/backup"),
]


@pytest.mark.parametrize(("command", "rule"), NEEDED, ids=lambda value: str(value)[:60])
def test_a_refusal_names_the_rule_that_is_missing_and_with_it_the_command_is_allowed(command, rule):
    bench = bench_with("view broker/none")
    hello(bench, "ann")
    (words,) = refusals(bench.ask("ann", command))
    assert words == f"'{rule}' is not allowed: no rule allows it"
    assert [*bench.core.streams.by_name] == ["$sys"]
    assert not bench.core.mailboxes.by_name
    assert not bench.core.services.by_name
    configure(bench, policy(rule))
    assert refusals(bench.ask("ann", command)) == []
    configure(bench, policy(rule, f"deny {rule}"))
    assert refusals(bench.ask("ann", command)) == [f"'{rule}' is not allowed: refused by 'deny {rule}'"]


@pytest.mark.parametrize("missing", ["status", "totals", "storage"])
def test_all_figures_need_the_rule_of_each_query_that_they_answer(missing):
    rules = {f"view broker/{topic}" for topic in ("status", "totals", "storage")}
    bench = bench_with(*rules - {f"view broker/{missing}"})
    hello(bench, "ann")
    (words,) = refusals(bench.ask("ann", Query(1, "metrics", {})))
    assert words == f"'view broker/{missing}' is not allowed: no rule allows it"
    configure(bench, policy(*rules))
    assert refusals(bench.ask("ann", Query(1, "metrics", {}))) == []


def test_who_says_hello_has_the_mailboxes_that_a_rule_gives_him():
    bench = bench_with("receive mailbox/{user}")
    assert refusals([hello(bench, "ann", "bob")])
    assert isinstance(hello(bench, "ann", "ann"), Welcome)
    assert isinstance(hello(bench, "eve"), Welcome)
    assert refusals([hello(bench, "", "x", "nobody")])


def test_every_subject_of_a_command_is_checked():
    bench = bench_with("publish stream/s/fx.#", "deny publish stream/s/fx.internal")
    hello(bench, "ann")
    batch = publish(b"1", b"2", subject="fx.eur")
    assert refusals(bench.ask("ann", batch)) == []
    mixed = batch._replace(subjects=["fx.eur", "fx.internal"])
    assert refusals(bench.ask("ann", mixed)) == [
        "'publish stream/s/fx.internal' is not allowed: refused by 'deny publish stream/s/fx.internal'"
    ]
    assert refusals(bench.ask("ann", batch._replace(subjects=["fx.eur", "metals"])))
    assert bench.core.streams.by_name["s"].progress.last == 2


def test_what_was_allowed_once_is_not_decided_again(monkeypatch):
    bench = bench_with("publish stream/s/fx.#", "send mailbox/bob", "request service/w")
    hello(bench, "ann")
    commands = publish(b"1", subject="fx.a"), send("bob", b"1"), request(b"1", service="w")
    bench.tell("ann", *commands)
    monkeypatch.setattr("malamute.access.Grants.scope", lambda *given: pytest.fail("decided again"))
    assert refusals(bench.ask("ann", *commands)) == []


def test_subjects_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr(access, "DECISIONS_MAX", 10)
    control = access.AccessControl(policy=policy("publish stream/s/fx.#"))
    may = control.of(Principal("ann"))
    for number in range(100):
        may.check(publish(b"1", subject=f"fx.{number}"))
        assert sum(len(subjects) for _, subjects in may._subjects.values()) <= 10


def test_replies_need_no_rule_and_nobody_else_reads_or_forges_them():
    """NATS: every requester must be allowed to subscribe to `_INBOX.>`, and reads the replies of others.

    Asked for in nats-io/nats-server#664 and nats-io/nats.java#192 (who may read a reply), and in
    nats-io/nats-server#619 (who may send one).
    """
    bench = bench_with(
        "request service/w", worker=["offer service/w"], eve=["send mailbox/#", "browse */#", "receive */#"]
    )
    hello(bench, "ann")
    hello(bench, "worker")
    hello(bench, "eve")
    bench.tell("ann", mail_credit(10), request(b"1", service="w", correlation="c"))
    bench.tell("worker", offer(1, service="w"))
    bench.tell("worker", reply(1, 1))
    bench.settle()
    assert bench.bodies("ann") == [b"done"]
    private = bench.core.sessions.by_peer[peer_id("ann")].mailbox
    assert refusals(bench.ask("eve", send(private, b"forged")))
    assert refusals(bench.ask("eve", Query(1, "messages", {"kind": "mailbox", "name": private})))
    assert refusals([hello(bench, "eve", private)])
    assert bench.bodies("ann") == []


def test_a_reply_that_is_to_go_elsewhere_is_a_message_to_that_mailbox():
    bench = bench_with("request service/w", "receive mailbox/{user}", ann=["send mailbox/desk"])
    hello(bench, "ann", "ann")
    hello(bench, "eve", "eve")
    asking = request(b"1", service="w")._replace(properties=[{"reply_to": "desk"}])
    assert refusals(bench.ask("ann", asking)) == []
    assert refusals(bench.ask("eve", asking)) == ["'send mailbox/desk/a' is not allowed: no rule allows it"]
    assert refusals(bench.ask("eve", asking._replace(properties=[{"reply_to": "eve"}]))) == []
    assert len(bench.core.services.by_name["w"].entries) == 2


def rows(*wards):
    return [pack_record({"ward": ward}, b"x") for ward in wards]


def test_tenants_of_one_stream_do_not_see_each_other():
    bench = bench_with("subscribe stream/s where ward = '{user}'", "publish stream/s")
    hello(bench, "one")
    hello(bench, "two")
    bench.tell("one", publish(b"", b"", b"")._replace(records=rows("one", "two", "three")))
    bench.settle()
    assert refusals(bench.ask("one", subscribe(1, start="first"))) == []
    assert refusals(bench.ask("two", subscribe(1, start="first", cursor="c"))) == []
    bench.tell("one", publish(b"", b"", b"")._replace(records=rows("one", "two", "three")))
    bench.settle()
    bench.read_all()
    assert [item.headers for item in bench.got("one")] == [{"ward": "one"}] * 2
    assert [item.headers for item in bench.got("two")] == [{"ward": "two"}] * 2


def test_a_feed_needs_the_whole_of_its_queue_and_any_part_of_its_stream():
    bench = bench_with("admin service/#", "admin stream/s", "offer service/v/bw.#")
    hello(bench, "ann")
    ends = {"feed": "w", "target": "service/w"}
    from_queue = Change(0, "feed.set", {"source": "service/v", **ends})
    from_stream = Change(0, "feed.set", {"source": "stream/s", **ends})
    assert refusals(bench.ask("ann", from_queue)) == ["'offer service/v' is not allowed: no rule allows it"]
    assert refusals(bench.ask("ann", from_stream)) == [
        "'subscribe stream/s' is not allowed: no rule allows it"
    ]
    wider = ("offer service/v", "subscribe stream/s where ward = '3'")
    configure(bench, policy("admin service/#", "admin stream/s", *wider))
    assert refusals(bench.ask("ann", from_queue)) == []
    assert refusals(bench.ask("ann", from_stream)) == []


def test_an_offer_that_is_wider_than_the_rules_is_refused():
    bench = bench_with("offer service/w/bw.#")
    hello(bench, "ann")
    assert refusals(bench.ask("ann", offer(1, service="w", pattern="bw.a4"))) == []
    assert refusals(bench.ask("ann", offer(2, service="w", pattern="#"))) == [
        "offer to 'w' is wider than the rules allow: expected fewer subjects"
    ]


# A change of the rules


OPEN = ("publish,subscribe stream/#", "offer,request service/#", "receive,send mailbox/#")


def about(command):
    return BY_TYPE[command].opcode


def test_rules_that_are_removed_end_what_they_allowed_and_disturb_nobody_else():
    bench = bench_with(*OPEN)
    for name in ("ann", "bob", "eve"):
        hello(bench, name, name)
    bench.tell("ann", subscribe(1), subscribe(2, stream="t"), offer(3, service="w"), offer(4, service="v"))
    bench.tell("bob", subscribe(1), subscribe(2, criteria=[["topic", "a"]]), offer(3, service="w", credit=0))
    bench.tell("eve", request(b"1", service="w"), mail_credit(9), send("eve", b"1"), publish(b"1"))
    bench.settle()
    for name in ("ann", "bob", "eve"):
        bench.sent(name)
    less = ("publish,subscribe stream/t", "request service/#", "send mailbox/#")
    configure(
        bench,
        policy(
            *less,
            "subscribe stream/s/a",
            "offer service/v",
            ann=["receive mailbox/ann"],
            bob=["receive mailbox/{user}", "offer service/w"],
        ),
    )
    ended = [(message.about, message.ref, message.code) for message in bench.sent("ann")]
    assert ended == [(about(Subscribe), 1, 401), (about(Offer), 3, 401)]
    assert [(m.about, m.ref, m.code) for m in bench.sent("bob")] == [(about(Subscribe), 1, 401)]
    # Whose address is not his own any more is not connected any more.
    (gone,) = bench.sent("eve")
    assert (gone.code, gone.about) == (401, about(Hello))
    assert [*bench.core.sessions.by_peer] == [peer_id("ann"), peer_id("bob")]
    # What ann held goes to bob, and eve's mail waits.
    bench.tell("bob", offer(5, service="w"))
    assert bench.bodies("bob") == [b"1"]
    assert len(bench.core.mailboxes.by_name["eve"].entries) == 1
    # What is left works.
    assert refusals(bench.ask("ann", publish(b"2", stream="t"))) == []
    assert bench.bodies("ann") == []
    bench.settle()
    assert refusals(bench.ask("ann", publish(b"2"))) == [
        "'publish stream/s/a' is not allowed: no rule allows it"
    ]


def test_a_rule_that_is_added_changes_nothing_for_who_is_connected():
    bench = bench_with(*OPEN)
    hello(bench, "ann", "ann")
    bench.tell("ann", subscribe(1), offer(2))
    bench.sent("ann")
    configure(bench, policy(*OPEN, "view broker/status", "deny publish stream/x"))
    assert bench.sent("ann") == []
    assert len(bench.core.sessions.by_peer[peer_id("ann")].sources) == 2


def test_a_subscription_that_was_narrowed_goes_on_when_it_may_have_more():
    bench = bench_with("subscribe stream/s where a = 1")
    hello(bench, "ann")
    bench.tell("ann", subscribe(1))
    bench.sent("ann")
    configure(bench, policy("subscribe stream/s"))
    assert bench.sent("ann") == []
    configure(bench, policy("subscribe stream/s where a = 2"))
    assert len(refusals(bench.sent("ann"))) == 1


def many(count, *rules, each=()):
    """A bench with so many users, each of whom has said these."""
    bench = bench_with(*rules)
    for number in range(count):
        hello(bench, f"user{number}")
        bench.tell(f"user{number}", *each)
        bench.sent(f"user{number}")
    return bench


def reviewing(bench, monkeypatch, *rules, **users):
    """Change the rules. Returns the users who were reviewed, as they are."""
    seen = []
    confirm = Review._confirm
    monkeypatch.setattr(
        Review,
        "_confirm",
        lambda review, session: (seen.append(session.may.principal.user), confirm(review, session)),
    )
    bench.core.configure(bench.settings._replace(access=policy(*rules, **users)), bench.now)
    return seen


def test_many_sessions_are_reviewed_in_steps(monkeypatch):
    bench = many(200, *OPEN, each=[subscribe(1)])
    seen = reviewing(bench, monkeypatch, "publish stream/t")
    step = WORK_MAX // (2 * REVIEW_WORK)
    steps = []
    while bench.core.next_deadline() == bench.now and len(steps) < 100:
        steps.append(len(seen))
        bench.core.tick(bench.now)
        bench.iterate()
    # What is left of an iteration goes on with one in any case.
    assert steps[0] == step
    assert {after - before for before, after in pairwise(steps)} == {1, step}
    for number in range(200):
        assert len(refusals(bench.sent(f"user{number}"))) == 1
    assert sorted(seen) == sorted(f"user{number}" for number in range(200))
    assert not bench.core.effects.reviewing


def test_to_change_rules_forgets_no_decisions_at_once(monkeypatch):
    bench = many(200, *OPEN, each=[publish(b"1")])
    forgotten = []
    forget = access.Permissions.forget
    monkeypatch.setattr(access.Permissions, "forget", lambda may: (forgotten.append(may), forget(may)))
    seen = reviewing(bench, monkeypatch, "publish stream/t")
    assert len(forgotten) == len(seen) == WORK_MAX // REVIEW_WORK


def test_who_was_not_reviewed_yet_is_at_his_next_command(monkeypatch):
    bench = many(200, *OPEN, each=[publish(b"1")])
    seen = reviewing(bench, monkeypatch, "publish stream/t")
    assert "user199" not in seen
    assert refusals(bench.ask("user199", publish(b"2"))) == [
        "'publish stream/s/a' is not allowed: no rule allows it"
    ]
    assert seen.count("user199") == 1
    bench.settle()
    assert seen.count("user199") == 1
    assert bench.core.streams.by_name["s"].messages == 200


def test_whose_account_was_disabled_does_nothing_more(monkeypatch):
    bench = many(200, *OPEN, each=[subscribe(1, credit=0)])
    accounts = Accounts([Account("user199", disabled=True)])
    bench.core.configure(bench.settings._replace(accounts=accounts), bench.now)
    assert bench.core.effects.reviewing
    told = bench.ask("user199", publish(b"2"))
    assert [error.text for error in told] == [
        "the account 'user199' is disabled",
        "PUBLISH before HELLO: expected HELLO first",
    ]
    assert peer_id("user199") not in bench.core.sessions.by_peer
    assert "s" not in bench.core.streams.by_name or not bench.core.streams.by_name["s"].messages


def test_who_was_not_reviewed_yet_gets_no_message_of_a_stream(monkeypatch):
    bench = many(200, *OPEN, each=[subscribe(1)])
    seen = reviewing(bench, monkeypatch, "publish stream/s", user199=["subscribe stream/s"])
    assert "user199" not in seen
    bench.receive("user0", publish(b"secret"))
    steps = 0
    while bench.core.next_deadline() == bench.now and steps < 100:
        before = len(seen)
        bench.iterate()
        # Those of the review, and those for whom there is a message, of the work that is left for streams.
        assert len(seen) - before <= (WORK_MAX + STREAMS_WORK) // (2 * REVIEW_WORK) + 1
        steps += 1
    bench.settle()
    assert 5 < steps < 30
    got = {number for number in range(200) if bench.bodies(f"user{number}")}
    assert got == {199}
    assert len(seen) == len({*seen}) == 200


def test_who_was_not_reviewed_yet_gets_no_message_of_a_queue(monkeypatch):
    bench = many(100, *OPEN, each=[offer(1, service="w", credit=0), mail_credit(9)])
    hello(bench, "late", "late")
    bench.tell("late", mail_credit(9), offer(1, service="v", credit=9))
    bench.sent("late")
    less = ("send mailbox/#", "request service/#", "receive mailbox/#")
    seen = reviewing(bench, monkeypatch, *less)
    assert "late" not in seen
    bench.tell("user0", send("late", b"letter"), request(b"job", service="v"))
    bench.settle()
    assert bench.bodies("late") == [b"letter"]
    assert seen.count("late") == 1
    assert [*bench.core.services.by_name["v"].entries] != []


def test_what_is_left_for_a_queue_waits_for_the_review_to_go_on(monkeypatch):
    bench = bench_with(*OPEN)
    for number in range(300):
        hello(bench, f"user{number}", f"user{number}")
        bench.tell(f"user{number}", mail_credit(9))
        bench.sent(f"user{number}")
    seen = reviewing(bench, monkeypatch, *OPEN, "view broker/status")
    first = len(seen)
    for number in range(300):
        bench.receive("user0", send(f"user{number}", b"letter"))
    bench.iterate()
    assert len(seen) - first <= WORK_MAX // (2 * REVIEW_WORK) + 2
    bench.settle()
    assert all(bench.bodies(f"user{number}") == [b"letter"] for number in range(300))


def test_a_change_of_rules_during_another_one_ends_with_the_newest(monkeypatch):
    bench = many(200, *OPEN, each=[subscribe(1)])
    seen = reviewing(bench, monkeypatch, "publish stream/t")
    first = [*seen]
    configure(bench, policy("publish stream/t", "view broker/status"))
    assert sorted(seen[len(first) :]) == sorted(f"user{number}" for number in range(200))
    assert all(not session.sources for session in bench.core.sessions.by_peer.values())


def test_streams_and_queues_go_by_other_policies_in_steps(monkeypatch):
    bench = Bench()
    bench.open("ann")
    for number in range(500):
        bench.tell("ann", publish(b"1", stream=f"s{number}"), send(f"m{number}", b"1"))
    bench.settle()
    changed = []
    for owner, name in ((Stream, "configure"), (table, "_configure")):
        configure_one = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda one, *given, act=configure_one: (changed.append(one), act(one, *given))
        )
    bench.core.configure(bench.settings._replace(streams=bench.settings.streams), bench.now)
    assert len(changed) == WORK_MAX // CONFIGURE_WORK
    bench.settle()
    there = [*bench.core.streams.by_name.values(), *bench.core.mailboxes.by_name.values()]
    assert {*map(id, changed)} == {*map(id, there)}
    assert len(changed) == len(there)


def test_the_same_rules_again_are_no_change(monkeypatch):
    bench = bench_with(*OPEN)
    hello(bench, "ann", "ann")
    monkeypatch.setattr(Review, "_confirm", lambda *given: pytest.fail("looked at"))
    configure(bench, bench.settings.access)


# Any rules and commands


COMMANDS = [
    (publish(b"1", stream="s", subject="a"), ("publish", "stream", "s", "a")),
    (publish(b"1", stream="t", subject="b"), ("publish", "stream", "t", "b")),
    (send("s", b"1"), ("send", "mailbox", "s", "a")),
    (request(b"1", service="t"), ("request", "service", "t", "a")),
    (Query(1, "streams", {}), ("view", "broker", "streams", "")),
    (Change(0, "stream.create", {"stream": "s"}), ("admin", "stream", "s", "")),
    (subscribe(1), ("subscribe", "stream", "s", "")),
    (offer(2, service="t"), ("offer", "service", "t", "")),
]
MAKING = {"publish": "streams", "subscribe": "streams", "send": "mailboxes"}
MAKING |= {"request": "services", "offer": "services"}
"""What makes the thing that it names, and where that is then."""

RULES = st.tuples(
    st.booleans(),
    st.sampled_from([*MAKING, "create", "create", "view", "admin", "*"]),
    st.sampled_from(["s", "t", "#", "streams"]),
    st.sampled_from(["", "", "a", "b"]),
)


def allowed(rules, action, name, subject):
    """The reference: what the documentation says of rules, in so many words."""
    fitting = [
        deny
        for deny, of, pattern, under in rules
        if of in (action, "*") and pattern in (name, "#") and under in ("", subject)
    ]
    return any(not deny for deny in fitting) and not any(fitting)


def may(rules, bench, action, name, subject):
    """The same of a command, which may need the thing to be made."""
    if action == "admin":
        made = allowed(rules, "create", name, "") and name not in bench.core.streams.by_name
        return made or allowed(rules, action, name, subject)
    there = action not in MAKING or name in getattr(bench.core, MAKING[action]).by_name
    return allowed(rules, action, name, subject) and (there or allowed(rules, "create", name, ""))


@given(st.lists(RULES, min_size=1, max_size=6), st.lists(st.sampled_from(COMMANDS), max_size=6))
def test_any_command_is_done_exactly_if_the_reference_allows_it_and_leaves_no_trace_if_not(rules, commands):
    rules = [
        (deny, of, pattern, under if of in ("publish", "send", "request") else "")
        for deny, of, pattern, under in rules
    ]
    texts = [
        f"{'deny ' * deny}{of} */{pattern}{'/' * bool(under)}{under}" for deny, of, pattern, under in rules
    ]
    bench = bench_with(*texts, create="")
    hello(bench, "ann")
    for command, (action, _, name, subject) in commands:
        before, expected = state(bench), may(rules, bench, action, name, subject)
        refused = refusals(bench.ask("ann", command))
        bench.settle()
        assert bool(refused) != expected
        if refused:
            assert state(bench) == before
        bench.sent("ann")


def state(bench):
    core = bench.core
    return (
        {name: stream.progress.last for name, stream in core.streams.by_name.items() if not stream.own},
        {name: len(queue.entries) for name, queue in core.mailboxes.by_name.items()},
        {name: len(queue.entries) for name, queue in core.services.by_name.items()},
    )


def test_acknowledgements_need_no_rule():
    bench = bench_with("offer service/w", "request service/w")
    hello(bench, "ann")
    bench.tell("ann", offer(1, service="w"), request(b"1", service="w"))
    assert [m for m in bench.ask("ann", ack(1, (1, 1))) if isinstance(m, Error)] == []
    assert not [m for m in bench.ask("ann", Commit("s", 0, "c", 0)) if isinstance(m, Ok)]


CREATING = [
    (publish(b"1"), "publish stream/s", "create stream/s"),
    (subscribe(1), "subscribe stream/s", "create stream/s"),
    (send("bob", b"1"), "send mailbox/bob", "create mailbox/bob"),
    (request(b"1", service="w"), "request service/w", "create service/w"),
    (offer(2, service="w"), "offer service/w", "create service/w"),
    (
        request(b"1", service="there")._replace(properties=[{"reply_to": "desk"}]),
        "send mailbox/desk",
        "create mailbox/desk",
    ),
]


@pytest.mark.parametrize(("command", "use", "create"), CREATING, ids=lambda value: str(value)[:40])
def test_what_is_not_there_is_made_by_whom_a_rule_allows_it_and_used_by_others_then(command, use, create):
    bench = bench_with(use, "* service/there", create="", ann=[create])
    for name in ("ann", "eve"):
        hello(bench, name)
    bench.tell("ann", request(b"1", service="there"))
    configure(bench, policy(use, "request service/there", create="", ann=[create]))
    before = state(bench)
    assert refusals(bench.ask("eve", command)) == [f"'{create}' is not allowed: no rule allows it"]
    assert state(bench) == before
    assert refusals(bench.ask("ann", command)) == []
    assert refusals(bench.ask("eve", command)) == []
    # To make it takes the right to use it as well.
    configure(bench, policy("request service/there", create="", ann=[create]))
    assert refusals(bench.ask("ann", command)) == [
        f"'{use}{'/a' * (use[:2] != 'su' and use[:2] != 'of')}' is not allowed: no rule allows it"
    ]


def test_what_is_made_by_nobody_any_more_is_to_be_made_again():
    bench = bench_with("publish,admin stream/s", create="", ann=["create stream/s"])
    for name in ("ann", "eve"):
        hello(bench, name)
    bench.tell("ann", publish(b"1"))
    assert refusals(bench.ask("eve", publish(b"1"))) == []
    bench.settle()
    bench.tell("eve", Change(0, "stream.delete", {"stream": "s"}))
    bench.settle()
    bench.sent("eve")
    assert refusals(bench.ask("eve", publish(b"1"))) == [
        "'create stream/s' is not allowed: no rule allows it"
    ]


def test_a_numbered_command_that_may_not_make_its_stream_is_answered_once_and_again():
    bench = bench_with("publish stream/s", create="")
    hello(bench, "ann")
    for _ in range(2):
        (refused,) = bench.ask("ann", publish(b"1", number=1))
        assert (refused.code, refused.ref) == (401, 1)
    configure(bench, policy("publish stream/s"))
    (refused,) = bench.ask("ann", publish(b"1", number=1))
    assert refused.code == 401
    bench.tell("ann", publish(b"1", number=2))
    assert bench.core.streams.by_name["s"].progress.last == 1


def test_an_operator_makes_a_stream_by_the_right_to_administer_it_and_an_owner_has_his_mailbox():
    bench = bench_with("admin stream/s", "subscribe stream/s", "receive mailbox/{user}", create="")
    assert isinstance(hello(bench, "ann", "ann"), Welcome)
    bench.tell("ann", mail_credit(1), Change(0, "stream.create", {"stream": "s"}))
    bench.settle()
    assert refusals(bench.sent("ann")) == []
    assert "ann" in bench.core.mailboxes.by_name
    assert refusals(bench.ask("ann", subscribe(1))) == []


def test_the_right_to_create_a_stream_is_enough_to_create_it_without_a_journal():
    bench = bench_with("create stream/live.#", "publish stream/live.#", create="")
    hello(bench, "ann")

    def create(stream, **arguments):
        bench.tell("ann", Change(0, "stream.create", {"stream": stream, **arguments}))
        bench.settle()
        return refusals(bench.sent("ann"))

    assert create("live.a", journal=False) == []
    assert not bench.core.streams.by_name["live.a"].journaled
    before = state(bench)
    assert create("kept", journal=False) == ["'create stream/kept' is not allowed: no rule allows it"]
    # Retention, and a stream that exists, are for its administrators.
    for stream, arguments in (("live.b", {"count": 5}), ("live.a", {"journal": False})):
        assert create(stream, **arguments) == [f"'admin stream/{stream}' is not allowed: no rule allows it"]
    assert state(bench) == before
    configure(bench, policy("create stream/live.#", "deny create stream/live.c", create=""))
    assert create("live.c") != []


def test_without_rules_everybody_makes_what_he_names():
    bench = bench_with(create="")
    hello(bench, "ann")
    for command, _, _ in CREATING:
        assert refusals(bench.ask("ann", command)) == []


LIMITING = [
    ("subscribe stream/s", [["all", ""]], "", False),
    ("subscribe stream/s where a = 1", [["all", ""]], "", True),
    ("subscribe stream/s where a = 1", [["all", ""]], "a = 1", False),
    ("subscribe stream/s/fx.#", [["all", ""]], "", True),
    ("subscribe stream/s/fx.#", [["topic", "fx.b.*"], ["exact", "fx.a"]], "b=1  and c = 2", False),
    ("subscribe stream/s/fx.#", [["exact", "fx.a"], ["exact", "metals"]], "", True),
]


@pytest.mark.parametrize(("rule", "criteria", "where", "limited"), LIMITING)
def test_a_subscription_that_gets_a_part_of_what_it_asks_for_is_told_before_it_begins(
    rule, criteria, where, limited
):
    bench = bench_with(rule)
    hello(bench, "ann")
    answers = bench.ask("ann", subscribe(1, criteria=criteria, where=where))
    expected = [Switch(1, "limited", 1)] * limited + [Ok(BY_TYPE[Subscribe].opcode, 1, 1)]
    assert answers == expected


def test_a_subscription_from_the_past_is_told_when_it_begins():
    bench = bench_with("subscribe stream/s where a = 1", "publish stream/s")
    hello(bench, "ann")
    bench.tell("ann", publish(b"1"))
    bench.settle()
    bench.sent("ann")
    bench.tell("ann", subscribe(1, start="since:1h"))
    bench.settle()
    assert [type(message) for message in bench.sent("ann")][:2] == [Switch, Ok]


def test_a_question_that_needs_some_subject_allows_no_other():
    bench = bench_with("publish stream/s/a")
    hello(bench, "ann")
    bench.ask("ann", Query(1, "demand", {"stream": "s"}))
    refused = bench.ask("ann", publish(b"1", number=1, subject="b"))
    assert [m.code for m in refused if isinstance(m, Error)] == [401]
    assert not bench.ask("ann", publish(b"1", number=2, subject="a"))
