"""Posts to a feed: messages, and contents that are staged for them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from malamute.aio import Client
from malamute.errors import AccessRefused, InvalidValue, NotFound, TooLarge
from malamute.gateway.bodies import media_type
from malamute.gateway.header_text import text_of
from malamute.gateway.restms.conditions import Representation
from malamute.gateway.restms.definitions import BUILT_IN, CONTENTS, Pipe, RestFeed, Staged
from malamute.gateway.restms.documents import TYPES, read
from malamute.gateway.restms.messages import (
    CONTENT_TYPE,
    REPLY_TO,
    PostedContent,
    PostedMessage,
    media_of,
    posted,
)
from malamute.gateway.restms.service import RestMS
from malamute.gateway.restms.views import BaseUri, counted, name_in
from malamute.gateway.state import gateway_of
from malamute.protocol.limits import BATCH_MESSAGES_MAX


async def post(
    restms: RestMS, client: Client, request: Request, feed: RestFeed, body: bytes, user: str, base: BaseUri
) -> Response:
    """Publish the messages of a document, or stage a content of any other type.

    Raises:
        InvalidValue: the document has no message.
        TooLarge: the document has too many messages.
    """
    media = media_type(request)
    if media and media not in TYPES:
        return await _stage(restms, client, request, feed, body, user, base)
    root = await gateway_of(request).bodies.built(body, partial(read, body, media))
    messages = [posted(element) for element in root.each("message")]
    if not messages:
        raise InvalidValue("no message in the document: expected at least one")
    if len(messages) > BATCH_MESSAGES_MAX:
        raise TooLarge(f"{len(messages)} messages in one request: expected at most {BATCH_MESSAGES_MAX}")
    staged = _staged(restms, feed, messages)
    names = {content.name for content in staged.values()}
    restms.claimed |= names
    try:
        replied = await _publish(restms, client, feed, messages, staged)
        await restms.registry.remove(*staged.values())
    finally:
        restms.claimed -= names
    counts = restms.profiles.feeds[feed.type].counts
    found = restms.counts(feed, [(m.address, m.headers) for m in messages]) if counts else []
    found = [count + reply for count, reply in zip(found, replied, strict=True)] if counts else []
    return Representation(counted(found), 0).page_for(request).plain()


async def _stage(
    restms: RestMS, client: Client, request: Request, feed: RestFeed, body: bytes, user: str, base: BaseUri
) -> Response:
    restms.registry.check_room(user)
    kind = media_of(text_of(request.headers["content-type"]))
    timeout = restms.settings.timeout_seconds
    sequence = await client.publish_batch(
        CONTENTS, [feed.name], [body], [{CONTENT_TYPE: kind}], timeout=timeout
    )
    if not sequence:
        raise NotFound("the content was stored, and its number lost with the connection: post it again")
    content = Staged(secrets.token_hex(16), feed.name, kind, sequence, user)
    await restms.registry.put(content)
    return Response(status_code=201, headers={"location": base.resource(content.name)})


def _staged(restms: RestMS, feed: RestFeed, messages: Sequence[PostedMessage]) -> Mapping[str, Staged]:
    """Return the contents that messages refer to, by URI: all of them, before any message is routed.

    Raises:
        NotFound: a content is missing, or used twice.
        AccessRefused: a content was staged to another feed.
    """
    found: dict[str, Staged] = {}
    for href in (message.content.href for message in messages if message.content.href):
        content = restms.registry.private(name_in(href, "resource"))
        if not isinstance(content, Staged) or content.name in restms.claimed or href in found:
            raise NotFound(f"there is no content {href[:200]!r}: it may have been published")
        if content.feed != feed.name:
            raise AccessRefused(f"the content {href[:200]!r} was staged to another feed")
        found[href] = content
    return found


async def _publish(
    restms: RestMS,
    client: Client,
    feed: RestFeed,
    messages: Sequence[PostedMessage],
    staged: Mapping[str, Staged],
) -> list[bool]:
    """Publish the messages to a feed. Return for each whether it was the reply to a native request."""
    contents = [
        PostedContent(staged[content.href].type, await fetch(restms, staged[content.href]))
        if content.href
        else content
        for content in (message.content for message in messages)
    ]
    rows = [
        (message.address, content.body, _with_type(message.headers, content.type))
        for message, content in zip(messages, contents, strict=True)
    ]
    timeout = restms.settings.timeout_seconds
    is_own = feed == BUILT_IN
    named = [str(headers.get(REPLY_TO, "")) for _, _, headers in rows]
    await restms.pass_replies([*named, *(subject for subject, _, _ in rows if is_own)])
    replied = [is_own and await _reply(restms, *row) for row in rows]
    rest = [row for row, done in zip(rows, replied, strict=True) if not done]
    if feed.imported != "service":
        if rest:
            await client.publish_batch(feed.stream, *map(list, zip(*rest, strict=True)), timeout=timeout)
        return replied
    for subject, body, fields in rest:
        # Replies to this request go to reply_to: the gateway does not wait for them.
        replies = await client.request(feed.name, subject, body, fields, timeout=timeout)
        await replies.wait(timeout)
        replies.cancel()
    return replied


def _with_type(headers: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {**headers, **({CONTENT_TYPE: kind} if kind else {})}


async def _reply(restms: RestMS, address: str, body: bytes, headers: Mapping[str, Any]) -> bool:
    """Send a post to the default feed as a reply, if its address is that of a native request."""
    first, _, rest = address.partition(".")
    pipe = restms.registry.private(first) if rest else None
    reader = restms.readers.find(pipe) if isinstance(pipe, Pipe) else None
    return reader is not None and await reader.reply(rest, body, headers)


async def fetch(restms: RestMS, content: Staged) -> bytes:
    """Return the bytes of a staged content. Raises `NotFound`."""
    own = await restms.registry.ready()
    timeout = restms.settings.timeout_seconds
    async with own.subscribe(CONTENTS, start=f"seq:{content.sequence}", credit=1, timeout=timeout) as found:
        message = await found.receive(timeout)
    if message.sequence != content.sequence:
        raise NotFound(f"the content {content.name!r} was not published in time: it is gone")
    return message.body
