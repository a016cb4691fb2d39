"""Requests to resources, by the kind of the resource."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from malamute.aio import Client
from malamute.client.session.message import Mail
from malamute.errors import AccessRefused, InvalidValue, NotFound
from malamute.gateway.bodies import media_type
from malamute.gateway.header_text import value_of
from malamute.gateway.queues import unless_gone
from malamute.gateway.restms import messages
from malamute.gateway.restms.conditions import Representation, check, show
from malamute.gateway.restms.definitions import Definition, Join, Pipe, RestFeed, Staged
from malamute.gateway.restms.documents import RESTMS_XML, Element, read
from malamute.gateway.restms.pipes import PipeReader
from malamute.gateway.restms.publishing import fetch, post
from malamute.gateway.restms.service import RestMS
from malamute.gateway.restms.signals import first_of
from malamute.gateway.restms.views import (
    BaseUri,
    feed_view,
    join_view,
    message_href,
    message_name,
    name_in,
    pipe_view,
)
from malamute.gateway.routes import Arguments
from malamute.gateway.state import gateway_of
from malamute.gateway.users import Identity

CONTENT = ".content"
"""The suffix of a message's name in the name of its content."""

MULTIPART = "multipart/mixed"
BOUNDARY = "restms-message"
SAFE_METHODS = ("GET", "HEAD")
READ_ONLY = "of it is not possible: expected GET or DELETE"


class Call(NamedTuple):
    """A request to RestMS."""

    request: Request
    restms: RestMS
    client: Client
    identity: Identity
    base: BaseUri

    async def body(self) -> bytes:
        """Return the body of the request. Raises as `Gateway.body`."""
        return await gateway_of(self.request).body(self.request)

    async def element(self, *kinds: str) -> Element:
        """Return the one resource in the document of the request. Raises `InvalidValue`, and as `read`."""
        return _single(await self.document(await self.body()), *kinds)

    async def document(self, body: bytes) -> Element:
        """Return the document in a body, read in a thread if it is large. Raises as `read`."""
        build = partial(read, body, media_type(self.request))
        return await gateway_of(self.request).bodies.built(body, build)


def _single(root: Element, *kinds: str) -> Element:
    found = [child for child in root.children if child.name in kinds]
    if len(found) != 1:
        raise InvalidValue(f"{len(found)} resources in the document: expected one {' or '.join(kinds)}")
    return found[0]


@asynccontextmanager
async def opened(request: Request) -> AsyncIterator[Call]:
    """Return a request, with a session of its sender."""
    gateway = gateway_of(request)
    identity = gateway.identity(request)
    async with gateway.session(request, signed=True) as client:
        await gateway.restms.open(makes=request.method not in SAFE_METHODS)
        yield Call(request, gateway.restms, client, identity, BaseUri(str(request.base_url)))


def find(call: Call, name: str) -> tuple[Definition, str]:
    """Return the definition with a name of the server, and the rest of the name. Raises `NotFound`."""
    first, _, rest = name.partition(".")
    found = call.restms.registry.private(first)
    if found is None or (rest and not isinstance(found, Pipe)):
        raise NotFound(f"there is no resource {name[:100]!r}")
    return found, rest


async def represent(call: Call, found: Definition) -> Representation:
    """Return the present state of a feed, a pipe or a join."""
    registry, base = call.restms.registry, call.base
    modified_ns = registry.time_ns(found)
    if isinstance(found, RestFeed):
        return Representation([feed_view(found, base)], modified_ns)
    if isinstance(found, Join):
        return Representation([join_view(found, call.restms.feed_of(found), base)], modified_ns)
    assert isinstance(found, Pipe)
    reader = await call.restms.reader(found, call.identity)
    joins = [(join, call.restms.feed_of(join)) for join in registry.joins_of(found)]
    times = [modified_ns, reader.changed_ns, *(registry.time_ns(join) for join, _ in joins)]
    held = [*reader.held.items()]
    return Representation([pipe_view(found, joins, held, reader.next_name, base)], max(times))


async def created(call: Call, definition: Definition, href: str, *, new: bool) -> Response:
    """Return the answer to the creation of a resource."""
    page = (await represent(call, definition)).page_for(call.request)
    return page.response(201 if new else 200, {"location": href})


async def get(call: Call, name: str, wait_seconds: float) -> Response:
    """Answer with a resource, when it exists and the conditions hold."""
    found, rest = find(call, name)
    if isinstance(found, Staged):
        body = await fetch(call.restms, found)
        return Response(body, headers={"content-type": value_of(found.type)})
    if rest:
        assert isinstance(found, Pipe)
        return await _get_message(call, found, rest, wait_seconds)
    if isinstance(found, Pipe) and MULTIPART in call.request.headers.get("accept", ""):
        return await _flow(call, found)

    async def build() -> Representation:
        now, _ = find(call, name)
        return await represent(call, now)

    def events() -> list[asyncio.Event]:
        reader = call.restms.readers.find(found) if isinstance(found, Pipe) else None
        return [call.restms.registry.changed.next(), *([reader.changed.next()] if reader else [])]

    return await show(call.request, build, events, wait_seconds)


async def _get_message(call: Call, pipe: Pipe, rest: str, wait_seconds: float) -> Response:
    """Answer with a message, or its content. An asynclet, the next message, is awaited."""
    name = rest.removesuffix(CONTENT)
    reader = await call.restms.reader(pipe, call.identity)
    mail = await unless_gone(call.request, _arrived(reader, name, wait_seconds))
    if rest != name:
        kind = messages.media_of(mail.headers.get(messages.CONTENT_TYPE))
        return Response(mail.body, headers={"content-type": value_of(kind)})
    # The document has the message's own name, even if the asynclet was requested.
    own = reader.name_of(name) or name
    href = message_href(pipe, own, call.base)
    reply_to = message_name(pipe, own)
    representation = Representation([messages.delivered(mail, href, reply_to)], mail.time_ns)

    async def build() -> Representation:
        return representation

    response = await show(call.request, build, lambda: [call.restms.registry.changed.next()], wait_seconds)
    response.headers["content-location"] = href
    return response


