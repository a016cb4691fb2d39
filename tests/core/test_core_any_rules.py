"""Any rules, and any command of the tables: the broker decides as a reference of ten lines does.

What is refused changes nothing that anybody can see: an operator is answered as before, and nobody
else is sent anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import wire_strategies as wire
from core_bench import Bench, offer, peer_id, publish, request, send, subscribe
from depth import DEPTH
from hypothesis import given, settings
from hypothesis import strategies as st
from test_core_fuzz import ASKED, COMMANDS, NAMES, asked, columns, commands

from malamute.access import ACTIONS, AccessRule, Policy, User
from malamute.access.rule import WITH_SUBJECT, Thing, needed_rule
from malamute.core.identity.access import Principal
from malamute.core.identity.needs import ACCESS, CHANGES, QUERIES
from malamute.protocol.messages import Answer, Change, Error, Hello, Publish, Query, Request, Send

TOPICS = {Query: ("view", QUERIES), Change: ("admin", CHANGES)}
CHECKED = [spec for spec in COMMANDS if ACCESS.get(spec.message) and spec.message not in (Hello, *TOPICS)]
ANY_COMMAND = st.sampled_from(CHECKED).flatmap(commands) | ASKED
"""Any command that needs a rule, but for HELLO."""

SHOWN = ("streams", "mailboxes", "services", "feeds", "users", "cursors")
"""What an operator sees of all that commands can change."""

CONSUMING = {"stream": "subscribe", "mailbox": "receive", "service": "offer"}
"""The action by which messages are consumed, by the kind of the place."""

OF_BROKER = st.sampled_from(sorted({topic.rpartition(".")[2] for topic in (*CHANGES, *QUERIES)}))

GivenRule = tuple[bool, str, str, str, str]


UNDER_SUBJECTS = WITH_SUBJECT - {"subscribe", "offer"}
"""Actions whose rules have subjects here: of the others, a rule for a part narrows and refuses nothing."""


@st.composite
def any_rule(draw: st.DrawFn) -> GivenRule:
    action = draw(st.sampled_from([*ACTIONS, "*"]))
    kind = draw(st.sampled_from([*ACTIONS.get(action, ()), "*"]))
    name = draw(st.just("#") | NAMES | OF_BROKER)
    subject = draw(st.sampled_from(["", "a", "b"])) if action in UNDER_SUBJECTS else ""
    return draw(st.integers(0, 3)) == 0, action, kind, name, subject


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, list[GivenRule]]:
    """A command, and rules of which most are about what it needs: one that is missing is to be noticed."""
    command = draw(ANY_COMMAND)
    given = draw(st.lists(any_rule(), max_size=2))
    for action, kind, name, subject in needed(command):
        wider = st.tuples(
            st.just("*") | st.just(action), st.just("*") | st.just(kind), st.just("#"), st.just("")
        )
        exact = (action, kind, name, subject if action in UNDER_SUBJECTS else "")
        for of, what, pattern, under in draw(st.lists(wider | st.just(exact), max_size=2)):
            given.append((draw(st.integers(0, 7)) == 0, of, what, pattern, under))
    return command, given


def allowed(rules: list[GivenRule], action: str, kind: str, name: str, subject: str) -> bool:
    """The reference: what the documentation says of rules, in so many words."""
    fitting = [
        deny
        for deny, of, what, pattern, under in rules
        if of in (action, "*") and what in (kind, "*") and under in ("", subject)
        if pattern == name or (pattern == "#" and not name.startswith("$"))
    ]
    return any(not deny for deny in fitting) and not any(fitting)


def needed(command: Any) -> Iterator[tuple[str, str, str, str]]:
    """What a command needs, by the tables; what needs no rule is left out."""
    if type(command) in TOPICS:
        action, topics = TOPICS[type(command)]
        lines, values = topics[command.topic], command.arguments
        if not any(values.get(line.field) for line in lines):
            yield action, "broker", command.topic.rpartition(".")[2], ""
    else:
        lines, values = ACCESS[type(command)], command._asdict()
    for line in lines:
        if not (name := values.get(line.field)):
            continue
        kind = line.kind or values["kind"]
        if kind == "place":
            kind, _, name = name.partition("/")
        action = CONSUMING[kind] if line.action == "consume" else line.action
        if action in ACTIONS:
            for subject in values.get(line.subjects) or [""]:
                yield action, kind, name, subject


def rule_text(action: str, kind: str, name: str, subject: str) -> str:
    return f"{action} {kind}/#" if name == "#" else needed_rule(action, kind, name, subject)


def world(given: list[GivenRule]) -> Bench:
    """A broker with something of every kind, an operator who may do everything, and ann, who has rules."""
    bench = Bench()
    own = [f"{'deny ' * deny}{rule_text(*rule)}" for deny, *rule in given]
    users = {"ann": User(rules=tuple(map(AccessRule.parse, own)))}
    users["eve"] = User(rules=(AccessRule.parse("* */#"),))
    bench.settings = bench.settings._replace(access=Policy(users=users))
    bench.core.configure(bench.settings, bench.now)
    for user, address in (("eve", "bob"), ("ann", "")):
        bench._names[peer_id(user)] = user
        bench.core.receive(peer_id(user), Hello([2], address), bench.now, Principal(user))
        bench.iterate()
    bench.tell(
        "eve",
        *(publish(b"1", stream=stream) for stream in "st"),
        *(subscribe(source, stream=stream, cursor="c") for source, stream in enumerate("st", 1)),
        offer(3, service="w"),
        *(request(b"1", service=service) for service in ("w", "there")),
        send("ann", b"1"),
    )
    bench.settle()
    return bench


def shown(bench: Bench) -> list[Any]:
    """What an operator is answered to all his questions."""
    answers = [bench.ask("eve", Query(1, topic, {}))[-1] for topic in SHOWN]
    assert all(isinstance(answer, Answer) for answer in answers)
    return answers


def refused_needs(answers: list[Any]) -> list[tuple[str, str, str, str]]:
    """What was missing, as the refusals say."""
    texts = [answer.text for answer in answers if isinstance(answer, Error) and answer.code == 401]
    found = []
    for text in texts:
        if words := re.match(r"""['"](\w+) (.*)['"] is not allowed: """, text):
            found.append((words[1], *Thing.parse(words[1], words[2])))
        else:
            assert "is reserved for the broker" in text
    return [(action, kind, name, subject or "") for action, kind, name, subject in found]


