"""Agents with mailboxes: a server of the Model Context Protocol, whose tools are calls of a client.

An agent that reads a message holds it until it settles it. Progress on the message is reported meanwhile, and
it is delivered again when the session of the agent has ended. Tools that change anything are there if they
are allowed; the rights at the broker are those of the user of the connection.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from math import inf
from time import monotonic
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp_types import Resource, ToolAnnotations
from pydantic import Field

import malamute
from malamute import AccessRefused, Mail, MalamuteError, Message, TimedOut, Uri, aio
from malamute.client.events import Event, Lost, Recalled

TEXT_CHARS = 4_000
"""Maximum characters of one body, and of the headers of one message, in an answer."""

ANSWER_CHARS = 40_000
"""Maximum characters of the rows of an answer."""

ROWS_MAX = 50
"""Maximum rows of an answer."""

READ_MAX = 10
"""Maximum messages of one call of `read_mail`: their bodies are never left out."""

HELD_MAX = 100
"""Maximum messages that a session holds."""

SEARCHED_MAX = 1_000
"""Maximum messages of a stream that `recent` looks at."""

WAIT_SECONDS_MAX = 300.0
HTTP_HOLD_SECONDS = 600.0
"""Seconds for which mail is held over HTTP, where the end of a session does not show."""

REPORT_SECONDS = 1.0

ALLOWED = ("send", "settle", "redrive")

TOOLS = {
    "read_mail": "",
    "recent": "",
    "queues": "",
    "dead_letters": "",
    "who_wants": "",
    "send_mail": "send",
    "publish": "send",
    "ask": "send",
    "settle_mail": "settle",
    "redrive": "redrive",
}
"""The tools, each with the permission that it needs."""

INSTRUCTIONS = """Malamute is a message broker. Mailboxes and services are queues: each message goes to one
consumer. A stream keeps its messages for every reader. read_mail hands a message to you: settle it by
settle_mail when you are done, or it goes to another consumer when your session ends. An answer that leaves
something out has `cut`."""

QueueKind = Literal["mailbox", "service"]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Subject = Annotated[str, Field(max_length=255, description="The subject, such as `invoice.new`.")]
Body = Annotated[str, Field(description="The body, as text; JSON is text, too.")]
HeaderMap = dict[str, str | int | float | bool | None] | None
Wait = Annotated[float, Field(ge=0, le=WAIT_SECONDS_MAX)]
Most = Annotated[int, Field(ge=1, le=ROWS_MAX)]


class MailInHand(NamedTuple):
    """A message that is held until a moment, and the consumer that it came by, if that is its own."""

    mail: Mail
    consumer: aio.Mailbox | None
    until: float

    def end(self) -> None:
        """Give the message back unless it is settled, and end its offer."""
        self.mail.release()
        if self.consumer is not None:
            self.consumer.cancel()


class HeldMail:
    """The mail that an agent has read and not settled, by mailbox and sequence."""

    def __init__(self, client: aio.Client, hold_seconds: float) -> None:
        self._client = client
        self._hold_seconds = hold_seconds
        self._held: dict[tuple[str, int], MailInHand] = {}
        self._taken_back: list[MailInHand] = []
        """Messages that the broker has taken back, whose offers are open."""
        self._reading = 0
        self._log = client.on_event
        client.on_event = self._on_event

    async def read(self, mailbox: str, most: int, wait: float) -> list[Mail]:
        """Return messages of a mailbox, and hold them. Waits for one if there is none.

        Raises:
            ToolError: too many are held.
        """
        if len(self._held) + self._reading + most > HELD_MAX:
            raise ToolError(f"{len(self._held)} messages are held: expected at most {HELD_MAX}; settle some")
        self._reading += most
        mail: list[Mail] = []
        try:
            while len(mail) < most and (found := await self._client.get(mailbox)) is not None:
                mail.append(found)
                self._hold(mailbox, found, None)
            if not mail and wait:
                mail = await self._wait(mailbox, wait)
        except BaseException:
            # A call that was cancelled, or failed, hands out nothing.
            for one in mail:
                self._release(mailbox, one.sequence)
            raise
        finally:
            self._reading -= most
        return mail

    async def _wait(self, mailbox: str, wait: float) -> list[Mail]:
        consumer = await self._client.consume(mailbox, auto_ack=False)
        try:
            mail = await consumer.take(1, wait)
        except BaseException:
            consumer.cancel()
            raise
        if not mail:
            consumer.cancel()
        for one in mail:
            # The offer ends when its message is settled.
            consumer.drain()
            self._hold(mailbox, one, consumer)
        return mail

    def _hold(self, mailbox: str, mail: Mail, consumer: aio.Mailbox | None) -> None:
        self._held[mailbox, mail.sequence] = MailInHand(mail, consumer, monotonic() + self._hold_seconds)

    async def settle(self, mailbox: str, sequence: int, settle: Callable[[Mail], None]) -> None:
        """Settle a message, and wait until the broker has done so.

        Raises:
            ToolError: the message is not held.
        """
        if (mailbox, sequence) not in self._held:
            raise ToolError(
                f"message {sequence} of {mailbox!r} is not held by this session: it was not read here, is "
                "settled, or went back when the connection broke; expected one of read_mail"
            )
        held = self._held[mailbox, sequence]
        settle(held.mail)
        self._held.pop((mailbox, sequence), None)
        held.end()
        await self._client.flush()

    def _release(self, mailbox: str, sequence: int) -> None:
        # The connection may have broken meanwhile.
        if (held := self._held.pop((mailbox, sequence), None)) is not None:
            held.end()

    async def report(self) -> None:
        """Report progress on all held mail, and release mail that is held for too long, until cancelled."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            now = monotonic()
            taken_back, self._taken_back = self._taken_back, []
            for held in taken_back:
                held.end()
            for (mailbox, sequence), held in [*self._held.items()]:
                if now >= held.until:
                    self._release(mailbox, sequence)
                else:
                    held.mail.in_progress()

    async def release_all(self) -> None:
        """Give all held mail back, unread."""
        for mailbox, sequence in [*self._held]:
            self._release(mailbox, sequence)
        await self._client.flush()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Lost):
            # The broker has taken back the deliveries of this connection.
            self._taken_back += self._held.values()
            self._held.clear()
        elif isinstance(event, Recalled) and event.reason != "cancelled":
            found = [self._held.pop((event.queue, sequence), None) for sequence in event.sequences]
            self._taken_back += filter(None, found)
        self._log(event)


