"""Pages of one stream: its history, its subjects as a tree, and the live tail."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from time import monotonic
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from malamute.client.session.message import Message
from malamute.errors import NotFound
from malamute.gateway.console.streams import NAME
from malamute.gateway.console.visits import Visit, visit_of
from malamute.gateway.console.words import link
from malamute.gateway.events import EventWriter, start_behind
from malamute.gateway.routes import Arguments, Endpoint, Parameter
from malamute.gateway.sse import follow
from malamute.gateway.streams import read_page
from malamute.protocol.admin import StreamDetails, StreamQuery
from malamute.protocol.batch import Columns
from malamute.protocol.start import NEW

HISTORY_MESSAGES = 50

COUNT = Parameter(
    "count",
    "Maximum messages of the page.",
    {"type": "integer", "minimum": 1, "maximum": HISTORY_MESSAGES, "default": HISTORY_MESSAGES},
)

HEX = Parameter("hex", "Bodies as bytes.", {"type": "boolean", "default": False})

BODIES_CHARACTERS, BODY_CHARACTERS = 12_000, 40_000
"""Characters of all bodies on a page, and of the body on a page of one message."""
SUBJECTS_MAX = 1_000
"""Maximum subjects of a tree: those with the oldest last messages; the page says if there are more."""

TAIL_PER_SECOND = 200
"""Messages that a live tail shows in a second, more than a person reads; the others are counted."""

_SEQUENCE_START = re.compile(r"seq:([0-9]{1,19})")

SEQUENCE = Parameter("sequence", "The message.", {"type": "integer", "minimum": 1, "default": 1})
PATTERN = Parameter("pattern", "Only subjects that match it.", {"type": "string", "default": ""})
WHERE = Parameter("where", "Only headers that meet it.", {"type": "string", "default": ""})


def _start(default: str) -> Parameter:
    return Parameter("start", "Where to begin.", {"type": "string", "default": default})


def _selection(arguments: Arguments) -> dict[str, Any]:
    pattern = arguments["pattern"].strip()
    return {"criteria": [("topic", pattern)] if pattern else [], "where": arguments["where"].strip()}


async def read(visit: Visit, name: str, limit: int, **options: Any) -> tuple[list[Message], bool]:
    """Return stored messages of a stream, and whether there are no more. Raises as `Client.subscribe`."""
    async with visit.client() as client:
        page = await read_page(visit.console.gateway, client, name, limit, **options)
        return page.messages, page.is_last


async def message_at(visit: Visit, stream: StreamDetails, sequence: int) -> Message:
    """Return a stored message. Raises `NotFound` with the reason."""
    if sequence > stream.last:
        raise NotFound(
            f"{sequence} is not published yet: the newest message of {stream.name} is {stream.last}"
        )
    if sequence < stream.first:
        raise NotFound(f"{sequence} is kept no longer: the oldest message of {stream.name} is {stream.first}")
    messages, _ = await read(visit, stream.name, 1, start=f"seq:{sequence}", criteria=[], where="")
    if not messages or messages[0].sequence != sequence:
        raise NotFound(f"{sequence} is unavailable: no message of {stream.name} has this sequence any more")
    return messages[0]


async def history(request: Request, arguments: Arguments) -> Response:
    """Show a page of stored messages, the newest by default. Raises `NotFound`."""
    visit = visit_of(request)
    # Subscribing would create a missing stream.
    stream = await visit.ask(StreamQuery(name=arguments["name"]))
    newest = max(stream.first, stream.last - HISTORY_MESSAGES + 1)
    start = arguments["start"].strip() or f"seq:{max(newest, 1)}"
    messages, is_last = await read(
        visit, stream.name, arguments["count"], start=start, **_selection(arguments)
    )
    first = messages[0].sequence if messages else stream.last + 1
    if asked := _SEQUENCE_START.fullmatch(start):
        # Selected messages may lie far apart: the way back must not end at a page without any.
        first = min(first, int(asked[1]))
    selected = {"name": stream.name, "pattern": arguments["pattern"], "where": arguments["where"]}
    earlier = max(first - HISTORY_MESSAGES, stream.first)
    return visit.page(
        "history.html",
        stream=stream,
        messages=messages,
        most=characters_of(messages),
        as_hex=arguments["hex"],
        start=arguments["start"],
        **_typed(arguments),
        earlier=link("/console/stream/history", **selected, start=f"seq:{earlier}")
        if earlier < first
        else "",
        later=""
        if is_last or not messages
        else link("/console/stream/history", **selected, start=f"seq:{messages[-1].sequence + 1}"),
    )


def characters_of(messages: Sequence[Any]) -> int:
    """Return the number of characters that a page shows of each body."""
    return BODIES_CHARACTERS // len(messages) if len(messages) > 1 else BODY_CHARACTERS


def _typed(arguments: Arguments) -> dict[str, Any]:
    return {"pattern": arguments["pattern"], "where": arguments["where"]}


async def subjects(request: Request, arguments: Arguments) -> Response:
    """Show the subjects of a stream as a tree, each with its last message. Raises `NotFound`."""
    visit = visit_of(request)
    stream = await visit.ask(StreamQuery(name=arguments["name"]))
    messages, is_last = await read(
        visit, stream.name, SUBJECTS_MAX, start="last-per-subject", **_selection(arguments)
    )
    tree = tree_of(messages)
    return visit.page(
        "subjects.html",
        stream=stream,
        tree=tree,
        count=tree.subjects,
        is_last=is_last,
        **_typed(arguments),
    )


class SubjectNode:
    """A level of the subject tree: its children, and the last message of the subject that ends here."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.below: dict[str, SubjectNode] = {}
        self.message: Message | None = None
        self.subjects = 0


