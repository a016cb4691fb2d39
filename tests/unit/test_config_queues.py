"""How mailboxes and services are configured."""

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from malamute.access import Accounts
from malamute.access.token import Issuers
from malamute.config import Config, QueueRule, QueuesConfig
from malamute.config.sections import POLICY_FIELDS
from malamute.errors import ConfigError
from malamute.server.daemon import _settings
from malamute.store.policies import QueuePolicy

_OF_RULES = {option.name for option in fields(QueueRule)} - {"pattern", "kind"}


def load(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "malamute.toml"
    path.write_text(text, encoding="utf-8")
    return Config.load(path, {})


def test_every_option_of_a_policy_is_one_of_a_rule_and_some_are_of_the_section() -> None:
    options = set(tomllib.loads(Config().toml())["queues"])
    assert options < set(POLICY_FIELDS) == set(_OF_RULES)
    assert [*POLICY_FIELDS.values(), "source"] == [*QueuePolicy._fields]
    assert QueuesConfig().policy("mailbox", "bob") == QueuePolicy()


def test_the_first_rule_that_fits_name_and_kind_is_taken() -> None:
    queues = QueuesConfig(
        max_deliver=7,
        rule=(
            QueueRule("print.*", kind="service", dead_letters=3),
            QueueRule("print.*", ack_timeout=5, backoff=()),
            QueueRule("*", depth=9),
        ),
    )
    service, mailbox = queues.policy("service", "print.a"), queues.policy("mailbox", "print.a")
    assert (service.attempts_max, service.dead_letters_max, service.messages_max) == (7, 3, 0)
    assert (mailbox.attempts_max, mailbox.ack_timeout_seconds, mailbox.backoff_seconds) == (7, 5.0, ())
    assert queues.policy("service", "scan").messages_max == 9


def test_a_file_configures_queues_and_is_written_as_it_was(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        [queues]
        ack_timeout = "30s"
        backoff = ["100ms", 2]
        [[queues.rule]]
        pattern = "bulk.*"
        kind = "mailbox"
        bytes = "1MiB"
        idle = 0
        """,
    )
    assert config.queues.backoff == (0.1, 2.0)
    assert config.queues.policy("mailbox", "bulk.x").bytes_max == 1024**2
    assert load(tmp_path, config.toml()) == config


def test_the_environment_configures_queues() -> None:
    config = Config.load(None, {"MALAMUTE_QUEUES__BACKOFF": "1s,2m", "MALAMUTE_QUEUES__MAX_DELIVER": "4"})
    assert (config.queues.backoff, config.queues.max_deliver) == ((1.0, 120.0), 4)


def test_the_core_is_given_the_policies() -> None:
    config = Config(queues=QueuesConfig(rule=(QueueRule("w", kind="service", max_deliver=2),)))
    assert _settings(config, config, [], Accounts(), Issuers()).queues("service", "w").attempts_max == 2
    assert _settings(config, config, [], Accounts(), Issuers()).queues("mailbox", "w").attempts_max == 20


def test_the_example_of_a_rule_is_a_valid_one() -> None:
    lines = Config().toml().splitlines()
    start = lines.index("# [[queues.rule]]")
    rule = tomllib.loads("\n".join(x.removeprefix("# ") for x in lines[start : lines.index("", start)]))
    assert (
        QueuesConfig(rule=tuple(rule["queues"]["rule"])).policy("service", "print.x").ack_timeout_seconds
        == 30
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[queues]\nbackoff = 5", "queues.backoff = 5: expected a list"),
        ('[queues]\nbackoff = ["x"]', "queues.backoff = \\['x'\\]: expected a list"),
        ("[queues]\nack_timeout = -1", "queues.ack_timeout = -1: expected a duration"),
        (
            "[[queues.rule]]\npattern = 'a'\npriority_step = 0",
            "rule.priority_step = 0: expected a whole number",
        ),
        ("[[queues.rule]]\npattern = 'a'\ndedup_count = 0", "rule.dedup_count = 0: expected a whole number"),
        ("[queues]\nmax_deliveries = 1", "unknown option 'max_deliveries': did you mean 'max_deliver'"),
        ("[[queues.rule]]\npattern = 'a'\nkind = 'stream'", "rule.kind = 'stream': expected one of"),
        ("[[queues.rule]]\npattern = 'a'\njournal = true", "unknown option 'journal': expected"),
        ("[[queues.rule]]\nkind = 'mailbox'", "rule.pattern = '': expected a pattern"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, text)
