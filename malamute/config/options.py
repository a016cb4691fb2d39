"""Options as a broker shows them: values, their sources, and which wait for a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from malamute.config.option_types import OptionType
from malamute.config.reload import RELOADED
from malamute.config.sections import GROUPS, ISSUERS, SECTIONS, USERS, types_of
from malamute.door.docstrings import docstrings
from malamute.protocol.admin import BrokerOption

if TYPE_CHECKING:
    from malamute.config import Config

VALUE_CHARACTERS_MAX = 1000
"""Characters of a value that are shown."""

_COUNTED = frozenset({GROUPS, ISSUERS, USERS})
"""Options of which only the number of their tables is shown: claims are about people, and there may be
many."""


def options_in_force(config: Config, started: Config) -> tuple[BrokerOption, ...]:
    """Every option of a broker that goes by `config`, and went by `started` when it was started.

    No option is a secret: keys and passwords are in files, of which only the path is shown.
    """
    return tuple(
        _option(config, started, section, name, option_type)
        for section, kind in SECTIONS.items()
        for name, option_type in types_of(kind).items()
    )


def _option(
    config: Config, started: Config, section: str, name: str, option_type: OptionType
) -> BrokerOption:
    value = getattr(getattr(config, section), name)
    kind: Any = SECTIONS[section]
    default = getattr(kind(), name)
    option = f"{section}.{name}"
    return BrokerOption(
        name=option,
        value=_told(option_type, value),
        default=_told(option_type, default),
        source=config.sources.get(option, "default" if value == default else "program"),
        changed_since_start=value != getattr(getattr(started, section), name),
        needs_restart=name not in RELOADED.get(section, ()),
        waiting_for_restart=False,
        description=" ".join(docstrings(kind)[name].split()),
    )


def _told(option_type: OptionType, value: Any) -> str:
    if option_type in _COUNTED:
        return f"{len(value)} tables"
    text = " ".join(option_type.write(value).split("\n")) or "[]"
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[: VALUE_CHARACTERS_MAX - 1]}…"
