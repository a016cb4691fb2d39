"""The configuration: what it accepts, what it refuses and in which words, and its file in the checkout."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malamute.config import (
    Config,
    LimitsConfig,
    ListenConfig,
    StorageConfig,
    StreamRule,
    StreamsConfig,
)
from malamute.config.sections import SECTIONS, types_of
from malamute.errors import ConfigError
from malamute.protocol import quantities
from malamute.protocol.limits import Limits
from malamute.store.policies import StreamPolicy, StreamRetention

SHIPPED = Path(__file__).parents[2] / "config" / "malamute.toml"

Load = Callable[..., Config]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a text as malamute.toml, with these environment variables."""

    def load_text(text: str = "", **environ: str) -> Config:
        path = tmp_path / "malamute.toml"
        path.write_text(text, encoding="utf-8")
        return Config.load(path, environ)

    return load_text


# Defaults, and the file that shows them


def test_no_file_and_no_environment_give_the_defaults() -> None:
    assert Config.load(None, {}) == Config()


def test_the_shipped_file_is_what_the_code_renders() -> None:
    assert SHIPPED.read_text(encoding="utf-8") == Config().toml(), "run `make docs`"


def test_the_shipped_file_gives_the_defaults() -> None:
    assert Config.load(SHIPPED, {}) == Config()


def test_the_shipped_file_has_every_option_with_a_comment_before_it() -> None:
    text = SHIPPED.read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    for name, section in SECTIONS.items():
        of_tables = {"rule", "store", "group", "issuer", *(("user",) if name == "access" else ())}
        assert set(tables[name]) == set(types_of(section)) - of_tables
    options = re.findall(r"^(.*)\n(\w+ = .*)$", text, re.MULTILINE)
    assert len(options) >= sum(map(len, tables.values()))
    assert all(before.startswith("# ") for before, _ in options)


def test_the_example_of_a_rule_is_a_valid_one() -> None:
    lines = Config().toml().splitlines()
    start = lines.index("# [[streams.rule]]")
    end = lines.index("", start)
    rule = tomllib.loads("\n".join(line.removeprefix("# ") for line in lines[start:end]))
    assert (
        StreamsConfig(rule=tuple(rule["streams"]["rule"])).policy("metrics.cpu").retention.age_seconds == 3600
    )


def test_a_rendered_configuration_loads_as_it_was(load: Load) -> None:
    config = Config(
        listen=ListenConfig(endpoints=("ipc:///run/mala mute.sock",), heartbeat_interval=0.035),
        storage=StorageConfig(directory=Path('odd "name"\\\x7f\n'), size=2**31, streams_share=0.55),
        streams=StreamsConfig(
            age=1.1, rule=(StreamRule("a.*", journal=False), StreamRule("b", bytes=123, count=7, age=0.5))
        ),
        limits=LimitsConfig(memory=2**32 + 1),
    )
    assert load(config.toml()) == config
    assert '; otherwise "6GiB".' in config.toml()


def test_one_queue_may_have_three_quarters_of_what_all_may_have(load: Load) -> None:
    limits = load('[limits]\nmemory = "2GiB"\n[storage]\nsize = "2GiB"').core_limits
    assert (limits.queues_messages, limits.queues_bytes) == (666_666, 256 * 1024**2)
    assert (limits.queue_messages, limits.queue_bytes) == (499_999, 192 * 1024**2)
    assert Limits() == Limits().share_queues()


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().listen.io_threads = 2  # type: ignore[misc]


# Where values come from


def test_the_environment_comes_before_the_file(load: Load) -> None:
    text = '[storage]\nsize = "2GiB"\npreallocate = true\n'
    config = load(text, MALAMUTE_STORAGE__SIZE="3GiB")
    assert config.storage.size == 3 * 1024**3
    assert config.storage.preallocate


