"""The sum of rules: deny wins, default deny, and no order; and the same as a ten-line reference."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malamute.access import AccessRule, Policy, User
from malamute.access.template import SCANNED_MAX, PatternTable, marked
from malamute.errors import AccessRefused
from malamute.matching import FAMILIES, Selector, parse_normal
from malamute.matching.expression import MessageFields


def policy(*rules, groups=None, users=None):
    return Policy(map(AccessRule.parse, rules), groups, users)


def decide(found, action, thing, subject=None, user="ann", groups=(), claims=()):
    kind, _, name = thing.partition("/")
    return found.grants(user, groups, claims).decide(action, kind, name, subject)


def test_without_a_rule_nothing_is_in_force():
    assert not policy().in_force
    assert policy("view broker/#").in_force
    assert Policy(users={"ann": User(rules=(AccessRule.parse("view broker/#"),))}).in_force
    assert Policy(groups={"staff": (AccessRule.parse("view broker/#"),)}).in_force
    assert not Policy(groups={"staff": ()}, users={"ann": User(("staff",))}).in_force


def test_deny_wins_and_the_rule_that_decided_is_named():
    found = policy("publish stream/prices", "deny publish stream/prices/fx.internal.#")
    assert decide(found, "publish", "stream/prices", "fx.eur").allowed
    refused = decide(found, "publish", "stream/prices", "fx.internal.x")
    assert not refused.allowed
    assert str(refused.by) == "deny publish stream/prices/fx.internal.# (everybody)"
    other = decide(found, "publish", "stream/others", "fx.eur")
    assert (other.allowed, other.by) == (False, None)
    assert decide(found, "publish", "stream/prices").limited


def test_rules_are_of_everybody_of_groups_and_of_users():
    found = Policy(
        [AccessRule.parse("send mailbox/lost")],
        {
            "staff": (AccessRule.parse("send mailbox/desk"),),
            "guests": (AccessRule.parse("send mailbox/door"),),
        },
        {"ann": User(("staff",), (AccessRule.parse("send mailbox/ann"),))},
    )
    for user, groups, allowed in [
        ("ann", (), {"lost", "desk", "ann"}),
        ("ann", ("guests", "unknown"), {"lost", "desk", "ann", "door"}),
        ("bob", (), {"lost"}),
        ("bob", ("staff",), {"lost", "desk"}),
        ("", (), {"lost"}),
    ]:
        names = ("lost", "desk", "ann", "door")
        assert {
            n for n in names if decide(found, "send", f"mailbox/{n}", "", user, groups).allowed
        } == allowed


@pytest.mark.parametrize("user", ["ann", "a.b", "*", "#", "a.#", "a b/c", "\0*", "ünï"])
def test_a_user_has_his_own_mailbox_and_no_other(user):
    found = policy("receive mailbox/{user}")
    assert decide(found, "receive", f"mailbox/{user}", user=user).allowed
    for other in ("bob", "a", "a.c", f"{user}.x", f"x.{user}", "#x"):
        assert not decide(found, "receive", f"mailbox/{other}", user=user).allowed


def test_nobody_in_particular_has_no_mailbox():
    assert not decide(policy("receive mailbox/{user}"), "receive", "mailbox/x", user="").allowed


def test_a_claim_that_is_missing_opens_nothing():
    found = policy(
        "publish stream/{claim.team}", "publish stream/open", "deny publish stream/open/{claim.not}.#"
    )
    assert not decide(found, "publish", "stream/a", "x").allowed
    assert not decide(found, "publish", "stream/open", "x").allowed
    claims = (("team", "a"), ("not", "b"))
    assert decide(found, "publish", "stream/a", "x", claims=claims).allowed
    assert decide(found, "publish", "stream/open", "x", claims=claims).allowed
    assert not decide(found, "publish", "stream/open", "b.x", claims=claims).allowed
    nowhere = policy("* */#", "subscribe stream/$sys", "deny subscribe stream/{claim.x}")
    assert not decide(nowhere, "subscribe", "stream/a").allowed
    assert not decide(nowhere, "subscribe", "stream/$sys").allowed


def test_a_claim_that_is_empty_is_not_every_subject():
    found = policy("publish stream/s/{claim.t}")
    assert not decide(found, "publish", "stream/s", "x", claims=(("t", ""),)).allowed


def test_a_wildcard_is_nothing_of_the_brokers_own():
    found = policy("* */#")
    assert decide(found, "subscribe", "stream/s").allowed
    assert not decide(found, "subscribe", "stream/$sys").allowed
    assert decide(policy("subscribe stream/$sys"), "subscribe", "stream/$sys").allowed
    assert decide(policy("subscribe stream/$sys.#"), "subscribe", "stream/$sys").allowed


NAMES = st.lists(st.sampled_from(["a", "b", "*", "#", "$s"]), min_size=1, max_size=3).map(".".join)
LITERAL = st.sampled_from(["a", "b", "%2A", "c", "{user}", "{claim.x}", "$s"])
PATTERNS = st.lists(st.one_of(st.sampled_from(["*", "#"]), LITERAL), min_size=1, max_size=3).map(".".join)


@st.composite
def rules(draw, actions=("publish", "send", "request")):
    action = draw(st.sampled_from(actions))
    kind = {"publish": "stream", "send": "mailbox", "request": "service", "subscribe": "stream"}[action]
    kind = draw(st.sampled_from([kind, kind, "*"]))
    subject = draw(st.one_of(st.just(""), PATTERNS.map("/{}".format)))
    action = draw(st.sampled_from([action, action, "*"])) if not subject else action
    return AccessRule.parse(f"{'deny ' * draw(st.booleans())}{action} {kind}/{draw(PATTERNS)}{subject}")


def reference(found, action, kind, name, subject, values):
    """The verdict of the rules, as the documentation has it."""
    fitting = [
        rule
        for rule in found
        if {action, "*"} & {*rule.actions}
        and rule.kind in (kind, "*")
        and rule.name.startswith("$") == name.startswith("$")
        and fits(rule.name, name, values)
        and (not rule.subject or fits(rule.subject, subject, values))
    ]
    return bool(fitting) and not any(rule.deny for rule in fitting)


def fits(pattern, text, values):
    """Whether a text fits, by the matching engine with each literal spelled out as letters."""
    spelled = []
    for part in pattern.replace("{claim.x}", "{claim}").split("."):
        literal = part.replace("{user}", values["user"]).replace("{claim}", values["claim.x"])
        spelled.append(part if part in ("*", "#") else spell(literal.replace("%2A", "*")))
    return FAMILIES["topic"].matches(".".join(spelled), ".".join(map(spell, text.split("."))), {}, "")


def spell(part):
    return "x" + part.encode().hex()


@given(
    st.lists(rules(), max_size=30),
    st.integers(0, 3),
    st.sampled_from(["publish", "send", "request"]),
    NAMES,
    NAMES,
)
def test_any_rules_decide_as_the_reference_does(found, owner, action, name, subject):
    values = {"user": "a", "claim.x": "#"}
    kind = {"publish": "stream", "send": "mailbox", "request": "service"}[action]
    everybody, group, own = found[: owner * 10], found[owner * 10 : owner * 20], found[owner * 20 :]
    tried = Policy(everybody, {"g": tuple(group)}, {"a": User(("g",), tuple(own), (("x", "#"),))})
    decision = decide(tried, action, f"{kind}/{name}", subject, user="a")
    assert decision.allowed == reference(found, action, kind, name, subject, values)
    assert decision.by is None or decision.by.rule.deny != decision.allowed


@given(st.lists(rules(), max_size=3), NAMES, NAMES)
def test_the_order_of_rules_means_nothing(found, name, subject):
    decisions = {
        decide(Policy(some), "publish", f"stream/{name}", subject).allowed for some in permutations(found)
    }
    assert len(decisions) == 1


@given(st.lists(PATTERNS.filter(lambda text: not set(text) & set("{%")), max_size=SCANNED_MAX), NAMES)
def test_a_long_table_finds_what_a_short_one_finds(patterns, text):
    short = PatternTable(zip(patterns, range(SCANNED_MAX), strict=False))
    more = [(f"never.{number}", None) for number in range(SCANNED_MAX + 1)]
    long = PatternTable([*zip(patterns, range(SCANNED_MAX), strict=False), *more])
    assert long.fitting(marked(text)) == short.fitting(marked(text))


# Subscriptions


def narrowed(found, criteria, where="", user="ann", claims=(), name="s"):
    selector = Selector.parse(criteria, where)
    return found.grants(user, (), claims).scope("subscribe", "stream", name).narrow(selector)


def takes(selector, subject, headers):
    return any(
        FAMILIES[name].matches(pattern, subject, headers, "") for name, pattern in selector.criteria
    ) and (not selector.where or parse_normal(selector.where).holds(MessageFields(subject, headers)))


def test_rows_of_a_tenant_are_a_condition_that_is_added():
    found = policy("subscribe stream/s where ward = '{claim.ward}'")
    selector = narrowed(found, [["all", ""]], "age > 3", claims=(("ward", "o'3"),))
    assert selector == Selector.parse([["all", ""]], "age > 3 and ward = 'o''3'")
    with pytest.raises(AccessRefused):
        narrowed(found, [["all", ""]])


@pytest.mark.parametrize(
    ("rules", "asked", "left"),
    [
        (["subscribe stream/s"], [["all", ""]], [["all", ""]]),
        (["subscribe stream/s/fx.#"], [["topic", "fx.eur"]], [["topic", "fx.eur"]]),
        (["subscribe stream/s/fx.#"], [["all", ""]], [["topic", "fx.#"]]),
        (
            ["subscribe stream/s/fx.#", "subscribe stream/s/m"],
            [["topic", "#"]],
            [["topic", "fx.#"], ["topic", "m"]],
        ),
        (["subscribe stream/s/fx.#"], [["exact", "fx.eur"], ["exact", "m"]], [["exact", "fx.eur"]]),
        (["subscribe stream/s", "deny subscribe stream/s/m"], [["exact", "fx"]], [["exact", "fx"]]),
        (
            ["subscribe stream/s", "deny subscribe stream/s/m"],
            [["exact", "fx"], ["exact", "m"]],
            [["exact", "fx"]],
        ),
    ],
)
def test_a_subscription_is_narrowed_to_the_subjects_that_are_allowed(rules, asked, left):
    assert narrowed(policy(*rules), asked) == Selector.parse(left)


def test_a_subscription_of_which_nothing_is_left_is_refused():
    for rule, asked in [
        ("subscribe stream/s/fx.#", [["topic", "metals.#"]]),
        ("subscribe stream/s/fx.#", [["exact", "m"]]),
        ("subscribe stream/other", [["all", ""]]),
        ("deny subscribe stream/s", [["all", ""]]),
    ]:
        with pytest.raises(AccessRefused, match="nothing of what it asks for is allowed"):
            narrowed(policy("subscribe stream/t", rule), asked)


CRITERIA = st.lists(
    st.one_of(
        st.just(["all", ""]),
        st.tuples(st.just("exact"), st.sampled_from(["a", "a.b", "*", "c"])),
        st.tuples(st.just("topic"), st.sampled_from(["#", "a.#", "*.b", "a.*.c", "#.c", "a"])),
        st.tuples(st.just("topic-amqp"), st.sampled_from(["#", "a.#", "*.b", "#.b.#"])),
        st.tuples(st.just("prefix"), st.sampled_from(["", "a", "a.b"])),
        st.tuples(st.just("regex"), st.sampled_from(["b", "^a", "c$"])),
    ),
    min_size=1,
    max_size=3,
)
SUBJECT_RULES = st.one_of(
    st.just(""), st.sampled_from(["/a", "/a.#", "/*.b", "/#.c", "/a.*.c", "/%2A", "/#", "/*"])
)
WHERE = st.sampled_from(["", "", " where t = 1", " where t = 2", " where u = '{user}'"])


@given(
    CRITERIA,
    st.sampled_from(["", "t = 1", "not t = 2 or u = 'ann'"]),
    st.lists(st.tuples(st.booleans(), SUBJECT_RULES, WHERE), max_size=5),
    st.sampled_from(["a", "a.b", "*", "c", "a.b.c", "b", "x.c", "", "a..c", "a\nb"]),
    st.fixed_dictionaries({}, optional={"t": st.integers(1, 3), "u": st.sampled_from(["ann", "bob"])}),
)
def test_a_narrowed_subscription_has_exactly_what_it_asks_for_and_may_have(asked, where, rules, subject, row):
    texts = [f"{'deny ' * deny}subscribe stream/s{pattern}{rows}" for deny, pattern, rows in rules]
    fields = MessageFields(subject, row)
    may = {True: False, False: False}
    for text, (deny, pattern, rows) in zip(texts, rules, strict=True):
        assert AccessRule.parse(text).deny == deny
        under = not pattern or fits(pattern[1:], subject, {"user": "ann", "claim.x": ""})
        condition = rows.removeprefix(" where ").replace("{user}", "ann")
        may[deny] |= under and (not condition or parse_normal(condition).holds(fields))
    wanted = takes(Selector.parse(asked, where), subject, row) and may[False] and not may[True]
    try:
        left = narrowed(policy(*texts, "view broker/x"), asked, where)
    except AccessRefused:
        assert not wanted
    else:
        assert takes(left, subject, row) == wanted


def test_more_pairs_than_are_compared_are_left_to_the_condition(monkeypatch):
    found = policy(
        "subscribe stream/s/a.#", "deny subscribe stream/s/a.b", "subscribe stream/s/b where t = 1"
    )
    for pairs_max in (3, 2):
        monkeypatch.setattr("malamute.access.scope.PAIRS_MAX", pairs_max)
        selector = narrowed(found, [["topic", "a.#"]])
        assert [s for s in ("a", "a.b", "a.c", "b") if takes(selector, s, {"t": 2})] == ["a", "a.c"]


def test_many_rules_are_found_like_few():
    many = [f"publish stream/s{n}/k{n}.#" for n in range(1000)]
    found = policy(*many, *(f"publish stream/one/k{n}.#" for n in range(1000)))
    assert decide(found, "publish", "stream/s999", "k999.x").allowed
    assert not decide(found, "publish", "stream/s999", "k998.x").allowed
    assert decide(found, "publish", "stream/one", "k500").allowed
    assert not decide(found, "publish", "stream/one", "k1000").allowed
