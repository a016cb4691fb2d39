"""What people and their programs write: commands, contexts, manifests, bodies, selectors of topics."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
from starlette.requests import Request

from malamute.cli import options, payload, units
from malamute.cli.error_output import BadInput
from malamute.cli.escaping import printable, to_json, visible
from malamute.cli.root import cli
from malamute.client import contexts
from malamute.client.session.message import Message
from malamute.errors import (
    InvalidName,
    InvalidSelector,
    InvalidValue,
    Malformed,
    StoreCorrupt,
    StoreTooNew,
    TooLarge,
)
from malamute.gateway import bodies
from malamute.gateway.topic_selectors import criteria_of, regex_of
from malamute.matching import Index, Selector
from malamute.protocol.batch import pack_record
from malamute.spark import manifest as manifests
from malamute.spark.checksums import Blocks

TOPICS = ("", "a", "/x/a", "https://e.com/b/1", "*", "ä", "/a/b?c=d#e", "/x;a=1")


def command_line(data: bytes) -> None:
    """Arguments are those of a command, or it says what is wrong; what is shown obeys no terminal."""
    text = os.fsdecode(data)
    words = text.split("\n")
    with suppress(click.ClickException, click.exceptions.Exit):
        _parse(words)
    for read in (units.size, units.duration, payload.parse_header):
        with suppress(click.BadParameter):
            read(text)
    for family in options.FAMILIES:
        with suppress(click.BadParameter):
            options.criteria_of(family, words)
    for kind in ("stream", "mailbox", "service"):
        with suppress(InvalidName):
            options.ConnectionOptions().to(text, kind)  # type: ignore[arg-type]  # the type checker widens it
    with suppress(InvalidName):
        options.ConnectionOptions().to_place(text)
    with suppress(BadInput):
        for row in payload.rows_of(enumerate(data.split(b"\n"), 1), "subject", "here"):
            _check_row(row)
    assert printable(text).isprintable()
    assert visible(text).replace("\n", "").replace("\t", "").isprintable()
    assert to_json({"text": text}).isprintable()


def _check_row(row: payload.OutgoingMessage) -> None:
    assert isinstance(row.body, bytes)
    assert row.headers is None or all(isinstance(name, str) for name in row.headers)


def _parse(words: list[str]) -> None:
    """Read arguments as the command does that they name, down to the last one, and run nothing."""
    command: click.Command = cli
    context = None
    with patch.dict(os.environ, {"COLUMNS": "80"}), patch("click.core.echo"):
        while True:
            context = command.make_context("malamute", words, context)
            if not isinstance(command, click.Group):
                return
            rest = [*context._protected_args, *context.args]
            if not rest:
                return
            name, found, words = command.resolve_command(context, rest)
            assert name is not None
            assert found is not None
            command = found


@cache
def _file() -> Path:
    return Path(tempfile.mkdtemp(prefix="malamute-fuzz-")) / "contexts.toml"


def client_contexts(data: bytes) -> None:
    """A file of contexts is refused as one, or writes itself so that it reads back."""
    path = _file()
    path.write_bytes(data)
    path.chmod(0o600)
    with suppress(contexts.InvalidContext):
        found = contexts.load(path)
        contexts.save(path, found)
        assert contexts.load(path) == found


class _Place:
    """An export whose manifest is these bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def is_there(self, path: str) -> bool:
        return True

    def read(self, path: str) -> bytes:
        return self.data

    def write_json(self, path: str, value: Any) -> None:
        self.data = to_json(value).encode()


def manifest(data: bytes) -> None:
    """A manifest, and a footer, are refused as damaged or too new, or read back as they are written."""
    place: Any = _Place(data)
    with suppress(StoreCorrupt, StoreTooNew):
        found = manifests.load(place, "s")
        assert found is not None
        assert isinstance(found.last, int)
        manifests.save(place, found)
        assert manifests.load(place, "s") == found
    with suppress(StoreCorrupt, StoreTooNew):
        footer = manifests.decode_footer({manifests.FOOTER: data})
        blocks = manifests.decode_blocks({manifests.FOOTER: data}) or Blocks([0], [0])
        written = manifests.encode_footer(*footer, blocks)
        assert manifests.decode_footer(written) == footer
        assert manifests.decode_blocks(written) == blocks


MEDIA_TYPES = (bodies.ANY, bodies.JSON, bodies.NDJSON, bodies.CLOUD_EVENT, bodies.CLOUD_EVENTS)
BODIES_REFUSED = (InvalidValue, Malformed, TooLarge)


def body(data: bytes) -> None:
    """The body of a request is refused, or has messages that a client sends and a page gets as they are."""
    kind, data = MEDIA_TYPES[data[0] % len(MEDIA_TYPES) if data else 0], data[1:]
    head, _, rest = data.partition(b"\n\n") if kind in (bodies.ANY, bodies.JSON) else (b"", b"", data)
    headers = [(b"content-type", kind.encode())]
    for line in head.splitlines():
        name, _, value = line.partition(b":")
        headers.append((name.strip().lower(), value.strip()))
    request = Request({"type": "http", "headers": headers})
    try:
        found = bodies.contents(request, rest, None)
        records = [pack_record(content.headers, content.body) for content in found]
    except BODIES_REFUSED:
        return
    for content, record in zip(found, records, strict=True):
        message = Message(1, 0, "", content.subject, record)
        assert (message.headers, message.body) == (content.headers, content.body)
        shown = bodies.to_json(
            {"subject": message.subject, "headers": message.headers, **bodies.body_fields(message.body)}
        )
        (again,) = bodies.contents(LINES, shown, None)
        assert again == content


LINES = Request({"type": "http", "headers": [(b"content-type", bodies.NDJSON.encode())]})


def topic_selector(data: bytes) -> None:
    """A selector of Mercure selects itself, and a template what its regular expression matches."""
    selectors = data.decode("utf-8", "replace").split("\n")
    index: Index[str] = Index()
    try:
        index.add("all", Selector.parse(criteria_of(selectors)))
    except InvalidSelector:
        # A template may be longer than a pattern may be.
        return
    for topic in (*TOPICS, *selectors):
        expected = any(map(_selects(topic), selectors))
        assert bool([*index.match(topic, {})]) == expected, topic


def _selects(topic: str) -> Callable[[str], bool]:
    def selects(selector: str) -> bool:
        expression = regex_of(selector)
        matched = expression is not None and re.compile(expression, re.ASCII).search(topic) is not None
        return selector in ("*", topic) or matched

    return selects
