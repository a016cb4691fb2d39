"""Idempotency keys: the broker knows them, so that any gateway publishes a request once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
from running_gateway import RunningGateway
from secured_gateway import secured_gateway

import malamute

WEATHER = "/v1/streams/weather/messages"
HUB = "/.well-known/mercure"
ANN = ("ann", "orange")
EVE = ("eve", "apple")


def _post(
    gateway: RunningGateway, body: bytes, key: str = "k", path: str = WEATHER, **options: str
) -> httpx.Response:
    with gateway.client() as http:
        return http.post(f"{path}?subject=", content=body, headers={"idempotency-key": key, **options})


def test_another_gateway_and_another_client_know_the_keys(
    start: Callable[..., RunningGateway], client: malamute.Client
) -> None:
    lines = {"content-type": "application/x-ndjson"}
    first = start()
    posted = [_post(first, b"x"), _post(first, b"{}\n" * 3, "lines", **lines)]
    first.stop()
    second = start()
    again = [_post(second, b"x"), _post(second, b"{}\n" * 3, "lines", **lines)]
    assert [answer.json() for answer in again] == [answer.json() for answer in posted]
    assert posted[1].json() == {"count": 3, "first": 2, "last": 4}
    for key in ("k", "lines"):
        refused = _post(second, b"other", key)
        assert (refused.status_code, refused.json()["code"]) == (422, 907)
    # The content is another one in another stream, and under another key.
    assert _post(second, b"x", path="/v1/streams/other/messages").json()["first"] == 1
    assert _post(second, b"x", "new").json()["first"] == 5
    # The broker stores no header for it.
    with client.subscribe("weather", start="first") as found:
        headers = found.receive(60).headers
    assert "idempotency-key" not in headers
    assert client.publish("weather", "", b"x", headers, assurance="stored", id="k") == 1


def test_an_update_of_mercure_is_known_as_well(start: Callable[..., RunningGateway]) -> None:
    update = {"topic": ["a", "b"], "data": "x", "id": "urn:uuid:1"}
    for _ in range(2):
        gateway = start()
        with gateway.client() as http:
            assert http.post(HUB, data=update).text.startswith("#1@")
        gateway.stop()


def test_keys_are_of_a_user_who_needs_no_right_but_to_publish(tmp_path: Path) -> None:
    rules = ["create,publish stream/weather"]
    with secured_gateway(tmp_path, dict((ANN, EVE)), rules) as gateway:
        for user, sequence in ((ANN, 1), (EVE, 2)):
            with gateway.client(auth=user) as http:
                posts = [
                    http.post(f"{WEATHER}?subject=", content=user[1], headers={"idempotency-key": "k"})
                    for _ in "ab"
                ]
                assert [post.json()["first"] for post in posts] == [sequence] * 2