class Tools:
    """The tools: each is a call of a client, with an answer that is JSON."""

    def __init__(self, client: aio.Client, asker: aio.Client, held: HeldMail) -> None:
        self._client = client
        self._asker = asker
        self._held = held

    async def read_mail(
        self,
        mailbox: Annotated[str, Field(max_length=255, description="Default: your own mailbox.")] = "",
        wait: Annotated[Wait, Field(description="Seconds to wait for a message if there is none.")] = 0,
        most: Annotated[int, Field(ge=1, le=READ_MAX)] = 1,
    ) -> dict[str, Any]:
        """Read the next messages of a mailbox. You hold them until you settle them, or your session ends.

        Raises:
            ToolError: there is no mailbox to read, or too many messages are held.
        """
        mailbox = mailbox or self._client.address
        if not mailbox:
            raise ToolError("no mailbox: give `mailbox`, or start the server with --address NAME")
        mail = await self._held.read(mailbox, most, wait)
        return {"mailbox": mailbox, "messages": [row_of_mail(one) for one in mail]}

    async def settle_mail(
        self,
        mailbox: Name,
        sequence: Annotated[int, Field(ge=1, description="The sequence that read_mail gave.")],
        how: Annotated[
            Literal["ack", "nak", "reject", "bounce"],
            Field(
                description="ack: done. nak: deliver it again later. reject: make it a dead letter. "
                "bounce: give it back to its sender."
            ),
        ],
        reason: Annotated[str, Field(max_length=255, description="For reject and bounce.")] = "",
        delay: Annotated[float | None, Field(ge=0, description="For nak: seconds until then.")] = None,
    ) -> dict[str, Any]:
        """Settle a message that you hold.

        Raises:
            ToolError: it is not held, or an argument is for another settlement.
        """
        settle: dict[str, Callable[[Mail], None]] = {
            "ack": lambda mail: mail.ack(),
            "nak": lambda mail: mail.nak(delay),
            "reject": lambda mail: mail.reject(reason),
            "bounce": lambda mail: mail.bounce(reason),
        }
        if reason and how not in ("reject", "bounce"):
            raise ToolError(f"reason for {how}: expected one for reject or bounce alone")
        if delay is not None and how != "nak":
            raise ToolError(f"delay for {how}: expected one for nak alone")
        await self._held.settle(mailbox, sequence, settle[how])
        return {"mailbox": mailbox, "sequence": sequence, "settled": how}

    async def send_mail(
        self,
        mailbox: Name,
        subject: Subject,
        body: Body = "",
        headers: HeaderMap = None,
        correlation: Annotated[str | None, Field(description="Of the message that this answers.")] = None,
        delay: Annotated[float | None, Field(ge=0, description="Seconds until it is delivered.")] = None,
        ttl: Annotated[float | None, Field(gt=0, description="Seconds until it expires.")] = None,
    ) -> dict[str, Any]:
        """Send a message to a mailbox, where it is stored, whether its owner is there or not."""
        given = {"correlation": correlation, "delay": delay, "ttl": ttl}
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        await self._client.send(mailbox, subject, body, headers, **options)
        return {"mailbox": mailbox, "stored": True}

    async def publish(
        self, stream: Name, subject: Subject, body: Body = "", headers: HeaderMap = None
    ) -> dict[str, Any]:
        """Publish a message to a stream, for all who read it now or later."""
        return {
            "stream": stream,
            "sequence": await self._client.publish(stream, subject, body, headers),
        }

    async def ask(
        self,
        service: Name,
        subject: Subject,
        body: Body = "",
        headers: HeaderMap = None,
        timeout: Annotated[float, Field(gt=0, le=WAIT_SECONDS_MAX, description="Seconds.")] = 30,
    ) -> dict[str, Any]:
        """Send a request to a service, and wait for the replies of the worker that gets it.

        Raises:
            ToolError: there was no final reply in time.
        """
        replies: deque[Mail] = deque(maxlen=ROWS_MAX)
        count = 0
        try:
            # Without an answer the request is worth nothing later.
            async with self._asker.request(
                service, subject, body, headers, timeout=timeout, ttl=timeout
            ) as answers:
                async for reply in answers:
                    replies.append(reply)
                    count += 1
        except TimedOut as error:
            raise ToolError(
                f"{service!r} gave no final reply within {timeout:g} s, after {count} others; `queues` tells "
                "whether it has workers"
            ) from error
        return answer_of("replies", map(row_of_mail, replies), count)

    async def recent(
        self,
        stream: Name,
        subjects: Annotated[list[str], Field(description="Patterns, such as `temp.*`; any.")] = [],  # noqa: B006
        where: Annotated[str, Field(description="A condition on headers, such as `unit = 'C'`.")] = "",
        most: Most = 20,
    ) -> dict[str, Any]:
        """Return the latest messages of a stream that match, the oldest of them first."""
        row = await self._client.query("stream", name=stream)
        first = max(row["first"], row["last"] - SEARCHED_MAX + 1, 1)
        found: deque[Message] = deque(maxlen=most)
        count = 0
        history = self._client.history(stream, *subjects, since=first, until=row["last"], where=where)
        async for message in history:
            found.append(message)
            count += 1
        answer = answer_of("messages", map(row_of, found), count)
        if first > max(row["first"], 1):
            words = f"messages before {first} of {row['first']} to {row['last']} were not looked at"
            answer["cut"] = "; ".join(filter(None, [answer.get("cut"), words]))
        return answer

    async def queues(
        self,
        kind: QueueKind = "mailbox",
        after: Annotated[str, Field(description="Queues behind this name.")] = "",
    ) -> dict[str, Any]:
        """List the mailboxes or the services, with the counts of their messages."""
        rows = await self._client.query(f"{kind}es" if kind == "mailbox" else "services", **page(after))
        return answer_of("queues", map(row_of_queue, rows[:ROWS_MAX]), len(rows), "call again with `after`")

    async def dead_letters(
        self,
        name: Name,
        kind: QueueKind = "mailbox",
        after: Annotated[int, Field(ge=0, description="Those behind this sequence.")] = 0,
    ) -> dict[str, Any]:
        """List the dead letters of a mailbox or a service: messages that could not be processed."""
        rows = await self._client.query(
            "messages", kind=kind, name=name, dead=True, after=after, limit=ROWS_MAX + 1
        )
        return answer_of("messages", map(row_of_dead, rows[:ROWS_MAX]), len(rows), "call again with `after`")

    async def redrive(
        self,
        name: Name,
        kind: QueueKind = "mailbox",
        sequences: Annotated[list[int] | None, Field(description="Default: all.")] = None,
    ) -> dict[str, Any]:
        """Send dead letters again, to the queue that they were in."""
        chosen: dict[str, Any] = {} if sequences is None else {"sequences": sequences}
        changed: dict[str, Any] = await self._client.change("queue.redrive", kind=kind, name=name, **chosen)
        return changed

    async def who_wants(self, stream: Name, subject: Subject, headers: HeaderMap = None) -> dict[str, Any]:
        """Tell which selectors of the readers of a stream match a message with this subject."""
        rows = await self._client.query("explain", stream=stream, subject=subject, headers=headers or {})
        wanted = [row for row in rows if row["matched"]]
        answer = answer_of("selectors", wanted[:ROWS_MAX], len(wanted))
        return {
            **answer,
            "subscriptions": sum(row["subscriptions"] for row in wanted),
            "others": len(rows) - len(wanted),
        }


