"""The documents of RestTL: one tree of elements, written and read as XML and as JSON.

In XML the properties of a resource are attributes, in JSON texts; children are elements, or lists of objects.
The text of an element, which only contents have, is `$` in JSON, which no attribute can be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

import msgspec

from malamute.errors import Malformed, MediaTypeRefused, TooLarge
from malamute.gateway.bodies import decoded
from malamute.gateway.elements import check_elements

ROOT = "restms"
NAMESPACE = "http://www.restms.org/schema/restms"
TEXT = "$"

RESTMS_XML = "application/restms+xml"
RESTMS_JSON = "application/restms+json"
TEXT_XML = "text/xml"
TYPES = (RESTMS_XML, RESTMS_JSON, TEXT_XML)

DEPTH_MAX = 16
ELEMENTS_MAX = 50_000
ATTRIBUTES_MAX = 100
PARTS_MAX = 250_000
"""Maximum elements and attributes together."""

SLICE_BYTES = 64 * 1024
TAG_BYTES_MAX = 256 * 1024
"""Maximum bytes of a tag or comment: expat keeps it until its end, and then builds all its attributes."""

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SPACE = {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}


@dataclass
class Element:
    """An element of a document: a resource, or a part of one."""

    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def get(self, name: str) -> str:
        """Return a property; empty if it is missing."""
        return self.attributes.get(name, "")

    def each(self, name: str) -> Iterator[Element]:
        """Return the children of a kind."""
        return (child for child in self.children if child.name == name)


def can_be_xml(text: str) -> bool:
    """Return whether XML can carry a text."""
    return _FORBIDDEN.search(text) is None


def read(body: bytes, media: str) -> Element:
    """Return the root of a document; its children are resources. The default media type is XML.

    Raises:
        MediaTypeRefused: the document is of another type.
        Malformed: the document is invalid for its type, or has a DTD.
        TooLarge: the document is too deep, or has too many elements.
    """
    parse = _READERS.get(media)
    if parse is None:
        raise MediaTypeRefused(f"a document of type {media[:100]!r}: expected {', '.join(TYPES)}")
    root = parse(body)
    if root.name != ROOT:
        raise Malformed(f"invalid document: the root is {root.name[:100]!r}, expected {ROOT!r}")
    return root


def write(root: Element, media: str) -> bytes:
    """Return a document in one of `TYPES`. Characters that XML cannot carry are replaced there."""
    return _WRITERS[media](root)


def accepted(accept: str, sent: str = "") -> str:
    """Return the type of an answer by the header Accept, else of the document `sent`, or `text/xml`."""
    wanted = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    known = [_SYNONYMS.get(one, one) for one in (*wanted, sent)]
    return next((one for one in known if one in TYPES), TEXT_XML)


_SYNONYMS = {"application/json": RESTMS_JSON, "application/xml": TEXT_XML}


class _Limits:
    """Counts of a document being read."""

    def __init__(self) -> None:
        self.elements = 0
        self.parts = 0

    def check(self, depth: int, attributes: int) -> None:
        """Count an element. Raises `TooLarge`."""
        self.elements += 1
        self.parts += 1 + attributes
        if self.parts > PARTS_MAX:
            raise TooLarge(f"document is too large: expected at most {PARTS_MAX} elements and attributes")
        if depth > DEPTH_MAX:
            raise TooLarge(f"document is too deep: expected at most {DEPTH_MAX} elements in each other")
        if self.elements > ELEMENTS_MAX:
            raise TooLarge(f"document has too many elements: expected at most {ELEMENTS_MAX}")
        if attributes > ATTRIBUTES_MAX:
            raise TooLarge(f"element with {attributes} attributes: expected at most {ATTRIBUTES_MAX}")


class _XmlReader:
    """Builds the tree. Entities need a DTD, and a DTD is refused at its beginning."""

    def __init__(self) -> None:
        self.root: Element | None = None
        self._open: list[Element] = []
        self._texts: list[list[str]] = []
        self._limits = _Limits()
        self._space = NAMESPACE

    def parse(self, body: bytes) -> Element:
        parser = expat.ParserCreate("utf-8", " ")
        parser.ordered_attributes = True
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = self._refuse
        try:
            # Documents are UTF-8, in spite of any other declaration.
            text = body.decode("utf-8-sig").encode()
            for start in range(0, len(text), SLICE_BYTES):
                parser.Parse(text[start : start + SLICE_BYTES])
                if start + SLICE_BYTES - parser.CurrentByteIndex > TAG_BYTES_MAX:
                    raise TooLarge(f"document has a tag that is too large: expected {TAG_BYTES_MAX} bytes")
            parser.Parse(b"", True)
        except (expat.ExpatError, UnicodeDecodeError) as error:
            raise Malformed(f"invalid XML: {error}") from None
        assert self.root is not None
        return self.root

    def _start(self, name: str, attributes: list[str]) -> None:
        self._limits.check(len(self._open) + 1, len(attributes) // 2)
        if not self._open:
            # Published clients write the namespace in several ways: the one of the root counts.
            self._space = name.rpartition(" ")[0]
        names = map(self._local, attributes[::2])
        element = Element(self._local(name), dict(zip(names, attributes[1::2], strict=True)))
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)
        self._texts.append([])

    def _end(self, name: str) -> None:
        element, text = self._open.pop(), "".join(self._texts.pop())
        # Text between elements is layout.
        element.text = text if not element.children and (text.strip() or element.name == "content") else ""

    def _local(self, name: str) -> str:
        """Return a name without the namespace of the document; a name of another one stays, unknown."""
        space, _, local = name.rpartition(" ")
        return local if space in ("", self._space) else name

    def _text(self, text: str) -> None:
        self._texts[-1].append(text)

    def _refuse(self, *declaration: object) -> None:
        raise Malformed("invalid XML: expected no DTD, and no entities of its own")


def _read_json(body: bytes) -> Element:
    check_elements(body)
    tree = decoded(msgspec.json.decode, body)
    if not isinstance(tree, dict) or len(tree) != 1:
        raise Malformed(f"invalid document: expected an object with {ROOT!r} alone")
    [(name, value)] = tree.items()
    return _of_json(name, value, 1, _Limits())


def _of_json(name: str, value: Any, depth: int, limits: _Limits) -> Element:
    if not isinstance(value, dict):
        raise Malformed(f"invalid document: {name[:100]!r} is no object")
    limits.check(depth, len(value))
    element = Element(name)
    for key, item in value.items():
        if isinstance(item, list | dict):
            for one in [item] if isinstance(item, dict) else item:
                element.children.append(_of_json(key, one, depth + 1, limits))
        elif isinstance(item, bool) or not isinstance(item, str | int | float):
            raise Malformed(f"invalid document: {key[:100]!r} is no text")
        elif key == TEXT:
            element.text = str(item)
        else:
            element.attributes[key] = str(item)
    return element


def _write_xml(root: Element) -> bytes:
    parts = ['<?xml version="1.0"?>\n']
    _add_xml(parts, Element(ROOT, {"xmlns": NAMESPACE, **root.attributes}, root.children), "")
    return "".join(parts).encode()


def _add_xml(parts: list[str], element: Element, indent: str) -> None:
    attributes = "".join(f" {name}={_quoted(value)}" for name, value in element.attributes.items())
    head = f"{indent}<{element.name}{attributes}"
    if element.children:
        parts.append(f"{head}>\n")
        for child in element.children:
            _add_xml(parts, child, f"{indent}  ")
        parts.append(f"{indent}</{element.name}>\n")
    elif element.text:
        # A bare carriage return would be read as a line feed.
        text = escape(_FORBIDDEN.sub("\ufffd", element.text), {"\r": "&#13;"})
        parts.append(f"{head}>{text}</{element.name}>\n")
    else:
        parts.append(f"{head} />\n")


def _quoted(value: str) -> str:
    return quoteattr(_FORBIDDEN.sub("\ufffd", value), _SPACE)


def _write_json(root: Element) -> bytes:
    return msgspec.json.encode({ROOT: _as_json(root)}) + b"\n"


def _as_json(element: Element) -> dict[str, Any]:
    value: dict[str, Any] = dict(element.attributes)
    if element.text:
        value[TEXT] = element.text
    for child in element.children:
        value.setdefault(child.name, []).append(_as_json(child))
    return value


def _read_xml(body: bytes) -> Element:
    return _XmlReader().parse(body)


_READERS: Mapping[str, Callable[[bytes], Element]] = {
    "": _read_xml,
    TEXT_XML: _read_xml,
    RESTMS_XML: _read_xml,
    RESTMS_JSON: _read_json,
}
_WRITERS: Mapping[str, Callable[[Element], bytes]] = {
    TEXT_XML: _write_xml,
    RESTMS_XML: _write_xml,
    RESTMS_JSON: _write_json,
}
