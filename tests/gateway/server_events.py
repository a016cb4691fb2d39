"""Server-Sent Events as a test reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import httpx

import malamute
from malamute.protocol.admin import StreamCreate

EVENTS = "/v1/streams/weather/events"

Blocks = Iterator[dict[str, str]]


def blocks_of(answer: httpx.Response) -> Blocks:
    """The blocks of the event stream as maps of their fields; a comment is the field ''."""
    block: dict[str, str] = {}
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(":")
            block[name] = value.removeprefix(" ")
        else:
            yield block
            block = {}


@contextmanager
def following(http: httpx.Client, **options: Any) -> Iterator[Blocks]:
    with http.stream("GET", EVENTS, **options) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield blocks_of(answer)


def messages_of(blocks: Blocks, count: int) -> list[tuple[int, str]]:
    found = (block for block in blocks if "data" in block)
    return [
        (int(block["id"].partition("@")[0]), json.loads(block["data"])["body"])
        for block in islice(found, count)
    ]


def make_stream(url: str) -> None:
    """Make a stream `weather` in the broker at `url`, with nothing in it."""
    with malamute.connect(url) as client:
        client.change(StreamCreate(stream="weather"))


def publish_numbers(client: malamute.Client, first: int, last: int) -> None:
    numbers = range(first, last + 1)
    client.publish_batch("weather", ["s"] * len(numbers), [str(n).encode() for n in numbers])
