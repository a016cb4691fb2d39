"""Names of hosts: a server of names that does not answer costs no other client of the process anything."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import malamute
from malamute import aio
from malamute.client.link.greeting import trouble_with
from malamute.testing import Broker

NAME = "broker.example"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


class Names:
    """A server of names that knows `NAME`, once it `answers`, and counts the questions."""

    def __init__(self) -> None:
        self.answers, self.asked, self.questions = threading.Event(), threading.Event(), 0

    def getaddrinfo(self, host: str, *_: Any) -> list[Any]:
        self.questions += 1
        self.asked.set()
        self.answers.wait(60)
        if host != NAME:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    names = Names()
    monkeypatch.setattr("malamute.client.link.lookup.socket.getaddrinfo", names.getaddrinfo)
    yield names
    names.answers.set()


def by_name(broker: Broker) -> str:
    return f"tcp://{NAME}:{broker.url.rpartition(':')[2]}"


def test_a_client_connects_by_name_and_looks_it_up_again_after_a_break(broker: Broker, names: Names) -> None:
    names.answers.set()
    with malamute.connect(by_name(broker)) as client:
        client.query("status")
        asked = names.questions
        broker.restart()
        client.query("status", timeout=30)
        assert names.questions > asked >= 1


def test_an_event_loop_connects_by_name(broker: Broker, names: Names) -> None:
    names.answers.set()

    async def ask() -> Any:
        async with await aio.connect(by_name(broker)) as client:
            return await client.query("status")

    assert asyncio.run(ask())


def test_while_a_name_is_looked_up_all_others_are_served(broker: Broker, names: Names) -> None:
    with malamute.connect(broker.url) as other:
        late: list[BaseException] = []

        def connect() -> None:
            with pytest.raises(malamute.ConnectTimeout) as found:
                malamute.connect(by_name(broker), timeout=0.5)
            late.append(found.value)

        threads = [threading.Thread(target=connect) for _ in range(5)]
        for thread in threads:
            thread.start()
        names.asked.wait(30)
        other.query("status", timeout=30)
        for thread in threads:
            thread.join()
    assert len(late) == 5
    assert names.questions == 1, "one lookup is for all"


def test_a_name_that_becomes_known_is_connected(broker: Broker, names: Names) -> None:
    threading.Thread(target=lambda: names.asked.wait(30) and names.answers.set()).start()
    with malamute.connect(by_name(broker), timeout=30) as client:
        client.query("status")


def test_an_unknown_name_is_told_and_the_next_url_is_tried(broker: Broker, names: Names) -> None:
    names.answers.set()
    assert trouble_with("tcp://nobody.example:9") == "the name 'nobody.example' is not known here"
    with malamute.connect(["tcp://nobody.example:9", broker.url], timeout=30) as client:
        assert client.url == broker.url


def test_a_lookup_without_an_answer_is_told_in_time(names: Names) -> None:
    assert trouble_with(f"tcp://{NAME}:9", 0.01) == f"the name {NAME!r} is not known here"
