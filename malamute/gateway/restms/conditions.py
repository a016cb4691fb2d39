"""Conditional requests: the client's copy is compared by its ETag and by its time.

The time of HTTP counts seconds, the ETag covers the whole document: clients should send both.
`When-None-Match` and `When-Modified-After` are the conditions of RestTL: the answer waits until both hold.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from email.utils import formatdate, parsedate_to_datetime
from hashlib import blake2b
from time import monotonic
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from malamute.errors import InvalidValue, NotAsExpected
from malamute.gateway.bodies import media_type
from malamute.gateway.queues import unless_gone
from malamute.gateway.restms.documents import ROOT, TYPES, Element, accepted, write
from malamute.gateway.restms.signals import first_of
from malamute.gateway.routes import Parameter
from malamute.protocol.time_units import NS_PER_SECOND

READ_CONDITIONS = tuple(
    Parameter(name, words, place="header")
    for name, words in {
        "If-None-Match": "An ETag that is there already.",
        "If-Modified-Since": "Since when to look at changes.",
        "When-None-Match": "Wait until the ETag is another one.",
        "When-Modified-After": "Wait until it is changed after this time.",
        "Prefer": "`wait=N`: for how many seconds to wait. Default: 30.",
    }.items()
)
WRITE_CONDITIONS = tuple(
    Parameter(name, words, place="header")
    for name, words in {
        "If-Match": "The ETag that it should have.",
        "If-Unmodified-Since": "The time since which it should not have changed.",
    }.items()
)


class Page(NamedTuple):
    """A document as it is sent, with the time of its last change."""

    body: bytes
    media: str
    modified_ns: int

    @property
    def etag(self) -> str:
        """Return the entity tag."""
        return f'"{blake2b(self.media.encode() + self.body, digest_size=16).hexdigest()}"'

    @property
    def modified(self) -> int:
        """Return the time of the last change, in seconds since 1970."""
        return self.modified_ns // NS_PER_SECOND

    def headers(self) -> Mapping[str, str]:
        """Return the headers of an answer with the document."""
        date = formatdate(self.modified, usegmt=True)
        return {
            "etag": self.etag,
            "last-modified": date,
            "date-modified": date,
            "vary": "accept",
            # A copy may be kept, and is to be revalidated before use.
            "cache-control": "private, no-cache",
        }

    def response(self, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        """Return an answer with the document."""
        return Response(self.body, status, {**self.headers(), **(headers or {})}, media_type=self.media)

    def plain(self) -> Response:
        """Return an answer without validators: the document is no resource that can be read again."""
        return Response(self.body, media_type=self.media)


class Representation(NamedTuple):
    """The present state of a resource."""

    elements: Iterable[Element]
    modified_ns: int

    def page(self, media: str) -> Page:
        """Return the document of this type."""
        return Page(write(Element(ROOT, children=[*self.elements]), media), media, self.modified_ns)

    def page_for(self, request: Request) -> Page:
        """Return the document in the type that a request accepts."""
        return self.page(accepted(request.headers.get("accept", ""), media_type(request)))


async def show(
    request: Request,
    build: Callable[[], Awaitable[Representation]],
    events: Callable[[], Iterable[object]],
    wait_seconds: float,
) -> Response:
    """Answer with a resource, once the conditions of the request hold.

    Until they hold, `events` are awaited. Raises `TimedOut` after `wait_seconds`.
    """
    headers = request.headers
    until = monotonic() + wait_seconds
    _check_time(headers, "when-modified-after")
    while True:
        waiting = [*events()]
        page = (await build()).page_for(request)
        if _due(page, headers):
            break
        await unless_gone(request, first_of(waiting, max(0, until - monotonic())))  # type: ignore[arg-type]
    if _is_known(page, headers):
        return Response(status_code=304, headers=page.headers())
    return page.response()


async def check(request: Request, build: Callable[[], Awaitable[Representation]]) -> None:
    """Check the conditions of a change. Raises `NotAsExpected`."""
    headers = request.headers
    if not {"if-match", "if-unmodified-since"} & {*headers.keys()}:
        return
    representation = await build()
    if (tags := _tags(headers, "if-match")) is not None:
        known = {"*", *(representation.page(media).etag for media in TYPES)}
        if not known & tags:
            raise NotAsExpected("the resource has another ETag than If-Match names")
    since = _time(headers, "if-unmodified-since")
    if since is not None and representation.page(TYPES[0]).modified > since:
        raise NotAsExpected("the resource was changed after If-Unmodified-Since")


def _due(page: Page, headers: Headers) -> bool:
    """Return whether an answer waits no longer."""
    tags, after = _tags(headers, "when-none-match"), _time(headers, "when-modified-after")
    return (tags is None or page.etag not in tags) and (after is None or page.modified > after)


def _is_known(page: Page, headers: Headers) -> bool:
    """Return whether a client has the document already. An ETag decides before a time."""
    if (tags := _tags(headers, "if-none-match")) is not None:
        return "*" in tags or page.etag in tags
    since = _time(headers, "if-modified-since")
    return since is not None and page.modified <= since


def _tags(headers: Headers, name: str) -> set[str] | None:
    given = headers.get(name)
    if given is None:
        return None
    return {tag.strip().removeprefix("W/") for tag in given.split(",")}


def _time(headers: Headers, name: str) -> float | None:
    """Return the time of a header; None without a valid one: HTTP ignores others."""
    try:
        return parsedate_to_datetime(headers[name]).timestamp()
    except (KeyError, ValueError, OverflowError):
        return None


def _check_time(headers: Headers, name: str) -> None:
    """Check a time that must be valid, since an ignored one would end the wait. Raises `InvalidValue`."""
    if name in headers and _time(headers, name) is None:
        raise InvalidValue(f"invalid {name}: expected a date as HTTP has it")
