"""The form of a message: published to a stream or sent to a queue, also again and edited."""

from __future__ import annotations

from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from malamute.errors import InvalidValue, MalamuteError, NotFound
from malamute.gateway import problems
from malamute.gateway.bodies import is_readable
from malamute.gateway.console import forms, words
from malamute.gateway.console.forms import first_of
from malamute.gateway.console.queues import KIND
from malamute.gateway.console.stream_pages import SEQUENCE, message_at
from malamute.gateway.console.streams import NAME
from malamute.gateway.console.visits import Visit, redirect, visit_of
from malamute.gateway.console.words import link
from malamute.gateway.routes import Arguments, Endpoint
from malamute.protocol.admin import MessageQuery, QueuePurge, StreamQuery


class TypedMessage(NamedTuple):
    """The fields of the form as they were typed."""

    kind: str
    name: str
    sequence: str
    """The message that is sent again; empty: a new one."""
    subject: str
    headers: str
    body: str
    drop: str = ""

    def content(self) -> tuple[str, bytes, dict[str, Any]]:
        """Return subject, body and headers. Raises `InvalidValue`, also for a missing subject."""
        if not self.subject and self.kind == "stream":
            raise InvalidValue("no subject: expected one, such as temp.oslo")
        return self.subject, self.body.encode(), forms.headers(self.headers)

    @property
    def back(self) -> str:
        """The page that follows the form."""
        if self.kind == "stream":
            return link("/console/stream", name=self.name)
        return link("/console/queue", kind=self.kind, name=self.name, show="dead")


def _form(
    visit: Visit, typed: TypedMessage, error: MalamuteError | None = None, *, is_text: bool = True
) -> Response:
    """Show the form as it was typed, with each error beside its field."""
    status = problems.status_of(type(error)) if error is not None else 200
    field = forms.field_of(error.text, TypedMessage._fields[3:6]) if error is not None else ""
    return visit.page("message.html", status, typed=typed, error=error, field=field, is_text=is_text)


async def again(request: Request, arguments: Arguments) -> Response:
    """Show a message of a stream, or a dead letter, as a form. Raises `NotFound`."""
    visit = visit_of(request)
    kind, name, sequence = arguments.get("kind", "stream"), arguments["name"], arguments["sequence"]
    message: Any
    if kind == "stream":
        message = await message_at(visit, await visit.ask(StreamQuery(name=name)), sequence)
        if not is_readable(message):
            raise NotFound(f"{sequence} of {name} is unreadable: its record is damaged")
    else:
        message = await visit.ask(MessageQuery(kind=kind, name=name, sequence=sequence, dead=True))
    content = message.subject, words.header_lines(message.headers), words.body(message.body)
    typed = TypedMessage(kind, name, str(sequence), *content)
    return _form(visit, typed, is_text=words.is_text(message.body))


async def publish(request: Request, arguments: Arguments) -> Response:
    """Publish or send the message of a form, and drop the original dead letter if asked for."""
    visit = visit_of(request)
    fields: dict[str, list[str]] = request.state.form
    typed = TypedMessage(*(first_of(fields, field) for field in TypedMessage._fields))
    typed = typed._replace(kind=typed.kind or "stream")
    try:
        note = await _sent(visit, typed, visit.console.answer_seconds)
        if forms.flag(typed.drop):
            sequences = [forms.number(typed.sequence)]
            await visit.change(QueuePurge(kind=typed.kind, name=typed.name, dead=True, sequences=sequences))
            note += f", and the dead letter {typed.sequence} is removed"
    except MalamuteError as error:
        return _form(visit, typed, error)
    visit.session.note(note)
    return redirect(typed.back)


async def _sent(visit: Visit, typed: TypedMessage, timeout: float) -> str:
    subject, body, headers = typed.content()
    async with visit.client() as client:
        if typed.kind == "stream":
            sequence = await client.publish_batch(typed.name, [subject], [body], [headers], timeout=timeout)
            return f"Published to {typed.name} as {sequence}"
        if typed.kind == "service":
            replies = await client.request(typed.name, subject, body, headers, timeout=timeout)
            await replies.wait(timeout)
        else:
            await client.send(typed.name, subject, body, headers, timeout=timeout)
    return f"Sent to the {typed.kind} {typed.name}"


ENDPOINTS = (
    Endpoint("GET", "/console/stream/again", again, "Publish again", (NAME, SEQUENCE)),
    Endpoint("POST", "/console/stream/publish", publish, "Publish"),
    Endpoint("GET", "/console/queue/again", again, "Send again", (KIND, NAME, SEQUENCE)),
    Endpoint("POST", "/console/queue/again", publish, "Send again"),
)
