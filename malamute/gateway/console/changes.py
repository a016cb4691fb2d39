"""Changes by operators: the broker's own changes, each with its dry run before it is done.

A form has the topic of a change and its fields. The broker's answer to the dry run is shown first, on a page
whose form has the same fields and does the change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from secrets import token_bytes
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from malamute.access.account import salted_hash
from malamute.errors import ConfigError, InUse, InvalidValue, MalamuteError
from malamute.gateway import problems
from malamute.gateway.console import forms
from malamute.gateway.console.forms import FieldRefused, Reader, first_of
from malamute.gateway.console.sign_in import own_path
from malamute.gateway.console.visits import Visit, redirect, visit_of
from malamute.gateway.console.words import plain, size, some, span
from malamute.gateway.routes import Arguments, Endpoint
from malamute.protocol.admin import CHANGES, AdminChange
from malamute.protocol.admin.topic import SECRET, arguments_of

CHANGE = "/console/change"


class Said:
    """The arguments of a change and its answer, as a sentence needs them; None if there is none."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        return self._values.get(name)


class Act(NamedTuple):
    """A change that a form can request."""

    sentence: Callable[[Said], str]
    """The outcome, for the question before the change as for the note after it."""
    button: str
    asks: bool = True
    """Whether the dry run is shown first."""
    destroys: bool = True


def hashed(password: str) -> str:
    """Return the salted hash of a password. Raises `InvalidValue`."""
    try:
        return salted_hash(password, token_bytes(16))
    except ConfigError as error:
        # The error is worded for a configuration file, which is not concerned here.
        raise InvalidValue(error.text) from None


MANY = ("sequences", "removed_rules")
"""Fields that a form may repeat, one for each ticked box."""

LISTS = (forms.names, forms.lines)
"""Readers of lists: an empty field means an empty list."""

_BY_TYPE: Mapping[str, Reader] = {
    **dict.fromkeys(("number", "sequence", "sequences", "uid"), forms.number),
    "seconds": forms.duration,
    "delays": forms.durations,
    "boolean": forms.flag,
    "criteria": forms.criteria,
    **dict.fromkeys(("urls", "rules"), forms.lines),
    "names": forms.names,
    "password hash": hashed,
}
"""Readers of fields by the type of their argument; of all other types the text is the value."""

_BY_NAME: Mapping[str, Reader] = {"bytes": forms.size, "removed_rules": str}
"""Readers of fields that have another one than their type."""


@cache
def readers_of(topic: str) -> Mapping[str, Reader]:
    """Return the readers of the fields of a change, by the names of its arguments.

    An empty field is left out, unless its reader is in `LISTS`.
    """
    rules = arguments_of(CHANGES[topic]).rules
    return {name: _BY_NAME.get(name) or _BY_TYPE.get(rule.words, str) for name, rule in rules.items()}


def _dropped(said: Said) -> str:
    number = max(said.last - said.first + 1, 0)
    return f"{some(number, 'message')} of the stream {said.stream} {'is' if number == 1 else 'are'} dropped"


def _retained(said: Said) -> str:
    limits = [
        text
        for value, text in (
            (said.bytes, size(said.bytes)),
            (said.count, some(said.count or 0, "message")),
            (said.age, span(said.age)),
        )
        if value
    ]
    return f"The stream {said.stream} keeps {'at most ' + ', '.join(limits) if limits else 'all messages'}"


def _deleted(said: Said) -> str:
    ends = (
        (said.messages if said.kind else max(said.last - said.first + 1, 0), "message"),
        (said.dead_letters, "dead letter"),
        (said.readers, "reader"),
        (said.consumers, "consumer"),
        (said.cursors, "cursor"),
        (len(said.feeds or ()), "feed"),
    )
    found = ", ".join(some(count, noun) for count, noun in ends if count) or "no messages"
    name = f"The {said.kind} {said.name}" if said.kind else f"The stream {said.stream}"
    return f"{name} is deleted with {found}"


