"""Rates: what is too fast is refused with the time after which it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from running_gateway import RunningGateway
from secured_gateway import gateway_before

from malamute.access import Quota
from malamute.config import AccessConfig, ListenConfig
from malamute.config.accounts import Account, Accounts, hash_password, save_accounts
from malamute.gateway import rates
from malamute.gateway.rates import RateLimit
from malamute.testing import small_config

SLOW = 0.001
"""One request, and then none in this test."""


def test_a_rate_has_a_burst_after_a_rest_and_tells_when_more_may_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    rate = RateLimit(4, lambda: now)
    assert [rate.acquire("a") for _ in range(5)] == [0, 0, 0, 0, 0.25]
    assert rate.acquire("b") == 0
    now += 0.25
    assert [rate.acquire("a") for _ in range(2)] == [0, 0.25]
    now += 1000
    assert [rate.acquire("a") for _ in range(5)] == [0, 0, 0, 0, 0.25]
    assert [RateLimit(0.5, lambda: now).acquire("a")] == [0]
    monkeypatch.setattr(rates, "KEYS_MAX", 2)
    assert [rate.acquire(key) for key in "cde"] == [0, 0, 0]
    assert len(rate) == 2


def test_an_address_has_a_rate_whoever_it_says_it_is(start: Callable[..., RunningGateway]) -> None:
    with start(address_rate=SLOW).client() as http:
        assert http.get("/live").status_code == 200
        refused = http.get("/live", auth=("somebody", "else"))
    assert (refused.status_code, refused.json()["code"]) == (429, 908)
    assert refused.headers["retry-after"] == "1000"
    assert 999 < refused.json()["retry_after"] <= 1000
    assert refused.headers["x-content-type-options"] == "nosniff"


def test_a_user_has_a_rate_and_takes_nothing_of_others(start: Callable[..., RunningGateway]) -> None:
    with start(user_rate=SLOW, anonymous=False).client() as http:
        for auth in (("ann", "x"), ("bob", "x")):
            assert [http.get("/live", auth=auth).status_code for _ in range(2)] == [200, 429]
        assert [http.get("/live").status_code for _ in range(2)] == [200, 200]


def test_a_quota_of_the_broker_is_too_many_requests_with_its_time(tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    save_accounts(Accounts([Account("ann", hash_password("x"))]), accounts)
    config = small_config()
    config = replace(
        config,
        storage=replace(config.storage, kind="memory"),
        listen=ListenConfig(endpoints=("plain+tcp://127.0.0.1:*",)),
        access=AccessConfig(accounts=str(accounts), quota=Quota(messages_per_second=1, sources=1)),
    )
    path = "/v1/streams/weather/messages"
    lines = {"content-type": "application/x-ndjson"}
    with gateway_before(config) as gateway, gateway.client(auth=("ann", "x")) as http:
        answers = [http.post(f"{path}?subject=", content=b"{}\n" * 50, headers=lines) for _ in range(3)]
        refused = answers[-1]
        assert (refused.status_code, refused.json()["code"]) == (429, 430)
        assert int(refused.headers["retry-after"]) >= refused.json()["retry_after"] > 0
        with http.stream("GET", "/v1/streams/weather/events") as first:
            assert first.status_code == 200
            no_time_helps = http.get("/v1/streams/weather/events", params={"pattern": "other"})
            assert (no_time_helps.status_code, no_time_helps.json()["code"]) == (429, 430)
            assert "retry-after" not in no_time_helps.headers
