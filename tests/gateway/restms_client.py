"""A client of RestMS as the tests use it: documents as elements, and URIs as the gateway has given them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import httpx
from running_gateway import WAIT_SECONDS, RunningGateway

from malamute.gateway.restms.documents import RESTMS_JSON, RESTMS_XML, ROOT, Element, read, write

DOMAIN = "/restms/domain/default"


def message(
    address: str, text: str = "", *, headers: dict[str, str] | None = None, **properties: str
) -> Element:
    children = [Element("header", {"name": name, "value": value}) for name, value in (headers or {}).items()]
    if text:
        children.append(Element("content", {"type": "text/plain"}, text=text))
    return Element("message", {"address": address, **properties}, children)


class RestClient:
    """Sends documents in one form, and reads what comes by its type."""

    def __init__(self, http: httpx.Client, media: str = RESTMS_XML) -> None:
        self.http = http
        self.media = media

    def send(
        self, method: str, url: str, *elements: Element, status: int = 200, **headers: str
    ) -> httpx.Response:
        body = write(Element(ROOT, children=[*elements]), self.media) if elements else None
        given = {"accept": self.media} | ({"content-type": self.media} if elements else {})
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.http.request(method, url, content=body, headers=given)
        assert answer.status_code == status, (answer.status_code, answer.text)
        return answer

    def get(self, url: str, **headers: str) -> Element:
        [element] = self.all(self.send("GET", url, **headers))
        return element

    def all(self, answer: httpx.Response) -> list[Element]:
        return read(answer.content, answer.headers["content-type"].partition(";")[0]).children

    def feed(self, name: str = "", kind: str = "", status: int = 201, **attributes: str) -> str:
        element = Element("feed", {**({"name": name} if name else {}), "type": kind, **attributes})
        return self.send("POST", DOMAIN, element, status=status).headers.get("location", "")

    def pipe(self, kind: str = "", **attributes: str) -> str:
        element = Element("pipe", {"type": kind, **attributes})
        return self.send("POST", DOMAIN, element, status=201).headers["location"]

    def join(
        self, pipe: str, feed: str, address: str = "", kind: str = "", status: int = 201, **headers: str
    ) -> str:
        children = [Element("header", {"name": n.replace("_", "-"), "value": v}) for n, v in headers.items()]
        element = Element("join", {"type": kind, "address": address, "feed": feed}, children)
        return self.send("POST", pipe, element, status=status).headers.get("location", "")

    def post(self, feed: str, *messages: Element, **headers: str) -> list[str]:
        """Post messages, and return the counts."""
        return [found.get("count") for found in self.all(self.send("POST", feed, *messages, **headers))]

    def next(self, pipe: str) -> Element:
        """The first message of a pipe, or the next one that comes."""
        return self.get(next(self.get(pipe).each("message")).get("href"), prefer="wait=60")

    def take(self, pipe: str, count: int = 1) -> list[Element]:
        """Receive messages as clients do: wait for one, and delete it."""
        found = []
        for _ in range(count):
            found.append(self.next(pipe))
            self.send("DELETE", found[-1].get("href"))
        return found

    def addresses(self, pipe: str, count: int) -> list[str]:
        return [found.get("address") for found in self.take(pipe, count)]


def run_in(gateway: RunningGateway, call: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine on the loop of a gateway."""
    loop = gateway.server.servers[0].get_loop()
    asyncio.run_coroutine_threadsafe(call, loop).result(WAIT_SECONDS)


def content_of(element: Element) -> str:
    [content] = element.each("content")
    return content.text


FORMS = (RESTMS_XML, RESTMS_JSON)