def test_the_environment_sets_values_of_every_kind(load: Load) -> None:
    config = load(
        MALAMUTE_LISTEN__ENDPOINTS="tcp://*:9999, ipc://@/other",
        MALAMUTE_LISTEN__INSECURE="yes",
        MALAMUTE_LISTEN__HEARTBEAT_INTERVAL="250ms",
        MALAMUTE_STORAGE__DIRECTORY="/srv/malamute",
        MALAMUTE_STORAGE__PREALLOCATE="no",
        MALAMUTE_STORAGE__STREAMS_SHARE="0.5",
        MALAMUTE_STREAMS__RULE='[{pattern = "raw.*", journal = false}]',
        MALAMUTE_LISTEN__CONNECTIONS="10",
        MALAMUTE_LOG__LEVEL="debug",
    )
    assert config.listen.endpoints == ("tcp://*:9999", "ipc://@/other")
    assert config.listen.heartbeat_interval == 0.25
    assert config.storage == StorageConfig(
        directory=Path("/srv/malamute"), preallocate=False, streams_share=0.5
    )
    assert config.streams.rule == (StreamRule("raw.*", journal=False),)
    assert config.core_limits.sessions == config.listen.connections == 10
    assert config.log.level == "debug"


def test_variables_without_a_section_are_left_alone(load: Load) -> None:
    assert load(MALAMUTE_FUZZ_EXAMPLES="20000", MALAMUTE_STORAGE="x", OTHER__THING="y") == Config()


def test_a_home_directory_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert StorageConfig(directory=Path("~/data")).directory == Path("/home/ann/data")


# Refused values, and the words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[storag]\nsize = 1", "unknown section 'storag': did you mean 'storage'?"),
        ("[storag]", "unknown section 'storag': did you mean 'storage'?"),
        (
            "size = 1",
            "unknown section 'size': expected broker, listen, access, storage, session, streams, queues, "
            "buckets, events, pair, limits, log",
        ),
        ("storage = 1", "storage = 1: expected a table, as in [storage]"),
        (
            "[listen]\nheartbeat_intervall = 1",
            "[listen]: unknown option 'heartbeat_intervall': did you mean 'heartbeat_interval'?",
        ),
        ("[storage]\nsize = ", "invalid TOML: "),
        ("[storage]\nsize = " + "[" * 5_000, "invalid TOML: too many lists"),
        (
            "[log]\nlevel = 'loud'",
            'log.level = \'loud\': expected one of "debug", "info", "warning", "error"',
        ),
        (
            "[[streams.rule]]\npattern = 'a'\nbyte = 1",
            "streams.rule: unknown option 'byte': did you mean 'bytes'?",
        ),
        ("[[streams.rule]]\nbytes = 1", "streams.rule: rule.pattern = '': expected a pattern of names"),
        ("[[streams.rule]]\npattern = 'a'\nage = 'x'", "streams.rule: rule.age = 'x': expected a duration"),
    ],
)
def test_a_file_is_refused_with_its_name_and_what_is_wrong(load: Load, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert re.match(r"/.*malamute\.toml: ", caught.value.text)
    assert words in caught.value.text


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("MALAMUTE_STORAGE__SIZE", "12XB", "storage.size = '12XB': expected a size from 1MiB to 128TiB"),
        ("MALAMUTE_STORAGE__SIZ", "1", "[storage]: unknown option 'siz': did you mean 'size'?"),
        ("MALAMUTE_STORAG__SIZE", "1", "unknown section 'storag': did you mean 'storage'?"),
        ("MALAMUTE_STREAMS__RULE", "[{", "streams.rule = '[{': expected a list of tables"),
        ("MALAMUTE_LISTEN__ENDPOINTS", "", "listen.endpoints = '': expected a list of different endpoints"),
    ],
)
def test_a_variable_is_refused_with_its_name(load: Load, variable: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(**{variable: value})
    assert caught.value.text.startswith(f"{variable}: {words}")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.toml: cannot be read: No such file"):
        Config.load(tmp_path / "nothing.toml", {})


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b"[log]\nlevel = '\xe9'\n")
    with pytest.raises(ConfigError, match=r"latin\.toml: invalid TOML"):
        Config.load(path, {})