def tree_of(messages: Iterable[Message]) -> SubjectNode:
    """Return the subjects of messages by their levels, each with its last message."""
    root = SubjectNode("")
    # Some subjects of a live stream get further messages meanwhile.
    for message in {message.subject: message for message in messages}.values():
        node = root
        node.subjects += 1
        for part in message.subject.split("."):
            node = node.below.setdefault(part, SubjectNode(part))
            node.subjects += 1
        node.message = message
    _sort(root)
    return root


def _sort(root: SubjectNode) -> None:
    # A subject may have many levels: no recursion.
    left = [root]
    while left:
        node = left.pop()
        node.below = dict(sorted(node.below.items()))
        left += node.below.values()


async def tail(request: Request, arguments: Arguments) -> Response:
    """Show the page that follows a stream. Raises `NotFound`."""
    visit = visit_of(request)
    stream = await visit.ask(StreamQuery(name=arguments["name"]))
    start = arguments["start"].strip() or NEW
    events = link("/console/stream/events", name=stream.name, start=start, **_typed(arguments))
    return visit.page("tail.html", stream=stream, events=events, start=start, **_typed(arguments))


async def events(request: Request, arguments: Arguments) -> Response:
    """Send the messages of the live tail, as Server-Sent Events."""
    visit = visit_of(request)
    last, start = arguments["last_event_id"], arguments["start"].strip() or NEW
    writer = SampledWriter if start == NEW else EventWriter
    response = await follow(
        request,
        arguments["name"],
        writer,
        start=start if last is None else start_behind(last),
        committed=False,
        existing=True,
        **_selection(arguments),
    )
    response.body_iterator = _while_signed_in(visit, response.body_iterator)
    return response


async def _while_signed_in(visit: Visit, parts: Any) -> AsyncIterator[Any]:
    """Yield the parts of an answer until its session ends: another window of the browser may sign out."""
    async with aclosing(parts):
        async for part in parts:
            if not visit.console.sessions.lasts(visit.session):
                return
            yield part


class SampledWriter(EventWriter):
    """Writes the newest messages of each batch, at most so many in a second, and the number left out."""

    def __init__(self, last: int, store: str) -> None:
        super().__init__(last, store)
        self._room = float(TAIL_PER_SECOND)
        self._seen_at = monotonic()
        self._left_out = 0

    def parts(self, columns: Columns | None) -> Iterator[bytes]:
        """Write some of the messages. With gaps among them all are written."""
        if columns is not None and not self.gaps:
            now = monotonic()
            self._room = min(self._room + (now - self._seen_at) * TAIL_PER_SECOND, TAIL_PER_SECOND)
            self._seen_at = now
            room = int(self._room)
            if len(columns) > room:
                over = len(columns) - room
                self._left_out += over
                self.last = columns.each_sequence()[over - 1]
                columns = columns.take(range(over, len(columns)))
            self._room -= len(columns)
            if not len(columns):
                return
            if self._left_out:
                yield b"event: skipped\nid: %b\ndata: %d\n\n" % (self.position(self.last), self._left_out)
                self._left_out = 0
        yield from super().parts(columns)


ENDPOINTS = (
    Endpoint(
        "GET", "/console/stream/history", history, "History", (NAME, PATTERN, WHERE, _start(""), COUNT, HEX)
    ),
    Endpoint("GET", "/console/stream/subjects", subjects, "Subjects", (NAME, PATTERN, WHERE)),
    Endpoint("GET", "/console/stream/tail", tail, "Tail", (NAME, PATTERN, WHERE, _start(""))),
    Endpoint(
        "GET",
        "/console/stream/events",
        events,
        "The messages of the tail.",
        (
            NAME,
            PATTERN,
            WHERE,
            _start(""),
            Parameter(
                "Last-Event-ID",
                "The last event that was had.",
                place="header",
            ),
        ),
    ),
)
