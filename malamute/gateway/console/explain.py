"""Explanation of a message for a subscriber: the criterion that matched it or did not, and its state now."""

from __future__ import annotations

from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from malamute.client.session.message import Message
from malamute.errors import MalamuteError
from malamute.gateway.console import forms
from malamute.gateway.console.queues import found_queue
from malamute.gateway.console.stream_pages import message_at
from malamute.gateway.console.visits import Visit, visit_of
from malamute.gateway.console.words import count, criteria, moment
from malamute.gateway.routes import Arguments, Endpoint, Parameter
from malamute.matching import Selector, reason_of
from malamute.protocol.admin import (
    ClientDetails,
    ClientQuery,
    ExplainedSelector,
    ExplainQuery,
    MailboxReader,
    MessageRow,
    MessagesQuery,
    StreamDetails,
    StreamQuery,
    SubscriptionRow,
    WorkerRow,
)
from malamute.protocol.time_units import to_seconds

KINDS = ("stream", "mailbox", "service")


class Verdict(NamedTuple):
    """The result of a message for one subscription."""

    subscription: SubscriptionRow
    taken: bool
    reason: str
    place: str


async def explain(request: Request, arguments: Arguments) -> Response:
    """Show the form, with an answer if a message is named."""
    visit = visit_of(request)
    values: dict[str, Any] = {"selectors": [], "verdicts": [], "message": None, "places": [], "problem": ""}
    if arguments["name"]:
        ask = _explain_stream if arguments["kind"] == "stream" else _explain_queue
        try:
            values |= await ask(visit, arguments)
        except MalamuteError as error:
            values["problem"] = error.text
    consumers = visit.watch.found("consumers") or []
    return visit.page(
        "explain.html",
        asked=arguments,
        kinds=KINDS,
        names=sorted({one.name for one in consumers})[:200],
        **values,
    )


async def _explain_stream(visit: Visit, arguments: Arguments) -> dict[str, Any]:
    stream = await visit.ask(StreamQuery(name=arguments["name"]))
    message: Message | None = None
    subject, headers = arguments["subject"], forms.headers(arguments["headers"])
    sender = arguments["sender"]
    if sequence := arguments["sequence"].strip():
        message = await message_at(visit, stream, forms.number(sequence))
        subject, headers, sender = message.subject, message.headers, message.sender
    query = ExplainQuery(stream=stream.name, subject=subject, headers=headers, sender=sender)
    selectors = await visit.ask(query)
    found: dict[str, Any] = {"selectors": selectors, "message": message}
    if arguments["subscriber"]:
        client = await visit.ask(ClientQuery(id=arguments["subscriber"]))
        found["verdicts"] = [*_verdicts(client, stream, selectors, message)]
        if not found["verdicts"]:
            found["problem"] = f"{arguments['subscriber']} has no subscription to {stream.name}"
    return found


def _verdicts(
    client: ClientDetails, stream: StreamDetails, selectors: list[ExplainedSelector], message: Message | None
) -> list[Verdict]:
    by_selector = {_key(row): row for row in selectors}
    found = []
    for one in client.subscriptions:
        selector = by_selector.get(_key(one))
        if one.stream == stream.name and selector is not None:
            place = _place(one, stream, message) if message is not None and selector.matched else ""
            found.append(Verdict(one, selector.matched, selector.reason, place))
    return found


def _key(row: SubscriptionRow | ExplainedSelector) -> tuple[str, str]:
    return criteria(row.criteria), row.where


def _place(one: SubscriptionRow, stream: StreamDetails, message: Message) -> str:
    """Return the state of a message for a subscription that matches it."""
    position = stream.last - one.lag
    if message.sequence > position:
        ahead = message.sequence - position - 1
        return (
            f"it waits in the stream: the subscription is in {one.state.upper()} at {count(position)}, "
            f"{count(ahead)} messages before it, with {'no credit' if not one.credit else 'credit'} left"
        )
    if to_seconds(message.time_ns) < one.since:
        return (
            f"it was published before the subscription began at {moment(one.since)}: it was sent if the "
            "subscription began with a replay from before it"
        )
    return f"it was sent: the subscription is in {one.state.upper()}, and beyond it"


async def _queued(visit: Visit, kind: str, name: str, sequence: int, *, dead: bool) -> MessageRow | None:
    """Return a message of a queue, or a dead letter. Raises `NotFound` for the queue."""
    query = MessagesQuery(kind=kind, name=name, dead=dead, after=sequence - 1, limit=1)
    return next((row for row in await visit.ask(query) if row.sequence == sequence), None)


async def _explain_queue(visit: Visit, arguments: Arguments) -> dict[str, Any]:
    kind, name, sequence = arguments["kind"], arguments["name"], forms.number(arguments["sequence"])
    message = await _queued(visit, kind, name, sequence, dead=False)
    died = None if message else await _queued(visit, kind, name, sequence, dead=True)
    places = []
    if message is not None:
        places.append(
            f"{sequence} is in the {kind} {name}, {message.state}, after {message.attempts} attempts"
        )
    elif died is not None:
        dead = died.properties.get("dead") or {}
        places.append(f"{sequence} is a dead letter of the {kind} {name}: {dead.get('reason', 'unknown')}")
    else:
        places.append(f"{sequence} is not in the {kind} {name}: it is settled, or was never there")
    _, consumers, owner = await found_queue(visit, kind, name)
    asked, found = arguments["subscriber"], message or died
    places += [_consumer(kind, one, found) for one in consumers if asked in ("", one.address, one.client)]
    if owner is not None and asked in ("", name):
        places.append(f"{name} takes all of it, {_holding(owner)}")
    if not places[1:]:
        verb = "works for" if kind == "service" else "consumes from"
        places.append(f"{asked} is none that {verb} it" if asked else f"nobody {verb} it")
    return {"places": places}


def _consumer(kind: str, one: WorkerRow, message: MessageRow | None) -> str:
    """The criteria and the messages in flight of a consumer, and whether it accepts a message."""
    patterns = [pattern for pattern in one.patterns if pattern]
    words = f"{one.address or one.client} takes {', '.join(patterns) or 'all of it'}, {_holding(one)}"
    if message is None:
        return words
    # Messages of a mailbox are selected by their sender.
    subject = message.subject if kind == "service" else message.sender
    selector = Selector.parse([("topic", pattern) for pattern in patterns] or [("all", "")])
    reason = reason_of(selector, subject, {}, "")
    return f"{words}; it does not take this one: {reason}" if reason else f"{words}; it takes this one"


def _holding(consumer: WorkerRow | MailboxReader) -> str:
    credit = "no credit" if not consumer.credit else "credit"
    return f"holds {consumer.in_flight}, and has {credit} left"


def _text(name: str, words: str) -> Parameter:
    return Parameter(name, words, {"type": "string", "default": ""})


ENDPOINTS = (
    Endpoint(
        "GET",
        "/console/explain",
        explain,
        "Explain",
        (
            Parameter(
                "kind",
                "The kind of the stream or queue.",
                {"type": "string", "enum": [*KINDS], "default": "stream"},
            ),
            _text("name", "The stream or the queue."),
            _text("sequence", "The message; empty: a typed one."),
            _text("subject", "The subject of a typed message."),
            _text("headers", "Its headers."),
            _text("sender", "Its sender."),
            _text("subscriber", "A client, by its id or address."),
        ),
    ),
)
