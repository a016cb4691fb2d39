"""`malamute user show` and `user quotas`, and the figure of `broker check`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from cli_commands import Run

import malamute
from malamute.access import Quota
from malamute.config import AccessConfig, GroupRules, UserRules
from malamute.testing import Broker, small_config


@pytest.fixture
def broker() -> Iterator[Broker]:
    access = AccessConfig(
        quota=Quota(connections=9, requests=1),
        group=(GroupRules("traders", quota=Quota(bytes_per_second=1 << 20)),),
        user=(UserRules("ann", groups=("traders",), quota=Quota(sessions=2)),),
    )
    with Broker(config=replace(small_config(), access=access)) as broker:
        yield broker


def figure(owner: str, quota: str, used: int, limit: int, refused: int = 0) -> dict[str, object]:
    return {"owner": owner, "quota": quota, "used": used, "limit": limit, "refused": refused}


def test_quotas_are_shown_with_what_is_used_of_them(run: Run, client: malamute.Client) -> None:
    client.request("w", "x", b"")
    with pytest.raises(malamute.QuotaExceeded):
        next(iter(client.request("w", "x", b"", assurance="stored", timeout=30)))
    traders = figure("group traders", "bytes_per_second", 0, 1 << 20)
    ann = figure("user ann", "sessions", 0, 2)
    assert json.loads(run("user", "show", "ann", "--json").stdout) == [traders, ann]
    # The command itself is the second connection.
    nobody = [figure("user ", "connections", 2, 9), figure("user ", "requests", 1, 1, 1)]
    assert json.loads(run("user", "quotas", "--json").stdout) == [traders, *nobody, ann]
    table = run("user", "show", "ann").stdout.splitlines()
    assert table[0].split() == ["owner", "quota", "used", "limit", "refused"]
    assert table[2].split() == ["user", "ann", "sessions", "0", "2", "0"]


def test_the_list_of_accounts_has_what_each_uses_of_his_own(run: Run, client: malamute.Client) -> None:
    run("user", "add", "ann", "--uid", "7")
    run("user", "add", "bob", "--uid", "8")
    ann, bob = json.loads(run("user", "list", "--json").stdout)
    assert ann["quotas"] == [{"name": "sessions", "used": 0, "limit": 2, "refused": 0}]
    assert {figure["name"]: figure["limit"] for figure in bob["quotas"]} == {"connections": 9, "requests": 1}
    table = run("user", "list").stdout.splitlines()
    assert table[1].endswith("sessions 0/2")
    assert table[2].endswith("connections 0/9, requests 0/1")


def test_what_quotas_have_refused_is_a_figure_of_the_check(run: Run, client: malamute.Client) -> None:
    run("broker", "check", "--quotas", "1")
    client.request("w", "x", b"")
    with pytest.raises(malamute.QuotaExceeded):
        next(iter(client.request("w", "x", b"", assurance="stored", timeout=30)))
    assert "quotas 1 is at or over 1" in run("broker", "check", "--quotas", "1", exit_code=1).stdout
    assert "quotas=1;;" in run("broker", "check").stdout


def test_where_there_are_no_quotas_it_says_so(run: Run) -> None:
    with Broker() as broker:
        assert run("user", "quotas", MALAMUTE_URL=broker.url).stderr == "no quotas\n"
        assert json.loads(run("user", "show", "eve", "--json", MALAMUTE_URL=broker.url).stdout) == []
