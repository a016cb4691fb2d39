"""Questions to all who listen to a stream, and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any
from uuid import uuid4

import pytest

import malamute
from malamute import aio, errors
from malamute.access import AccessRule
from malamute.config import AccessConfig
from malamute.testing import Broker, small_config

PATIENCE = 60
SHORT = 0.2
LISTENERS = 3


@pytest.fixture
def name() -> str:
    return uuid4().hex


def sync_ask(url: str, *arguments: Any, **options: Any) -> list[malamute.Mail]:
    with malamute.connect(url, timeout=PATIENCE, threads="any") as client:
        return client.ask(*arguments, **options)


def aio_ask(url: str, *arguments: Any, **options: Any) -> list[malamute.Mail]:
    async def call() -> list[malamute.Mail]:
        async with aio.connect(url, timeout=PATIENCE) as client:
            return await client.ask(*arguments, **options)

    return asyncio.run(call())


def listen(url: str, stream: str, place: int, ready: Barrier) -> bool:
    """Answer one question, with its double."""
    address = f"{stream}-{place}"
    with (
        malamute.connect(url, address=address, timeout=PATIENCE) as client,
        client.subscribe(stream) as questions,
    ):
        ready.wait(PATIENCE)
        question = questions.receive(PATIENCE)
        return client.answer(question, json={"double": question.json() * 2, "place": place})


@pytest.mark.parametrize("ask", [sync_ask, aio_ask])
def test_a_question_has_the_answers_of_all_who_listen_and_leaves_nothing(
    broker: Broker, name: str, ask: Callable[..., list[malamute.Mail]]
) -> None:
    ready = Barrier(LISTENERS + 1)
    with ThreadPoolExecutor(LISTENERS) as pool:
        heard = [pool.submit(listen, broker.url, name, place, ready) for place in range(LISTENERS)]
        ready.wait(PATIENCE)
        answers = ask(broker.url, name, "how.many", json=21, wait=PATIENCE, most=LISTENERS)
        assert all(answered.result() for answered in heard)
    assert sorted((mail.sender, mail.json()["place"]) for mail in answers) == [
        (f"{name}-{place}", place) for place in range(LISTENERS)
    ]
    assert {(mail.subject, mail.json()["double"], mail.settled) for mail in answers} == {
        ("how.many", 42, True)
    }
    with malamute.connect(broker.url) as client:
        left = {row["name"] for row in client.query("mailboxes")}
    assert not [mailbox for mailbox in left if mailbox.startswith("ask.")]


def test_a_late_answer_is_refused_and_makes_no_mailbox(broker: Broker, name: str) -> None:
    with malamute.connect(broker.url, timeout=PATIENCE) as client:
        with client.subscribe(name) as questions:
            assert client.ask(name, "anybody", wait=SHORT, ttl=PATIENCE) == []
            question = questions.receive(PATIENCE)
            assert question.ttl == PATIENCE
            assert client.answer(question, b"too late") is False
        assert question.reply_to not in {row["name"] for row in client.query("mailboxes")}


def test_a_question_is_in_the_stream_for_as_long_as_an_answer_is_awaited(broker: Broker, name: str) -> None:
    with malamute.connect(broker.url, timeout=PATIENCE) as client, client.subscribe(name) as questions:
        client.ask(name, "anybody", wait=SHORT)
        assert questions.receive(PATIENCE).ttl == SHORT


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"wait": 0}, "invalid wait 0: expected more than 0 seconds"),
        ({"wait": "1s"}, "invalid wait '1s'"),
        ({"wait": float("inf")}, "invalid wait inf"),
        ({"most": 0}, "invalid most 0"),
        ({"ttl": -1}, "invalid ttl -1"),
        ({"headers": {"reply-to": "bob"}}, "invalid header 'reply-to'"),
    ],
)
def test_an_invalid_question_is_refused_before_anything_is_made(
    broker: Broker, name: str, options: dict[str, Any], words: str
) -> None:
    with malamute.connect(broker.url, timeout=PATIENCE) as client:
        with pytest.raises(errors.InvalidValue, match=words):
            client.ask(name, "anybody", **options)
        assert name not in {row["name"] for row in client.query("streams")}
        assert not [row for row in client.query("mailboxes") if row["name"].startswith("ask.")]


@pytest.mark.parametrize("reply_to", [None, 7, "bob", "", "ask.\n", "ask." + "x" * 300])
def test_a_message_that_names_another_mailbox_wants_no_answer(
    broker: Broker, name: str, reply_to: Any
) -> None:
    with malamute.connect(broker.url, timeout=PATIENCE) as client, client.subscribe(name) as messages:
        client.publish(name, "plain", b"", {"reply-to": reply_to})
        message = messages.receive(PATIENCE)
        assert message.reply_to == ""
        with pytest.raises(errors.InvalidValue, match="wants no answer: expected one that `ask`"):
            client.answer(message, b"yes")


def test_a_refusal_names_the_rule_that_answers_need(name: str) -> None:
    rules = ["create,publish,subscribe stream/#"]

    def broker(*more: str) -> Broker:
        found = tuple(map(AccessRule.parse, [*rules, *more]))
        return Broker(config=replace(small_config(), access=AccessConfig(rules=found)))

    def refusal(broker: Broker, call: Callable[[malamute.Client], Any]) -> str:
        with broker, malamute.connect(broker.url, timeout=PATIENCE) as client:
            with pytest.raises(errors.AccessRefused) as refused:
                call(client)
            return refused.value.text

    def late_answer(client: malamute.Client) -> bool:
        with client.subscribe(name) as questions:
            assert client.ask(name, "anybody", wait=SHORT, ttl=PATIENCE) == []
            return client.answer(questions.receive(PATIENCE), b"yes")

    mine, theirs = "create,receive mailbox/ask.anonymous.#", "create,send mailbox/ask.#"
    assert refusal(broker(), lambda client: client.ask(name, "anybody")).endswith(f"need the rule {mine!r}")
    assert refusal(broker(mine), late_answer).endswith(f"need the rule {theirs!r}")
    with broker(mine, theirs) as strict, malamute.connect(strict.url, timeout=PATIENCE) as client:
        assert late_answer(client) is False
