"""The plan of a run: everything that chance decides, decided before the run begins.

A run is a pure function of its plan: how the world is set up, and a list of steps. A step is a kind and
three numbers, which mean something only when its turn comes: "client 5 of those there are", "as many
frames as this, if there are so many". So each sublist of the steps is a plan too, which is what makes a
failing run easy to shrink: leave steps out as long as it still fails.

Chance also decides what kind of world it is. A world in which everything happens at once seldom gets far
into anything, so each run has some faults and some habits, and not the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from malamute.store.policies import QueuePolicy

STEPS = 220
RARE_STEPS = 4
"""How often the clock is set, or the store is copied or lost, in a run that has it."""

AGES_SECONDS = (0.5, 3.0, 60.0)

KEYED = 6
"""In some runs programs change keys of a bucket, in each of so many steps."""

ADMINISTERED = 7
"""In some runs operators change anything at all, in each of so many steps."""

CANCELLED = 9
"""In some runs programs cancel messages by their ids, in each of so many steps."""

# How often a kind of step is drawn, beside the others.
CLIENT_WEIGHTS: Mapping[str, int] = {
    "publish": 60,
    "subscribe": 18,
    "take": 40,
    "cancel": 3,
    "commit": 16,
    "send": 24,
    "open_mailbox": 8,
    "take_mail": 36,
    "acknowledge": 24,
    "request": 20,
    "offer": 14,
    "take_request": 36,
    "reply": 24,
    "reply_again": 2,
    "take_reply": 12,
    "forget": 2,
    "ask": 8,
    "leave": 2,
    "give_back": 12,
    "release": 8,
    "drain": 1,
    "reject": 8,
    "report": 16,
    "repeat": 3,
    "withdraw": 4,
    "purge": 2,
    "redrive": 5,
    "browse": 1,
    "feed": 8,
    "unfeed": 1,
}
VERBS = frozenset(
    {"give_back", "release", "drain", "reject", "report", "repeat", "withdraw", "purge", "redrive", "browse"}
)
THEMES: Sequence[frozenset[str]] = (
    frozenset({"publish", "subscribe", "take", "cancel", "commit"}),
    VERBS | {"send", "open_mailbox", "take_mail", "acknowledge"},
    VERBS | {"request", "offer", "take_request", "reply", "reply_again", "take_reply", "acknowledge"},
    VERBS
    | {"publish", "subscribe", "take", "feed", "unfeed", "offer", "take_request", "reply", "acknowledge"},
    frozenset(CLIENT_WEIGHTS),
    frozenset(CLIENT_WEIGHTS),
)
"""What the programs of a run care for: one pattern of the three, the way from one to another, or all."""

SHARED = THEMES[1] | {"offer", "take_request", "reply", "cancel"}
"""What they care for where they share mailboxes."""

WORK_WEIGHTS: Mapping[str, int] = {
    "turn": 110,
    "client": 110,
    "round": 40,
    "write": 60,
    "read": 40,
    "time": 16,
    "connect": 40,
}
FAULT_WEIGHTS: Mapping[str, int] = {
    "cut": 14,
    "half_cut": 8,
    "notice": 12,
    "narrow": 6,
    "widen": 8,
    "fail": 12,
    "crash": 5,
    "crash_writing": 3,
    "stop": 2,
    "expire": 2,
    "replace": 4,
    "usurp": 3,
    "damage": 2,
}


TIGHT: Mapping[str, int] = {
    "message_bytes": 150,
    "selector_bytes": 5_000,
    "session_selector_bytes": 9_000,
    "selectors_bytes": 25_000,
    "cursors_bytes": 900,
    "answers_bytes": 1,
    "queue_bytes": 700,
    "identities_bytes": 300,
    "caches_bytes": 1_000,
}
"""Limits in bytes of one session and of what it fills, so small that programs meet them."""


class Setup(NamedTuple):
    """What kind of world it is. Small numbers make the edges of the broker easy to reach."""

    clients: int
    kept_messages: int
    reserve: int
    read_bytes: int
    unconfirmed: int
    queue_messages: int
    memory_bytes: int
    backlog_bytes: int
    pipe: int
    wishes: int
    """How many of 100 messages have an option, for each option."""
    queues: QueuePolicy
    stale: bool
    """Whether a client may read what came on an old connection after a new one stands."""
    events: bool = False
    """Whether the broker has its stream of events."""
    clocks: bool = False
    """Whether the wall clock is set now and then."""
    restores: bool = False
    """Whether the store is lost now and then, and a backup takes its place."""
    flaws: bool = False
    """Whether records other than chunks are found damaged now and then."""
    audit: bool = False
    """Whether the broker has its stream of changes."""
    tight: Mapping[str, int] = {}
    """Limits in bytes that are small."""
    keyed: bool = False
    """Whether feeds give their messages keys."""
    shared: bool = False
    """Whether programs consume from mailboxes beside their owners, and from one that is nobody's."""
    existing: bool = False
    """Whether some subscriptions are to streams that are there, or to none."""
    cut_through: str = "on"
    """Which plain messages pass to a consumer that waits: all (`on`), none (`off`), every other (`mixed`)."""
    age_seconds: float = 0.0
    """For how long streams keep their messages, if that is less than a run takes."""


class Step(NamedTuple):
    """One thing that happens. What the numbers choose among depends on what there is by then."""

    kind: str
    a: int
    b: int
    c: int


class Plan(NamedTuple):
    """A run that has not been made yet."""

    seed: int
    setup: Setup
    steps: Sequence[Step]


WAYS = ("on", "mixed", "off")
"""What `cut_through` may be."""


