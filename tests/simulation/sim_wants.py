"""What takers take: the criteria that programs use, each beside what it means in plain words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from malamute.matching.family import family_named
from malamute.protocol.messages import Offer, Subscribe

Wants = Callable[[Any], bool]
"""Whether a message is wanted. It is looked at by its `subject` and its `headers`."""

BY_SUBJECT = ("all", "exact", "prefix", "topic", "topic-amqp", "regex")

HEADERS: Sequence[Mapping[str, Any]] = (
    {},
    {"n": 1},
    {"lat": 59.9, "lon": 10.7},
    {"n": 1, "lat": 41.9, "lon": 12.5},
    {"n": True, "lat": 60.1, "lon": 11.0},
    {"n": "1", "lat": 59.9},
)
"""The headers that messages of streams have."""

_NEAR_OSLO = ({"lat": 59.9, "lon": 10.7}, {"n": True, "lat": 60.1, "lon": 11.0})

CRITERIA: dict[str, tuple[list[tuple[str, Any]], str, Wants]] = {
    "all": ([("all", "")], "", lambda origin: True),
    "topic": ([("topic", "a.*")], "", lambda origin: origin.subject in ("a.x", "a.y")),
    "prefix": ([("prefix", "b.")], "", lambda origin: origin.subject.startswith("b.")),
    "exact": ([("exact", "a.y")], "", lambda origin: origin.subject == "a.y"),
    "either": (
        [("exact", "a.x"), ("topic", "b.#")],
        "",
        lambda origin: origin.subject in ("a.x", "b.x", "b.y"),
    ),
    "topic-amqp": ([("topic-amqp", "#.x")], "", lambda origin: origin.subject.endswith(".x")),
    "regex": (
        [("regex", "^[ac][.]y$|b[.]")],
        "",
        lambda origin: origin.subject in ("a.y", "c.y") or "b." in origin.subject,
    ),
    "where": (
        [("all", "")],
        "n = 1",
        lambda origin: origin.headers.get("n") is not True and origin.headers.get("n") == 1,
    ),
    "fields": (
        [("fields", {"all": {"n": [1, "1"], "lat": None}})],
        "",
        lambda origin: (
            "lat" in origin.headers
            and origin.headers.get("n") in (1, "1")
            and origin.headers["n"] is not True
        ),
    ),
    "geo": ([("geo", {"circle": [59.9, 10.7, 50]})], "", lambda origin: origin.headers in _NEAR_OSLO),
    "both": (
        [("geo", {"box": [40, 12, 42, 13]}), ("exact", "b.x")],
        "n = 1",
        lambda origin: (
            origin.headers == HEADERS[3] or (origin.subject == "b.x" and origin.headers == HEADERS[1])
        ),
    ),
}

OFFERS = [
    criteria
    for criteria, where, _ in CRITERIA.values()
    if all(f in BY_SUBJECT for f, _ in criteria) and not where
]
"""Criteria of offers, which go by subjects alone."""


def key_of(criteria: Iterable[tuple[str, Any]], where: str) -> Any:
    """Criteria and condition in the one form that the broker stores and compares."""
    return frozenset((family, family_named(family).normalise(pattern)) for family, pattern in criteria), where


SENDERS: dict[str, tuple[list[tuple[str, Any]], str, Wants]] = {
    "all": CRITERIA["all"],
    "one": ([("exact", "ann")], "", lambda origin: origin.subject == "ann"),
    "some": ([("regex", "^(bob|cat)$")], "", lambda origin: origin.subject in ("bob", "cat")),
    "two": ([("prefix", "b"), ("exact", "ann")], "", lambda origin: origin.subject in ("ann", "bob")),
}
"""Criteria of those who share a mailbox, which go by the address of the sender in place of the subject."""

WANTS = {key_of(criteria, where): wants for criteria, where, wants in (*CRITERIA.values(), *SENDERS.values())}


def wants_of(subscribe: Subscribe) -> Wants:
    """What a subscription wants."""
    return WANTS[key_of(subscribe.criteria, subscribe.where)]


def takes(offer: Offer | None, subject: str, sender: str) -> bool:
    """Whether an offer is for such a message. None is the owner of a mailbox, who takes everything."""
    if offer is None:
        return True
    return WANTS[key_of(offer.criteria, "")](Subject(sender if offer.kind == "mailbox" else subject))


class Subject(NamedTuple):
    """All of a message that an offer goes by."""

    subject: str
