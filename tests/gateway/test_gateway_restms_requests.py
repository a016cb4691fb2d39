"""RestMS over HTTP: conditional requests, messages that are still to come, contents, and bad input."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from queue import Queue
from time import time

import httpx
import pytest
from damaged_messages import publish_damaged
from restms_client import DOMAIN, FORMS, RestClient, content_of, message
from running_gateway import WAIT_SECONDS, RunningGateway

import malamute
from malamute.errors import BY_CODE, AccessRefused
from malamute.gateway.restms import conditions
from malamute.gateway.restms.documents import RESTMS_JSON, RESTMS_XML, Element
from malamute.gateway.restms.pipes import PipeReader
from malamute.gateway.restms.signals import first_of
from malamute.protocol.admin import ServicesQuery
from malamute.testing import Broker

LONG_AGO, SOON = formatdate(0, usegmt=True), formatdate(time() + 86_400, usegmt=True)


def test_a_copy_that_is_current_is_not_sent_again(rest: RestClient) -> None:
    feed = rest.feed("cached", title="one")
    before = rest.send("GET", feed)
    etag, date = before.headers["etag"], before.headers["last-modified"]
    assert before.headers["date-modified"] == date
    assert rest.send("GET", feed, status=304, if_none_match=f'"x", {etag}').content == b""
    rest.send("GET", feed, status=304, if_modified_since=date)
    rest.send("GET", feed, if_modified_since=LONG_AGO)
    rest.send("GET", feed, if_none_match='"x"', if_modified_since=date)
    # Each form has a tag of its own.
    rest.media = RESTMS_JSON
    assert rest.send("GET", feed, if_none_match=etag).headers["etag"] != etag


def test_a_change_is_refused_to_who_has_not_seen_the_last_one(rest: RestClient) -> None:
    feed = rest.feed("conditional", title="one")
    etag = rest.send("GET", feed).headers["etag"]
    two = Element("feed", {"name": "conditional", "title": "two", "license": "free"})
    for headers in ({"if_match": '"x"'}, {"if_unmodified_since": LONG_AGO}):
        problem = rest.send("PUT", feed, two, status=412, **headers).json()
        assert BY_CODE[problem["code"]].__name__ == "NotAsExpected"
        rest.send("DELETE", feed, status=412, **headers)
    assert rest.get(feed).get("title") == "one"
    [changed] = rest.all(rest.send("PUT", feed, two, if_match=etag, if_unmodified_since=SOON))
    assert (changed.get("title"), changed.get("license")) == ("two", "free")
    rest.send("PUT", feed, two, status=412, if_match=etag)
    rest.send("PUT", feed, status=204)
    rest.send("PUT", feed, Element("feed", {"name": "other"}), status=400)
    rest.send("PUT", feed, Element("feed", {"type": "fanout"}), status=400)
    rest.send("DELETE", feed, if_match="*")
    rest.send("GET", feed, status=404)


def test_e26_the_title_of_a_pipe_can_be_changed(rest: RestClient) -> None:
    pipe = rest.pipe(title="one")
    [changed] = rest.all(rest.send("PUT", pipe, Element("pipe", {"title": "two"})))
    assert (changed.get("title"), rest.get(pipe).get("title")) == ("two", "two")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Queue[None]:
    """One for each time that a request begins to wait."""
    begun: Queue[None] = Queue()

    async def waiting(signals: Iterable[asyncio.Event], seconds: float) -> None:
        begun.put(None)
        await first_of(signals, seconds)

    monkeypatch.setattr(conditions, "first_of", waiting)
    return begun


def test_zn8_a_request_waits_until_there_is_a_change(
    rest: RestClient, restms_gateway: RunningGateway, waits: Queue[None]
) -> None:
    feed = rest.feed("watched", title="one")
    page = rest.send("GET", feed)
    etag, date = page.headers["etag"], page.headers["last-modified"]
    # A condition that holds already is not waited for, and where both are given, both must hold.
    assert rest.send("GET", feed, when_none_match='"x"', when_modified_after=LONG_AGO).headers["etag"] == etag
    assert waits.empty()
    rest.send("GET", feed, status=504, prefer="wait=0", when_none_match=etag)
    rest.send("GET", feed, status=504, prefer="wait=0", when_modified_after=date)
    rest.send("GET", feed, status=504, prefer="wait=0", when_none_match='"x"', when_modified_after=SOON)
    rest.send("GET", feed, status=400, when_modified_after="yesterday")
    assert [waits.get_nowait() for _ in range(3)] == [None] * 3
    assert waits.empty()
    with ThreadPoolExecutor(1) as pool, restms_gateway.client() as http:
        waiting = pool.submit(RestClient(http).get, feed, when_none_match=etag, prefer="wait=60")
        waits.get(timeout=WAIT_SECONDS)
        # A change of another one wakes nobody who does not wait for it: the request looks, and waits again.
        rest.feed("unwatched")
        waits.get(timeout=WAIT_SECONDS)
        assert not waiting.done()
        rest.send("PUT", feed, Element("feed", {"title": "two"}))
        assert waiting.result(WAIT_SECONDS).get("title") == "two"
    assert waits.empty()


def test_zn8_of_two_conditions_the_one_that_holds_is_not_enough(
    rest: RestClient, restms_gateway: RunningGateway, waits: Queue[None]
) -> None:
    feed = rest.feed("watched twice", title="one")
    both = {"when_none_match": rest.send("GET", feed).headers["etag"], "when_modified_after": SOON}
    with ThreadPoolExecutor(1) as pool, restms_gateway.client() as http:
        waiting = pool.submit(RestClient(http).send, "GET", feed, status=404, prefer="wait=60", **both)
        waits.get(timeout=WAIT_SECONDS)
        rest.send("PUT", feed, Element("feed", {"title": "two"}))
        # The resource has another tag now, and has not been changed tomorrow.
        waits.get(timeout=WAIT_SECONDS)
        assert not waiting.done()
        # A message that is gone is not waited for.
        rest.send("DELETE", feed)
        waiting.result(WAIT_SECONDS)


def test_zn8_a_pipe_may_be_waited_for_too(
    rest: RestClient, restms_gateway: RunningGateway, waits: Queue[None]
) -> None:
    feed, pipe = rest.feed("watched pipe", "fanout"), rest.pipe()
    rest.join(pipe, feed)
    etag = rest.send("GET", pipe).headers["etag"]
    with ThreadPoolExecutor(1) as pool, restms_gateway.client() as http:
        waiting = pool.submit(RestClient(http).get, pipe, when_none_match=etag, prefer="wait=60")
        waits.get(timeout=WAIT_SECONDS)
        rest.post(feed, message("a"))
        assert [m.get("address") for m in waiting.result(WAIT_SECONDS).each("message")] == ["a", ""]


@pytest.mark.parametrize("media", FORMS)
def test_a_message_can_be_asked_for_before_it_is_there(
    rest: RestClient, restms_gateway: RunningGateway, media: str
) -> None:
    rest.media = media
    feed, pipe = rest.feed("", "fanout"), rest.pipe()
    rest.join(pipe, feed)
    [to_come] = rest.get(pipe).each("message")
    assert to_come.get("async") == "1"
    rest.send("GET", to_come.get("href"), status=504, prefer="wait=0")
    # The message was not seen, so it cannot be deleted.
    rest.send("DELETE", to_come.get("href"), status=404)
    with ThreadPoolExecutor(1) as pool, restms_gateway.client() as http:
        waiting = pool.submit(RestClient(http, media).get, to_come.get("href"), prefer="wait=60")
        rest.post(feed, message("1", "one"), message("2"))
        first = waiting.result(WAIT_SECONDS)
    assert (first.get("address"), content_of(first)) == ("1", "one")
    # The message has its own name, and the one that it had before it came.
    again = rest.send("GET", to_come.get("href"))
    assert again.headers["content-location"] == first.get("href")
    for url in (to_come.get("href"), first.get("href"), first.get("href")):
        rest.send("DELETE", url)
    # Deleting it twice has not deleted the next one.
    assert rest.addresses(pipe, 1) == ["2"]
    rest.send("GET", first.get("href"), status=404)


def test_with_a_message_all_older_ones_are_deleted(rest: RestClient, restms_broker: Broker) -> None:
    feed, pipe = rest.feed("older", "fanout"), rest.pipe()
    rest.join(pipe, feed)
    rest.post(feed, *(message(str(n)) for n in range(5)))
    while len([*(document := rest.get(pipe)).each("message")]) < 6:
        pass
    hrefs = [found.get("href") for found in document.each("message")]
    rest.send("DELETE", hrefs[2])
    assert rest.addresses(pipe, 2) == ["3", "4"]
    service = f"restms.pipe.{document.get('name')}"
    with malamute.connect(restms_broker.url, timeout=WAIT_SECONDS) as native:
        while next(row for row in native.query(ServicesQuery()) if row.name == service).messages:
            pass
        rest.send("DELETE", pipe)
        rest.send("GET", pipe, status=404)
        rest.send("GET", hrefs[3], status=404)
        assert service not in {row.feed for row in native.query(malamute.protocol.admin.FeedsQuery())}


def test_contents_are_staged_published_once_and_fetched(rest: RestClient) -> None:
    feed, other, pipe = rest.feed("contents", "fanout"), rest.feed("others", "fanout"), rest.pipe()
    rest.join(pipe, feed)
    # One that is larger than a reader's credit comes all the same.
    image = bytes(range(256)) * 8192

    def stage(url: str) -> str:
        answer = rest.http.post(url, content=image, headers={"content-type": "image/png"})
        assert (answer.status_code, answer.content) == (201, b"")
        return answer.headers["location"]

    def of(href: str) -> Element:
        return Element("message", {"address": "a"}, [Element("content", {"href": href})])

    href, foreign = stage(feed), stage(other)
    staged = rest.http.get(href)
    assert (staged.content, staged.headers["content-type"]) == (image, "image/png")
    # All contents are looked at before anything is routed.
    rest.send("POST", feed, of(href), of(foreign), status=403)
    rest.send("POST", feed, of(href), of(href), status=404)
    rest.post(feed, of(href))
    rest.send("POST", feed, of(href), status=404)
    rest.send("GET", href, status=404)
    rest.send("DELETE", foreign)
    rest.send("GET", foreign, status=404)
    [content] = (found := rest.next(pipe)).each("content")
    assert (content.get("type"), content.text) == ("image/png", "")
    delivered = rest.http.get(content.get("href"))
    assert (delivered.content, delivered.headers["content-type"]) == (image, "image/png")
    rest.send("DELETE", found.get("href"))
    rest.send("GET", content.get("href"), status=404)
    assert [m.get("async") for m in rest.get(pipe).each("message")] == ["1"]


def test_embedded_contents_are_text_or_base64(rest: RestClient) -> None:
    feed, pipe = rest.feed("embedded", "fanout"), rest.pipe()
    rest.join(pipe, feed)
    plain = Element("content", {"type": "text/plain"}, text="a <b> & \r\n\t'c'")
    coded = Element("content", {"encoding": "base64", "type": "text/x"}, text="aGkg\n w6k=")
    rest.post(feed, *(Element("message", {"address": "a"}, [content]) for content in (plain, coded)))
    assert [content_of(found) for found in rest.take(pipe, 2)] == [plain.text, "hi é"]
    for bad in ({"encoding": "base64"}, {"encoding": "rot13"}):
        element = Element("message", {"address": "a"}, [Element("content", bad, text="?")])
        rest.send("POST", feed, element, status=400)
    rest.send("POST", feed, Element("message", {}, [plain, coded]), status=400)
    smuggled = Element("content", {"type": "text/plain\r\nx: y"}, text="a")
    rest.send("POST", feed, Element("message", {}, [smuggled]), status=400)


BAD = (
    ("POST", DOMAIN, Element("feed", {"name": "x", "type": "nonsense"}), 400),
    ("POST", DOMAIN, Element("feed", {"name": "restms.x"}), 400),
    ("POST", DOMAIN, Element("feed", {"name": "$sys"}), 400),
    ("POST", DOMAIN, Element("feed", {"name": "x" * 256}), 400),
    ("POST", DOMAIN, Element("feed", {"name": "x", "storage": "tape"}), 400),
    ("POST", DOMAIN, Element("feed", {"name": "x", "storage": "ring", "size": "-1"}), 400),
    ("POST", DOMAIN, Element("feed", {"name": "x", "size": "1"}), 400),
    ("POST", DOMAIN, Element("feed", {"name": "default", "type": "topic"}), 400),
    ("POST", DOMAIN, Element("pipe", {"type": "nonsense"}), 400),
    ("POST", DOMAIN, Element("pipe", {"storage": "ring"}), 400),
    ("POST", DOMAIN, Element("join"), 400),
    ("POST", "/restms/feed/default", Element("feed"), 400),
    ("POST", "/restms/feed/nowhere", message("a"), 404),
    ("GET", "/restms/feed/nowhere", None, 404),
    ("GET", "/restms/resource/nowhere", None, 404),
    ("GET", "/restms/resource/nowhere.0.1", None, 404),
    ("PUT", "/restms/feed/default", Element("feed", {"title": "mine"}), 403),
    ("DELETE", "/restms/feed/default", None, 403),
    ("PATCH", "/restms/feed/default", None, 405),
    ("POST", "/restms/profile/x", Element("feed"), 403),
    ("POST", DOMAIN, Element("feed", {"name": "."}), 400),
    ("POST", DOMAIN, Element("feed", {"name": ".."}), 400),
    ("GET", f"{DOMAIN}?x=1", None, 400),
    ("GET", "/restms/feed/%ff", None, 400),
)


@pytest.mark.parametrize(("method", "url", "element", "status"), BAD)
def test_bad_requests_are_problems(
    rest: RestClient, method: str, url: str, element: Element | None, status: int
) -> None:
    answer = rest.send(method, url, *([element] if element else []), status=status)
    _check_problem(answer)


def _check_problem(answer: httpx.Response) -> None:
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (problem["status"], problem["code"] in BY_CODE) == (answer.status_code, True)


def test_bad_joins_and_bodies_are_problems(rest: RestClient) -> None:
    pipe, topics, regexps = rest.pipe(), rest.feed("bad joins", "topic"), rest.feed("headers", "headers")
    for feed, address, kind in (
        (topics, "a*", ""),
        (topics, "(", "regexp"),
        (topics, "[", "geo"),
        (topics, "", "nonsense"),
        (regexps, "", ""),
        ("http://example.com/x", "", ""),
        ("http://[", "", ""),
        ("", "", ""),
    ):
        _check_problem(rest.send("POST", pipe, _join(feed, address, kind), status=400))
    _check_problem(rest.send("POST", pipe, _join("/restms/feed/nowhere"), status=404))
    # Nothing of it was kept.
    assert len([*rest.get(pipe).each("join")]) == 1
    for url, body, media, status in (
        (pipe, b"<restms><join/></restms>", "text/plain", 415),
        (DOMAIN, b"<!DOCTYPE x><restms/>", "text/xml", 400),
        (topics, b"{", RESTMS_JSON, 400),
        (topics, b"<restms/>", RESTMS_XML, 400),
        (topics, b"x" * (16 * 1024 * 1024 + 1), RESTMS_XML, 413),
        (topics, b"<restms>" + b"<message/>" * 10_001 + b"</restms>", RESTMS_XML, 413),
    ):
        answer = rest.http.post(url, content=body, headers={"content-type": media})
        assert answer.status_code == status, answer.text
        _check_problem(answer)
    [to_come] = rest.get(pipe).each("message")
    epoch = to_come.get("href").partition(".next.")[2].partition(".")[0]
    for name in ("next", "next.x.1", "next..", f"next.{epoch}.²", "0.99", "0", ".content"):
        rest.send("GET", f"{pipe}.{name}", status=404)
        # A missing message is deleted already.
        rest.send("DELETE", f"{pipe}.{name}", status=403 if name == ".content" else 200)
    rest.send("DELETE", to_come.get("href"), status=404)


def test_a_delete_that_is_repeated_is_done(rest: RestClient) -> None:
    feed, pipe = rest.feed("twice", "fanout"), rest.pipe()
    private, join = rest.feed("", "fanout"), rest.join(pipe, feed)
    rest.post(feed, message("a"))
    href = rest.next(pipe).get("href")
    content = rest.http.post(feed, content=b"x", headers={"content-type": "a/b"}).headers["location"]
    for url in (href, join, content, pipe, private, feed, "/restms/resource/nowhere"):
        for _ in range(2):
            rest.send("DELETE", url)


def test_clients_write_the_name_space_in_their_own_ways(rest: RestClient) -> None:
    for number, space in enumerate(
        ("", ' xmlns="http://www.imatix.com/schema/restms"', ' xmlns="http://restms.org/schema/restms"')
    ):
        body = f'<restms{space}><feed name="space {number}" type="topic"/></restms>'
        answer = rest.http.post(DOMAIN, content=body, headers={"content-type": "text/xml"})
        assert answer.status_code == 201, answer.text
        assert rest.get(answer.headers["location"]).get("type") == "topic"
    prefixed = '<r:restms xmlns:r="x" xmlns:o="y"><o:feed/><r:feed name="prefixed"/></r:restms>'
    assert rest.http.post(DOMAIN, content=prefixed, headers={"content-type": "text/xml"}).status_code == 201


def test_who_writes_json_and_accepts_anything_is_answered_in_json(rest: RestClient) -> None:
    for accept, media in (("*/*", RESTMS_JSON), ("", RESTMS_JSON), ("text/xml", "text/xml")):
        headers = {"content-type": RESTMS_JSON, "accept": accept}
        answer = rest.http.post(DOMAIN, json={"restms": {"pipe": [{}]}}, headers=headers)
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (201, media)


def test_a_private_feed_is_changed_with_the_document_that_made_it(rest: RestClient) -> None:
    private = rest.feed("", "topic", title="old")
    element = Element("feed", {"name": "", "type": "topic", "title": "new"})
    rest.send("PUT", private, element)
    assert rest.get(private).get("title") == "new"
    rest.send("PUT", private, Element("feed", {"name": "other"}), status=400)
    rest.send("PUT", rest.feed("public", "topic"), element, status=400)


def _join(feed: str, address: str = "", kind: str = "") -> Element:
    return Element("join", {"feed": feed, "address": address, "type": kind})


def test_a_message_that_cannot_be_read_keeps_no_pipe_from_being_read(
    rest: RestClient, restms_broker: Broker
) -> None:
    pipe = rest.pipe()
    rest.join(pipe, rest.feed("poisoned", "fanout"))
    publish_damaged(restms_broker.url, "poisoned")
    assert [content_of(found) for found in rest.take(pipe, 2)] == ["1", "3"]
    with malamute.connect(restms_broker.url, timeout=WAIT_SECONDS) as client:
        dead = {row.name: row.dead_letters for row in client.query(ServicesQuery())}
    assert [count for name, count in dead.items() if pipe.rpartition("/")[2] in name] == [1]


def test_who_is_refused_a_pipe_leaves_nothing_behind(
    rest: RestClient, restms_gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*arguments: object) -> None:
        raise AccessRefused("not you")

    rest.send("GET", DOMAIN)
    before = len(restms_gateway.state.restms.readers)
    monkeypatch.setattr(PipeReader, "open", refuse)
    rest.send("POST", DOMAIN, Element("pipe"), status=403)
    assert len(restms_gateway.state.restms.readers) == before


def test_the_type_of_a_content_keeps_its_letters(rest: RestClient) -> None:
    feed, pipe = rest.feed("letters", "fanout"), rest.pipe()
    rest.join(pipe, feed)
    kind = 'image/png; name="Zürich 天気"'
    staged = rest.http.post(feed, content=b"\xff", headers=[(b"content-type", kind.encode())])
    assert staged.status_code == 201
    content = Element("content", {"href": staged.headers["location"]})
    rest.post(feed, Element("message", {"address": "a"}, [content]))
    [found] = rest.next(pipe).each("content")
    assert found.get("type") == kind
    raw = dict(rest.http.get(found.get("href")).headers.raw)
    assert raw[b"content-type"] == kind.encode()


def test_a_content_that_is_a_page_is_nobody_here(rest: RestClient) -> None:
    page = "<form action=//evil.example>"
    headers = {"content-type": "text/html"}
    staged = rest.http.post(rest.feed("pages"), content=page, headers=headers).headers["location"]
    policy = rest.http.get(staged).headers["content-security-policy"]
    assert {"sandbox", "form-action 'none'", "default-src 'none'"} <= {*policy.split("; ")}