def plan_of(seed: int, theme: frozenset[str] | None = None) -> Plan:
    """The plan that a seed stands for, or would if it had this theme."""
    chance = Random(seed)
    any_theme = theme is None
    clocks, restores = theme is None and seed % 16 in (4, 6), theme is None and seed % 16 == 11
    flaws = theme is None and seed % 10 == 8 and not (clocks or restores)
    administered = theme is None and (seed % 5 == 2 or (flaws and seed // 20 % 5 in (1, 3)))
    restored = THEMES[3] if seed // 48 % 2 else THEMES[seed // 16 % 3]
    theme = restored if restores else THEMES[0] if clocks and seed % 16 == 4 else theme
    fed = flaws and seed // 10 % 2
    shared = theme is None and not flaws and seed % 14 == 9
    weights = _weights(chance, THEMES[3] if fed else SHARED if shared else theme)
    if fed:
        # By itself hardly any run has damage, and feeds that have got anywhere by then.
        weights["feed"], weights["round"] = 40, 200
    tight = _tight(seed) if theme is None or clocks or restores else {}
    if "answers_bytes" in tight:
        weights["ask"] = 60
    setup = Setup(
        clients=chance.choice((2, 3, 4, 5)),
        kept_messages=chance.choice((4, 12, 40, 1000)),
        reserve=chance.choice((2, 16, 1 << 18)),
        read_bytes=chance.choice((1, 300, 1 << 20)),
        unconfirmed=chance.choice((2, 16, 1000)),
        queue_messages=chance.choice((3, 12, 1000)),
        # By the seed itself: the rest of a plan is as it was before there was such a limit.
        memory_bytes=(300, 3000, 1 << 26)[seed % 3],
        backlog_bytes=chance.choice((200, 1 << 20)),
        pipe=chance.choice((3, 10, 1000)),
        wishes=chance.choice((0, 5, 20, 60)),
        queues=_policy(chance),
        stale=chance.random() < 0.3,
        events=seed % 4 == 1,
        clocks=clocks,
        restores=restores,
        flaws=flaws,
        audit=theme is None and seed % 4 == 2,
        tight=tight,
        keyed=any_theme and seed % 11 == 6,
        shared=shared,
        existing=theme is None and seed % 19 == 7,
        cut_through=WAYS[seed // 5 % 3],
    )
    cancels = theme is None and seed % 13 == 4
    if "identities_bytes" in tight or cancels:
        setup = setup._replace(wishes=60)
    if theme is None and seed % 16 == 9:
        setup = setup._replace(age_seconds=AGES_SECONDS[seed // 16 % len(AGES_SECONDS)])
    if clocks:
        setup = setup._replace(kept_messages=1000)  # so that what leaves, leaves by its age
    kinds = chance.choices(list(weights), list(weights.values()), k=STEPS)
    if administered and not (clocks or restores):
        # By the seed itself, too. The books of what operators set do not go back to a backup.
        kinds[::ADMINISTERED] = ["administer"] * len(kinds[::ADMINISTERED])
    # By the seed itself: the rest of a plan is as it was before there were buckets and cancellations.
    others = {
        "change_key": any_theme and seed % 6 == 3 and not administered and slice(3, None, KEYED),
        "cancel_id": cancels and slice(0, None, CANCELLED),
    }
    _put_in(kinds, others)
    bits = chance.getrandbits
    steps = [Step(kind, bits(16), bits(16), bits(16)) for kind in kinds]
    rare = {
        "set_clock": clocks,
        "back_up": restores,
        "restore": restores,
        "damage_block": flaws,
        "damage_running": flaws,
        "damage_state": flaws,
    }
    for kind, wanted in rare.items():
        for _ in range(RARE_STEPS if wanted else 0):
            steps.insert(chance.randrange(STEPS), Step(kind, bits(16), bits(16), bits(16)))
    return Plan(seed, setup, steps)


def _put_in(kinds: list[str], others: Mapping[str, slice | bool]) -> None:
    """Put kinds of steps in the places of others."""
    for kind, places in others.items():
        if isinstance(places, slice):
            kinds[places] = [kind] * len(kinds[places])


def _tight(seed: int) -> Mapping[str, int]:
    """The limits that are small in the run of a seed: none in most. The rest of the plan is as without."""
    chance = Random(f"limits of {seed}")
    names = [name for name in TIGHT if chance.random() < 0.5] if seed % 9 == 5 else []
    return {name: TIGHT[name] for name in names}


def _policy(chance: Random) -> QueuePolicy:
    return QueuePolicy(
        ack_timeout_seconds=chance.choice((0.5, 1.0, 1800.0)),
        attempts_max=chance.choice((1, 2, 3, 20, 0)),
        backoff_seconds=chance.choice(((), (0.3,), (0.1, 1.0))),
        priority_step_messages=chance.choice((2, 100_000)),
        dedup_window_seconds=chance.choice((1.0, 120.0)),
        dead_letters_max=chance.choice((0, 1, 1_000)),
        idle_seconds=chance.choice((0.5, 2.0, 10.0, 86_400.0)),
    )


def _weights(chance: Random, theme: frozenset[str] | None) -> dict[str, int]:
    weights = dict(WORK_WEIGHTS)
    drawn = chance.choice(THEMES)
    theme = drawn if theme is None else theme
    # A theme needs all of its habits; a run that has everything may do without some.
    likely = 0.7 if len(theme) == len(CLIENT_WEIGHTS) else 0.95
    for name, weight in CLIENT_WEIGHTS.items():
        weights[name] = weight if name in theme and chance.random() < likely else 0
    likely = chance.choice((0.1, 0.4, 0.9))
    for name, weight in FAULT_WEIGHTS.items():
        weights[name] = weight if chance.random() < likely else 0
    return weights
