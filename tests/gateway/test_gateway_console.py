"""The operators' console: its pages, who may come, what forms do, and that no message is ever run."""

from __future__ import annotations

import html
import json
import re
import shlex
import socket
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import click
import httpx
import pytest
from damaged_messages import publish_damaged
from running_gateway import WAIT_SECONDS, RunningGateway, gateway_before, until, wait_for_dead
from secured_gateway import secured_gateway
from starlette.requests import HTTPConnection

import malamute
from malamute.cli.root import cli
from malamute.client.options import TIMEOUT_SECONDS
from malamute.config import Config, StreamRule, StreamsConfig
from malamute.config.sections import SECTIONS, types_of
from malamute.gateway.console import consumption, symptoms, watch
from malamute.gateway.console.rendering import static_files
from malamute.gateway.console.sessions import (
    COOKIE,
    IDLE_SECONDS,
    LIFE_SECONDS,
    SECURE_COOKIE,
    SESSIONS_MAX,
    ConsoleSessions,
)
from malamute.gateway.console.site import PAGES
from malamute.gateway.console.stream_pages import HISTORY_MESSAGES
from malamute.gateway.console.visits import RENEWS
from malamute.gateway.console.words import link
from malamute.gateway.users import ANONYMOUS, Identity
from malamute.protocol.admin import StreamRetain, StreamsQuery
from malamute.testing import Broker

PAGE_BYTES_MAX = 100 * 1024

CSS = static_files()["console.css"].data.decode()

LINK = {"link": "page", "urls": ["tcp://one:9999"], "remote": "news", "stream": "news"}
HOSTILE = "\"'><script>document.title='run'</script><img src=x onerror=alert(1)>{{7*7}}</textarea>"
"""Text that would be run, in one place or another, if it was not escaped."""


@pytest.fixture(scope="module")
def running() -> Iterator[RunningGateway]:
    """A gateway before a broker with hostile names, messages and clients."""
    with (
        pytest.MonkeyPatch.context() as patch,
        Broker() as broker,
        gateway_before(broker) as gateway,
        malamute.connect(broker.url, address=HOSTILE, timeout=WAIT_SECONDS) as client,
        client.subscribe(HOSTILE, HOSTILE, family="exact", where=f"h = '{HOSTILE.replace(chr(39), '')}'"),
        client.work(HOSTILE),
    ):
        patch.setattr(watch, "INTERVAL_SECONDS", 0.2)
        for stream in (HOSTILE, "items", "__class__"):
            client.publish(stream, HOSTILE, HOSTILE.encode(), {"h": HOSTILE}, assurance="stored")
        client.bucket(HOSTILE).put("key", HOSTILE)
        client.send(HOSTILE, HOSTILE, HOSTILE.encode(), {"h": HOSTILE})
        client.receive(timeout=WAIT_SECONDS).reject(HOSTILE)
        client.send(HOSTILE, HOSTILE, HOSTILE.encode())
        client.change("feed.set", source="stream/items", feed=HOSTILE, target=f"service/{HOSTILE}")
        client.change("link.set", **{**LINK, "link": HOSTILE, "remote": HOSTILE, "stream": "copied"})
        client.flush()
        yield gateway


@pytest.fixture
def console(running: RunningGateway) -> Iterator[httpx.Client]:
    with running.client(headers={"origin": running.url}) as http:
        yield http