@pytest.mark.parametrize(
    ("section", "option", "value"),
    [
        ("listen", "endpoints", []),
        ("listen", "endpoints", [1]),
        ("listen", "endpoints", "udp://127.0.0.1:9999"),
        ("listen", "endpoints", "tcp://127.0.0.1"),
        ("listen", "endpoints", "tcp://127.0.0.1:65536"),
        ("listen", "endpoints", "ipc://"),
        ("listen", "endpoints", "peer+tcp://127.0.0.1:9999"),
        ("listen", "endpoints", "ipc://@"),
        ("listen", "endpoints", "ipc://" + "x" * 108),
        ("listen", "endpoints", ["tcp://*:1", "tcp://*:1"]),
        ("listen", "endpoints", 1),
        ("listen", "heartbeat_interval", 20.1),
        ("listen", "heartbeat_interval", -1),
        ("listen", "heartbeat_interval", True),
        ("listen", "heartbeat_interval", float("nan")),
        ("listen", "heartbeat_interval", float("inf")),
        ("listen", "heartbeat_interval", "1 fortnight"),
        ("listen", "heartbeat_interval", "1e999999999s"),
        ("listen", "io_threads", 0),
        ("listen", "io_threads", 1.5),
        ("listen", "io_threads", "many"),
        ("listen", "io_threads", None),
        ("storage", "directory", ""),
        ("storage", "directory", 7),
        ("storage", "directory", "a\0b"),
        ("storage", "directory", "~nobody-of-this-name/x"),
        ("storage", "kind", "paper"),
        ("storage", "size", 2**48),
        ("storage", "size", "0.1KiB"),
        ("storage", "size", 10**400),
        ("storage", "preallocate", 1),
        ("storage", "preallocate", "perhaps"),
        ("storage", "streams_share", 1),
        ("streams", "rule", [1]),
        ("streams", "rule", 1),
        ("streams", "count", -1),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(section: str, option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{section}\.{option} = .*: expected "):
        SECTIONS[section](**{option: value})


def test_a_limit_that_is_not_allowed_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"limits\.message_bytes = 0: expected a size from 1 on"):
        Config(limits=LimitsConfig(message_bytes=0))


@pytest.mark.parametrize(
    "value", ["tcp://[::1]:9999", "tcp://*:*", "tcp://eth0:0", "ipc:///run/malamute.sock"]
)
def test_an_endpoint_that_is_allowed(value: str) -> None:
    assert ListenConfig(endpoints=(value,)).endpoints == (value,)


# Options against each other


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '[storage]\nsize = "512MiB"',
            "limits.message_bytes (64MiB) is too large: "
            "storage.size (512MiB) and streams_share (0.7) leave one queue 48MiB",
        ),
        (
            '[limits]\nmessage_bytes = "97MiB"',
            "limits.message_bytes (97MiB) is too large: "
            "storage.size (1GiB) and streams_share (0.7) leave one queue 96MiB",
        ),
        (
            '[streams]\nbytes = "1GiB"',
            "streams.bytes (1GiB) is too large: storage.size (1GiB) and streams_share (0.7) leave 716MiB",
        ),
        (
            '[[streams.rule]]\npattern = "a"\nbytes = "1GiB"',
            'bytes of streams.rule "a" (1GiB) is too large: '
            "storage.size (1GiB) and streams_share (0.7) leave 716MiB",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(load: Load, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert caught.value.text.endswith(f"malamute.toml: {words}")


def test_what_the_words_of_a_refusal_propose_is_accepted() -> None:
    storage = StorageConfig(size=512 * 1024**2)
    mib = 1024**2
    assert Config(storage=storage, limits=LimitsConfig(message_bytes=48 * mib))
    with pytest.raises(ConfigError):
        Config(storage=storage, limits=LimitsConfig(message_bytes=48 * mib + 1))


def test_all_contradictions_are_reported_at_once() -> None:
    with pytest.raises(ConfigError, match=r"message_bytes .*; streams\.bytes "):
        Config(limits=LimitsConfig(message_bytes=2**40), streams=StreamsConfig(bytes=2**40))


# Streams


def test_the_first_rule_that_fits_decides_and_the_rest_stays_default() -> None:
    streams = StreamsConfig(
        bytes=1000,
        age=60.0,
        rule=(
            StreamRule("metrics.cpu", count=5),
            StreamRule("metrics.*", journal=False, age=0.0),
            StreamRule("*.cpu", bytes=1),
        ),
    )
    assert streams.policy("metrics.cpu") == StreamPolicy(
        True, False, StreamRetention(1000, 5, 60.0), retention_source="rule metrics.cpu"
    )
    assert streams.policy("metrics.disk") == StreamPolicy(
        False, False, StreamRetention(1000, 0, 0.0), retention_source="rule metrics.*"
    )
    assert streams.policy("other") == StreamPolicy(True, False, StreamRetention(1000, 0, 60.0))


def test_a_rule_without_a_limit_is_not_what_says_how_much_is_kept() -> None:
    streams = StreamsConfig(bytes=1000, rule=(StreamRule("metrics.*", committed=True),))
    assert streams.policy("metrics.cpu").retention_source == "default"


def test_a_pattern_minds_the_case_of_letters() -> None:
    streams = StreamsConfig(rule=(StreamRule("Logs", journal=False),))
    assert not streams.policy("Logs").journal
    assert streams.policy("logs").journal


# Sizes and durations


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0"), (0.5, "500ms"), (0.0005, "0.0005s"), (1.5, "1.5s"), (90, "90s"), (600, "10m"), (86_400, "1d")],
)
def test_a_duration_is_written_shortly(seconds: float, text: str) -> None:
    assert quantities.format_duration(seconds) == text


@given(st.integers(0, 2**63 - 1))
def test_a_written_size_reads_back(size_bytes: int) -> None:
    assert quantities.parse_size(quantities.format_size(size_bytes)) == size_bytes


@given(st.floats(0, 100 * 365 * 86400) | st.integers(0, 10**7).map(lambda ms: ms / 1000))
def test_a_written_duration_reads_back(seconds: float) -> None:
    assert quantities.parse_duration(quantities.format_duration(seconds)) == seconds


def test_a_section_made_in_a_program_reads_texts_too() -> None:
    assert replace(StorageConfig(), size="2GiB").size == 2 * 1024**3  # type: ignore[arg-type]


ACCESS = """
[access]
rules = ["view broker/status"]

[[access.group]]
name = "staff"
rules = ["subscribe stream/#"]

[[access.user]]
name = "ann"
groups = ["staff"]
rules = ["receive mailbox/{user}"]
claims = { ward = "3" }
"""


def test_rules_users_and_groups_are_read_and_written(load: Load) -> None:
    config = load(ACCESS)
    policy = config.access.policy()
    assert policy.in_force
    assert policy.grants("ann").decide("subscribe", "stream", "s").allowed
    assert policy.grants("ann").decide("receive", "mailbox", "ann").allowed
    assert not policy.grants("bob").decide("subscribe", "stream", "s").allowed
    assert policy.users["ann"].claims == (("ward", "3"),)
    assert load(config.toml()) == config


ISSUER = "[[access.issuer]]\nname = 'i'\naudience = 'a'\nkeys = 'k'\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rules = ['pub stream/a']", "access.rules: invalid rule 'pub stream/a': unknown action 'pub'"),
        ("rules = [7]", "access.rules: invalid rule 7: expected text"),
        ("[[access.group]]\nrules = []", "access.group: group.name = '': expected a name that does not"),
        ("[[access.group]]\nname = '$a'", "access.group: group.name = '$a': expected a name that does not"),
        (
            "[[access.user]]\nname = 'a'\nrule = []",
            "access.user: unknown option 'rule': did you mean 'rules'?",
        ),
        (
            "[[access.user]]\nname = 'a'\nclaims = {x = 1}",
            "user.claims = {'x': 1}: expected a table of texts",
        ),
        ("[[access.user]]\nname = 'a'\n[[access.user]]\nname = 'a'", "access.user: 'a' stands twice"),
        (
            "[[access.user]]\nname = 'a'\ngroups = ['b']",
            "\"a\": unknown group 'b': expected none",
        ),
        (
            "[[access.user]]\nname = 'a'\nrules = ['send mailbox/a b']",
            "access.user: user.rules: invalid rule 'send mailbox/a b': unexpected 'b': expected 'where'",
        ),
        ("[[access.issuer]]", "access.issuer: issuer.name = '': expected a text"),
        (f"{ISSUER}algorithms = []", "issuer.algorithms = []: expected a list of some of RS256"),
        (f"{ISSUER}algorithms = ['none']", "issuer.algorithms = ['none']: expected a list of some of"),
        (f"{ISSUER}algorithms = ['HS256']", "issuer.algorithms = ['HS256']: expected a list of some of"),
        (f"{ISSUER}algorithms = ['RS256']\nleeway = '1h'", "issuer.leeway = '1h': expected a duration"),
        (2 * f"{ISSUER}algorithms = ['RS256']\n", "access.issuer: 'i' stands twice"),
    ],
)
def test_rules_that_cannot_be_used_are_refused_as_a_whole(load: Load, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"[access]\n{text}")
    assert words in caught.value.text


