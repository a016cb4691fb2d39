"""The reference of the configuration, from the options themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from malamute.config import Config
from malamute.config.option_types import OptionType
from malamute.config.sections import QUEUE_RULES, SECTIONS, STREAM_RULES, types_of
from malamute.door.docstrings import docstrings

INTRODUCTION = """\
# Configuration

One TOML file, named with `malamute broker run --config FILE`; nothing is searched for. Without a file every
option has its default. An environment variable comes before the file, and `--set OPTION=VALUE` before both.
`malamute config check FILE` checks a file, and `malamute config show` prints what it comes to.

Durations are numbers of seconds, or texts such as `"500ms"`, `"1.5s"`, `"10m"`, `"1h"`, `"7d"`. Sizes are
numbers of bytes, or texts such as `"64KiB"`, `"64MiB"`, `"1GiB"`.
"""


def page() -> str:
    """The page: a table of options for each section, and the whole file."""
    whole = Config().toml().rstrip()
    return "\n".join(
        [INTRODUCTION, *_sections(), f"## The whole file\n\nWith all defaults.\n\n```toml\n{whole}\n```\n"]
    )


def _sections() -> Iterator[str]:
    for name, section in SECTIONS.items():
        yield f"## [{name}]\n\n{inspect.getdoc(section) or ''}\n"
        yield "| option | default | allowed | |\n|---|---|---|---|"
        words_of, defaults = docstrings(section), section()
        for option, kind in types_of(section).items():
            yield _option(option, getattr(defaults, option), kind, words_of[option])
        yield f"\nFrom the environment: `MALAMUTE_{name.upper()}__OPTION`.\n"


def _option(option: str, default: Any, kind: OptionType, words: str) -> str:
    value = "" if kind in (STREAM_RULES, QUEUE_RULES) else f"`{kind.write(default)}`"
    return f"| `{option}` | {value} | {_cell(kind.words)} | {_cell(words)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
