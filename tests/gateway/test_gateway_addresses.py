"""Addresses that the gateway makes of names lead back to what has the name, whatever characters are in it."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running_gateway import WAIT_SECONDS, RunningGateway

import malamute
import malamute.gateway
from malamute.gateway.addresses import address
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