def test_rules_from_the_environment_are_a_list_of_toml(load: Load) -> None:
    config = load(MALAMUTE_ACCESS__RULES='["publish,subscribe stream/#"]')
    assert [*map(str, config.access.rules)] == ["publish,subscribe stream/#"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('endpoints = ["tcp://*:9999"]', "tcp://*:9999 is open to other machines without encryption"),
        (
            'endpoints = ["tcp://10.0.0.1:9999"]',
            "expected curve+tcp://10.0.0.1:9999, or listen.insecure = true",
        ),
        ('endpoints = ["plain+tcp://*:9999"]', "is open to other machines without encryption"),
        ('endpoints = ["curve+tcp://*:9999"]', "access.key is empty"),
        ('endpoints = ["tls+tcp://*:9999"]', "expected a list of different endpoints"),
        ('endpoints = ["curve+"]', "expected a list of different endpoints"),
        ('gateways = ["10.0.0.7", "gateway"]', "expected a list of IP addresses and networks"),
        ('gateways = ["10.0.0.7/8"]', "expected a list of IP addresses and networks"),
        ("gateways = [7]", "expected a list of IP addresses and networks"),
    ],
)
def test_a_listener_that_protects_nothing_is_refused(load: Load, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"[listen]\n{text}")
    assert words in caught.value.text


