"""A configuration as a commented TOML file."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from malamute.access import AccessRule, Quota
from malamute.config.option_types import OptionType
from malamute.config.sections import (
    BUCKET_RULES,
    GROUPS,
    ISSUERS,
    QUEUE_RULES,
    SECTIONS,
    STREAM_RULES,
    USERS,
    BucketRule,
    GroupRules,
    QueueRule,
    Section,
    StreamRule,
    TokenIssuer,
    UserRules,
    types_of,
    write_table,
)
from malamute.door.docstrings import docstrings
from malamute.store.policies import MEMORY

_HEADER = """\
# The configuration of a Malamute broker.
#
# Durations are numbers of seconds, or texts such as "500ms", "1.5s", "10m", "1h", "7d".
# Sizes are numbers of bytes, or texts such as "64KiB", "64MiB", "1GiB".
#
# An environment variable comes before this file: MALAMUTE_STORAGE__SIZE=4GiB sets `size` of [storage].
# MALAMUTE_LISTEN__ENDPOINTS takes several endpoints with commas between them.
"""


def _parsed(*rules: str) -> tuple[AccessRule, ...]:
    return tuple(map(AccessRule.parse, rules))


_EXAMPLES: dict[OptionType, tuple[str, Section]] = {
    STREAM_RULES: ("streams", StreamRule("metrics.*", journal=True, bytes=64 * 1024**2, age=3600.0)),
    BUCKET_RULES: ("buckets", BucketRule("sessions.*", MEMORY)),
    QUEUE_RULES: ("queues", QueueRule("print.*", kind="service", ack_timeout=30.0, backoff=(0.5, 10.0))),
    GROUPS: (
        "access",
        GroupRules(
            "traders",
            rules=_parsed("publish,subscribe stream/prices/fx.#"),
            quota=Quota(connections=100, bytes_per_second=10 * 1024**2),
        ),
    ),
    USERS: (
        "access",
        UserRules(
            "ann",
            groups=("traders",),
            rules=_parsed("receive mailbox/{user}", "subscribe stream/patients where ward = '{claim.ward}'"),
            claims=(("ward", "3"),),
        ),
    ),
    ISSUERS: (
        "access",
        TokenIssuer("https://login.example.org", "malamute", "issuer.jwks", ("ES256", "EdDSA")),
    ),
}


def render(sections: Mapping[str, Any]) -> str:
    """Every option of these sections, by their names, with its description and its allowed values."""
    return "\n".join([_HEADER, *(_section(name, sections[name]) for name in SECTIONS)])


def _section(name: str, section: Any) -> str:
    kind: Any = type(section)
    type_of, words_of, default = types_of(kind), docstrings(kind), kind()
    options = (
        _option(option, getattr(section, option), getattr(default, option), option_type, words_of[option])
        for option, option_type in type_of.items()
    )
    return "\n".join([*_comment(inspect.getdoc(kind) or ""), f"[{name}]", "", *options])


def _option(name: str, value: Any, default: Any, option_type: OptionType, words: str) -> str:
    if option_type in _EXAMPLES:
        lines = option_type.write(value).splitlines() or _commented(
            write_table(*_EXAMPLES[option_type]).splitlines()
        )
        return "\n".join([*_comment(words), *lines, ""])
    allowed = f"{option_type.words[0].upper()}{option_type.words[1:]}"
    otherwise = "" if value == default else f"; otherwise {option_type.write(default)}"
    return "\n".join(
        [*_comment(words), *_comment(f"{allowed}{otherwise}."), f"{name} = {option_type.write(value)}", ""]
    )


def _comment(words: str) -> list[str]:
    return list(_commented(textwrap.wrap(" ".join(words.split()), 108)))


def _commented(lines: Iterable[str]) -> list[str]:
    return [f"# {line}" for line in lines]
