"""Each message answered with 201 is there after the broker was killed, once and under its number."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from threading import Event
from typing import Any

import httpx
from running_gateway import WAIT_SECONDS, RunningGateway, gateway_before

import malamute
from malamute.client.session.message import Message
from malamute.server.process import BrokerProcess
from malamute.testing import Broker

OPTIONS = (
    *("--set", "storage.size=64MiB"),
    *("--set", "limits.message_bytes=1MiB"),
)
CONFIRMED = 20
"""So many confirmations each poster waits for before the broker is killed."""

Confirmed = list[tuple[str, dict[str, Any]]]


def _post(gateway: RunningGateway, name: str, enough: Event, killed: Event) -> Confirmed:
    """Post until the broker is gone. Returns what was confirmed: its body, and the answer."""
    found: Confirmed = []
    path = "/v1/mailboxes/bob/messages" if name == "mail" else "/v1/streams/weather/messages?subject="
    with gateway.client() as http:
        for number in range(100_000):
            body = f"{name} {number}"
            headers = {"idempotency-key": body} if name == "keyed" else {}
            content = body
            if name == "lines":
                headers = {"content-type": "application/x-ndjson"}
                content = f'{{"body": "{body}"}}\n{{"body": "{body}"}}\n'
            try:
                answer = http.post(path, content=content, headers=headers)
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code == 201:
                found.append((body, answer.json()))
            elif killed.is_set():
                return found
            if len(found) == CONFIRMED:
                enough.set()
    raise AssertionError("the broker was not killed")


def _is_before_end(message: Message) -> bool:
    return message.subject != "end"


def test_what_was_confirmed_outlives_a_broker_that_is_killed(tmp_path: Path) -> None:
    names = ("single", "lines", "keyed", "mail")
    killed, enough = Event(), {name: Event() for name in names}
    with (
        BrokerProcess(tmp_path, *OPTIONS) as process,
        gateway_before(process, timeout_seconds=2.0) as gateway,
        ThreadPoolExecutor(len(names)) as pool,
    ):
        posting = {name: pool.submit(_post, gateway, name, enough[name], killed) for name in names}
        for one in enough.values():
            assert one.wait(WAIT_SECONDS)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(WAIT_SECONDS)
        killed.set()
    confirmed = {name: future.result() for name, future in posting.items()}
    with Broker(tmp_path / "data") as broker, malamute.connect(broker.url, address="bob") as client:
        client.publish("weather", "end", b"", assurance="stored")
        client.send("bob", "end", b"", assurance="stored")
        with client.subscribe("weather", start="first") as messages:
            held = {m.sequence: m.body.decode() for m in takewhile(_is_before_end, messages)}
        with client.mailbox() as mailbox:
            mail = [m.body.decode() for m in takewhile(_is_before_end, mailbox)]
    for name in ("single", "lines", "keyed"):
        for body, answer in confirmed[name]:
            assert [held.get(n) for n in range(answer["first"], answer["last"] + 1)] == (
                [body] * answer["count"]
            )
    assert {body for body, _ in confirmed["mail"]} <= {*mail}
    once = [body for body in held.values() if not body.startswith("lines")]
    assert len(once) == len({*once})
