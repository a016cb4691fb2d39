"""The configuration of a broker on the command line: options before the environment before a file."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from malamute.config import Config

Function = TypeVar("Function", bound=Callable[..., Any])


def load(path: Path | None, options: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Config:
    """Return the configuration of a file, with the environment and `section.option` values before it.

    Raises `ConfigError` for an invalid value, with the name of the option as it was given.
    """
    from malamute.config import Config

    return Config.load(path, environ, options)


def _parse_settings(ctx: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    settings = {}
    for text in texts:
        option, equals, value = text.partition("=")
        if not equals or option.count(".") != 1:
            raise click.BadParameter(f"invalid setting {text!r}: expected section.option=value")
        settings[option.strip().lower()] = value.strip()
    return settings


def configured(function: Function) -> Function:
    """Add the options of a broker; the command gets `read`, which returns the configuration."""

    @click.option(
        "--config",
        "path",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="MALAMUTE_CONFIG",
        help="The configuration, a TOML file; without it every option has its default.",
    )
    @click.option("--data", metavar="DIR", help="The data directory: storage.directory.")
    @click.option(
        "--listen", multiple=True, metavar="ENDPOINT", help="An endpoint to listen on; may be repeated."
    )
    @click.option(
        "--user", metavar="NAME[:GROUP]", help="Run as this user when root has started it: broker.user."
    )
    @click.option("--memory", is_flag=True, help="Keep nothing on the disk: storage.kind=memory.")
    @click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="OPTION=VALUE",
        callback=_parse_settings,
        help="Set an option, as in storage.size=4GiB. It comes before the environment and the file.",
    )
    @functools.wraps(function)
    def command(
        *args: Any,
        path: Path | None,
        data: str | None,
        listen: Sequence[str],
        user: str | None,
        memory: bool,
        settings: dict[str, str],
        **more: Any,
    ) -> Any:
        given = {
            "storage.directory": data,
            "listen.endpoints": json.dumps(listen) if listen else None,
            "broker.user": user,
            "storage.kind": "memory" if memory else None,
        }
        options = {**settings, **{option: value for option, value in given.items() if value is not None}}
        return function(*args, read=functools.partial(load, path, options), **more)

    return command  # type: ignore[return-value]  # the wrapper replaces the command
