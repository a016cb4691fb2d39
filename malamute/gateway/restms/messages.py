"""Messages as documents: posts become messages of a stream, held messages become documents.

The address is the subject, headers are headers, and the content is the body with its type in `content-type`,
as everywhere else in the gateway. Properties are headers that begin with `restms.`.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from malamute.client.session.message import Mail
from malamute.errors import InvalidValue
from malamute.gateway.restms.documents import Element, can_be_xml
from malamute.gateway.restms.feed_types import with_place
from malamute.protocol.names import SIGNATURE_PREFIX

PREFIX = "restms."
CONTENT_TYPE = "content-type"
REPLY_TO = f"{PREFIX}reply_to"

PROPERTIES = (
    "message_id",
    "reply_to",
    "correlation_id",
    "delivery_mode",
    "priority",
    "expiration",
    "timestamp",
    "type",
)
"""Properties that a sender may set. The sender is not among them: `user_id`, `app_id` and `sender_id` of a
post are replaced by the sender that the broker has stamped."""

_MEDIA = re.compile(r"[\x21-\x7e]+/[\x20-\x7e]+(;[^\x00-\x1f\x7f-\x9f\ud800-\udfff]*)?")

MEDIA_CHARACTERS_MAX = 255

EMBEDDED_BYTES_MAX = 64 * 1024
"""Maximum bytes of a content inside the document of its message. A longer one is fetched by itself."""


class PostedContent(NamedTuple):
    """The content of a posted message: inside it, or staged before."""

    type: str = ""
    body: bytes = b""
    href: str = ""


class PostedMessage(NamedTuple):
    """A posted message."""

    address: str
    headers: dict[str, Any]
    content: PostedContent


def posted(element: Element) -> PostedMessage:
    """Return the message of its document. Raises `InvalidValue`."""
    headers = with_place(headers_of(element))
    headers |= {f"{PREFIX}{name}": element.get(name) for name in PROPERTIES if element.get(name)}
    contents = [*element.each("content")]
    if len(contents) > 1:
        raise InvalidValue(f"a message with {len(contents)} contents: expected at most one")
    content = _content(contents[0]) if contents else PostedContent()
    return PostedMessage(element.get("address"), headers, content)


def headers_of(element: Element) -> dict[str, str]:
    """Return the headers in a document. Raises `InvalidValue`."""
    headers: dict[str, str] = {}
    for header in element.each("header"):
        name = header.get("name")
        if not name or name.startswith(PREFIX):
            raise InvalidValue(f"invalid header {name[:100]!r}: expected a name that is not {PREFIX}…")
        headers[name] = header.get("value")
    return headers


def _content(element: Element) -> PostedContent:
    if href := element.get("href"):
        return PostedContent(href=href)
    kind, encoding = element.get("type"), element.get("encoding") or "plain"
    if kind and media_of(kind) != kind:
        raise InvalidValue(f"invalid type {kind[:100]!r} of a content: expected a media type")
    if encoding == "plain":
        return PostedContent(kind, element.text.encode())
    if encoding != "base64":
        raise InvalidValue(f"invalid encoding {encoding[:50]!r}: expected plain or base64")
    try:
        # Base64 may be broken into lines.
        return PostedContent(kind, b64decode("".join(element.text.split()), validate=True))
    except (Base64Error, ValueError) as error:
        raise InvalidValue(f"invalid base64 in a content: {error}") from None


def summary(mail: Mail, href: str) -> Element:
    """A message in its pipe."""
    return Element("message", {"href": href, **_properties(mail, "message_id")})


def delivered(mail: Mail, href: str, reply_to: str = "") -> Element:
    """Return a delivered message, at this URI. `reply_to` is the address for replies to a native request."""
    element = Element("message", {"href": href, **_properties(mail, *PROPERTIES)})
    if reply_to and mail.correlation is not None:
        element.attributes.setdefault("reply_to", reply_to)
    user = mail.sender.removeprefix(SIGNATURE_PREFIX)
    if user:
        element.attributes["sender_id" if user == mail.sender else "user_id"] = user
    headers = mail.headers
    for name, value in headers.items():
        if not name.startswith(PREFIX) and name != CONTENT_TYPE:
            element.children.append(Element("header", {"name": name, "value": _shown(value)}))
    if mail.body or CONTENT_TYPE in headers:
        element.children.append(_embedded(mail, href, headers))
    return element


def _properties(mail: Mail, *names: str) -> dict[str, str]:
    properties = {name: mail.headers.get(f"{PREFIX}{name}") for name in names}
    return {
        "address": mail.subject,
        **{name: _shown(value) for name, value in properties.items() if value is not None},
    }


def _embedded(mail: Mail, href: str, headers: Mapping[str, Any]) -> Element:
    kind = {"type": media_of(headers[CONTENT_TYPE])} if CONTENT_TYPE in headers else {}
    if len(mail.body) <= EMBEDDED_BYTES_MAX:
        try:
            text = mail.body.decode()
        except UnicodeDecodeError:
            text = "\0"
        if can_be_xml(text):
            return Element("content", {**kind, "encoding": "plain"}, text=text)
    return Element("content", {**kind, "href": content_href(href)})


def content_href(href: str) -> str:
    """The place of a message's content."""
    return f"{href}.content"


def media_of(value: object) -> str:
    """Return a media type that is valid in an HTTP header; the one of any bytes for an invalid one."""
    is_one = isinstance(value, str) and len(value) <= MEDIA_CHARACTERS_MAX and _MEDIA.fullmatch(value)
    return str(value) if is_one else "application/octet-stream"


def _shown(value: Any) -> str:
    """Return a header as text: clients other than RestMS's have numbers and such, too."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
