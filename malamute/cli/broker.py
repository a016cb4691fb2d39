"""`malamute broker`: run a broker in this process, or query and change a running one."""

from __future__ import annotations

import gc
import os
import shlex
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from malamute.cli.admin import confirm, dry_run_option, make_change, show_found, yes_option
from malamute.cli.check import check
from malamute.cli.console import CONSOLE, ConsoleProcess, url_of
from malamute.cli.error_output import print_error
from malamute.cli.exit_codes import ERROR, UNREACHABLE
from malamute.cli.options import URL, ConnectionOptions, asks, examples, json_option
from malamute.cli.printing import to_json
from malamute.cli.progress import bar
from malamute.cli.settings import configured
from malamute.cli.signals import echo_if_read
from malamute.cli.tables import show_map
from malamute.errors import ConfigError, ConnectTimeout
from malamute.version import __version__

if TYPE_CHECKING:
    from malamute.config import Config

BACKUP_SECONDS = 24 * 3600.0
"""Time for a backup."""


@click.group()
def broker() -> None:
    """Run a broker, and inspect it."""


broker.add_command(check)


@broker.command(
    epilog=examples(
        "malamute broker run --data /var/lib/malamute --listen ipc:///run/m.sock --set storage.size=4GiB"
    )
)
@configured
@click.option(
    "--console",
    is_flag=False,
    flag_value="",
    envvar="MALAMUTE_CONSOLE",
    metavar="[HOST:PORT]",
    help=f"Serve the console and HTTP, too, on $MALAMUTE_GATEWAY_LISTEN, {CONSOLE} or another address.",
)
@json_option
def run(read: Callable[[], Config], *, console: str | None, as_json: bool) -> None:
    """Run a broker until SIGTERM or SIGINT.

    The broker listens on tcp://127.0.0.1:9999 and keeps its data in ./malamute-data, unless options say
    otherwise. When clients can connect, its endpoints are printed, with --json as one line. Its log goes to
    standard error.

    `malamute broker reload` reloads the configuration, and so does SIGHUP, except on a terminal: there SIGHUP
    stops the broker, too.
    """
    if console == "":
        console = os.environ.get("MALAMUTE_GATEWAY_LISTEN") or CONSOLE
    # Objects made before listening are permanent: the garbage collector would examine them in vain.
    gc.disable()
    try:
        _run(read, console, as_json=as_json)
    finally:
        gc.enable()


def _run(read: Callable[[], Config], console: str | None, *, as_json: bool) -> None:
    from malamute.server import daemon

    config = read()
    beside = ConsoleProcess(console)

    def started(endpoints: list[str]) -> None:
        directory = daemon.data_directory(config)
        beside.start(url_of(endpoints))
        if as_json:
            fields = {
                "version": __version__,
                "pid": os.getpid(),
                "endpoints": endpoints,
                "directory": directory,
                "console": beside.url,
            }
            echo_if_read(to_json(fields))
        else:
            echo_if_read(greeting(endpoints, directory, program(), beside.url))

    with beside:
        daemon.run(config, started, read, beside.stop)


def greeting(endpoints: list[str], directory: str, command: str, console: str = "") -> str:
    """Return the text that a started broker prints for people."""
    url = "" if URL in endpoints else f" --url {shlex.quote(endpoints[0])}"
    between = "\n             "
    page = f"\n  console    {console}" if console else ""
    return f"""\
Malamute {__version__} runs as process {os.getpid()}.

  endpoints  {between.join(endpoints)}
  data       {directory or "in memory: it is lost when the broker ends"}{page}

Try in other terminals:

  {command} sub weather 'temp.*'{url}
  {command} pub weather temp.oslo{url} -- -3.5
  {command} broker status{url}

Control-C stops it."""


def program() -> str:
    """Return the command as it can be typed in the environment of this process."""
    if shutil.which("malamute"):
        return "malamute"
    in_checkout = Path(os.path.relpath(Path(__file__).parents[2] / "bin" / "malamute"))
    return str(in_checkout) if in_checkout.exists() else "python -m malamute"


@broker.command()
@asks
def status(connection: ConnectionOptions, *, as_json: bool) -> None:
    """Show the state of a broker: its endpoints, its data, and its totals.

    The exit code is 0 when it answers, 1 when it answers and its store cannot write, and 2 when it
    does not answer. Times are in seconds, sizes in bytes.
    """
    from malamute.protocol import admin

    try:
        with connection.open() as client:
            found = client.query(admin.StatusQuery())
    except ConnectTimeout as error:
        print_error(error, as_json=as_json)
        raise click.exceptions.Exit(UNREACHABLE) from None
    shown = {"url": connection.url, **found.as_map()}
    show_map(shown, as_json=as_json)
    if found.store_error:
        raise click.exceptions.Exit(ERROR)


@broker.command(epilog=examples("malamute broker options", "malamute broker options --json"))
@asks
def options(connection: ConnectionOptions, *, as_json: bool) -> None:
    """Show every option of a running broker: its value, its default, and the source of the value.

    The source is the default, the file, the environment, or the command line. Options changed by a reload,
    changeable only by a restart, or waiting for a restart are marked.
    """
    from malamute.protocol import admin

    with connection.open() as client:
        found = client.query(admin.OptionsQuery())
    show_found([row.as_map() for row in found], "options", as_json=as_json)


@broker.command(epilog=examples("malamute broker reload --dry-run", "malamute broker reload"))
@dry_run_option
@yes_option
@asks
def reload(*, dry_run: bool, yes: bool, connection: ConnectionOptions, as_json: bool) -> None:
    """Reload the configuration of a running broker: its file, with the options of its start.

    The configuration is checked as a whole first; with an invalid one, error 700 has the reason, and the
    broker keeps its present one. Options that a running broker cannot change are named, and wait for the next
    start. A reload that would withdraw your own permission to reload warns first.
    """
    from malamute.protocol import admin

    if not (dry_run or yes):
        # A refusal is left to the reload itself, which the broker remembers for `broker check`.
        with connection.open() as client, suppress(ConfigError):
            if client.change(admin.BrokerReload(dry_run=True)).loses_right:
                confirm("This takes away your right to reload. Go on?", yes=yes, dry_run=dry_run)
    make_change(connection, admin.BrokerReload(dry_run=dry_run), as_json=as_json)


@broker.command(epilog=examples("malamute broker backup monday", "malamute broker backup $(date +%F) --json"))
@click.argument("directory")
@click.option("--dry-run", is_flag=True, help="Show the outcome, and change nothing.")
@asks
def backup(directory: str, *, dry_run: bool, connection: ConnectionOptions, as_json: bool) -> None:
    """Copy the store of a running broker into DIRECTORY, which must not have one.

    DIRECTORY is on the broker's machine, below the option storage.backups. The broker continues meanwhile; a
    backup is a data directory for `malamute journal restore` or `broker run --data`.
    """
    from malamute.protocol import admin

    with connection.open() as client, bar("backup", "seconds"):
        made = client.change(
            admin.JournalBackup(directory=directory, dry_run=dry_run), timeout=BACKUP_SECONDS
        )
    show_map(made.as_map(), as_json=as_json)
