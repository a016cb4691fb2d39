"""Addresses that the gateway makes of names lead back to what has the name, whatever characters are in it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running_gateway import WAIT_SECONDS, RunningGateway

import malamute
import malamute.gateway
from malamute.gateway.addresses import address
from malamute.gateway.app import make_app
from malamute.gateway.settings import GatewaySettings
from malamute.protocol.names import is_name

NAMES = (
    "plain",
    "a b",
    "a/b",
    "a%2Fb",
    "a%41",
    "a%b",
    "100%",
    "a?b",
    "a#b",
    'a"b',
    "<b>",
    "Zürich",
    "天気",
    "\U0001f600",
    "a,b;c=d",
    "//",
    "a/",
    "...",
)


@pytest.mark.parametrize("name", NAMES)
def test_the_next_page_is_of_the_same_stream(
    gateway: RunningGateway, client: malamute.Client, name: str
) -> None:
    for body in (b"1", b"2"):
        client.publish(name, "s", body, assurance="stored")
    with gateway.client() as http:
        page = http.get(address("v1", "streams", name, "messages"), params={"limit": "1"})
        assert (page.status_code, [m["body"] for m in page.json()["messages"]]) == (200, ["1"])
        link = page.json()["next"]
        assert page.headers["link"] == f'<{link}>; rel="next"'
        assert [m["body"] for m in http.get(link).json()["messages"]] == ["2"]


@pytest.mark.parametrize("name", NAMES)
def test_the_replies_of_a_request_are_at_its_location(
    gateway: RunningGateway, client: malamute.Client, name: str
) -> None:
    with gateway.client() as http:
        asked = http.post(
            address("v1", "services", name, "requests"), content=b"x", headers={"prefer": "wait=0"}
        )
        assert asked.status_code == 202, asked.text
        with client.work(name) as work:
            work.receive(WAIT_SECONDS).reply(b"done")
        found = http.get(asked.headers["location"], params={"wait": "60"})
        assert (found.status_code, found.json()["final"]) == (200, True)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_any_segments_are_one_ascii_path_and_come_back(segments: list[str]) -> None:
    try:
        "".join(segments).encode()
    except UnicodeEncodeError:
        return
    path = address(*segments)
    assert path.isascii()
    assert httpx.URL(f"http://h{path}").raw_path.decode() == path
    assert [unquote(part) for part in path.split("/")[1:]] == segments


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_no_address_can_have_is_refused_where_it_is_made(
    gateway: RunningGateway, client: malamute.Client, name: str
) -> None:
    assert not is_name(name)
    with pytest.raises(malamute.InvalidName, match=r"not \. or \.\."):
        client.publish(name, "s", b"x", assurance="stored")


LINK = re.compile(r'(?:href|src)="([^"]*)"')
FORM = re.compile(r'(?:action|data-events)="([^"]*)"')


@pytest.mark.parametrize("strips", [False, True], ids=["whole path", "proxy strips"])
def test_below_a_prefix_every_address_has_it(
    start: Callable[..., RunningGateway], client: malamute.Client, strips: bool
) -> None:
    """A proxy may pass the path on as it is, or without the prefix: answers are the same."""
    prefix = "/mq/of a"
    shown = quote(prefix)
    gateway = start(prefix=prefix)

    def send(method: str, url: str, **options: Any) -> httpx.Response:
        path = url.removeprefix(gateway.url)
        assert path.startswith(f"{shown}/"), url
        return http.request(method, path.removeprefix(shown) if strips else path, **options)

    for body in (b"1", b"2"):
        client.publish("a/b ü", "s", body, assurance="stored")
    with gateway.client(headers={"origin": gateway.url}) as http:
        page = send("GET", f"{shown}/v1/streams/a%2Fb%20%C3%BC/messages?limit=1").json()
        assert [m["body"] for m in send("GET", page["next"]).json()["messages"]] == ["2"]
        assert send("GET", f"{shown}/v1/none").json()["type"] == f"{shown}/v1/problems/901"
        assert send("GET", f"{shown}/v1/openapi.json").json()["servers"] == [{"url": shown}]
        domain = f"{shown}/restms/domain/default"
        xml = {"content-type": "text/xml"}
        feed, pipe = (
            send("POST", domain, content=f"<restms>{one}</restms>", headers=xml).headers["location"]
            for one in ('<feed name="f/ü" type="fanout"/>', "<pipe/>")
        )
        for url, one in ((pipe, f'<join feed="{feed}"/>'), (feed, '<message address="hi"/>')):
            assert send("POST", url, content=f"<restms>{one}</restms>", headers=xml).is_success
        json = {"accept": "application/json", "prefer": "wait=60"}
        [first, *_] = send("GET", pipe, headers=json).json()["restms"]["pipe"][0]["message"]
        [message] = send("GET", first["href"], headers=json).json()["restms"]["message"]
        assert message["address"] == "hi"
        # Every page of the console leads to addresses below the prefix, and they are there.
        seen, todo = set[str](), {f"{shown}/"}
        while todo:
            seen.add(url := todo.pop())
            answer = send("GET", url)
            assert answer.status_code == 200, url
            if answer.headers["content-type"].startswith("text/html"):
                forms, links = FORM.findall(answer.text), map(unescape, LINK.findall(answer.text))
                assert all(one.startswith(f"{shown}/console/") for one in forms)
                todo |= {one for one in links if not one.startswith("#")} - seen
            if len(seen) > 60:
                break
        csrf = re.findall(r'name="csrf" value="([^"]*)"', send("GET", f"{shown}/console/streams").text)
        csrf += re.findall(r'name="csrf" value="([^"]*)"', send("GET", f"{shown}/console/feeds").text)
        fields = {"csrf": csrf[0], "name": "c", "subject": "s", "body": "x"}
        published = send("POST", f"{shown}/console/stream/publish", data=fields)
        assert (published.status_code, published.headers["location"]) == (
            303,
            f"{shown}/console/stream?name=c",
        )


def test_a_server_may_say_the_prefix_by_its_root_path(settings: GatewaySettings) -> None:
    app = make_app(settings)
    transport = httpx.ASGITransport(app, root_path="/below")

    async def look() -> None:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
        ):
            found = await http.get("/below/v1/none")
            assert (found.status_code, found.json()["type"]) == (404, "/below/v1/problems/901")
            assert (await http.get("/below/v1/openapi.json")).status_code == 200

    asyncio.run(look())


def test_no_address_is_made_of_a_decoded_path() -> None:
    """A guard of the kind: `url.path` is decoded, and is only for people and logs."""
    root = Path(malamute.gateway.__file__).parent
    for_people = {"app.py": 2, "rates.py": 1, "tracing.py": 1, "console/site.py": 3, "console/visits.py": 2}
    found = {
        str(path.relative_to(root)): count
        for path in root.rglob("*.py")
        if (count := len(re.findall(r"url\.path\b", path.read_text())))
    }
    assert found == for_people
    quoting = [str(p.relative_to(root)) for p in root.rglob("*.py") if re.search(r"\bquote\(", p.read_text())]
    assert quoting == ["addresses.py"]
