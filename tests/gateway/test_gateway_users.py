"""Who sends a request acts as themselves: the broker checks the credentials, and decides."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from running_gateway import WAIT_SECONDS, RunningGateway
from secured_gateway import secured_gateway
from token_issuer import SigningIssuer

from malamute.errors import AddressTaken, LoginNeeded, TryLater
from malamute.gateway.settings import GatewaySettings
from malamute.gateway.users import ANONYMOUS, Identity, Users
from malamute.testing import Broker

RULE = "create,publish,subscribe stream/{user}"
BOB, ANN = ("bob", "secret"), ("ann", "geheim")


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[RunningGateway]:
    """A gateway before a broker that asks for a password."""
    with secured_gateway(tmp_path, dict((BOB, ANN)), [RULE]) as gateway:
        yield gateway


def test_passwords_go_to_the_broker_encrypted_where_the_gateway_has_its_key(tmp_path: Path) -> None:
    with secured_gateway(tmp_path, dict((BOB, ANN)), [RULE], curve=True) as gateway:
        with gateway.client(auth=BOB) as http:
            assert http.post("/v1/streams/bob/messages?subject=a", content=b"x").status_code == 201
        with gateway.client(auth=("bob", "wrong")) as http:
            assert http.get("/v1/streams/bob/messages").status_code == 401


def test_a_user_may_do_what_the_broker_allows_that_user(secured: RunningGateway) -> None:
    with secured.client(auth=BOB) as http:
        assert http.post("/v1/streams/bob/messages?subject=a", content=b"x").status_code == 201
        refused = http.post("/v1/streams/ann/messages?subject=a", content=b"x")
        assert (refused.status_code, refused.json()["code"]) == (403, 401)
    with secured.client(auth=ANN) as http:
        assert http.post("/v1/streams/ann/messages?subject=a", content=b"x").status_code == 201
        refused = http.get("/v1/streams/bob/events")
        assert (refused.status_code, refused.json()["code"]) == (403, 401)
    # One of bob, and two of ann: she has asked for an answer without end.
    assert len(secured.state.users) == 3


@pytest.mark.parametrize("auth", [("bob", "wrong"), ("nobody", "x"), ("b" * 256, "x"), ("bob", "x" * 300)])
def test_wrong_credentials_have_to_log_in_and_keep_no_session(
    secured: RunningGateway, auth: tuple[str, str]
) -> None:
    with secured.client(auth=auth) as http:
        answer = http.get("/v1/streams/bob/messages")
    assert (answer.status_code, answer.json()["code"]) == (401, 905)
    assert "secret" not in answer.text
    with secured.client(auth=BOB) as http:
        assert http.get("/v1/streams/bob/messages").status_code == 404


def test_wrong_credentials_take_the_place_of_nobody(secured: RunningGateway) -> None:
    with RunningGateway(replace(secured.state.settings, users=1)) as gateway:
        with gateway.client(auth=BOB) as http, gateway.client(auth=("bob", "wrong")) as guesser:
            assert http.post("/v1/streams/bob/messages?subject=a", content=b"x").status_code == 201
            [session] = gateway.state.users._entries.values()
            assert [guesser.get("/v1/streams/bob/messages").status_code for _ in range(3)] == [401] * 3
            assert [*gateway.state.users._entries.values()] == [session]
        # Who has right ones gets the answer that there is no place, and others still that theirs are wrong.
        with gateway.client(auth=ANN) as http:
            assert http.post("/v1/streams/ann/messages?subject=a", content=b"x").status_code == 201
        with gateway.client(auth=ANN) as http, http.stream("GET", "/v1/streams/ann/events") as following:
            assert following.status_code == 200
            assert http.get("/v1/streams/ann/messages").status_code == 503
            with gateway.client(auth=("bob", "wrong")) as guesser:
                assert guesser.get("/v1/streams/bob/messages").status_code == 401


def test_a_token_that_the_broker_does_not_know_has_to_log_in(secured: RunningGateway) -> None:
    with secured.client(headers={"authorization": "Bearer none.of.ours"}) as http:
        answer = http.get("/v1/streams/bob/messages")
    assert (answer.status_code, answer.json()["code"]) == (401, 905)


def test_a_token_of_an_issuer_is_its_user_at_every_path_and_in_the_console(tmp_path: Path) -> None:
    issuer = SigningIssuer(tmp_path)
    with secured_gateway(tmp_path, {}, [RULE, "view stream/{user}"], issuer.known) as gateway:
        with gateway.client(headers={"authorization": f"Bearer {issuer.token('carl')}"}) as http:
            assert http.post("/v1/streams/carl/messages?subject=a", content=b"of carl").status_code == 201
            assert http.post("/v1/streams/ann/messages?subject=a", content=b"x").status_code == 403
        with gateway.client(headers={"authorization": f"Bearer {issuer.token('carl', -60)}"}) as http:
            answer = http.get("/v1/streams/carl/messages")
            assert (answer.status_code, answer.json()["code"]) == (401, 905)
        with gateway.client(headers={"origin": gateway.url}) as http:
            assert http.post("/console/sign-in", data={"token": issuer.token("carl", -60)}).status_code == 401
            assert http.post("/console/sign-in", data={"token": issuer.token("carl")}).status_code == 303
            assert "of carl" in http.get("/console/stream/history?name=carl").text
            assert http.get("/console/stream/history?name=ann").status_code == 403


def test_an_identity_shows_no_secret() -> None:
    shown = repr(Identity("bob", "secret", "token"))
    assert "bob" in shown
    assert "secret" not in shown
    assert "token" not in shown
    digests = {Identity(*parts).digest for parts in (("a", "bc"), ("ab", "c"), ("", "", "abc"))}
    assert len(digests) == 3


def test_a_session_is_shared_while_it_is_used_and_closed_when_it_is_idle(broker: Broker) -> None:
    async def use() -> None:
        users = Users(GatewaySettings(broker=broker.url, timeout_seconds=WAIT_SECONDS))
        async with users.run():
            async with users.session(ANONYMOUS) as first, users.session(ANONYMOUS) as second:
                assert first is second
                await users.close_idle(float("inf"))
                assert not first.ended
            await users.close_idle(float("inf"))
            assert (first.ended, len(users)) == (True, 0)
            async with users.session(ANONYMOUS) as third:
                assert not third.ended

    asyncio.run(use())


def test_a_session_that_has_ended_is_opened_again(broker: Broker) -> None:
    async def use() -> None:
        users = Users(GatewaySettings(broker=broker.url, timeout_seconds=WAIT_SECONDS))
        others = Users(GatewaySettings(broker=broker.url, timeout_seconds=WAIT_SECONDS))
        async with users.run(), others.run():
            async with users.session(ANONYMOUS, "alice") as first, others.session(ANONYMOUS, "alice"):
                with pytest.raises(AddressTaken):
                    await first.receive(WAIT_SECONDS)
            async with users.session(ANONYMOUS, "alice") as second:
                assert second is not first

    asyncio.run(use())


def test_there_are_as_many_sessions_as_there_may_be(broker: Broker) -> None:
    async def use() -> None:
        users = Users(GatewaySettings(broker=broker.url, timeout_seconds=WAIT_SECONDS, users=2))
        async with users.run(), users.session(ANONYMOUS, "a"):
            async with users.session(ANONYMOUS, "b"):
                with pytest.raises(TryLater, match="expected at most 2"):
                    async with users.session(ANONYMOUS, "c"):
                        pass
            # b is idle now, and makes room.
            async with users.session(ANONYMOUS, "c"):
                assert len(users) == 2

    asyncio.run(use())


def test_answers_without_end_share_sessions_of_their_own(broker: Broker) -> None:
    async def use() -> None:
        settings = GatewaySettings(broker=broker.url, timeout_seconds=WAIT_SECONDS, session_followers=2)
        users = Users(settings)
        async with users.run(), AsyncExitStack() as stack:
            for expected in (1, 1, 2, 2, 3):
                await stack.enter_async_context(users.session(ANONYMOUS, followers=1))
                assert len(users) == expected
            async with users.session(ANONYMOUS):
                assert len(users) == 4

    asyncio.run(use())


def test_an_answer_that_takes_more_of_a_session_shares_it_with_fewer(broker: Broker) -> None:
    async def use() -> None:
        settings = GatewaySettings(broker=broker.url, timeout_seconds=WAIT_SECONDS, session_followers=4)
        users = Users(settings)
        async with users.run(), AsyncExitStack() as stack:
            # The third has no room in the first session, the fourth has; the last has room in none.
            for followers, expected in ((2, 1), (1, 1), (3, 2), (1, 2), (9, 3)):
                await stack.enter_async_context(users.session(ANONYMOUS, followers=followers))
                assert len(users) == expected

    asyncio.run(use())


def test_what_cannot_be_opened_is_raised_to_all_who_wait_for_it(broker: Broker) -> None:
    async def use() -> None:
        users = Users(GatewaySettings(broker=broker.url, timeout_seconds=WAIT_SECONDS))

        async def once() -> None:
            async with users.session(Identity("u" * 256, "p")):
                pass

        async with users.run():
            results = await asyncio.gather(*(once() for _ in range(5)), return_exceptions=True)
            assert {type(result) for result in results} == {LoginNeeded}

    asyncio.run(use())
