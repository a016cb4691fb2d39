"""Resources as documents, with absolute URIs, and the names in the gateway's own URIs."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from malamute.client.session.message import Mail
from malamute.errors import InvalidValue
from malamute.gateway.addresses import address, inside
from malamute.gateway.restms.definitions import DISK, Join, Pipe, RestFeed
from malamute.gateway.restms.documents import Element
from malamute.gateway.restms.feed_types import Profile
from malamute.gateway.restms.messages import summary

DOMAIN = "default"


class BaseUri:
    """The address of the gateway as the client sees it: the beginning of every URI."""

    def __init__(self, base_url: str) -> None:
        self._base = base_url.rstrip("/")

    def public(self, kind: str, name: str) -> str:
        """Return the URI of a resource with a public name."""
        return self._base + address("restms", kind, name)

    def resource(self, name: str) -> str:
        """Return the URI of a resource with a name of the server."""
        return self.public("resource", name)

    def feed(self, feed: RestFeed) -> str:
        """Return the URI of a feed."""
        return self.public("resource" if feed.private else "feed", feed.name)


def name_in(href: str, *kinds: str) -> str:
    """Return the name in a URI of this gateway, of one of these kinds. Raises `InvalidValue`."""
    try:
        parts = inside(urlsplit(href).path).split("/")
    except ValueError:
        parts = []
    if len(parts) != 4 or parts[:2] != ["", "restms"] or parts[2] not in kinds or not parts[3]:
        raise InvalidValue(f"invalid URI {href[:200]!r}: expected /restms/{'|'.join(kinds)}/NAME")
    return unquote(parts[3])


def profile_view(profile: Profile, base: BaseUri) -> Element:
    """Return the view of a profile."""
    href = profile.href or base.public("profile", profile.name)
    return Element("profile", {"name": profile.name, "title": profile.title, "href": href})


def domain_view(profiles: Iterable[Profile], feeds: Iterable[RestFeed], base: BaseUri) -> Element:
    """Return the view of the domain."""
    children = [profile_view(profile, base) for profile in profiles]
    children += [feed_view(feed, base) for feed in feeds]
    return Element("domain", {"name": DOMAIN, "title": "Default domain"}, children)


def feed_view(feed: RestFeed, base: BaseUri) -> Element:
    """Return the view of a feed."""
    attributes = {
        "name": feed.name,
        "type": feed.type,
        "title": feed.title,
        "license": feed.license,
        **_storage(feed.storage),
        **({"size": str(feed.size)} if feed.size else {}),
        "href": base.feed(feed),
    }
    optional = ("title", "license")
    return Element(
        "feed", {name: value for name, value in attributes.items() if value or name not in optional}
    )


def _storage(storage: str) -> dict[str, str]:
    return {} if storage == DISK else {"storage": storage}


def pipe_view(
    pipe: Pipe,
    joins: Iterable[tuple[Join, RestFeed]],
    messages: Iterable[tuple[str, Mail]],
    next_name: str,
    base: BaseUri,
) -> Element:
    """Return the view of a pipe, with its joins, its messages, and the next one."""
    attributes = {"name": pipe.name, "type": pipe.type, **({"title": pipe.title} if pipe.title else {})}
    children = [join_view(join, feed, base) for join, feed in joins]
    children += [summary(mail, message_href(pipe, name, base)) for name, mail in messages]
    children.append(Element("message", {"href": message_href(pipe, next_name, base), "async": "1"}))
    href = base.resource(pipe.name)
    return Element("pipe", {**attributes, **_storage(pipe.storage), "href": href}, children)


def join_view(join: Join, feed: RestFeed, base: BaseUri) -> Element:
    """Return the view of a join."""
    attributes = {"type": join.type, "address": join.address, "feed": base.feed(feed)}
    headers = [Element("header", {"name": name, "value": value}) for name, value in join.headers.items()]
    return Element("join", {**attributes, "href": base.resource(join.name)}, headers)


def message_href(pipe: Pipe, name: str, base: BaseUri) -> str:
    """Return the URI of a message of a pipe."""
    return base.resource(message_name(pipe, name))


def message_name(pipe: Pipe, name: str) -> str:
    """Return the name of a message of a pipe among all resources."""
    return f"{pipe.name}.{name}"


def counted(counts: Iterable[int]) -> list[Element]:
    """Return the view of the matching joins, for each message of a post."""
    return [Element("message", {"count": str(count)}) for count in counts]
