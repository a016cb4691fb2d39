"""The types of feeds, joins and pipes, as tables, by the profiles that define them.

A plug-in adds a profile: an entry point of the group `malamute.restms` that is a `Profile`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, NamedTuple

import msgspec

from malamute.errors import InvalidSelector, InvalidValue
from malamute.protocol.names import signature

Criterion = tuple[str, Any]
"""A criterion: a family of patterns, and a pattern of it."""

MATCH_MODE = "x-match"

PLACE_HEADERS = ("lat", "lon")
"""Headers of a position as numbers, as a join of the type `geo` compares numbers."""


class Wanted(NamedTuple):
    """Pattern, headers and creator of a join."""

    address: str
    headers: Mapping[str, str]
    user: str


Select = Callable[[Wanted], Criterion]


class FeedType(NamedTuple):
    """Routing of a feed: the criterion of a join without a type."""

    select: Select
    counts: bool = False
    """Whether a post is answered with the number of matching joins."""
    shared: bool = False
    """Whether each message goes to one pipe only, out of a service of the broker."""
    leaves: bool = False
    """Whether the feed is deleted with its last join."""


class PipeType(NamedTuple):
    """Reading of a pipe."""

    credit: int = 100
    """Maximum messages in its document."""
    shared_only: bool = False
    """Whether joins to shared feeds alone are allowed."""
    streams: bool = False
    """Whether the pipe can be read as one endless answer."""


class Profile(NamedTuple):
    """A named set of types."""

    name: str
    href: str
    """The address of its specification; empty: its own path."""
    title: str = ""
    feeds: Mapping[str, FeedType] = {}
    joins: Mapping[str, Select | None] = {}
    """None: the type of the feed decides."""
    pipes: Mapping[str, PipeType] = {}


def _exact(wanted: Wanted) -> Criterion:
    return "exact", wanted.address


def _topic(wanted: Wanted) -> Criterion:
    return "topic-amqp", wanted.address


def _everything(wanted: Wanted) -> Criterion:
    return "all", ""


def _headers(wanted: Wanted) -> Criterion:
    fields = [[name, value] if value else [name] for name, value in with_place(_fields(wanted)).items()]
    if not fields:
        raise InvalidSelector("a join to a headers feed without a header: expected at least one")
    return "fields", {wanted.headers.get(MATCH_MODE, "all"): fields}


def _fields(wanted: Wanted) -> Mapping[str, str]:
    return {name: value for name, value in wanted.headers.items() if name != MATCH_MODE}


def with_place(headers: Mapping[str, str]) -> dict[str, Any]:
    """Headers in which a position is two numbers. All others are text, as RestMS has it."""
    return {name: _number(value) if name in PLACE_HEADERS else value for name, value in headers.items()}


def _number(text: str) -> int | float | str:
    try:
        number: int | float = msgspec.json.decode(text, type=int | float)
    except ValueError:
        return text
    return number


def _own(wanted: Wanted) -> Criterion:
    return "sender", signature(wanted.user)


def _regexp(wanted: Wanted) -> Criterion:
    return "regex", wanted.address


def _prefix(wanted: Wanted) -> Criterion:
    return "prefix", wanted.address


def _geo(wanted: Wanted) -> Criterion:
    try:
        return "geo", msgspec.json.decode(wanted.address)
    except (ValueError, RecursionError) as error:
        raise InvalidSelector(f"invalid area: expected JSON: {error}") from None


_SPEC = "http://www.restms.org/spec:"

DEFAULT_PROFILES = (
    Profile(
        "3/Defaults",
        f"{_SPEC}3/Defaults",
        "Addresses that are the same",
        {"": FeedType(_exact, counts=True)},
        {"": None},
        {"": PipeType()},
    ),
    Profile(
        "4/AMQP9",
        f"{_SPEC}4/AMQP9",
        "The kinds of exchange of AMQP 0-9-1",
        {
            "fanout": FeedType(_everything),
            "direct": FeedType(_exact),
            "topic": FeedType(_topic),
            "headers": FeedType(_headers),
            "rotator": FeedType(_everything, shared=True),
            "service": FeedType(_everything, shared=True, leaves=True),
        },
        pipes={"ondemand": PipeType(credit=1, shared_only=True)},
    ),
    Profile("malamute/Stream", "", "Pipes without end", pipes={"stream": PipeType(streams=True)}),
    Profile("malamute/Loopback", "", "Posts return to their sender", {"loopback": FeedType(_own)}),
    Profile(
        "malamute/Patterns",
        "",
        "Further joins",
        joins={"regexp": _regexp, "prefix": _prefix, "geo": _geo},
    ),
)


class Profiles:
    """The profiles of a gateway, and the types of all of them."""

    def __init__(self, *more: Profile) -> None:
        loaded = [entry.load() for entry in entry_points(group="malamute.restms")]
        self.all: tuple[Profile, ...] = (*DEFAULT_PROFILES, *loaded, *more)
        self.feeds = {name: kind for profile in self.all for name, kind in profile.feeds.items()}
        self.joins = {name: kind for profile in self.all for name, kind in profile.joins.items()}
        self.pipes = {name: kind for profile in self.all for name, kind in profile.pipes.items()}

    def criterion(self, feed_type: str, join_type: str, wanted: Wanted) -> Criterion:
        """Return the criterion and headers for a join. Raises `InvalidSelector`."""
        select = self.joins[join_type] or self.feeds[feed_type].select
        return select(wanted)


def check_type(what: str, value: str, known: Mapping[str, object]) -> None:
    """Check that a type exists. Raises `InvalidValue`."""
    if value not in known:
        names = ", ".join(name or "none" for name in known)
        raise InvalidValue(f"unknown {what} type {value[:100]!r}: expected {names}")