class AgentServer(MCPServer[Any]):
    """The server, which explains refusals, and lists the resources of the broker."""

    def __init__(
        self,
        client: aio.Client,
        *,
        asker: aio.Client | None = None,
        allow: Iterable[str] = (),
        hold_seconds: float = inf,
    ) -> None:
        """`asker` makes requests: replies come to the mailbox of its client, which has no address then."""
        super().__init__(
            "malamute",
            instructions=INSTRUCTIONS,
            version=malamute.__version__,
            log_level="WARNING",
            lifespan=self._lifespan,
        )
        self._client = client
        self._allowed = frozenset(allow)
        self._held = HeldMail(client, hold_seconds)
        tools = Tools(client, asker or client, self._held)
        for name, needed in TOOLS.items():
            if self._allows(needed):
                tool = getattr(tools, name)
                words, hints = tool.__doc__.partition("\n")[0], ToolAnnotations(read_only_hint=not needed)
                self.add_tool(tool, description=words, annotations=hints)
        host = urlsplit(client.url).hostname or "localhost"
        self._place = f"malamute://{host}"
        for kind in ("mailbox", "stream"):
            self.resource(f"{self._place}/{kind}/{{name}}", mime_type="application/json", name=kind)(
                getattr(self, f"_{kind}")
            )

    def _allows(self, needed: str) -> bool:
        return not needed or needed in self._allowed

    @asynccontextmanager
    async def _lifespan(self, _: MCPServer[Any]) -> AsyncIterator[None]:
        reporting = asyncio.create_task(self._held.report())
        try:
            yield
        finally:
            reporting.cancel()
            with suppress(MalamuteError):
                await self._held.release_all()

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> Any:
        """Call a tool.

        Raises:
            ToolError: the tool is unknown or not allowed, an argument is invalid, or the broker refused.
        """
        if not self._allows(needed := TOOLS.get(name, "")):
            raise ToolError(f"{name} is not allowed: expected a server that runs with --allow {needed}")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(error.__cause__, MalamuteError):
                raise ToolError(str(error.__cause__)) from error.__cause__
            raise

    async def list_resources(self) -> list[Resource]:
        """Return the mailboxes and streams, as far as the user may list them, and `ROWS_MAX` of each."""
        found = []
        for kind, topic in (("mailbox", "mailboxes"), ("stream", "streams")):
            with suppress(AccessRefused):
                for row in (await self._client.query(topic, **page("")))[:ROWS_MAX]:
                    uri = str(Uri(self._place.removeprefix("malamute://"), 9999, kind, row["name"]))  # type: ignore[arg-type]  # one of the kinds
                    found.append(
                        Resource(uri=uri, name=f"{kind} {row['name']}", mime_type="application/json")
                    )
        return found

    async def _mailbox(self, name: str) -> str:
        """The figures of a mailbox."""
        return await self._described("mailbox", name)

    async def _stream(self, name: str) -> str:
        """The figures of a stream."""
        return await self._described("stream", name)

    async def _described(self, topic: str, name: str) -> str:
        try:
            row = await self._client.query(topic, name=name)
        except MalamuteError as error:
            raise ResourceError(str(error)) from error
        for key in ("readers", "cursors"):
            if len(row.get(key, ())) > ROWS_MAX:
                row[key], row["cut"] = row[key][:ROWS_MAX], f"{len(row[key]) - ROWS_MAX} {key}"
        return json.dumps(row)