def _redriven(said: Said) -> str:
    goes = "goes" if said.messages == 1 else "go"
    return f"{some(said.messages, 'dead letter')} {goes} back to {said.name}"


def _removed(said: Said) -> str:
    what = some(said.messages, "dead letter" if said.dead else "message")
    return f"{what} of the {said.kind} {said.name} {'is' if said.messages == 1 else 'are'} removed"


def _disconnected(said: Said) -> str:
    back = "returns to its queue" if said.holding == 1 else "return to their queues"
    return f"The session of {said.address or said.id} ends: {some(said.holding, 'message')} in flight {back}"


def _reloaded(said: Said) -> str:
    changed = ", ".join(said.changed) or "no option"
    waiting = f"; after a restart {', '.join(said.waiting_for_restart)}" if said.waiting_for_restart else ""
    lost = "; your right to reload ends" if said.loses_right else ""
    return f"A reload of the configuration changes {changed}{waiting}{lost}"


def _feed(verb: str) -> Callable[[Said], str]:
    return lambda said: f"The feed {said.feed} from {said.source} {verb}"


def _link(verb: str) -> Callable[[Said], str]:
    return lambda said: (
        f"The link {said.name} into {said.stream}, at {said.position or 'no position'}, {verb}"
    )


ACTS: Mapping[str, Act] = {
    "stream.create": Act(_retained, "Create", asks=False, destroys=False),
    "stream.retain": Act(_retained, "Set retention"),
    "stream.purge": Act(_dropped, "Drop all"),
    "stream.delete-messages": Act(
        lambda said: (
            f"{some(said.messages, 'message')} of the stream {said.stream} "
            f"{'is' if said.messages == 1 else 'are'} deleted for good"
        ),
        "Delete",
    ),
    "stream.delete": Act(_deleted, "Remove it"),
    "cursor.set": Act(
        lambda said: (
            f"The cursor {said.cursor} of {said.stream} moves "
            f"from {plain(said.before)} to {plain(said.sequence)}"
        ),
        "Move",
    ),
    "cursor.delete": Act(
        lambda said: f"The cursor {said.cursor} of {said.stream}, at {plain(said.before)}, is deleted",
        "Delete",
    ),
    "feed.set": Act(
        lambda said: (
            f"The feed {said.feed} {'is new and passes' if said.created else 'passes'} messages "
            f"from {said.source} to {said.target}"
        ),
        "Set feed",
        destroys=False,
    ),
    "feed.enable": Act(_feed("resumes"), "Resume", destroys=False),
    "feed.disable": Act(_feed("pauses"), "Pause", destroys=False),
    "feed.delete": Act(_feed("is deleted"), "Delete"),
    "link.set": Act(
        lambda said: (
            f"The link {said.name} {'is new and goes' if said.created else 'goes'} into {said.stream}"
        ),
        "Set link",
        destroys=False,
    ),
    "link.pause": Act(_link("pauses"), "Pause", destroys=False),
    "link.resume": Act(_link("resumes"), "Resume", destroys=False),
    "link.remove": Act(_link("is removed"), "Remove"),
    "link.advance": Act(_link("moves"), "Move"),
    "link.stop": Act(_link("is stopped"), "Stop"),
    "queue.redrive": Act(_redriven, "Redrive", destroys=False),
    "queue.set": Act(
        lambda said: (
            f"The {said.kind} {said.name} has {some(said.attempts, 'attempt')} for a message, delays of "
            f"{', '.join(map(span, said.backoff)) or 'no time'}, and {span(said.ack_timeout)} to settle it"
        ),
        "Set",
        destroys=False,
    ),
    "queue.purge": Act(_removed, "Remove"),
    "queue.delete": Act(_deleted, "Remove it"),
    "client.disconnect": Act(_disconnected, "Disconnect"),
    "broker.reload": Act(_reloaded, "Reload", destroys=False),
    "journal.backup": Act(
        lambda said: f"A copy of the store goes into {said.directory}",
        "Back up",
        destroys=False,
    ),
    "group.add": Act(
        lambda said: f"The group {said.name} gets {some(len(said.access_rules or ()), 'rule')}",
        "Add",
        destroys=False,
    ),
    "group.set": Act(
        lambda said: f"The group {said.name} has {some(len(said.access_rules or ()), 'rule')}",
        "Change",
        destroys=False,
    ),
    "group.remove": Act(
        lambda said: f"The group {said.name} is removed, and its users lose its permissions",
        "Remove",
    ),
    "user.add": Act(lambda said: f"The user {said.name} is added", "Add", asks=False, destroys=False),
    "user.set": Act(
        lambda said: f"The user {said.name} is changed",
        "Change",
        asks=False,
        destroys=False,
    ),
    "user.remove": Act(lambda said: f"The user {said.name} is removed", "Remove"),
}
"""The changes that forms can request, by topic."""