async def _arrived(reader: PipeReader, name: str, wait_seconds: float) -> Mail:
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_seconds
    reader.uses += 1
    try:
        while True:
            waiting = reader.changed.next()
            if (mail := reader.find(name)) is not None:
                return mail
            if reader.over:
                raise NotFound(f"there is no message {name[:50]!r}: the pipe was opened again, read it")
            await first_of([waiting], max(0, until - loop.time()))
    finally:
        reader.uses -= 1


async def _flow(call: Call, pipe: Pipe) -> Response:
    """Answer with a pipe as one endless answer; a message is deleted when it is written."""
    if not call.restms.profiles.pipes[pipe.type].streams:
        raise InvalidValue(f"pipe {pipe.name!r} as {MULTIPART}: expected one of the type stream")
    reader = await call.restms.reader(pipe, call.identity)
    return StreamingResponse(_parts(call, pipe, reader), media_type=f"{MULTIPART}; boundary={BOUNDARY}")


async def _parts(call: Call, pipe: Pipe, reader: PipeReader) -> AsyncIterator[bytes]:
    reader.uses += 1
    try:
        yield b"--%b\r\n" % BOUNDARY.encode()
        while not reader.over:
            waiting = reader.changed.next()
            for name, mail in [*reader.held.items()]:
                href = message_href(pipe, name, call.base)
                document = messages.delivered(mail, href, message_name(pipe, name))
                page = Representation([document], mail.time_ns).page(RESTMS_XML)
                head = f"Content-Type: {page.media}\r\nContent-Length: {len(page.body)}\r\n\r\n"
                yield b"%b%b\r\n--%b\r\n" % (head.encode(), page.body, BOUNDARY.encode())
                await reader.delete(name, call.restms.settings.timeout_seconds)
            await waiting.wait()
    finally:
        reader.uses -= 1


async def post_to_feed(call: Call, feed: RestFeed, arguments: Arguments) -> Response:
    """Post messages or a content to a feed."""
    body = await call.body()
    await call.restms.check_password(feed, arguments["restms_password"])
    return await post(call.restms, call.client, call.request, feed, body, call.client.user, call.base)


async def post_resource(call: Call, arguments: Arguments) -> Response:
    """Join a pipe to a feed, or post to a private feed.

    Raises:
        AccessRefused: the resource is read-only.
    """
    found, rest = find(call, arguments["name"])
    if isinstance(found, RestFeed):
        return await post_to_feed(call, found, arguments)
    if not isinstance(found, Pipe) or rest:
        raise AccessRefused(f"POST {READ_ONLY}")
    element = await call.element("join")
    name = name_in(element.get("feed"), "feed", "resource")
    private = call.restms.registry.private(name)
    feed = private if isinstance(private, RestFeed) else await call.restms.feed(call.client, name)
    join = await call.restms.create_join(call.client, call.identity, found, feed, element)
    return await created(call, join, call.base.resource(join.name), new=True)


async def put(call: Call, found: Definition) -> Response:
    """Change a feed or a pipe. Without a body nothing is changed.

    Raises:
        AccessRefused: the resource is read-only.
        InvalidValue: the change would make it another resource.
        NotFound: the resource was deleted meanwhile.
    """
    if not isinstance(found, RestFeed | Pipe):
        raise AccessRefused(f"PUT {READ_ONLY}")
    await check(call.request, lambda: represent(call, found))
    body = await call.body()
    if not body:
        return Response(status_code=204)
    element = _single(await call.document(body), "feed" if isinstance(found, RestFeed) else "pipe")
    given = dict(element.attributes)
    if isinstance(found, RestFeed) and found.private and not given.get("name"):
        # A feed created without a name: clients send back the document that they created it with.
        given["name"] = found.name
    for name in ("name", "type"):
        if given.get(name, getattr(found, name)) != getattr(found, name):
            raise InvalidValue(f"another {name} of it: expected the one that it has")
    if isinstance(found, RestFeed):
        await call.restms.update_feed(call.client, found, element)
        now: Definition | None = call.restms.registry.feed(found.name)
    else:
        await call.restms.reader(found, call.identity)
        await call.restms.update_pipe(found, element)
        now = None
    now = now or call.restms.registry.private(found.name)
    if now is None:
        raise NotFound("it was deleted meanwhile")
    return (await represent(call, now)).page_for(call.request).response()


async def delete(call: Call, found: Definition, rest: str) -> Response:
    """Delete a resource.

    Raises:
        AccessRefused: the resource is read-only.
    """
    restms = call.restms
    if isinstance(found, Staged):
        await restms.registry.remove(found)
    elif rest:
        assert isinstance(found, Pipe)
        if rest.endswith(CONTENT):
            raise AccessRefused("a content is deleted with its message")
        reader = await restms.reader(found, call.identity)
        await reader.delete(rest, restms.settings.timeout_seconds)
    else:
        await check(call.request, lambda: represent(call, found))
        if isinstance(found, RestFeed):
            await restms.delete_feed(call.client, found)
        elif isinstance(found, Join):
            await restms.delete_join(call.client, call.identity, found)
        else:
            await restms.reader(found, call.identity)
            await restms.delete_pipe(call.client, found)
    return Response(status_code=200)