class Page(HTMLParser):
    """The tags and texts of a page, as far as the tests ask."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    @property
    def csrf(self) -> str:
        return next(found["value"] or "" for _, found in self.tags if found.get("name") == "csrf")

    @property
    def loaded(self) -> list[str]:
        """The files that it loads."""
        return [
            path
            for _, found in self.tags
            for path in (found.get("src"), found.get("href"))
            if path and "/static/" in path
        ]


def _addresses(name: str) -> list[str]:
    queue = {"kind": "mailbox", "name": name}
    return [
        "/",
        "/console/streams",
        link("/console/stream", name=name),
        link("/console/stream/history", name=name),
        link("/console/stream/subjects", name=name),
        link("/console/stream/again", name=name, sequence=1),
        link("/console/stream/tail", name=name, pattern=HOSTILE, where="a = 1"),
        "/console/queues",
        link("/console/queue", **queue),
        link("/console/queue", **queue, show="dead"),
        link("/console/queue/again", **queue, sequence=1),
        link("/console/queue", kind="service", name=name),
        link("/console/consumers"),
        "/console/clients",
        link("/console/client", id=name),
        "/console/feeds",
        "/console/links",
        link("/console/users", user=HOSTILE, action="publish", target=f"stream/{HOSTILE}"),
        "/console/settings",
        link("/console/explain", name=name, sequence=1, subscriber=name),
        link("/console/explain", kind="mailbox", name=name, sequence=1),
    ]


@pytest.mark.parametrize("address", _addresses(HOSTILE))
def test_a_page_shows_hostile_content_and_has_nothing_to_run(console: httpx.Client, address: str) -> None:
    answer = console.get(address)
    assert answer.status_code == 200, answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    page = Page(answer.text)
    for tag, attributes in page.tags:
        assert not any(name == "style" or name.startswith("on") for name in attributes), attributes
        assert tag != "style"
        for place in ("src", "href", "action"):
            assert (attributes.get(place) or "/").startswith(("/", "#main")), attributes
        assert tag not in ("script", "img") or "/console/static/" in (attributes["src"] or "")
    assert "49" not in re.findall(r">(\d+)</textarea>", answer.text)
    sizes = {path.partition("?")[0].rpartition("/")[2]: 0 for path in page.loaded}
    assert len(answer.content) + sum(len(static_files()[name].data) for name in sizes) < PAGE_BYTES_MAX


def test_every_page_is_looked_at_with_hostile_content() -> None:
    looked_at = {address.partition("?")[0] for address in _addresses("x")}
    shown = {page.path for page in PAGES if page.method == "GET"}
    assert shown - looked_at == {"/console/stream/events"}


@pytest.mark.parametrize("name", ["items", "__class__"])
def test_a_stream_may_be_called_as_anything_in_python_is(console: httpx.Client, name: str) -> None:
    for path in ("/console/stream", "/console/stream/history", "/console/stream/subjects"):
        answer = console.get(link(path, name=name))
        assert (answer.status_code, HOSTILE in answer.text) == (200, False)


def test_a_body_is_indented_json_or_bytes_and_a_page_of_long_ones_is_small(
    running: RunningGateway, console: httpx.Client
) -> None:
    with malamute.connect(running.state.settings.broker, timeout=WAIT_SECONDS) as client:
        client.publish("bodies", "json", b'{"a":{"b":[1,2.50]}}', assurance="stored")
        client.publish("bodies", "png", b"\x89PNG\r\n", assurance="stored")
        client.send("bodies", "json", b"[1]")
        long = b'{"names": ["%s"]}' % b'", "'.join([b"n" * 20] * 1_000)
        client.publish_batch("bodies/long", ["a.b"] * HISTORY_MESSAGES, [long] * HISTORY_MESSAGES)
        client.flush()
    history = html.unescape(console.get(link("/console/stream/history", name="bodies")).text)
    shown = re.findall(r'<div class="copied"><pre>([^<]*)</pre><button class="copy', history)
    assert shown == [
        '{\n  "a": {\n    "b": [\n      1,\n      2.50\n    ]\n  }\n}',
        f"00000000  {'89 50 4e 47 0d 0a':<48} .PNG..",
    ]
    assert re.findall(r'<p class="quiet">(JSON|hex|text), ([^<]*)<', history) == [
        ("JSON", "20 B · "),
        ("hex", "6 B"),
    ]
    [as_hex] = {found["href"] or "" for _, found in Page(history).tags if "hex=true" in str(found)}
    dump = html.unescape(console.get(as_hex).text)
    assert "<pre>00000000  7b 22 61 22 3a 7b 22 62 22 3a" in dump
    [as_text] = {path for path in re.findall(r' · <a href="([^"]*)">text</a>', dump)}
    assert '"b": [' in html.unescape(console.get(as_text).text)
    mailbox = console.get(link("/console/queue", kind="mailbox", name="bodies")).text
    assert "<pre>[\n  1\n]</pre>" in mailbox
    page = console.get(link("/console/stream/history", name="bodies/long"))
    sizes = {path.partition("?")[0].rpartition("/")[2] for path in Page(page.text).loaded}
    assert len(page.content) + sum(len(static_files()[name].data) for name in sizes) < PAGE_BYTES_MAX
    [more] = {found["href"] or "" for _, found in Page(page.text).tags if "start=seq%3A7&" in str(found)}
    whole = console.get(more).text
    assert whole.count('class="message"') == 1
    assert whole.count("nnnnnnnnnnnnnnnnnnnn") > 500


def test_a_page_that_is_not_there_and_a_method_that_it_has_not(console: httpx.Client) -> None:
    assert console.get(link("/console/stream", name="none")).status_code == 404
    assert console.post("/console/streams").status_code == 405
    assert console.get("/console/streams?pages=1").status_code == 400
    assert console.get("/console/static/../site.py").status_code == 404
    assert console.get("/console/static/console.css?v=old").headers["cache-control"] == "no-cache"


def _count(console: httpx.Client, name: str) -> str:
    [text] = re.findall(
        r'<p class="big">([\d,]+)<small>messages</small>',
        console.get(link("/console/stream", name=name)).text,
    )
    return text


def test_a_form_needs_the_secret_of_its_session_and_a_page_of_this_console(
    running: RunningGateway, console: httpx.Client
) -> None:
    csrf = Page(console.get("/console/feeds").text).csrf
    fields = {"topic": "stream.purge", "stream": "items", "confirmed": "yes"}
    before = _count(console, "items")
    for secret, origin in (
        ("", running.url),
        ("wrong", running.url),
        (csrf, ""),
        (csrf, "null"),
        (csrf, "https://evil.example"),
    ):
        answer = console.post("/console/change", data={**fields, "csrf": secret}, headers={"origin": origin})
        assert answer.status_code == 403, (secret, origin)
    assert _count(console, "items") == before


def test_a_site_that_may_use_the_api_may_not_send_forms(running: RunningGateway) -> None:
    origin = "https://app.example.org"
    with (
        RunningGateway(replace(running.state.settings, origins=(origin,))) as gateway,
        gateway.client(headers={"origin": origin}) as http,
    ):
        csrf = Page(http.get("/console/feeds").text).csrf
        answer = http.post("/console/change", data={"csrf": csrf, "topic": "broker.reload"})
        assert answer.status_code == 403


def test_buckets_are_listed_beside_the_queues(console: httpx.Client) -> None:
    text = console.get("/console/queues").text
    assert "<h2>Buckets</h2>" in text
    assert HOSTILE not in text
    assert "<h2>Buckets</h2>" not in console.get("/console/queues?find=nothing").text


def test_streams_of_the_broker_itself_are_hidden_until_they_are_asked_for(console: httpx.Client) -> None:
    streams = until(lambda: console.get("/console/streams").text, lambda text: "of the broker itself" in text)
    assert ">$sys</a>" not in streams + console.get("/").text
    assert ">$sys</a>" in console.get("/console/streams?find=$").text
    assert ">items</a>" not in console.get("/console/streams?find=$").text


def test_an_empty_broker_shows_first_steps_until_it_has_a_stream() -> None:
    with (
        Broker() as broker,
        gateway_before(broker) as gateway,
        gateway.client() as http,
        malamute.connect(broker.url, timeout=WAIT_SECONDS) as client,
    ):
        page = http.get("/").text
        first, *commands = re.findall(r'<div class="copied"><pre>([^<]*)</pre><button', html.unescape(page))
        assert first == f"export MALAMUTE_URL={broker.url}"
        assert len(commands) == 5
        for command in commands:
            name, *arguments = shlex.split(command)[1:]
            known = cli.get_command(click.Context(cli), name)
            assert known is not None, command
            known.make_context(name, arguments)
        client.publish("weather", "temp.oslo", b"", assurance="stored")
        assert "First steps" not in http.get("/").text


@pytest.mark.parametrize("path", ["/none", "/console", "/v1/none"])
def test_a_browser_on_a_wrong_path_gets_a_page_and_a_program_a_problem(
    console: httpx.Client, path: str
) -> None:
    page = console.get(path, headers={"accept": "text/html,*/*;q=0.8"})
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert f"there is no path &#39;{path}&#39;" in page.text
    assert '<a href="/">' in page.text
    assert console.get(path).json()["code"] == 901


def test_the_last_data_is_shown_while_the_broker_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "INTERVAL_SECONDS", 0.2)
    with (
        Broker() as broker,
        gateway_before(broker, timeout_seconds=0.5) as gateway,
        gateway.client() as http,
    ):
        with malamute.connect(broker.url, timeout=WAIT_SECONDS) as client:
            client.publish("kept", "s", b"", assurance="stored")
        http.get("/")
        of_all = gateway.server.config.app.state.console.watches.of(ANONYMOUS)  # type: ignore[union-attr]
        until(lambda: any(row.name == "kept" for row in of_all.found("streams") or []))
        for path in ("/", "/console/streams"):
            assert "data-live hidden></p>" in http.get(path).text
        broker.stop()
        for path in ("/", "/console/streams"):
            page = http.get(path)
            assert (page.status_code, ">kept</a>" in page.text) == (200, True)
            assert re.search(r"data-live>Reconnecting to the broker: the data is of 20\d\d-", page.text)
        other = http.get(link("/console/stream", name="kept"))
        assert (other.status_code in (503, 504), "data-until-well" in other.text) == (True, True)


def test_what_destroys_says_first_what_it_would_do(console: httpx.Client) -> None:
    csrf = Page(console.get("/console/feeds").text).csrf
    publish = {"csrf": csrf, "name": "prices", "subject": "a.b", "headers": 'n=1\nt="1"', "body": "x\r\ny"}
    assert console.post("/console/stream/publish", data=publish).status_code == 303
    assert "Published to prices" not in console.get("/console/streams", headers={RENEWS: "1"}).text
    assert "Published to prices as 1" in console.get("/console/streams").text
    assert "Published to prices" not in console.get("/console/streams").text
    history = console.get(link("/console/stream/history", name="prices")).text
    headers = re.findall(r'<th scope="row">([^<]*)</th><td class="text mono">([^<]*)</td>', history)
    assert headers == [("n", "1"), ("t", "&#34;1&#34;")]
    assert "x\ny" in history

    made = {
        "csrf": csrf,
        "topic": "stream.create",
        "stream": "now",
        "journal": "no",
        "bytes": "",
        "count": "",
    }
    assert console.post("/console/change", data={**made, "back": "/console/streams"}).status_code == 303
    assert console.get("/v1/admin/stream?name=now").json()["journaled"] is False

    fields = {"csrf": csrf, "topic": "stream.purge", "stream": "prices", "back": "//evil.example/"}
    asked = console.post("/console/change", data=fields)
    assert asked.status_code == 200
    assert "<h1>1 message of the stream prices is dropped.</h1>" in asked.text
    # A key that is pressed by mistake changes nothing.
    [focused] = [found for _, found in Page(asked.text).tags if "autofocus" in found]
    assert (focused["href"], "Cancel</a>" in asked.text) == ("/", True)
    assert _count(console, "prices") == "1"
    done = console.post("/console/change", data={**fields, "confirmed": "yes"})
    assert (done.status_code, done.headers["location"]) == (303, "/")
    assert _count(console, "prices") == "0"


def test_what_hangs_on_a_stream_is_shown_before_it_ends_with_it() -> None:
    with (
        Broker() as broker,
        malamute.connect(broker.url, timeout=WAIT_SECONDS) as client,
        gateway_before(broker) as gateway,
    ):
        client.publish("used", "s", b"x", assurance="stored")
        with gateway.client(headers={"origin": gateway.url}) as http, client.subscribe("used") as reader:
            csrf = Page(http.get("/console/feeds").text).csrf
            fields = {"csrf": csrf, "topic": "stream.delete", "stream": "used"}
            asked = http.post("/console/change", data=fields)
            assert asked.status_code == 200
            assert "Dependents are deleted as well" in asked.text
            assert "<h1>The stream used is deleted with 1 message, 1 reader.</h1>" in asked.text
            assert 'name="cascade" value="yes"' in asked.text
            # Nothing of it was done yet, and without that word nothing is.
            assert http.post("/console/change", data={**fields, "confirmed": "yes"}).status_code == 409
            assert _count(http, "used") == "1"
            sure = {**fields, "confirmed": "yes", "cascade": "yes"}
            assert http.post("/console/change", data=sure).status_code == 303
            with pytest.raises(malamute.MalamuteError):
                reader.receive(WAIT_SECONDS)
            assert http.get(link("/console/stream", name="used")).status_code == 404


def test_dead_letters_are_redriven_one_by_one_and_sent_again_edited(
    running: RunningGateway, console: httpx.Client
) -> None:
    with malamute.connect(running.state.settings.broker, address="carol", timeout=WAIT_SECONDS) as carol:
        long = "three" * 2_000
        for body in (b"one", b"two", long.encode()):
            carol.send("carol", "note", body, {"n": "1"})
            carol.receive(timeout=WAIT_SECONDS).reject("no room")
        wait_for_dead(carol, "carol", 3)
        csrf = Page(console.get("/console/feeds").text).csrf
        queue = {"csrf": csrf, "kind": "mailbox", "name": "carol"}
        fields = {**queue, "topic": "queue.redrive", "some": "yes"}
        none_chosen = console.post("/console/change", data={**fields, "confirmed": "yes"})
        assert none_chosen.status_code == 400
        chosen = console.post("/console/change", data={**fields, "sequences": "2", "confirmed": "yes"})
        assert chosen.status_code == 303
        with carol.mailbox() as mail:
            assert mail.receive(timeout=WAIT_SECONDS).body == b"two"
            form = console.get(link("/console/queue/again", kind="mailbox", name="carol", sequence=3)).text
            assert f"\n{long}</textarea>" in form
            assert "n=&#34;1&#34;</textarea>" in form
            again = {
                **queue,
                "sequence": "3",
                "subject": "note",
                "headers": 'n="1"\nm=2',
                "body": "third",
                "drop": "yes",
            }
            assert console.post("/console/queue/again", data=again).status_code == 303
            message = mail.receive(timeout=WAIT_SECONDS)
            assert (message.body, message.headers) == (b"third", {"n": "1", "m": 2})
        dead = console.get(link("/console/queue", kind="mailbox", name="carol", show="dead")).text
        assert re.findall(r'name="sequences" value="(\d+)"', dead) == ["1"]
        again = link("/console/queue/again", kind="mailbox", name="carol", sequence=3)
        assert console.get(again).status_code == 404


def test_a_form_that_cannot_be_published_keeps_what_was_typed(console: httpx.Client) -> None:
    csrf = Page(console.get("/console/feeds").text).csrf
    typed = {"csrf": csrf, "name": "typed", "subject": "", "headers": "n=1", "body": "<long text>"}
    without = {name: value for name, value in typed.items() if name != "subject"}
    wrong_header = {**typed, "subject": "a.b", "headers": "=1\nn=2"}
    too_long = {**typed, "subject": "x" * 256}
    for fields, field, words in (
        (typed, "subject", "no subject"),
        (without, "subject", "no subject"),
        (wrong_header, "headers", "invalid header"),
        (too_long, "subject", "subject"),
    ):
        page = console.post("/console/stream/publish", data=fields)
        assert page.status_code in (400, 413), page.text
        assert words in page.text
        assert f'id="{field}-error"' in page.text or not field
        assert html.escape(fields["body"]) in page.text
        assert html.escape(fields["headers"]) in page.text
    assert console.get(link("/console/stream", name="typed")).status_code == 404


def test_a_link_is_set_paused_and_resumed_on_its_page(console: httpx.Client) -> None:
    csrf = Page(console.get("/console/links").text).csrf
    given = {**LINK, "urls": "tcp://one:9999\ntcp://two:9999", "criteria": "temp.*", "where": "a > 1"}
    which = {"link": LINK["link"], "stream": LINK["stream"]}
    for topic, fields, words, shown in (
        ("link.set", given, "is new and goes into news", "WAITING"),
        ("link.pause", which, "at no position, pauses", "PAUSED"),
        ("link.resume", which, "at no position, resumes", "WAITING"),
        ("link.remove", which, "at no position, is removed", ""),
    ):
        change = {"topic": topic, "csrf": csrf, "back": "/console/links", **fields}
        assert words in html.unescape(console.post("/console/change", data=change).text)
        done = console.post("/console/change", data={**change, "confirmed": "yes"})
        assert done.headers["location"] == "/console/links"
        rows = [row for row in console.get("/console/links").text.split("<tr>") if "<td>page</td>" in row]
        assert all(shown in row and "news at tcp://one:9999, tcp://two:9999" in row for row in rows)
        assert len(rows) == bool(shown)


def test_a_change_that_is_refused_keeps_its_form_with_the_error_at_its_field(console: httpx.Client) -> None:
    csrf = Page(console.get("/console/feeds").text).csrf
    retain = {"topic": "stream.retain", "stream": "items", "bytes": "64MiB", "count": "5", "age": "7d"}
    feed = {
        "topic": "feed.set",
        "source": "stream/items",
        "feed": "f",
        "target": "service/s",
        "when": "match",
    }
    queue = {"topic": "queue.redrive", "kind": "mailbox", "name": HOSTILE, "some": "yes"}
    for fields, field, words in (
        ({**retain, "bytes": "64 MiX"}, "bytes", "invalid size"),
        ({**retain, "stream": ""}, "stream", "missing argument"),
        ({**retain, "stream": "x" * 300}, "stream", "invalid stream"),
        (
            {"topic": "cursor.set", "stream": "items", "cursor": "c", "start": "never"},
            "start",
            "invalid start",
        ),
        ({**feed, "target": "nowhere"}, "target", "invalid target"),
        ({**feed, "criteria": "all", "where": "a ="}, "", "Not done"),
        (queue, "sequences", "no message is chosen"),
        ({"topic": "client.disconnect", "id": "none"}, "", "Not done"),
    ):
        page = console.post("/console/change", data={**fields, "csrf": csrf, "back": "/console/queues"})
        assert page.status_code in (400, 404), page.text
        assert re.findall(r'id="(\w+)-error"', page.text) == [field] * bool(field), page.text
        assert words in html.unescape(page.text)
        kept = Page(page.text).tags
        typed = {name: value for name, value in fields.items() if name != "criteria"}
        assert {found["name"]: found.get("value") for tag, found in kept if tag == "input"} == {
            "csrf": csrf,
            "back": "/console/queues",
            **typed,
        }
        assert 'href="/console/queues">Cancel' in page.text


def test_a_dead_letter_that_cannot_be_sent_again_keeps_what_was_typed(console: httpx.Client) -> None:
    csrf = Page(console.get("/console/feeds").text).csrf
    typed = {"kind": "mailbox", "name": HOSTILE, "sequence": "1", "subject": "s", "drop": "yes"}
    page = console.post(
        "/console/queue/again", data={**typed, "csrf": csrf, "headers": "=1", "body": "<long text>"}
    )
    assert page.status_code == 400
    assert re.findall(r'id="(\w+)-error"', page.text) == ["headers"]
    assert "&lt;long text&gt;</textarea>" in page.text
    assert 'name="drop" value="yes" checked' in page.text


def test_a_message_of_a_stream_is_published_again_from_its_row(
    running: RunningGateway, console: httpx.Client
) -> None:
    with malamute.connect(running.state.settings.broker, timeout=WAIT_SECONDS) as client:
        client.publish("orders", "new", b"two of them\n", {"n": 1, "s": "1"}, assurance="stored")
        client.publish("orders", "image", b"\x89\xff", assurance="stored")
        history = console.get(link("/console/stream/history", name="orders")).text
        address = link("/console/stream/again", name="orders", sequence=1)
        assert html.escape(address) in history
        form = console.get(address).text
        assert 'name="subject" value="new"' in form
        [headers, body] = re.findall(r"<textarea[^>]*>\n([^<]*)</textarea>", form)
        assert (html.unescape(headers), body) == ('n=1\ns="1"', "two of them\n")
        fields = {"csrf": Page(form).csrf, "name": "orders", "subject": "new", "headers": 'n=1\ns="1"'}
        assert console.post("/console/stream/publish", data={**fields, "body": "three"}).status_code == 303
        with client.subscribe("orders", start="last") as orders:
            message = orders.receive(WAIT_SECONDS)
        assert (message.subject, message.body, message.headers) == ("new", b"three", {"n": 1, "s": "1"})
    image = console.get(link("/console/stream/again", name="orders", sequence=2)).text
    assert re.search(r'<button class="main" disabled', image)
    assert console.get(link("/console/stream/again", name="orders", sequence=9)).status_code == 404


def test_all_dead_letters_are_redriven_after_a_look_at_how_many(
    running: RunningGateway, console: httpx.Client
) -> None:
    with malamute.connect(running.state.settings.broker, address="hugo", timeout=WAIT_SECONDS) as hugo:
        for number in range(3):
            hugo.send("hugo", "note", b"%d" % number)
            hugo.receive(timeout=WAIT_SECONDS).reject("no room")
        wait_for_dead(hugo, "hugo", 3)
        csrf = Page(console.get("/console/feeds").text).csrf
        fields = {"csrf": csrf, "topic": "queue.redrive", "kind": "mailbox", "name": "hugo", "where": ""}
        asked = console.post("/console/change", data=fields)
        assert "<h1>3 dead letters go back to hugo.</h1>" in asked.text
        assert console.post("/console/change", data={**fields, "confirmed": "yes"}).status_code == 303
        with hugo.mailbox() as mail:
            assert [mail.receive(timeout=WAIT_SECONDS).body for _ in range(3)] == [b"0", b"1", b"2"]


def test_a_queue_shows_what_is_in_flight_and_by_whom(running: RunningGateway, console: httpx.Client) -> None:
    broker = running.state.settings.broker
    with (
        malamute.connect(broker, address="shop.oslo", timeout=WAIT_SECONDS) as shop,
        malamute.connect(broker, address="eve", timeout=WAIT_SECONDS) as eve,
        malamute.connect(broker, address="fay", timeout=WAIT_SECONDS) as fay,
        fay.consume("eve", "shop.*", auto_ack=False) as shared,
        fay.work("stitch", "a.*") as work,
    ):
        shop.send("eve", "s", b"")
        shop.request("stitch", "a.b", b"")
        held = [shared.receive(WAIT_SECONDS), work.receive(WAIT_SECONDS)]
        with eve.mailbox(auto_ack=False) as own:
            # The cursor is none of a shop's, so it is hers.
            eve.send("eve", "s", b"")
            held.append(own.receive(WAIT_SECONDS))
            rows = {}
            while len(rows) < 2:
                for kind, name in (("mailbox", "eve"), ("service", "stitch")):
                    text = console.get(link("/console/queue", kind=kind, name=name)).text
                    found = re.findall(r'">fay</a></td><td>([^<]*)</td><td class="n">(\d+)</td>', text)
                    rows |= {name: found} if found else {}
            assert rows == {"eve": [("shop.*", "1")], "stitch": [("a.*", "1")]}
            text = console.get(link("/console/queue", kind="mailbox", name="eve", show="in-flight")).text
            assert re.search(r'">eve</a> reads it since [^,]*, with 1 in flight, credit', text)
            assert len(re.findall(r'name="sequences" value="', text)) == 2
            for one in held:
                one.ack()


def test_a_consumer_has_its_states_over_time_its_credit_and_its_lag(
    running: RunningGateway, console: httpx.Client
) -> None:
    broker = running.state.settings.broker
    with (
        malamute.connect(broker, address="gus", timeout=WAIT_SECONDS) as gus,
        gus.subscribe("rain", credit=1),
    ):

        def row() -> str:
            text = console.get(link("/console/consumers", find="gus")).text
            return next((one for one in re.findall(r"<tr>.*?</tr>", text, re.DOTALL) if ">gus<" in one), "")

        until(row, lambda found: "States over the last looks: live" in found)
        # At once, so that no look of the watch sees a part of them.
        gus.publish_batch("rain", ["s"] * 50, [b""] * 50)
        found = until(row, lambda found: "States over the last looks: live, replay" in found)
        cells = re.findall(r"<td[^>]*>\s*(?:<[^>]*>)*([^<]*)", found)
        name, stream, state, _, lag, behind, trend, _, credit = cells[:9]
        assert (name, stream, state, trend, credit) == ("gus", "rain", "REPLAY", "rising", "0")
        assert int(behind) >= 48
        assert re.fullmatch(r"\d+ ms|[\d.]+ s|\d+ m.*", lag)


def _series(page: str) -> list[list[float]]:
    """The columns of the charts of a page; none while the watch knows nothing of its subject."""
    columns: list[list[float]] = []
    for text in re.findall(r'data-series="([^"]*)"', page):
        columns = json.loads(html.unescape(text))
    return columns


def _own_watch(gateway: RunningGateway) -> watch.BrokerWatch:
    """The watch that the gateway begins by itself."""
    watches = gateway.server.config.app.state.console.watches  # type: ignore[union-attr]
    until(lambda: ANONYMOUS in watches)
    found: watch.BrokerWatch = watches._by_identity[ANONYMOUS]
    return found


def test_the_first_page_has_rates_and_charts_and_so_have_pages_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "INTERVAL_SECONDS", 0.05)
    with (
        Broker() as broker,
        gateway_before(broker) as gateway,
        gateway.client() as http,
        malamute.connect(broker.url, address="ida", timeout=WAIT_SECONDS) as ida,
        ida.subscribe("rain"),
    ):
        ida.send("ida", "s", b"")
        own = _own_watch(gateway)
        while len(own.samples) < 3 or not (
            own.series["stream"].of("rain") and own.series["mailbox"].of("ida")
        ):
            ida.publish("rain", "s", b"", assurance="stored")
        page = http.get("/").text
        assert re.search(r'<h2>Published</h2><p class="big">[\d,.]+<small>', page)
        assert len(_series(page)) == 6
        stream = http.get(link("/console/stream", name="rain", minutes=5)).text
        assert len(_series(stream)) == 3
        assert 'minutes=5&amp;name=rain" aria-current="true">5 min</a>' in stream
        assert len(_series(http.get(link("/console/queue", kind="mailbox", name="ida")).text)) == 4
        client = until(
            lambda: http.get(link("/console/client", id="ida")).text, lambda text: len(_series(text)) == 2
        )
        assert "<figcaption>rain, messages behind <output>" in client
        assert http.get("/?minutes=31").status_code == 400


def test_a_gateway_that_may_not_watch_asks_once_and_does_not_guess(secured: RunningGateway) -> None:
    with RunningGateway(replace(secured.state.settings, anonymous=True)) as gateway:
        own = _own_watch(gateway)
        until(own.task.done)
        assert "error 905" in own.failure


def test_the_overview_says_when_retention_overtakes_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(consumption, "BEHIND_MESSAGES", 10)
    monkeypatch.setattr(symptoms, "LAG_LEVELS", (symptoms.LAG_LEVELS[-1]._replace(seconds=0.0, messages=0),))
    with (
        Broker() as broker,
        gateway_before(broker) as gateway,
        gateway.client() as http,
        malamute.connect(broker.url, address="ida", timeout=WAIT_SECONDS) as ida,
        ida.subscribe("rain", credit=1),
    ):
        ida.change(StreamRetain(stream="rain", count=100_000))
        while not (
            found := re.findall(
                r"ida is [^<]* rising; retention overtakes it in [\d hms]+", html.unescape(http.get("/").text)
            )
        ):
            ida.publish_batch("rain", ["s"] * 100, [b""] * 100)
        assert len(found) == 1
        row = http.get(link("/console/consumers", find="ida")).text
        assert re.search(r'rising</td><td class="n">[^-<]+</td>', row)


def test_a_client_that_is_away_is_no_alarm(console: httpx.Client) -> None:
    assert '<span class="state connected">CONNECTED</span>' in console.get("/console/clients").text
    [red] = re.findall(r"([^}]*)\{ background: var\(--bad-soft\); color: var\(--bad\); \}", CSS)
    assert "away" not in red


def test_a_feed_is_no_client_and_its_cursor_is_the_brokers(console: httpx.Client) -> None:
    readers = console.get(link("/console/stream", name="items")).text
    assert f"$feed/{HOSTILE}" in html.unescape(readers)
    assert 'href="/console/client"' not in readers
    assert 'value="$feed' not in console.get("/console/consumers").text


def test_a_message_that_cannot_be_read_hides_no_other(running: RunningGateway, console: httpx.Client) -> None:
    publish_damaged(running.state.settings.broker, "damaged")
    page = console.get(link("/console/stream/history", name="damaged"))
    assert page.status_code == 200, page.text
    assert re.findall(r'class="body">([^<]*)<', page.text) == ["1", "unreadable: its record is damaged", "3"]
    damaged = console.get(link("/console/stream/history", name="damaged", start="seq:2")).text
    assert "unreadable" in damaged


def test_the_way_back_goes_on_where_nothing_is_selected(
    running: RunningGateway, console: httpx.Client
) -> None:
    with malamute.connect(running.state.settings.broker, timeout=WAIT_SECONDS) as client:
        client.publish("sparse", "rare", b"found")
        for _ in range(3 * HISTORY_MESSAGES):
            client.publish("sparse", "often", b"")
        client.flush()
    address = link("/console/stream/history", name="sparse", pattern="rare")
    for _ in range(5):
        page = Page(console.get(address).text)
        earlier = [found["href"] for _, found in page.tags if found.get("rel") == "prev"]
        if not earlier:
            break
        assert earlier != [address]
        address = earlier[0] or ""
    assert "found" in console.get(address).text


@pytest.mark.parametrize("value", ["[" * 5_000, "9" * 30, '"\\ud800"'])
def test_what_cannot_be_the_value_of_a_header_is_text(
    running: RunningGateway, console: httpx.Client, value: str
) -> None:
    with malamute.connect(running.state.settings.broker, timeout=WAIT_SECONDS) as client:
        client.publish("values", "s", b"", {"h": value}, assurance="stored")
    history = console.get(link("/console/stream/history", name="values"))
    assert (history.status_code, value in html.unescape(history.text)) == (200, True)
    typed = link("/console/explain", name="values", subject="s", headers=f"h={value}")
    assert console.get(typed).status_code == 200


def test_a_password_that_is_too_long_is_a_wrong_value(console: httpx.Client) -> None:
    fields = {"csrf": Page(console.get("/console/feeds").text).csrf, "topic": "user.add", "name": "eve"}
    assert console.post("/console/change", data={**fields, "password": "x" * 1025}).status_code == 400


def test_the_tail_has_no_answer_without_its_body(console: httpx.Client) -> None:
    assert console.head("/console/streams").status_code == 200
    assert console.head(link("/console/stream/events", name="items")).status_code == 405


def test_explain_says_which_criterion_failed_and_where_the_message_is(
    running: RunningGateway, console: httpx.Client
) -> None:
    with malamute.connect(running.state.settings.broker, address="dora", timeout=WAIT_SECONDS) as dora:
        for n in range(3):
            dora.publish("levels", "high", b"x", {"n": n}, assurance="stored")
        with dora.subscribe("levels", "high", where="n > 0", start="first", credit=1):
            dora.flush()
            asked = {"kind": "stream", "name": "levels", "subscriber": "dora"}
            refused = console.get(link("/console/explain", **asked, sequence=1)).text
            assert "does not take it" in refused
            waits = console.get(link("/console/explain", **asked, sequence=3)).text
            assert "it waits in the stream" in waits
            late = console.get(link("/console/explain", **asked, sequence=4)).text
            assert "4 is not published yet" in late
            typed = console.get(link("/console/explain", **asked, subject="high", headers="n=5")).text
            assert "takes it" in typed


def test_explain_says_who_takes_a_message_of_a_queue_and_who_does_not(
    running: RunningGateway, console: httpx.Client
) -> None:
    broker = running.state.settings.broker
    with (
        malamute.connect(broker, address="jim", timeout=WAIT_SECONDS) as jim,
        malamute.connect(broker, address="kay", timeout=WAIT_SECONDS) as kay,
        jim.work("knit", "wool.*") as work,
        kay.consume("jim", "shop.*", auto_ack=False),
    ):
        kay.request("knit", "silk.red", b"")
        kay.send("jim", "s", b"")
        kay.flush()

        def explained(**asked: object) -> str:
            return html.unescape(console.get(link("/console/explain", **asked)).text)

        service = {"kind": "service", "name": "knit", "sequence": 1}
        takes = "jim takes wool.*, holds 0, and has credit left; it does not take this one: topic 'wool.*'"
        assert "1 is in the service knit, ready, after 0 attempts" in explained(**service)
        assert takes in explained(**service)
        assert takes in explained(**service, subscriber="jim")
        assert "kay is none that works for it" in explained(**service, subscriber="kay")
        kay.request("knit", "wool.red", b"")
        request = work.receive(WAIT_SECONDS)
        held = explained(**{**service, "sequence": 2})
        assert "jim takes wool.*, holds 1, and has no credit left; it takes this one" in held
        request.reply(b"")
        mailbox = {"kind": "mailbox", "name": "jim", "sequence": 1}
        found = until(lambda: explained(**mailbox), lambda text: "kay takes shop.*, holds 0" in text)
        assert "it does not take this one: topic 'shop.*' does not match 'kay'" in found
        with jim.mailbox():
            assert "jim takes all of it, holds" in explained(**mailbox)


# Who may come

RULES = ("view,create,publish,subscribe stream/{user}", "view broker/status", "admin stream/{user}")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    directory: Path = tmp_path_factory.mktemp("secured")
    with secured_gateway(directory, {"ann": "geheim", "bob": "secret"}, RULES) as gateway:
        yield gateway


def _sign_in(http: httpx.Client, user: str, password: str, **more: str) -> httpx.Response:
    return http.post("/console/sign-in", data={"user": user, "password": password, **more})


def test_without_a_session_every_page_leads_to_the_door(secured: RunningGateway) -> None:
    with secured.client() as http:
        answer = http.get("/console/stream?name=ann")
        location = "/console/sign-in?next=%2Fconsole%2Fstream%3Fname%3Dann"
        assert (answer.status_code, answer.headers["location"]) == (303, location)
        assert http.post("/console/change", data={}).headers["location"] == "/console/sign-in"
        assert http.get(location).status_code == 200
        assert (
            http.get("/console/stream?name=ann", headers={"cookie": f"{COOKIE}=guessed"}).status_code == 303
        )


def test_the_broker_decides_for_each_user(secured: RunningGateway) -> None:
    origin = {"origin": secured.url}
    with secured.client(headers=origin) as ann, secured.client(headers=origin) as bob:
        for http, user, password in ((ann, "ann", "geheim"), (bob, "bob", "secret")):
            answer = _sign_in(http, user, password, next="/console/streams")
            assert (answer.status_code, answer.headers["location"]) == (303, "/console/streams")
            cookie = answer.headers["set-cookie"].lower()
            assert "httponly" in cookie
            assert "samesite=strict" in cookie
        csrf = Page(ann.get("/").text).csrf
        publish = {"csrf": csrf, "name": "ann", "subject": "s", "body": "secret of ann"}
        assert ann.post("/console/stream/publish", data=publish).status_code == 303
        assert "secret of ann" in ann.get("/console/stream/history?name=ann").text
        assert bob.get("/console/stream/history?name=ann").status_code == 403
        assert bob.get("/console/stream/events?name=ann").status_code == 403
        # The secret of one session is nothing in another.
        assert bob.post("/console/change", data={"csrf": csrf, "topic": "broker.reload"}).status_code == 403
        own = Page(bob.get("/").text).csrf
        purge = {"csrf": own, "topic": "stream.purge", "stream": "ann", "confirmed": "yes"}
        assert bob.post("/console/change", data=purge).status_code == 403
        assert "secret of ann" in ann.get("/console/stream/history?name=ann").text
        # The paths of the API do not look at the cookie.
        assert ann.get("/v1/streams/ann/messages").status_code == 401
        assert ann.post("/console/sign-out", data={"csrf": csrf}).status_code == 303
        assert ann.get("/").status_code == 303


def test_rules_of_a_group_that_two_operators_change_from_pages_of_before_are_all_there(
    tmp_path: Path,
) -> None:
    """Each adds one from the same page. A rule that is taken away or added twice is refused."""
    rules = ("admin group/#", "view broker/#")
    with (
        secured_gateway(tmp_path, {"ann": "geheim"}, rules) as gateway,
        gateway.client(headers={"origin": gateway.url}) as http,
    ):
        _sign_in(http, "ann", "geheim")
        csrf = Page(http.get("/").text).csrf

        def change(topic: str, **fields: str | list[str]) -> int:
            given = {"csrf": csrf, "topic": topic, "name": "g", "back": "/console/users", "confirmed": "yes"}
            return http.post("/console/change", data={**given, **fields}).status_code

        added = {"access_rules": "publish stream/a\npublish stream/b"}
        assert [change("group.add", **added), change("group.add", **added)] == [303, 400]
        form = Page(http.get("/console/users").text)
        ticks = [found["value"] for _, found in form.tags if found.get("name") == "removed_rules"]
        assert ticks == ["publish stream/a", "publish stream/b"]
        for name in "cd":
            assert change("group.set", added_rules=f"publish stream/{name}") == 303
        both = ["publish stream/a", "publish stream/b"]
        assert [change("group.set", added_rules="", removed_rules=both) for _ in range(2)] == [303, 400]
        form = Page(http.get("/console/users").text)
        ticks = [found["value"] for _, found in form.tags if found.get("name") == "removed_rules"]
        assert ticks == ["publish stream/c", "publish stream/d"]
        assert [change("group.remove"), change("group.remove")] == [303, 404]


def test_the_form_of_an_account_shows_its_rules_and_adds_and_takes_away(tmp_path: Path) -> None:
    rules = ("admin user/#", "view broker/#")
    with (
        secured_gateway(tmp_path, {"ann": "geheim"}, rules) as gateway,
        gateway.client(headers={"origin": gateway.url}) as http,
    ):
        _sign_in(http, "ann", "geheim")
        csrf = Page(http.get("/").text).csrf

        def change(topic: str, **fields: str | list[str]) -> int:
            given = {"csrf": csrf, "topic": topic, "name": "carl", "back": "/console/users", **fields}
            return http.post("/console/change", data=given).status_code

        def ticks() -> list[str]:
            form = Page(http.get("/console/users").text)
            return [found["value"] for _, found in form.tags if found.get("name") == "removed_rules"]

        assert change("user.add", password="orange", access_rules="publish stream/a\npublish stream/b") == 303
        # Two operators with the same page: neither takes away what the other one has added.
        for name in "cd":
            assert change("user.set", groups="", added_rules=f"publish stream/{name}", disabled="no") == 303
        assert ticks() == [f"publish stream/{name}" for name in "abcd"]
        assert change("user.set", groups="", added_rules="", removed_rules=["publish stream/b"]) == 303
        assert ticks() == [f"publish stream/{name}" for name in "acd"]


def test_a_tail_and_the_watch_end_with_their_session(secured: RunningGateway) -> None:
    with secured.client(headers={"origin": secured.url}) as http:
        _sign_in(http, "ann", "geheim")
        csrf = Page(http.get("/").text).csrf
        publish = {"csrf": csrf, "name": "ann", "subject": "s", "body": "before"}
        http.post("/console/stream/publish", data=publish)
        with http.stream("GET", "/console/stream/events?name=ann&start=last") as tail:
            lines = tail.iter_lines()
            assert "before" in next(line for line in lines if line.startswith("data:"))
            watches = secured.server.config.app.state.console.watches  # type: ignore[union-attr]
            ann = Identity("ann", "geheim")
            assert ann in watches
            http.post("/console/sign-out", data={"csrf": csrf})
            assert ann not in watches
            with secured.client(auth=("ann", "geheim")) as api:
                api.post("/v1/streams/ann/messages?subject=a", content=b"after")
            assert not [line for line in lines if "after" in line]


def test_who_signs_in_anew_ends_the_session_that_was_there(secured: RunningGateway) -> None:
    with secured.client(headers={"origin": secured.url}) as http:
        _sign_in(http, "ann", "geheim")
        of_ann = http.cookies[COOKIE]
        _sign_in(http, "bob", "secret")
        assert http.get("/console/streams").status_code == 200
        http.cookies.clear()
        assert http.get("/console/streams", headers={"cookie": f"{COOKIE}={of_ann}"}).status_code == 303


def test_a_browser_that_comes_by_tls_takes_the_cookie_of_this_host_alone(secured: RunningGateway) -> None:
    host = secured.url.partition("://")[2]
    with secured.client() as http:
        data = {"user": "ann", "password": "geheim"}
        answer = http.post("/console/sign-in", data=data, headers={"origin": f"https://{host}"})
        [cookie] = answer.headers.get_list("set-cookie")
        name, _, rest = cookie.partition("=")
        assert name == SECURE_COOKIE == f"__Host-{COOKIE}"
        attributes = {part.strip().lower() for part in rest.split(";")[1:]}
        assert {"secure", "httponly", "path=/", "samesite=strict"} <= attributes
        assert not [one for one in attributes if one.startswith("domain")]
        session = rest.partition(";")[0]
        known = {"cookie": f"{SECURE_COOKIE}={session}"}
        assert http.get("/console/streams", headers=known).status_code == 200


def test_over_tls_a_cookie_that_others_may_have_set_is_none() -> None:
    sessions = ConsoleSessions()
    name = sessions.start(Identity("ann", "x"), "ann").name

    def found(scheme: str, cookie: str) -> bool:
        headers = [(b"host", b"h"), (b"cookie", f"{cookie}={name}".encode())]
        scope = {"type": "http", "scheme": scheme, "path": "/", "query_string": b"", "headers": headers}
        return sessions.of(HTTPConnection(scope)) is not None

    assert [found("https", COOKIE), found("https", SECURE_COOKIE)] == [False, True]
    assert [found("http", COOKIE), found("http", SECURE_COOKIE)] == [True, True]


def test_pages_of_the_console_count_for_the_rate_of_their_user(secured: RunningGateway) -> None:
    with RunningGateway(replace(secured.state.settings, user_rate=0.001)) as gateway:
        with gateway.client(headers={"origin": gateway.url}) as http:
            _sign_in(http, "ann", "geheim")
            assert [http.get("/console/streams").status_code for _ in range(2)] == [200, 429]
        with gateway.client(auth=("ann", "geheim")) as http:
            assert http.get("/live").status_code == 429
        with gateway.client(auth=("bob", "secret")) as http:
            assert http.get("/live").status_code == 200


def test_a_form_of_nowhere_to_nowhere_is_refused(secured: RunningGateway) -> None:
    with (
        RunningGateway(replace(secured.state.settings, hosts=())) as gateway,
        socket.create_connection((gateway.host, gateway.port), WAIT_SECONDS) as connection,
    ):
        connection.sendall(b"POST /console/sign-in HTTP/1.0\r\ncontent-length: 0\r\n\r\n")
        assert connection.makefile("rb").readline().split()[1] == b"403"


@pytest.mark.parametrize(
    ("user", "password"), [("ann", "wrong"), ("nobody", "x"), ("", ""), (HOSTILE, HOSTILE)]
)
def test_wrong_credentials_get_no_session(secured: RunningGateway, user: str, password: str) -> None:
    with secured.client(headers={"origin": secured.url}) as http:
        answer = _sign_in(http, user, password)
        assert answer.status_code in (401, 503)
        assert "set-cookie" not in answer.headers
        assert "<img src=x" not in answer.text


def test_signing_in_is_for_pages_of_this_console_and_leads_into_it(secured: RunningGateway) -> None:
    with secured.client() as http:
        assert _sign_in(http, "ann", "geheim").status_code == 403
    for elsewhere in ("//evil.example", "https://evil.example", "/console/\\evil", "/v1/"):
        with secured.client(headers={"origin": secured.url}) as http:
            assert _sign_in(http, "ann", "geheim", next=elsewhere).headers["location"] == "/"


def test_a_session_ends_when_it_is_idle_and_in_any_case_and_there_are_only_so_many() -> None:
    now = 0.0
    sessions = ConsoleSessions(clock=lambda: now)
    first = sessions.start(Identity("ann", "x"), "ann")
    assert sessions.find(first.name) is first
    now += IDLE_SECONDS + 1
    assert sessions.find(first.name) is None
    busy = sessions.start(Identity("ann", "x"), "ann")
    while now - busy.started_at <= LIFE_SECONDS:
        assert sessions.find(busy.name) is busy
        now += IDLE_SECONDS / 2
    assert sessions.find(busy.name) is None
    names = [sessions.start(Identity("ann", str(n)), "ann").name for n in range(SESSIONS_MAX)]
    sessions.find(names[0])
    sessions.start(Identity("bob", "x"), "bob")
    assert len(sessions) == SESSIONS_MAX
    assert sessions.find(names[0]) is not None
    assert sessions.find(names[1]) is None


def test_lists_that_are_longer_than_a_page_of_the_broker() -> None:
    with (
        Broker() as broker,
        gateway_before(broker) as gateway,
        gateway.client() as http,
        malamute.connect(broker.url, timeout=WAIT_SECONDS) as client,
    ):
        for n in range(250):
            client.publish(f"many/{n:03}", "s", b"x")
        client.flush()
        # The broker's own is there when the first event is stored: not before a client has its answer.
        until(lambda: any(row.name == "$sys" and row.stored for row in client.query(StreamsQuery())))
        stored = http.get("/console/settings").text
        # The first 200, of which one is the broker's own.
        assert stored.count(">many/") == 199
        # Of a list that is longer than a page the watch has the rows.
        assert until(lambda: http.get("/console/streams?find=many/009").text.count(">many/")) == 1
        assert http.get("/").status_code == 200


def test_settings_and_the_page_of_a_stream_say_which_rule_says_how_much_is_kept() -> None:
    streams = StreamsConfig(rule=(StreamRule("metrics.*", count=5),))
    config = replace(Config.load(None, {"MALAMUTE_STORAGE__KIND": "memory"}), streams=streams)
    with (
        Broker(config=config) as broker,
        gateway_before(broker) as gateway,
        gateway.client() as http,
        malamute.connect(broker.url, timeout=WAIT_SECONDS) as client,
    ):
        for name in ("metrics.cpu", "metrics.set", "weather"):
            client.publish(name, "s", b"x", assurance="stored")
        client.change(StreamRetain(stream="metrics.set", count=7))
        text = http.get("/console/settings").text
        page = http.get("/console/stream", params={"name": "metrics.cpu"}).text
        set_page = http.get("/console/stream", params={"name": "metrics.set"}).text
    sources = dict(re.findall(r">([^<]*)</a></td>(?:<td class=\"n\">[^<]*</td>){3}<td>([^<]*)</td>", text))
    assert sources["metrics.cpu"] == "rule metrics.*"
    assert (sources["metrics.set"], sources["weather"]) == ("run time", "default")
    assert "From the configuration: rule metrics.*." in page
    assert "Set for this stream at run time." in set_page


def _options(page: str) -> dict[str, list[str]]:
    """The rows of the page of settings by their names: description, value, source, change and default."""
    cells = re.compile(r"<small>(.*?)</small></td>" + r"<td[^>]*>(?:<strong>)?([^<]*)(?:</strong>)?</td>" * 4)
    rows = page.split('<td class="text"><span class="mono">')[1:]
    found = ((row.partition("<")[0], cells.search(row)) for row in rows)
    return {name: [html.unescape(cell) for cell in row.groups()] for name, row in found if row is not None}


def test_settings_list_each_option_with_its_source_and_how_it_changes() -> None:
    config = Config.load(None, {"MALAMUTE_STORAGE__KIND": "memory"}, {"queues.max_deliver": "3"})
    with (
        Broker(config=config) as broker,
        gateway_before(broker) as gateway,
        gateway.client() as http,
    ):
        rows = _options(http.get("/console/settings").text)
        changed = _options(http.get("/console/settings?changed=true").text)
        found = _options(http.get("/console/settings?find=Disk").text)
        grouped = http.get("/console/settings").text
    timeout = [str(WAIT_SECONDS), "option", "restart", str(TIMEOUT_SECONDS)]
    assert rows["gateway.timeout_seconds"][1:] == timeout
    assert rows["gateway.mercure_stream"][0] == "The stream of the updates of Mercure's hub."
    assert "gateway.credentials" not in rows
    assert all(cells[0].endswith(".") for cells in rows.values())
    assert {name.partition(".")[0]: None for name in rows} == dict.fromkeys([*SECTIONS, "gateway"])
    assert re.findall(r'scope="rowgroup">(\w+)<', grouped) == [*SECTIONS, "gateway"]
    assert changed.keys() == {name for name, cells in rows.items() if cells[1] != cells[4]}
    assert {"queues.max_deliver", "storage.kind", "gateway.broker"} <= changed.keys()
    assert {*found} == {
        name for name, cells in rows.items() if "disk" in f"{name} {cells[1]} {cells[0]}".lower()
    }
    assert 0 < len(found) < len(rows)
    assert set(rows) >= {f"{section}.{o}" for section, kind in SECTIONS.items() for o in types_of(kind)}
    assert rows["queues.max_deliver"][1:4] == ["3", "command line", "reload"]
    assert rows["storage.kind"][1:4] == ['"memory"', "environment", "restart"]
    assert rows["log.level"][2:4] == ["default", "reload"]
