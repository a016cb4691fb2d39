"""The paths of RestMS: the domain, its profiles, its feeds, and resources with names given by the server."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from malamute.errors import AccessRefused, NotFound
from malamute.gateway.bodies import ANY
from malamute.gateway.restms import resources
from malamute.gateway.restms.conditions import READ_CONDITIONS, WRITE_CONDITIONS, Representation, show
from malamute.gateway.restms.documents import TYPES
from malamute.gateway.restms.resources import Call, opened
from malamute.gateway.restms.views import DOMAIN, domain_view, feed_view, profile_view
from malamute.gateway.routes import Arguments, Documented, Endpoint, Parameter
from malamute.gateway.services import wait_of

NAME = Parameter("name", "The name.", place="path")
PASSWORD = Parameter("RestMS-Password", "The password of the feed, if it has one.", place="header")


HEADERS = tuple(one.name.lower() for one in (*READ_CONDITIONS, *WRITE_CONDITIONS, PASSWORD))
"""Request headers particular to RestMS."""


def _domain(call: Call, name: str) -> None:
    if name != DOMAIN:
        raise NotFound(f"there is no domain {name[:100]!r}")


async def get_domain(request: Request, arguments: Arguments) -> Response:
    """Answer with the domain, with its profiles and public feeds."""
    async with opened(request) as call:
        _domain(call, arguments["name"])
        registry = call.restms.registry

        async def build() -> Representation:
            feeds = await call.restms.feeds(call.client)
            return Representation(
                [domain_view(call.restms.profiles.all, feeds, call.base)], registry.modified_ns
            )

        return await show(request, build, lambda: [registry.changed.next()], wait_of(arguments["prefer"]))


async def post_domain(request: Request, arguments: Arguments) -> Response:
    """Create a feed or a pipe."""
    async with opened(request) as call:
        _domain(call, arguments["name"])
        element, owner = await call.element("feed", "pipe"), call.client.user
        restms = call.restms
        if element.name == "pipe":
            pipe = await restms.create_pipe(call.identity, element, owner)
            return await resources.created(call, pipe, call.base.resource(pipe.name), new=True)
        feed, new = await restms.create_feed(call.client, element, owner)
        return await resources.created(call, feed, call.base.feed(feed), new=new)


async def get_profile(request: Request, arguments: Arguments) -> Response:
    """Answer with a profile.

    Raises:
        NotFound: the profile is unknown.
    """
    async with opened(request) as call:
        profiles = {profile.name: profile for profile in call.restms.profiles.all}
        if (profile := profiles.get(arguments["name"])) is None:
            raise NotFound(f"there is no profile {arguments['name'][:100]!r}")
        registry = call.restms.registry

        async def build() -> Representation:
            return Representation([profile_view(profile, call.base)], 0)

        return await show(request, build, lambda: [registry.changed.next()], wait_of(arguments["prefer"]))


async def get_feed(request: Request, arguments: Arguments) -> Response:
    """Answer with a public feed."""
    async with opened(request) as call:
        registry = call.restms.registry

        async def build() -> Representation:
            feed = await call.restms.feed(call.client, arguments["name"])
            return Representation([feed_view(feed, call.base)], registry.time_ns(feed))

        return await show(request, build, lambda: [registry.changed.next()], wait_of(arguments["prefer"]))


async def post_feed(request: Request, arguments: Arguments) -> Response:
    """Publish messages, or stage a content."""
    async with opened(request) as call:
        feed = await call.restms.feed(call.client, arguments["name"])
        return await resources.post_to_feed(call, feed, arguments)


async def put_feed(request: Request, arguments: Arguments) -> Response:
    """Change the title and the license of a feed."""
    async with opened(request) as call:
        feed = await call.restms.feed(call.client, arguments["name"])
        return await resources.put(call, feed)


async def delete_feed(request: Request, arguments: Arguments) -> Response:
    """Delete a feed, with its joins. A missing one is deleted already."""
    async with opened(request) as call:
        with suppress(NotFound):
            feed = await call.restms.feed(call.client, arguments["name"])
            return await resources.delete(call, feed, "")
    return Response(status_code=200)


async def get_resource(request: Request, arguments: Arguments) -> Response:
    """Answer with a pipe, a join, a private feed, a message or a content."""
    async with opened(request) as call:
        return await resources.get(call, arguments["name"], wait_of(arguments["prefer"]))


async def post_resource(request: Request, arguments: Arguments) -> Response:
    """Join a pipe to a feed, or post to a private feed."""
    async with opened(request) as call:
        return await resources.post_resource(call, arguments)


async def put_resource(request: Request, arguments: Arguments) -> Response:
    """Change the title of a pipe or of a private feed."""
    async with opened(request) as call:
        found, _ = resources.find(call, arguments["name"])
        return await resources.put(call, found)


async def delete_resource(request: Request, arguments: Arguments) -> Response:
    """Delete a resource: a pipe with its joins and messages, a message with all older ones.

    A missing resource is deleted already.
    """
    async with opened(request) as call:
        with suppress(NotFound):
            found, rest = resources.find(call, arguments["name"])
            return await resources.delete(call, found, rest)
    return Response(status_code=200)


_DOCUMENT = {200: Documented("It, as a document.", TYPES), 304: Documented("It is as it was.", ())}
_CREATED = {201: Documented("It is durable, at Location.", TYPES), 200: Documented("It was there.", TYPES)}
_POSTED = {
    200: Documented("All messages are durable; with a type that counts, how many joins matched each.", TYPES),
    201: Documented("The content is durable, at Location.", ()),
}
_DONE = {200: Documented("It is done.", ())}
_PUT = {200: Documented("It, as it is now.", TYPES), 204: Documented("There was nothing to change.", ())}


def _read_only(kind: str, method: str) -> Endpoint:
    """Answer a method of RestMS that this path does not have."""

    async def refuse(request: Request, arguments: Arguments) -> Response:
        raise AccessRefused(f"{method} of the {kind} {arguments['name'][:100]!r}: it is read only")

    refuse.__name__ = f"{method.lower()}_{kind}"
    path, words = f"/restms/{kind}/{{name}}", "Refused: it is read only."
    return Endpoint(method, path, refuse, words, (NAME,), answers={}, problems=(403,))


def _paths(path: str, rows: Mapping[str, Endpoint]) -> tuple[Endpoint, ...]:
    return tuple(row._replace(path=path, method=method) for method, row in rows.items())


def _row(handler, summary, parameters=(), **more) -> Endpoint:  # type: ignore[no-untyped-def]
    return Endpoint("", "", handler, summary, (NAME, *parameters), **more)


_READ = {"answers": _DOCUMENT, "problems": (404, 504)}
_WRITE = {"answers": _DONE, "problems": (404, 412)}

ENDPOINTS = (
    *_paths(
        "/restms/domain/{name}",
        {
            "GET": _row(get_domain, "The profiles and public feeds of a domain.", READ_CONDITIONS, **_READ),
            "POST": _row(
                post_domain,
                "Create a feed or a pipe.",
                bodies=TYPES,
                answers=_CREATED,
                problems=(404, 413, 415),
            ),
        },
    ),
    _read_only("domain", "PUT"),
    _read_only("domain", "DELETE"),
    *_paths(
        "/restms/profile/{name}",
        {"GET": _row(get_profile, "A profile.", READ_CONDITIONS, **_READ)},
    ),
    _read_only("profile", "POST"),
    _read_only("profile", "PUT"),
    _read_only("profile", "DELETE"),
    *_paths(
        "/restms/feed/{name}",
        {
            "GET": _row(get_feed, "A feed.", READ_CONDITIONS, **_READ),
            "POST": _row(
                post_feed,
                "Post messages in a document, or a content of any other type.",
                (PASSWORD,),
                bodies=(*TYPES, ANY),
                answers=_POSTED,
                problems=(404, 413, 415, 507),
            ),
            "PUT": _row(
                put_feed,
                "Change the title and the license of a feed.",
                WRITE_CONDITIONS,
                bodies=TYPES,
                answers=_PUT,
                problems=(404, 412, 413, 415),
            ),
            "DELETE": _row(delete_feed, "Delete a feed, with its joins.", WRITE_CONDITIONS, **_WRITE),
        },
    ),
    *_paths(
        "/restms/resource/{name}",
        {
            "GET": _row(
                get_resource,
                "A pipe, a join, a message or a content, named by the server. The next message is awaited.",
                READ_CONDITIONS,
                answers={
                    200: Documented("It, as a document, or a content.", (*TYPES, ANY)),
                    304: _DOCUMENT[304],
                },
                problems=(404, 504),
            ),
            "POST": _row(
                post_resource,
                "Join a pipe to a feed, or post to a private feed.",
                (PASSWORD,),
                bodies=(*TYPES, ANY),
                answers={**_CREATED, 200: _POSTED[200]},
                problems=(404, 413, 415, 507),
            ),
            "PUT": _row(
                put_resource,
                "Change the title of a pipe, or of a private feed.",
                WRITE_CONDITIONS,
                bodies=TYPES,
                answers=_PUT,
                problems=(404, 412, 413, 415),
            ),
            "DELETE": _row(
                delete_resource,
                "Delete it: a pipe with its joins and messages, a message with all older ones.",
                WRITE_CONDITIONS,
                **_WRITE,
            ),
        },
    ),
)
