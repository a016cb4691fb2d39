"""What is posted to a feed: messages, and contents that are staged for them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from malamute.aio import Client
from malamute.errors import AccessRefused, InvalidValue, NotFound, TooLarge
from malamute.gateway.bodies import media_type
from malamute.gateway.header_text import text_of
from malamute.gateway.restms.conditions import Representation
from malamute.gateway.restms.definitions import CONTENTS, RestFeed, Staged
from malamute.gateway.restms.documents import TYPES, read
from malamute.gateway.restms.messages import CONTENT_TYPE, PostedContent, PostedMessage, media_of, posted
from malamute.gateway.restms.service import RestMS
from malamute.gateway.restms.views import BaseUri, counted, name_in
from malamute.gateway.state import gateway_of
from malamute.protocol.limits import BATCH_MESSAGES_MAX


async def post(
    restms: RestMS, client: Client, request: Request, feed: RestFeed, body: bytes, user: str, base: BaseUri
) -> Response:
    """Publish the messages of a document, or stage a content of any other type.

    Raises:
        InvalidValue: it has no message.
        TooLarge: it has too many messages.
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
        await _publish(restms, client, feed, messages, staged)
        await restms.registry.remove(*staged.values())
    finally:
        restms.claimed -= names
    counts = restms.profiles.feeds[feed.type].counts
    found = restms.counts(feed, [(m.address, m.headers) for m in messages]) if counts else []
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
    """The contents that messages refer to, by their URIs: all of them, before any message is routed.

    Raises:
        NotFound: one is not there, or is used twice.
        AccessRefused: one was staged to another feed.

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
) -> None:
    contents = [
        PostedContent(staged[content.href].type, await fetch(restms, staged[content.href]))
        if content.href
        else content
        for content in (message.content for message in messages)
    ]
    subjects = [message.address for message in messages]
    bodies = [content.body for content in contents]
    headers = [
        {**message.headers, **({CONTENT_TYPE: content.type} if content.type else {})}
        for message, content in zip(messages, contents, strict=True)
    ]
    timeout = restms.settings.timeout_seconds
    if feed.imported != "service":
        await client.publish_batch(feed.stream, subjects, bodies, headers, timeout=timeout)
        return
    for subject, body, fields in zip(subjects, bodies, headers, strict=True):
        # Who answers it answers to reply_to: nobody waits here.
        replies = await client.request(feed.name, subject, body, fields, timeout=timeout)
        await replies.wait(timeout)
        replies.cancel()


async def fetch(restms: RestMS, content: Staged) -> bytes:
    """The bytes of a staged content. Raises `NotFound`."""
    own = await restms.registry.ready()
    timeout = restms.settings.timeout_seconds
    async with own.subscribe(CONTENTS, start=f"seq:{content.sequence}", credit=1, timeout=timeout) as found:
        message = await found.receive(timeout)
    if message.sequence != content.sequence:
        raise NotFound(f"the content {content.name!r} was not published in time: it is gone")
    return message.body
