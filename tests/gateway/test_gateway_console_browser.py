"""The console in a real browser: chromium, driven by playwright. Without one of them it is skipped.

`make screenshots` takes the pictures of the documentation with it.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from depth import NIGHT
from free_ports import free_port
from running_gateway import WAIT_SECONDS, RunningGateway, gateway_before, wait_for_dead
from secured_gateway import secured_gateway
from token_issuer import SigningIssuer

import malamute
from malamute.gateway.console.visits import NAVIGATION
from malamute.gateway.console.words import link
from malamute.gateway.events import PART_BYTES
from malamute.gateway.settings import GatewaySettings
from malamute.protocol.admin import StreamQuery
from malamute.testing import Broker

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium")

PICTURES = os.environ.get("MALAMUTE_PICTURES", "")
"""Where the pictures of the documentation go, if they are taken anew."""

IMAGES = Path(__file__).parents[2] / "docs" / "images"

HOSTILE = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"

UNNAMED = """
() => [...document.querySelectorAll("input, select, textarea, button, a, svg[role=img], summary")]
  .filter((one) => one.type !== "hidden" && one.checkVisibility())
  .filter((one) => !(one.textContent.trim() || one.ariaLabel
      || [...(one.labels ?? [])].some((label) => label.textContent.trim())))
  .map((one) => one.outerHTML)
"""
"""Elements without a name for those who do not see them."""

DOUBLE = """
() => [...document.querySelectorAll("[id]")].map((one) => one.id)
  .filter((id, at, all) => all.indexOf(id) !== at)
"""

SCROLLED = """
() => [...document.querySelectorAll(".wide")].filter((one) => one.scrollWidth > one.clientWidth)
  .map((one) => one.ariaLabel)