def page(after: str) -> dict[str, Any]:
    """Return the arguments of one page of rows, and one more."""
    return {"limit": ROWS_MAX + 1, **({"after_name": after} if after else {})}


def answer_of(name: str, rows: Iterable[dict[str, Any]], count: int, advice: str = "") -> dict[str, Any]:
    """Return an answer with as many rows as it may have, and with `cut` if there are more."""
    kept: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        size += len(json.dumps(row))
        if kept and size > ANSWER_CHARS:
            break
        kept.append(row)
    if len(kept) == count:
        return {name: kept}
    if not advice:
        return {name: kept, "cut": f"{len(kept)} of {count} {name} are here"}
    return {name: kept, "cut": f"there are more than these {len(kept)} {name}: {advice}"}


def row_of(message: Message) -> dict[str, Any]:
    """Return a message for an answer."""
    return {
        "sequence": message.sequence,
        "subject": message.subject,
        "sender": message.sender,
        "time": message.time.isoformat(),
        **content_of(message.headers, message.body),
    }


def row_of_mail(mail: Mail) -> dict[str, Any]:
    """Return a message of a queue, or a reply, for an answer."""
    row = {**row_of(mail), "attempts": mail.attempts}
    more = {
        "correlation": mail.correlation,
        "reply_to": mail.properties.get("reply_to"),
        "bounced": mail.bounced,
    }
    return row | {name: value for name, value in more.items() if value not in (None, "")}


