"""What takers take: the criteria that programs use, each beside what it means in plain words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from malamute.protocol.messages import Offer, Subscribe

Wants = Callable[[Any], bool]
"""Whether a message is wanted. It is looked at by its `subject` and its `headers`."""

CRITERIA: dict[str, tuple[list[tuple[str, str]], str, Wants]] = {
    "all": ([("all", "")], "", lambda origin: True),
    "topic": ([("topic", "a.*")], "", lambda origin: origin.subject in ("a.x", "a.y")),
    "prefix": ([("prefix", "b.")], "", lambda origin: origin.subject.startswith("b.")),
    "exact": ([("exact", "a.y")], "", lambda origin: origin.subject == "a.y"),
    "either": (
        [("exact", "a.x"), ("topic", "b.#")],
        "",
        lambda origin: origin.subject in ("a.x", "b.x", "b.y"),
    ),
    "where": ([("all", "")], "n = 1", lambda origin: origin.headers.get("n") == 1),
}
WANTS = {(tuple(criteria), where): wants for criteria, where, wants in CRITERIA.values()}


def wants_of(subscribe: Subscribe) -> Wants:
    """What a subscription wants."""
    return WANTS[tuple((family, pattern) for family, pattern in subscribe.criteria), subscribe.where]


def takes(offer: Offer | None, subject: str) -> bool:
    """Whether an offer is for requests with this subject. None is a mailbox, which takes everything."""
    if offer is None:
        return True
    wants = WANTS[tuple((family, pattern) for family, pattern in offer.criteria), ""]
    return wants(Subject(subject))


class Subject(NamedTuple):
    """All of a message that an offer goes by."""

    subject: str
