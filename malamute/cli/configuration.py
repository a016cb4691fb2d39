"""`malamute config`: check a configuration, and show its effective options."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from malamute.access import AccessRule
from malamute.cli.options import json_option
from malamute.cli.printing import to_json
from malamute.cli.settings import configured, load

if TYPE_CHECKING:
    from malamute.config import Config


@click.group()
def config() -> None:
    """Check and show the configuration of a broker.

    The environment variables MALAMUTE_SECTION__OPTION count as they do for the broker.
    """


@config.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@json_option
def check(file: Path | None, *, as_json: bool) -> None:
    """Check FILE and the environment, and the files of accounts and keys that they name.

    With an invalid one the error is printed and the exit code is 1.
    """
    from malamute.config.access_files import AccessFiles

    AccessFiles.read(load(file, {}, os.environ).access)
    if as_json:
        click.echo(to_json({"file": file and str(file), "good": True}))
    else:
        click.echo(f"{file or 'the environment'}: good")


@config.command()
@configured
@json_option
def show(read: Callable[[], Config], *, as_json: bool) -> None:
    """Show every option with the value that a broker would use, as TOML or as JSON."""
    from malamute.config.sections import SECTIONS

    config = read()
    if as_json:
        click.echo(to_json({name: _plain(getattr(config, name)) for name in SECTIONS}))
    else:
        click.echo(config.toml(), nl=False)


def _plain(section: Any) -> Any:
    """Return a section as maps and lists."""
    if isinstance(section, AccessRule):
        return str(section)
    if hasattr(section, "_asdict"):
        return section._asdict()
    if isinstance(section, tuple):
        return [_plain(item) for item in section]
    if hasattr(section, "__dataclass_fields__"):
        return {name: _plain(value) for name, value in vars(section).items()}
    return section
