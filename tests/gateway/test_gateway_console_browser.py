"""The console in a real browser: chromium, driven by playwright. Without one of them it is skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from running_gateway import WAIT_SECONDS, RunningGateway
from secured_gateway import secured_gateway

import malamute
from malamute.gateway.console.visits import NAVIGATION
from malamute.gateway.console.words import link
from malamute.gateway.settings import GatewaySettings
from malamute.testing import Broker

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium")

HOSTILE = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"

UNNAMED = """
() => [...document.querySelectorAll("input, select, textarea, button, a, svg[role=img], summary")]
  .filter((one) => one.type !== "hidden" && one.checkVisibility())
  .filter((one) => !(one.textContent.trim() || one.ariaLabel
      || [...(one.labels ?? [])].some((label) => label.textContent.trim())))
  .map((one) => one.outerHTML)
"""
"""What has no name for those who do not see it."""

DOUBLE = """
() => [...document.querySelectorAll("[id]")].map((one) => one.id)
  .filter((id, at, all) => all.indexOf(id) !== at)
"""

OVERFLOWING = "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def running() -> Iterator[RunningGateway]:
    with Broker() as broker:
        gateway = RunningGateway(GatewaySettings(broker=broker.url, timeout_seconds=WAIT_SECONDS))
        yield gateway
        gateway.stop()


@contextmanager
def _tab(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """A page of a browser with nothing in its memory. What its console complains of is an error."""
    context = browser.new_context(base_url=url, **options)
    context.set_default_timeout(WAIT_SECONDS * 1000)
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
                    assert page.locator("nav a[aria-current]").inner_text() == name
                    assert page.locator("h1").count() == 1
                    assert page.evaluate(UNNAMED) == []
                    assert page.evaluate(DOUBLE) == []
                    assert not page.evaluate(OVERFLOWING), (path, width)
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
        assert tail.locator("#tail img, #tail script").count() == 0
        assert tail.title() == "Tail of prices · Malamute"

        page.get_by_role("button", name="Drop all messages").click()
        page.get_by_role("heading", name="What it would do").wait_for()
        page.get_by_role("button", name="Drop them").click()
        page.get_by_text("stream.purge: stream prices").wait_for()
        assert page.complaints == tail.complaints == []


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
        client.flush()
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
            gateway = RunningGateway(settings, port)
            with _tab(browser, gateway.url) as page:
                page.goto(link("/console/stream/tail", name="weather", start="first"))
                bodies = page.locator("#tail .message .body")
                bodies.get_by_text("body 1").wait_for()
                gateway.stop()
                page.get_by_text("reconnecting").wait_for()
                broker.restart()
                client.publish("weather", "s", b"body 2", assurance="stored")
                gateway = RunningGateway(settings, port)
                bodies.get_by_text("body 2").wait_for()
                client.publish("weather", "s", b"body 3", assurance="stored")
                bodies.get_by_text("body 3").wait_for()
                assert bodies.all_inner_texts() == ["body 3", "body 2", "body 1"]
            gateway.stop()


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
            page.get_by_role("button", name="Sign in").click()
        bob.get_by_text("is not allowed").wait_for()
        ann.get_by_role("button", name="Sign out").click()
        ann.get_by_role("button", name="Sign in").wait_for()
        ann.goto("/console/streams")
        assert ann.url.startswith(f"{gateway.url}/console/sign-in")