def row_of_dead(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dead letter for an answer."""
    names = ("sequence", "subject", "sender", "attempts")
    return {
        **{name: row[name] for name in names},
        "reason": row["properties"]["dead"]["reason"],
        **content_of(row["headers"], row["body"], row["size"]),
    }


def row_of_queue(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mailbox or a service for an answer."""
    names = ("name", "messages", "ready", "delayed", "in_flight", "dead_letters", "consumers", "oldest_age")
    return {name: row[name] for name in names}


def content_of(headers: Mapping[str, Any], body: bytes, size: int = 0) -> dict[str, Any]:
    """Return headers and body, each cut to its limit, and `cut` with the omissions."""
    cut = []
    shown: dict[str, Any] = {}
    for name, value in headers.items():
        if len(json.dumps({**shown, name: value})) > TEXT_CHARS:
            cut.append(f"{len(headers) - len(shown)} of {len(headers)} headers")
            break
        shown[name] = value
    try:
        key, text = "body", body.decode()
    except UnicodeDecodeError:
        key, text = "body_base64", b64encode(body).decode()
    if len(text) > TEXT_CHARS:
        cut.append(f"{len(text) - TEXT_CHARS} of {len(text)} characters of the body")
    content = {"headers": shown, key: text[:TEXT_CHARS]}
    return content | ({"cut": ", ".join(cut)} if cut else {})


async def serve(
    url: str, options: Mapping[str, Any], allow: Sequence[str], listen: tuple[str, int] | None
) -> None:
    """Run a server on standard input and output, or by HTTP at an address of this machine.

    Raises:
        MalamuteError: the broker could not be connected.
    """
    async with aio.connect(url, **options) as client:
        asker = client
        try:
            if client.address:
                asker = await aio.connect(url, **{**options, "address": ""})
            if listen is None:
                await AgentServer(client, asker=asker, allow=allow).run_stdio_async()
            else:
                server = AgentServer(client, asker=asker, allow=allow, hold_seconds=HTTP_HOLD_SECONDS)
                await server.run_streamable_http_async(host=listen[0], port=listen[1])
        finally:
            if asker is not client:
                await asker.close()
