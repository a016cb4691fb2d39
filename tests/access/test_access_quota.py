"""Quotas: whose they are, and how the configuration has them."""

from __future__ import annotations

import pytest

from malamute.access import Policy, Quota, Quotas, User
from malamute.access.quota import HELD, RATES
from malamute.config import AccessConfig, Config, GroupRules, UserRules
from malamute.config.reload import reloaded
from malamute.errors import ConfigError

FEW, MANY = Quota(sessions=1), Quota(sessions=9, bytes_per_second=1 << 20)


def test_each_limit_of_a_quota_is_held_or_a_rate():
    assert sorted((*HELD, *RATES)) == sorted(Quota._fields)


def test_somebody_is_under_his_own_quota_and_those_of_his_groups():
    quotas = Quotas(FEW, {"ann": MANY}, {"traders": FEW})
    policy = Policy(
        groups={"traders": (), "staff": ()},
        users={"ann": User(groups=("traders", "staff"))},
        quotas=quotas,
    )
    assert policy.quota_owners("ann") == [("user", "ann"), ("group", "traders")]
    assert policy.quota_owners("bob", ["traders"]) == [("user", "bob"), ("group", "traders")]
    assert policy.quota_owners("eve") == [("user", "eve")]
    assert [quotas.of(("user", name)) for name in ("ann", "bob", "")] == [MANY, FEW, FEW]
    assert [quotas.of(("group", name)) for name in ("traders", "staff")] == [FEW, Quota()]
    assert not Policy(quotas=Quotas()).quota_owners("ann", {"traders"})


def test_a_policy_with_other_quotas_is_another_policy():
    assert Policy(quotas=Quotas(FEW)) != Policy()
    assert Policy(quotas=Quotas(FEW)) == Policy(quotas=Quotas(FEW))
    assert not Policy(quotas=Quotas(FEW)).in_force


def configured():
    return Config(
        access=AccessConfig(
            quota={"connections": 3},
            group=(GroupRules("traders", quota=MANY),),
            user=(UserRules("ann", groups=("traders",), quota=FEW),),
        )
    )


def test_the_configuration_has_quotas_of_everybody_groups_and_users(tmp_path):
    config = configured()
    assert config.access.policy().quotas == Quotas(Quota(connections=3), {"ann": FEW}, {"traders": MANY})
    (tmp_path / "broker.toml").write_text(config.toml())
    assert Config.load(tmp_path / "broker.toml", {}) == config


def test_the_environment_has_a_quota_as_a_table():
    given = {"MALAMUTE_ACCESS__QUOTA": '{connections = 3, bytes_per_second = "1MiB"}'}
    assert Config.load(None, given).access.quota == Quota(connections=3, bytes_per_second=1 << 20)


def test_a_running_broker_takes_other_quotas():
    taken = reloaded(Config(), configured())
    assert taken.config.access.quota == Quota(connections=3)
    assert not taken.waiting


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"connections": 0}, "connections = 0: expected a whole number from 1 on"),
        ({"bytes_per_second": "1 parsec"}, "bytes_per_second = '1 parsec': expected a size from 1 on"),
        ({"queued_bytes": 0}, "queued_bytes = 0: expected a size from 1 on"),
        ({"conections": 1}, "unknown quota 'conections': expected connections, sessions"),
        ("{", "access.quota = '{': expected a table"),
        (7, "access.quota = 7: expected a table"),
    ],
)
def test_what_is_no_quota_is_refused_by_name(value, words):
    with pytest.raises(ConfigError) as caught:
        AccessConfig(quota=value)
    assert words in caught.value.text