def decide(command: Any, given: list[GivenRule]) -> None:
    """Have the broker decide, and compare."""
    bench = world(given)
    before = shown(bench)
    bench.log.clear()
    answers = bench.ask("ann", command)
    # What is said to be missing is missing, even if it is something that the command did not name.
    assert not any(allowed(given, *need) for need in refused_needs(answers))
    if not all(allowed(given, *need) for need in needed(command)):
        assert any(isinstance(answer, Error) for answer in answers)
        bench.settle()
        assert [peer for peer, _ in bench.log if peer != "ann"] == []
        assert shown(bench) == before


@settings(max_examples=15 * DEPTH)
@given(cases())
def test_any_command_is_decided_as_the_reference_does_and_what_is_refused_leaves_no_trace(case):
    decide(*case)


SOUND = {Publish: columns(Publish, False), Send: columns(Send, True), Request: columns(Request, True)}
OF_MESSAGES = [
    pytest.param(
        SOUND[spec.message] if spec.message in SOUND else commands(spec), 8, id=spec.message.__name__
    )
    for spec in CHECKED
]
OF_TOPICS = [pytest.param(asked(key), 2, id=key[1]) for key in wire.ARGUMENTS]


@pytest.mark.parametrize(("kind", "count"), OF_MESSAGES + OF_TOPICS)
def test_each_rule_that_a_command_needs_is_missed_if_it_alone_is_not_there(kind, count):
    @settings(max_examples=count)
    @given(kind)
    def each_missed(command: Any) -> None:
        exact = [
            (False, action, of, name, subject if action in UNDER_SUBJECTS else "")
            for action, of, name, subject in sorted({*needed(command)})
        ]
        for absent in exact:
            decide(command, [given for given in exact if given != absent])
        decide(command, exact)

    each_missed()
