"""Whatever an operator changes: the broker's own changes, each with its dry run before it is done.

A form names the topic of a change and has its fields. What would be done is shown first, as the broker
answers it; the page that shows it has the same fields, and does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from secrets import token_bytes
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from malamute.access.account import salted_hash
from malamute.errors import ConfigError, InUse, InvalidValue
from malamute.gateway.console import forms
from malamute.gateway.console.forms import Reader, first_of
from malamute.gateway.console.sign_in import own_path
from malamute.gateway.console.visits import redirect, visit_of
from malamute.gateway.console.words import plain, spaced
from malamute.gateway.routes import Arguments, Endpoint
from malamute.protocol.admin import CHANGES, AdminChange

CHANGE = "/console/change"


class Act(NamedTuple):
    """A change that a form can make."""

    question: str
    """What is asked before it is done; its fields may stand in it."""
    button: str
    fields: Mapping[str, Reader]
    """How its fields are read. One that is empty is left out, unless it is a list."""
    asks: bool = True
    """Whether its dry run is shown first."""
    destroys: bool = True


def _hashed(password: str) -> str:
    try:
        return salted_hash(password, token_bytes(16))
    except ConfigError as error:
        # It is not of a configuration here.
        raise InvalidValue(error.text) from None


_FEED: Mapping[str, Reader] = {"source": str, "feed": str}

_QUEUE: Mapping[str, Reader] = {
    "kind": str,
    "name": str,
    "sequences": forms.number,
    "where": str,
    "limit": forms.number,
}
_GROUP: Mapping[str, Reader] = {"name": str, "access_rules": forms.lines}
# What is added and taken away leaves alone what another operator has changed since the page was made.
_CHANGED: Mapping[str, Reader] = {"added_rules": forms.lines, "removed_rules": str}
_ACCOUNT: Mapping[str, Reader] = {
    "name": str,
    "password": _hashed,
    "key": str,
    "uid": forms.number,
    "groups": forms.names,
    "access_rules": forms.lines,
    "disabled": forms.flag,
}
_KEPT: Mapping[str, Reader] = {
    "stream": str,
    "bytes": forms.size,
    "count": forms.number,
    "age": forms.duration,
}

MANY = ("sequences", "removed_rules")
"""Fields that a form may have several times, one for each box that is ticked."""

LISTS = (forms.names, forms.lines)
"""What reads lists: one that is empty is meant to be."""

ACTS: Mapping[str, Act] = {
    "stream.create": Act("Make the stream {stream}?", "Make it", _KEPT, asks=False, destroys=False),
    "stream.retain": Act(
        "Keep so much of the stream {stream}? What is over it is dropped at once.", "Keep so much", _KEPT
    ),
    "stream.purge": Act("Drop all messages of the stream {stream}?", "Drop them", {"stream": str}),
    "stream.delete": Act(
        "Remove the stream {stream} with all that is in it?",
        "Remove it",
        {"stream": str, "cascade": forms.flag},
    ),
    "cursor.set": Act(
        "Let the reader of the cursor {cursor} go on at {start}?",
        "Set it",
        {"stream": str, "cursor": str, "start": str},
    ),
    "cursor.delete": Act(
        "Forget the cursor {cursor} of {stream}?", "Forget it", {"stream": str, "cursor": str}
    ),
    "feed.set": Act(
        "Pass messages on from {source} to {target}?",
        "Pass them on",
        {
            **_FEED,
            "target": str,
            "criteria": forms.criteria,
            "where": str,
            "start": str,
            "when": str,
        },
        destroys=False,
    ),
    "feed.enable": Act("Let the feed {feed} from {source} go on?", "Let it go on", _FEED, destroys=False),
    "feed.disable": Act("Let the feed {feed} from {source} rest?", "Let it rest", _FEED, destroys=False),
    "feed.delete": Act("End the feed {feed} from {source}?", "End the feed", _FEED),
    "queue.redrive": Act(
        "Send dead letters of the {kind} {name} again?", "Redrive them", _QUEUE, destroys=False
    ),
    "queue.purge": Act(
        "Remove messages of the {kind} {name}?",
        "Remove them",
        {**_QUEUE, "dead": forms.flag, "state": str},
    ),
    "queue.delete": Act(
        "Remove the {kind} {name} with all that is in it?",
        "Remove it",
        {"kind": str, "name": str, "cascade": forms.flag},
    ),
    "client.disconnect": Act(
        "End the session {id}? What it holds goes back to the queues.", "Disconnect it", {"id": str}
    ),
    "broker.reload": Act("Read the configuration again?", "Reload", {}, destroys=False),
    "journal.backup": Act("Copy the store into {directory}?", "Back up", {"directory": str}, destroys=False),
    "group.add": Act("Add the group {name}?", "Add", _GROUP, destroys=False),
    "group.set": Act(
        "Change the rules of the group {name}?", "Change", {**_GROUP, **_CHANGED}, destroys=False
    ),
    "group.remove": Act("Remove the group {name}? Its users lose what it allows.", "Remove", {"name": str}),
    "user.add": Act("Add the user {name}?", "Add", _ACCOUNT, asks=False, destroys=False),
    "user.set": Act(
        "Change the user {name}?", "Change", {**_ACCOUNT, **_CHANGED}, asks=False, destroys=False
    ),
    "user.remove": Act("Remove the user {name}?", "Remove", {"name": str}),
}
"""What can be done, by the topic of the change."""


def _read(act: Act, fields: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, read in act.fields.items():
        given = fields.get(name)
        if given is None:
            continue
        if name in MANY:
            values[name] = [read(text) for text in given]
        elif given[0].strip() or read in LISTS:
            values[name] = read(given[0])
    if "some" in fields and not values.get("sequences"):
        # Without any the broker takes it for all.
        raise InvalidValue("no message is chosen: tick at least one")
    return values


async def change(request: Request, arguments: Arguments) -> Response:
    """Show what a change would do, or do it.

    Raises:
        InvalidValue: there is no such change, or a field is wrong.
    """
    visit = visit_of(request)
    fields: dict[str, list[str]] = request.state.form
    topic = first_of(fields, "topic")
    act = ACTS.get(topic)
    if act is None:
        raise InvalidValue(f"unknown change {topic[:50]!r}: expected one of {', '.join(ACTS)}")
    # Hashing a password takes a while.
    values = await asyncio.to_thread(_read, act, fields)
    back = own_path(first_of(fields, "back", "/"))
    asks = act.asks and "confirmed" not in fields
    warning = ""
    try:
        done = await visit.change(_made(topic, {**values, "dry_run": asks}))
    except InUse as error:
        if not asks:
            raise
        # What hangs on it would end as well: that is shown, and then asked for.
        fields["cascade"], warning = ["yes"], error.text
        done = await visit.change(_made(topic, {**values, "dry_run": True, "cascade": True}))
    facts = {spaced(name): plain(value) for name, value in done.as_map().items()}
    if asks:
        again = {name: given for name, given in fields.items() if name in act.fields or name == "some"}
        return visit.page(
            "confirm.html",
            act=act,
            question=act.question.format_map(_Said(values)),
            topic=topic,
            facts=facts,
            warning=warning,
            fields=again,
            back=back,
        )
    visit.watch.hurry()
    visit.session.note(f"{topic}: " + ", ".join(f"{name} {value}" for name, value in facts.items()))
    return redirect(back)


class _Said(dict[str, Any]):
    def __missing__(self, name: str) -> str:
        return ""


def _made(topic: str, values: dict[str, Any]) -> AdminChange[Any]:
    # As if it came by the wire: what is missing or wrong is refused with the same words.
    return CHANGES[topic].parse(values)


ENDPOINTS = (Endpoint("POST", CHANGE, change, "Change"),)