"""
"""Tables of which a part is out of sight."""

OVERFLOWING = "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def running() -> Iterator[RunningGateway]:
    with (
        Broker() as broker,
        gateway_before(broker) as gateway,
    ):
        yield gateway


@contextmanager
def _tab(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """A page of a browser with nothing in its memory. A complaint of its console is an error."""
    context = browser.new_context(base_url=url, **options)
    context.set_default_timeout(WAIT_SECONDS * 1000)
    # The first page of a tab starts a process of the browser.
    context.set_default_navigation_timeout(4 * WAIT_SECONDS * 1000)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.complaints = complaints
    yield page
    context.close()


def _fields(page: Any, **values: str) -> None:
    for name, value in values.items():
        page.fill(f"main [name={name}]:visible", value)


def _go_on(page: Any, button: str) -> None:
    """Click a button that leads to another page, and be there: else it would interrupt what follows."""
    with page.expect_navigation():
        page.get_by_role("button", name=button).click()


def test_a_tour_by_keys_of_every_page_on_a_phone_and_on_a_wide_screen(
    browser: Any, running: RunningGateway
) -> None:
    with (
        malamute.connect(running.state.settings.broker, address="ann", timeout=WAIT_SECONDS) as client,
        client.subscribe("weather", "temp.*"),
        client.work("shout"),
    ):
        client.publish("weather", "temp.oslo", b"-3", {"unit": "C"}, assurance="stored")
        client.send("ann", "hello", b"see you at nine")
        for width in (390, 1920):
            with _tab(browser, running.url, viewport={"width": width, "height": 900}) as page:
                page.goto("/")
                for path, name, key in NAVIGATION:
                    page.keyboard.press("g")
                    page.keyboard.press(key)
                    page.wait_for_url(f"{running.url}{path}")
                    assert page.locator("nav a[aria-current=page]").inner_text() == name
                    assert page.locator("h1").count() == 1
                    assert page.evaluate(UNNAMED) == []
                    assert page.evaluate(DOUBLE) == []
                    assert not page.evaluate(OVERFLOWING), (path, width)
                    assert page.evaluate(SCROLLED) == [], (path, width)
                page.goto("/")
                # Two samples make a rate, and the page renews itself.
                page.wait_for_function("() => document.querySelector('figcaption output').textContent")
                reading = page.locator("figcaption output").first
                page.locator(".chart").first.hover()
                assert " messages/s at " in reading.inner_text()
                assert page.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, running: RunningGateway, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    with (
        malamute.connect(running.state.settings.broker, address="eve", timeout=WAIT_SECONDS) as client,
        client.subscribe("weather", "temp.*"),
        _tab(browser, running.url, color_scheme=scheme, viewport={"width": 1280, "height": 900}) as page,
    ):
        client.publish("weather", "temp.oslo", b"-3", {"unit": "C"}, assurance="stored")
        client.send("eve", "hello", b"see you at nine")
        paths = (
            *(path for path, _, _ in NAVIGATION),
            link("/console/stream", name="weather"),
            link("/console/stream/history", name="weather"),
            link("/console/stream/again", name="weather", sequence="1"),
            link("/console/queue", kind="mailbox", name="eve"),
            link("/console/explain", name="weather", sequence="1", subscriber="eve"),
        )
        # In the dark only colours are others, and they are the same on all pages.
        for path in paths if scheme == "light" else paths[::5]:
            page.goto(path)
            found = axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]
            serious = [one for one in found if one["impact"] in ("serious", "critical")]
            assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in serious] == [], path


def test_a_message_is_published_seen_as_it_comes_and_dropped(browser: Any, running: RunningGateway) -> None:
    with malamute.connect(running.state.settings.broker, timeout=WAIT_SECONDS) as client:
        client.publish("prices", "first", b"1", assurance="stored")
    with _tab(browser, running.url) as tail, _tab(browser, running.url) as page:
        tail.goto(link("/console/stream/tail", name="prices"))
        tail.get_by_text("following").wait_for()
        page.goto("/console/streams")
        page.keyboard.press("j")
        page.get_by_role("link", name="prices").click()
        _fields(page, subject="eur", headers="n=1", body=HOSTILE)
        page.get_by_role("button", name="Publish").click()
        page.get_by_text("Published to prices as 2").wait_for()
        tail.locator("#tail .subject", has_text="eur").click()
        tail.locator("#tail pre", has_text=HOSTILE).wait_for()
        assert tail.locator("#tail .headers").inner_text() == "n\t1"
        _use_the_tail(tail, running)
        assert tail.locator("#tail img, #tail script").count() == 0
        assert tail.title() == "Tail of prices · Malamute"

        page.get_by_role("button", name="Drop all messages").click()
        page.get_by_role("heading", name="4 messages of the stream prices are dropped.").wait_for()
        assert page.evaluate("document.activeElement.textContent") == "Cancel"
        page.get_by_role("button", name="Drop all").click()
        page.get_by_text("Done: 4 messages of the stream prices are dropped").wait_for()
        assert page.complaints == tail.complaints == []


def _use_the_tail(tail: Any, running: RunningGateway) -> None:
    """Filter the messages of the stream `prices`, expand, pause and clear them."""
    messages = tail.locator("#tail .message")
    with malamute.connect(running.state.settings.broker, timeout=WAIT_SECONDS) as client:
        client.publish("prices", "usd", b'{"a":[1.50,{}],"b":"x, y"}', assurance="stored")
        messages.nth(1).wait_for()
        tail.fill("#filter", "USD")
        assert [one.is_visible() for one in messages.all()] == [True, False]
        tail.fill("#filter", "")
        tail.get_by_role("button", name="Expand").click()
        indented = '{\n  "a": [\n    1.50,\n    {}\n  ],\n  "b": "x, y"\n}'
        assert messages.first.locator("pre").inner_text() == indented
        tail.get_by_role("button", name="Pause").click()
        client.publish("prices", "png", b"\x89PNG", assurance="stored")
        tail.get_by_text("paused: 1 wait").wait_for()
        assert messages.count() == 2
        tail.get_by_role("button", name="Continue").click()
        tail.locator("#tail pre", has_text="89 50 4e 47").wait_for()
        tail.get_by_role("button", name="Clear").click()
        assert messages.count() == 0


def test_nothing_that_a_message_holds_is_run(browser: Any, running: RunningGateway) -> None:
    broker = running.state.settings.broker
    with (
        malamute.connect(broker, address=HOSTILE, timeout=WAIT_SECONDS) as client,
        client.subscribe(HOSTILE, HOSTILE, family="exact"),
        _tab(browser, running.url) as page,
    ):
        client.publish(HOSTILE, HOSTILE, HOSTILE.encode(), {"<b>": HOSTILE}, assurance="stored")
        client.send(HOSTILE, HOSTILE, HOSTILE.encode(), {"<b>": HOSTILE})
        client.receive(timeout=WAIT_SECONDS).reject(HOSTILE)
        wait_for_dead(client, HOSTILE, 1)
        for path, name in (
            ("/console/stream", {"name": HOSTILE}),
            ("/console/stream/history", {"name": HOSTILE}),
            ("/console/stream/subjects", {"name": HOSTILE}),
            ("/console/queue", {"kind": "mailbox", "name": HOSTILE, "show": "dead"}),
            ("/console/explain", {"name": HOSTILE, "sequence": "1", "subscriber": HOSTILE}),
            ("/console/clients", {}),
            ("/", {}),
        ):
            page.goto(link(path, **name))
            page.evaluate("() => document.querySelectorAll('details').forEach((one) => one.open = true)")
            page.locator("main", has_text=HOSTILE[:20]).wait_for()
            assert page.title() != "run"
            assert page.locator("main img, main script").count() == 0
        assert page.complaints == []


def test_a_tail_loses_nothing_over_a_restart_of_broker_and_gateway(browser: Any, tmp_path: Path) -> None:
    port = free_port()
    with Broker(tmp_path) as broker:
        settings = GatewaySettings(broker=broker.url, timeout_seconds=WAIT_SECONDS)
        with malamute.connect(broker.url, timeout=WAIT_SECONDS) as client:
            client.publish("weather", "s", b"body 1", assurance="stored")
            with _tab(browser, f"http://127.0.0.1:{port}") as page:
                with RunningGateway(settings, port):
                    page.goto(link("/console/stream/tail", name="weather", start="first"))
                    bodies = page.locator("#tail .message .body")
                    bodies.get_by_text("body 1").wait_for()
                page.get_by_text("reconnecting").wait_for()
                broker.restart()
                client.publish("weather", "s", b"body 2", assurance="stored")
                with RunningGateway(settings, port):
                    bodies.get_by_text("body 2").wait_for()
                    client.publish("weather", "s", b"body 3", assurance="stored")
                    bodies.get_by_text("body 3").wait_for()
                    assert bodies.all_inner_texts() == ["body 3", "body 2", "body 1"]


def test_a_slow_page_goes_into_replay_and_shows_everything_when_it_goes_on(
    browser: Any, running: RunningGateway
) -> None:
    with (
        malamute.connect(running.state.settings.broker, timeout=WAIT_SECONDS) as client,
        _tab(browser, running.url) as slow,
        _tab(browser, running.url) as quick,
    ):
        client.publish("flood", "s", b"body 0", assurance="stored")
        for page in (slow, quick):
            page.goto(link("/console/stream/tail", name="flood", start="first"))
            page.locator("#tail .body", has_text="body 0").wait_for()
        held = slow.context.new_cdp_session(slow)
        held.send("Debugger.enable")
        held.send("Debugger.pause")
        for first in range(1, 401, 10):
            bodies = [b"body %d " % n + b"x" * 60_000 for n in range(first, first + 10)]
            client.publish_batch("flood", ["s"] * 10, bodies)
        newest = "#tail > :first-child .body"
        quick.locator(newest, has_text="body 400").wait_for()
        assert client.query(StreamQuery(name="flood")).switches_to_replay > 0
        written = [one.transport.get_write_buffer_size() for one in running.server.server_state.connections]
        assert sum(written) < 4 * PART_BYTES
        held.send("Debugger.resume")
        slow.locator(newest, has_text="body 400").wait_for()
        found = slow.locator("#tail .message .body").all_inner_texts()
        assert [int(text.split()[1]) for text in found] == [*range(400, -1, -1)]
        assert slow.complaints == quick.complaints == []


@contextmanager
def _other_site() -> Iterator[str]:
    """A site that has one page, with nothing on it."""

    class Blank(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # http.server calls it so
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><link rel=icon href=data:,><title>other</title>")

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Blank) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


FOLLOW_THE_HUB = """
([hub, count]) => new Promise((resolve, reject) => {
  const found = [];
  const events = new EventSource(hub, { withCredentials: true });
  events.onmessage = (event) => {
    found.push([event.lastEventId, event.data]);
    if (found.length === count) { events.close(); resolve(found); }
  };
  events.onopen = () => { document.title = "following"; };
  events.onerror = () => { if (events.readyState === EventSource.CLOSED) reject(new Error("refused")); };
})
"""
"""As a client of Mercure in a page does it."""


def test_a_page_of_another_site_follows_the_hub_with_its_cookie(browser: Any, tmp_path: Path) -> None:
    issuer = SigningIssuer(tmp_path)
    rules = (
        "publish,create stream/mercure",
        "subscribe stream/mercure where subject prefix 'https://example.com/users/{user}/'",
    )
    with (
        secured_gateway(tmp_path, {"bob": "secret"}, rules, issuer.known) as secured,
        _other_site() as site,
        _tab(browser, site) as page,
        RunningGateway(replace(secured.state.settings, origins=(site,))) as gateway,
    ):
        cookie = {"name": "mercureAuthorization", "value": issuer.token("ann"), "url": gateway.url}
        page.context.add_cookies([cookie])
        page.goto("/")
        hub = f"{gateway.url}/.well-known/mercure"
        with gateway.client(auth=("bob", "secret")) as bob:
            for user in ("ann", "bob", "ann"):
                form = {"topic": f"https://example.com/users/{user}/mail", "data": user, "private": "on"}
                bob.post("/.well-known/mercure", data=form).raise_for_status()
        found = page.evaluate(FOLLOW_THE_HUB, [f"{hub}?topic=*&lastEventID=earliest", 2])
        assert [[name.partition("@")[0], user] for name, user in found] == [["#1", "ann"], ["#3", "ann"]]
        assert page.complaints == []


def _work(url: str, over: threading.Event) -> None:
    """Publish the weather, and send and answer a request with every third of it, until it is over."""
    with (
        malamute.connect(url, address="station", timeout=WAIT_SECONDS) as station,
        station.work("forecast") as requests,
    ):
        for number in range(1_000_000):
            place = ("temp.oslo", "temp.bergen", "wind.oslo")[number % 3]
            headers = {"unit": "C", "n": number}
            station.publish("weather", place, b"%.1f" % (number % 7 - 2.5), headers, assurance="stored")
            if number % 3 == 0:
                replies = station.request("forecast", place, b"tomorrow?")
                requests.receive(WAIT_SECONDS).reply(b"rain")
                assert len([*replies]) == 1
            if over.wait(0.03):
                return


@contextmanager
def _scene(seconds: float) -> Iterator[RunningGateway]:
    """A broker that has been at work for so long, with a reader that is behind, and a dead letter."""
    over = threading.Event()
    with (
        Broker() as broker,
        gateway_before(broker) as gateway,
        malamute.connect(broker.url, address="billing", timeout=WAIT_SECONDS) as billing,
        malamute.connect(broker.url, address="archive", timeout=WAIT_SECONDS) as archive,
        malamute.connect(broker.url, address="bob", timeout=WAIT_SECONDS) as bob,
        billing.subscribe("weather", "temp.*", where="unit = 'C'"),
        archive.subscribe("weather", "#", credit=1, start="first"),
        gateway.client() as http,
    ):
        for stream in ("orders", "metrics/cpu"):
            billing.publish(stream, "first", b"1", assurance="stored")
        for number in range(5):
            billing.send("bob", "note", b"%d" % number)
        bob.receive(timeout=WAIT_SECONDS).reject("no room")
        # Somebody looks at it, so there are rates.
        http.get("/")
        working = threading.Thread(target=_work, args=(broker.url, over))
        working.start()
        # Pictures show rates, so there has to be a time in which something comes.
        time.sleep(seconds)
        while "3 is not published yet" in http.get(PICTURED["explain"]).text:
            pass
        yield gateway
        over.set()
        working.join()


PICTURED = {
    "overview": "/",
    "stream": link("/console/stream", name="weather"),
    "queue": link("/console/queue", kind="mailbox", name="bob", show="dead"),
    "explain": link("/console/explain", name="weather", sequence="3", subscriber="billing"),
}


@pytest.mark.skipif(not (NIGHT or PICTURES), reason="pictures are left to make nightly and make screenshots")
def test_pictures_of_the_console_for_each_width_and_in_the_dark(browser: Any, tmp_path: Path) -> None:
    with _scene(seconds=45 if PICTURES else 0) as gateway:
        # In the dark only colours are others.
        for width, height, scheme in (
            (390, 844, "light"),
            (1280, 850, "light"),
            (1280, 850, "dark"),
            (1920, 1080, "light"),
        ):
            size = {"width": width, "height": height}
            with _tab(browser, gateway.url, color_scheme=scheme, viewport=size) as page:
                for name, path in PICTURED.items():
                    page.goto(path)
                    page.locator("main h1").wait_for(state="attached")
                    assert not page.evaluate(OVERFLOWING), (path, width)
                    page.screenshot(path=tmp_path / f"{name}-{width}-{scheme}.png")
                assert page.complaints == []
    taken = {path.stem: path for path in tmp_path.iterdir()}
    assert len(taken) == 4 * len(PICTURED)
    assert all(path.stat().st_size > 5_000 for path in taken.values())
    for name in ("overview", "explain"):
        assert (IMAGES / f"console_{name}.png").exists()
        if PICTURES:
            shutil.copy(taken[f"{name}-1280-dark"], Path(PICTURES) / f"console_{name}.png")


def test_two_users_see_what_each_may(browser: Any, tmp_path: Path) -> None:
    rules = ("view,create,publish,subscribe stream/{user}", "view broker/#")
    with (
        secured_gateway(tmp_path, {"ann": "geheim", "bob": "secret"}, rules) as gateway,
        _tab(browser, gateway.url) as ann,
        _tab(browser, gateway.url) as bob,
    ):
        for page, user, password in ((ann, "ann", "geheim"), (bob, "bob", "secret")):
            page.goto("/console/stream?name=ann" if user == "bob" else "/")
            _fields(page, user=user, password=password)
            _go_on(page, "Sign in")
        bob.get_by_text("is not allowed").wait_for()
        _go_on(ann, "Sign out")
        ann.get_by_role("button", name="Sign in").wait_for()
        ann.goto("/console/streams")
        assert ann.url.startswith(f"{gateway.url}/console/sign-in")
