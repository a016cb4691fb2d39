"""Changes by operators: the broker's own changes, each with its dry run before it is done.

A form has the topic of a change and its fields. The broker's answer to the dry run is shown first, on a page
whose form has the same fields and does the change.
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
    """A change that a form can request."""

    question: str
    """The question of the confirmation, with the form's fields in braces."""
    button: str
    fields: Mapping[str, Reader]
    """Readers of the fields, by name. An empty field is left out, unless its reader is in `LISTS`."""
    asks: bool = True
    """Whether the dry run is shown first."""
    destroys: bool = True


def _hashed(password: str) -> str:
    try:
        return salted_hash(password, token_bytes(16))
    except ConfigError as error:
        # The error is worded for a configuration file, which is not concerned here.
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
# Additions and removals preserve changes that another operator has made since the page was shown.
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
"""Fields that a form may repeat, one for each ticked box."""

LISTS = (forms.names, forms.lines)
"""Readers of lists: an empty field means an empty list."""

ACTS: Mapping[str, Act] = {
    "stream.create": Act("Create the stream {stream}?", "Create", _KEPT, asks=False, destroys=False),
    "stream.retain": Act(
        "Set the retention of the stream {stream}? Messages beyond it are dropped at once.",
        "Set retention",
        _KEPT,
    ),
    "stream.purge": Act("Drop all messages of the stream {stream}?", "Drop all", {"stream": str}),
    "stream.delete": Act(
        "Delete the stream {stream} with its messages?",
        "Remove it",
        {"stream": str, "cascade": forms.flag},
    ),
    "cursor.set": Act(
        "Move the cursor {cursor} to {start}?",
        "Move",
        {"stream": str, "cursor": str, "start": str},
    ),
    "cursor.delete": Act("Delete the cursor {cursor} of {stream}?", "Delete", {"stream": str, "cursor": str}),
    "feed.set": Act(
        "Feed {target} from {source}?",
        "Set feed",
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
    "feed.enable": Act("Resume the feed {feed} from {source}?", "Resume", _FEED, destroys=False),
    "feed.disable": Act("Pause the feed {feed} from {source}?", "Pause", _FEED, destroys=False),
    "feed.delete": Act("Delete the feed {feed} from {source}?", "Delete", _FEED),
    "queue.redrive": Act("Redrive dead letters of the {kind} {name}?", "Redrive", _QUEUE, destroys=False),
    "queue.purge": Act(
        "Remove messages of the {kind} {name}?",
        "Remove",
        {**_QUEUE, "dead": forms.flag, "state": str},
    ),
    "queue.delete": Act(
        "Delete the {kind} {name} with its messages?",
        "Remove it",
        {"kind": str, "name": str, "cascade": forms.flag},
    ),
    "client.disconnect": Act(
        "End the session {id}? Its messages in flight return to their queues.", "Disconnect", {"id": str}
    ),
    "broker.reload": Act("Reload the configuration?", "Reload", {}, destroys=False),
    "journal.backup": Act("Copy the store into {directory}?", "Back up", {"directory": str}, destroys=False),
    "group.add": Act("Add the group {name}?", "Add", _GROUP, destroys=False),
    "group.set": Act(
        "Change the rules of the group {name}?", "Change", {**_GROUP, **_CHANGED}, destroys=False
    ),
    "group.remove": Act("Remove the group {name}? Its users lose its permissions.", "Remove", {"name": str}),
    "user.add": Act("Add the user {name}?", "Add", _ACCOUNT, asks=False, destroys=False),
    "user.set": Act(
        "Change the user {name}?", "Change", {**_ACCOUNT, **_CHANGED}, asks=False, destroys=False
    ),
    "user.remove": Act("Remove the user {name}?", "Remove", {"name": str}),
}
"""The changes that forms can request, by topic."""


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
        # The broker takes a change without sequences as one of all messages.
        raise InvalidValue("no message is chosen: tick at least one")
    return values


async def change(request: Request, arguments: Arguments) -> Response:
    """Show the dry run of a change, or do the change.

    Raises:
        InvalidValue: the change is unknown, or a field is invalid.
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
        # Dependent resources would be deleted as well: they are shown, then confirmed.
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
    # The values are parsed as from the wire, so errors have the same words.
    return CHANGES[topic].parse(values)


ENDPOINTS = (Endpoint("POST", CHANGE, change, "Change"),)
