"""Idempotency keys over a restart of the gateway: what was published is not published again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from restms_client import run_in
from running_gateway import RunningGateway
from secured_gateway import secured_gateway

import malamute
from malamute.errors import AccessRefused, KeyReused
from malamute.gateway.stored_keys import HEADER, KeyMark, StoredKeys

WEATHER = "/v1/streams/weather/messages"
HUB = "/.well-known/mercure"
ANN = ("ann", "orange")
EVE = ("eve", "apple")


def _post(
    gateway: RunningGateway, body: bytes, key: str = "k", path: str = WEATHER, **options: str
) -> httpx.Response:
    with gateway.client() as http:
        return http.post(path, content=body, headers={"idempotency-key": key, **options})


def test_another_gateway_knows_the_keys_that_are_in_the_stream(
    start: Callable[..., RunningGateway], client: malamute.Client
) -> None:
    lines = {"content-type": "application/x-ndjson"}
    first = start()
    posted = [_post(first, b"x"), _post(first, b"{}\n" * 3, "lines", **lines)]
    first.stop()
    # Others may have published anything under the name of the header, and without it.
    client.publish_batch("weather", ["s"] * 3, [b""] * 3, [{HEADER: 1}, {HEADER: "short"}, None])
    second = start()
    again = [_post(second, b"x"), _post(second, b"{}\n" * 3, "lines", **lines)]
    assert [answer.json() for answer in again] == [answer.json() for answer in posted]
    assert posted[1].json() == {"count": 3, "first": 2, "last": 4}
    for key in ("k", "lines"):
        assert (_post(second, b"other", key).status_code) == 422
    # It is another one of another stream, and of another key.
    assert _post(second, b"x", path="/v1/streams/other/messages").json()["first"] == 1
    assert _post(second, b"x", "new").json()["first"] == 8
    assert len(second.state.stored_keys._reading) == 1


def test_an_update_of_mercure_is_known_as_well(start: Callable[..., RunningGateway]) -> None:
    update = {"topic": ["a", "b"], "data": "x", "id": "urn:uuid:1"}
    for _ in range(2):
        gateway = start()
        with gateway.client() as http:
            assert http.post(HUB, data=update).text.startswith("#1@")
        gateway.stop()


def test_the_gateway_reads_as_a_user_of_its_own_for_users_who_may_only_publish(tmp_path: Path) -> None:
    rules = ["create,publish stream/weather"]
    with (
        secured_gateway(tmp_path, dict((ANN, ("gate", "keeper"))), rules, own="gate") as first,
        RunningGateway(first.state.settings) as second,
        # It has nobody to read as: its keys are those of its memory.
        RunningGateway(replace(first.state.settings, credentials={})) as third,
    ):
        for gateway, sequences in ((first, [1, 1]), (second, [1, 1]), (third, [2, 2])):
            with gateway.client(auth=ANN) as http:
                posts = [http.post(WEATHER, content=b"x", headers={"idempotency-key": "k"}) for _ in "ab"]
                assert [post.json()["first"] for post in posts] == sequences


def test_a_key_in_a_header_counts_only_where_the_broker_has_stamped_the_user_who_repeats_it(
    tmp_path: Path,
) -> None:
    rules = ["create,publish,subscribe stream/#", "receive mailbox/#"]
    users = dict((ANN, EVE, ("gate", "keeper")))
    with secured_gateway(tmp_path, users, rules, own="gate") as first:
        broker = first.state.settings.broker
        with first.client(auth=ANN) as http:
            posted = http.post(WEATHER, content=b"x", headers={"idempotency-key": "k"}).json()
        assert posted["first"] == 1
        with malamute.connect(broker, user="eve", password="apple") as eve:
            # Eve reads what a key of Ann's looks like, and publishes it as her own wherever she may.
            with eve.subscribe("weather", start="first") as found:
                mark = found.receive(60).headers[HEADER]
            eve.publish("weather", "s", b"forged", {HEADER: mark}, assurance="stored")
        changes = ({}, {"address": "$user.ann"}, {"address": "ann"}, {"signed": True})
        for at, options in enumerate(changes):
            stream = f"stream{at}"
            forged = KeyMark.of("$user.ann", (stream, "k"), b"").key
            try:
                with malamute.connect(broker, user="eve", password="apple", **options) as eve:
                    eve.publish(stream, "s", b"forged", {HEADER: forged + mark[32:]}, assurance="stored")
            except AccessRefused:
                continue
            with RunningGateway(first.state.settings) as second, second.client(auth=ANN) as http:
                path = f"/v1/streams/{stream}/messages"
                assert http.post(path, content=b"x", headers={"idempotency-key": "k"}).json()["first"] == 2
        with RunningGateway(first.state.settings) as second, second.client(auth=ANN) as http:
            again = http.post(WEATHER, content=b"x", headers={"idempotency-key": "k"})
            assert again.json() == posted


def test_what_is_kept_is_bounded_and_forgotten_in_time(
    gateway: RunningGateway, client: malamute.Client
) -> None:
    marks = [KeyMark.of("$user.", ("weather", str(n)), b"f" * 16) for n in range(4)]
    with malamute.connect(client.url, signed=True) as own:
        own.publish_batch("weather", ["s"] * 4, [b""] * 4, [{HEADER: mark.header} for mark in marks])

    async def find() -> None:
        now_ns = [0]
        state = gateway.state
        keys = StoredKeys(replace(state.settings, keys=3, key_seconds=10.0), state.users, lambda: now_ns[0])
        assert [await keys.find("weather", mark) for mark in marks] == [0, 2, 3, 4]
        with pytest.raises(KeyReused):
            await keys.find("weather", marks[1]._replace(fingerprint="other"))
        now_ns[0] = 2**62
        assert [await keys.find("weather", mark) for mark in marks] == [0] * 4
        # Streams that are not there are not remembered.
        assert await keys.find("none", marks[0]) == 0
        assert [*keys._reading] == ["weather"]
        await keys.close()

    run_in(gateway, find())
