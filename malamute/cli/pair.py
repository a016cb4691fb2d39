"""`malamute pair`: two brokers that back each other up."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from malamute.cli.admin import dry_run_option, show_found
from malamute.cli.journal_export import data_option
from malamute.cli.options import examples, json_option
from malamute.cli.printing import to_json
from malamute.cli.settings import configured
from malamute.cli.tables import show_map
from malamute.errors import ConfigError, MalamuteError, NotFound, NotPrimary, TimedOut

if TYPE_CHECKING:
    from malamute.config import Config
    from malamute.pair.membership import Joining
    from malamute.pair.state import PairValue

SWITCH_SECONDS = 15.0
STATUS_SECONDS = 2.0


@click.group("pair")
def pair() -> None:
    """Two brokers that back each other up: one serves, and the other takes over from it."""


@pair.command(epilog=examples("malamute pair create --config a.toml --dry-run"))
@click.option("--force", is_flag=True, help="Replace the pair in the register: its data are lost, or stale.")
@configured
@dry_run_option
@json_option
def create(read: Callable[[], Config], *, force: bool, dry_run: bool, as_json: bool) -> None:
    """Make a pair of this broker, with all that its data directory has. The broker must not run."""
    _show(_joining(read()).create(is_dry=dry_run, forces=force), as_json=as_json)


@pair.command(epilog=examples("malamute pair join --config b.toml"))
@click.option("--new", is_flag=True, help="Join as another directory: this one is a copy.")
@configured
@dry_run_option
@json_option
def join(read: Callable[[], Config], *, new: bool, dry_run: bool, as_json: bool) -> None:
    """Join the pair of the register with this data directory, as a standby that copies all at its start.

    Messages that only this directory has are put aside, never merged. The broker must not run.
    """
    _show(_joining(read()).join(is_dry=dry_run, is_new=new), as_json=as_json)


@pair.command(epilog=examples("malamute pair status --config a.toml --json"))
@configured
@json_option
def status(read: Callable[[], Config], *, as_json: bool) -> None:
    """Show who is primary, who is in sync, and what the standby says of itself."""
    value, _ = _register(read()).read()
    if value is None:
        raise NotFound("the register has no pair: expected one made with `malamute pair create`")
    _show(value, as_json=as_json, details=_details(value))


@pair.command(epilog=examples("malamute pair switch --config a.toml --dry-run"))
@configured
@dry_run_option
@json_option
def switch(read: Callable[[], Config], *, dry_run: bool, as_json: bool) -> None:
    """Have the primary hand over to its standby, on the host of the primary."""
    from malamute.pair.link import ask_switch

    register = _register(read())
    value, _ = register.read()
    if value is None or len(value.in_sync) < 2:
        raise NotFound("no standby is in sync: see `malamute pair status`")
    if not dry_run:
        before = value.primary
        ask_switch(value.members[before].link)
        ends = time.monotonic() + SWITCH_SECONDS
        while value is None or value.primary == before:
            if time.monotonic() > ends:
                raise TimedOut(f"{before} did not hand over within {SWITCH_SECONDS:g} s: see its log")
            time.sleep(0.1)  # a register tells nobody of its changes
            value, _ = register.read()
    _show(value, as_json=as_json)


@pair.command(epilog=examples("malamute pair diverged", "malamute pair diverged 3-120481 > alone.ndjson"))
@click.argument("name", required=False)
@data_option
@json_option
def diverged(name: str | None, data: Path, *, as_json: bool) -> None:
    """List the files of messages that this broker alone had, or print the messages of the file NAME as JSON.

    No publisher got a confirmation for them, so they were sent again. Bodies are in base64, and some
    messages of a queue may be in the primary, too.
    """
    from malamute.journal.diverged import diverged_files, diverged_messages

    if not (data / "data.mdb").is_file():
        raise NotFound(f"there is no store in {data}: expected the data directory of a broker in a pair")
    if name is None:
        files = [file._asdict() for file in diverged_files(data)]
        show_found(files, "messages were put aside", as_json=as_json)
        return
    for message in diverged_messages(data, name):
        click.echo(to_json({**message._asdict(), "body": base64.b64encode(message.body).decode()}))


def _register(config: Config) -> Any:
    from malamute.pair.register import open_register

    if not config.pair.name:
        raise ConfigError("pair.name is empty: expected one such as --set pair.name=a")
    return open_register(config.pair.register)


def _joining(config: Config) -> Joining:
    from malamute.pair.link import check_link
    from malamute.pair.membership import Joining

    register, own = _register(config), config.pair
    check_link(own.listen)
    storage = config.storage
    return Joining(own.name, storage.directory, storage.size, own.listen, own.advertise, register)


def _details(value: PairValue) -> dict[str, Any]:
    """Return what the standby says of itself to those who say HELLO; nothing where none answers."""
    import malamute

    other = value.other(value.primary)
    for url in value.members[other].urls if other else ():
        try:
            malamute.connect(url, timeout=STATUS_SECONDS).close()
        except NotPrimary as standby:
            return {name: standby.details.get(name) for name in ("role", "lag", "reason")}
        except MalamuteError:
            pass
    return {"role": "", "lag": None, "reason": "no standby answers"}


def _show(value: PairValue, *, as_json: bool, details: dict[str, Any] | None = None) -> None:
    fields = {
        "pair": value.pair.hex(),
        "timeline": value.timeline,
        "primary": value.primary,
        "in_sync": [*value.in_sync],
        "members": [*value.members],
    }
    if not as_json:
        fields |= {"in_sync": ", ".join(value.in_sync), "members": ", ".join(value.members)}
    show_map(
        {**fields, **({"standby_" + name: one for name, one in (details or {}).items()})}, as_json=as_json
    )