@pytest.mark.parametrize(
    "text",
    [
        'endpoints = ["tcp://*:9999"]\ninsecure = true',
        'endpoints = ["tcp://localhost:1", "tcp://127.3.2.1:1", "tcp://[::1]:1", "ipc:///run/m"]',
        f'endpoints = ["plain+ipc:///run/m"]\n{ISSUER}algorithms = ["RS256", "EdDSA"]',
        'endpoints = ["curve+tcp://*:1", "plain+ipc:///run/m"]\n[access]\nkey = "a"\naccounts = "b"',
    ],
)
def test_a_listener_that_protects_or_says_that_it_does_not_is_allowed(load: Load, text: str) -> None:
    assert load(f"[listen]\n{text}").listen.listeners


@pytest.mark.parametrize("user", ["", "malamute", "malamute:data", "1000:1000", "a-b.c_d$"])
def test_a_user_of_the_system_is_a_name_with_or_without_a_group(load: Load, user: str) -> None:
    assert load(f"[broker]\nuser = '{user}'").broker.user == user


@pytest.mark.parametrize("user", [":group", "name:", "a:b:c", "a b", "a/b"])
def test_what_is_no_user_of_the_system_is_refused(load: Load, user: str) -> None:
    with pytest.raises(ConfigError, match=r"broker\.user = .*: expected NAME or NAME:GROUP"):
        load(f"[broker]\nuser = '{user}'")