def _read(topic: str, fields: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the arguments of a change. Raises `FieldRefused`."""
    values: dict[str, Any] = {}
    for name, read in readers_of(topic).items():
        given = fields.get(name)
        if given is None:
            continue
        try:
            if name in MANY:
                values[name] = [read(text) for text in given]
            elif given[0].strip() or read in LISTS:
                values[name] = read(given[0])
        except InvalidValue as error:
            raise FieldRefused(name, error.text) from None
    if "some" in fields and not values.get("sequences"):
        # The broker takes a change without sequences as one of all messages.
        raise FieldRefused("sequences", "no message is chosen: tick at least one")
    return values


def _field_of(topic: str, values: Mapping[str, Any], error: MalamuteError) -> str:
    """Return the field that an error is about; empty for an error of the change as a whole."""
    if isinstance(error, FieldRefused):
        return error.field
    known = arguments_of(CHANGES[topic])
    for name, rule in known.rules.items():
        if not rule.holds(values[name]) if name in values else name in known.required:
            return name
    return forms.field_of(error.text.removeprefix(f"{topic}: "), readers_of(topic))


async def change(request: Request, arguments: Arguments) -> Response:
    """Show the dry run of a change, or do the change. The form of a refused one is shown as it was typed.

    Raises:
        InvalidValue: the change is unknown.
    """
    fields: dict[str, list[str]] = request.state.form
    topic = first_of(fields, "topic")
    if topic not in ACTS:
        raise InvalidValue(f"unknown change {topic[:50]!r}: expected one of {', '.join(ACTS)}")
    visit, values = visit_of(request), dict[str, Any]()
    try:
        # Hashing a password takes a while.
        values = await asyncio.to_thread(_read, topic, fields)
        return await _change(visit, topic, fields, values)
    except MalamuteError as error:
        return visit.page(
            "change.html",
            problems.status_of(type(error)),
            act=ACTS[topic],
            readers=readers_of(topic),
            topic=topic,
            fields=fields,
            back=own_path(first_of(fields, "back", "/")),
            error=error,
            field=_field_of(topic, values, error),
            many=MANY,
            lines=(forms.lines, forms.criteria),
            secret=SECRET,
        )


async def _change(visit: Visit, topic: str, fields: dict[str, list[str]], values: dict[str, Any]) -> Response:
    act, back = ACTS[topic], own_path(first_of(fields, "back", "/"))
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
    sentence = act.sentence(Said({**values, **done.as_map()}))
    if asks:
        again = {name: given for name, given in fields.items() if name in readers_of(topic) or name == "some"}
        return visit.page(
            "confirm.html", act=act, sentence=sentence, topic=topic, warning=warning, fields=again, back=back
        )
    visit.watch.hurry()
    visit.session.note(f"Done: {sentence}")
    return redirect(back)


def _made(topic: str, values: dict[str, Any]) -> AdminChange[Any]:
    # The values are parsed as from the wire, so errors have the same words.
    return CHANGES[topic].parse(values)


ENDPOINTS = (Endpoint("POST", CHANGE, change, "Change"),)
