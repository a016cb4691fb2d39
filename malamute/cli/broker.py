"""`malamute broker`: run a broker in this process, and ask one how it is."""

from __future__ import annotations

import gc
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from malamute.cli.admin import confirm, dry_run_option, make_change, show_found, yes_option
from malamute.cli.check import check
from malamute.cli.console import CONSOLE, ConsoleProcess, url_of
from malamute.cli.error_output import print_error
from malamute.cli.exit_codes import ERROR, UNREACHABLE
from malamute.cli.options import URL, ConnectionOptions, connects, examples, json_option
from malamute.cli.printing import to_json
from malamute.cli.progress import bar
from malamute.cli.settings import configured
from malamute.cli.signals import echo_if_read
from malamute.cli.tables import show_map
from malamute.errors import ConnectTimeout
from malamute.version import __version__

if TYPE_CHECKING:
    from malamute.config import Config

BACKUP_SECONDS = 24 * 3600.0
"""How long a backup may take."""


@click.group()
def broker() -> None:
    """Run a broker, and look at it."""


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
    flag_value=CONSOLE,
    envvar="MALAMUTE_CONSOLE",
    metavar="[HOST:PORT]",
    help=f"Serve the console and HTTP, too, on {CONSOLE} or another address.",
)
@json_option
def run(read: Callable[[], Config], *, console: str | None, as_json: bool) -> None:
    """Run a broker until SIGTERM or SIGINT.

    It listens on tcp://127.0.0.1:9999 and keeps its data in ./malamute-data, unless options say otherwise.
    When clients can connect it prints where, with --json as one line. Its log goes to standard error.

    `malamute broker reload` has it read its configuration again, and so has SIGHUP, unless it runs on a
    terminal: there SIGHUP stops it, too.
    """
    # What is made until it listens is there for good: the collector would look at it again and again in vain.
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
    """What a broker that has started prints for people."""
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
    """How the command can be typed where this process was started."""
    if shutil.which("malamute"):
        return "malamute"
    in_checkout = Path(os.path.relpath(Path(__file__).parents[2] / "bin" / "malamute"))
    return str(in_checkout) if in_checkout.exists() else "python -m malamute"


@broker.command()
@connects
@json_option
def status(connection: ConnectionOptions, *, as_json: bool) -> None:
    """Show how a broker is: its endpoints, its data, and how much of what it has.

    The exit code is 0 when it answers, 1 when it answers and its store takes nothing, and 2 when it
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
@connects
@json_option
def options(connection: ConnectionOptions, *, as_json: bool) -> None:
    """Show every option of a running broker: its value, its default, and where the value comes from.

    That is the default, the file, the environment, or the command line. It shows too what a reload has
    changed since the start, what needs a restart to change, and what waits for one.
    """
    from malamute.protocol import admin

    with connection.open() as client:
        found = client.query(admin.OptionsQuery())
    show_found([row.as_map() for row in found], "options", as_json=as_json)


@broker.command(epilog=examples("malamute broker reload --dry-run", "malamute broker reload"))
@dry_run_option
@yes_option
@connects
@json_option
def reload(*, dry_run: bool, yes: bool, connection: ConnectionOptions, as_json: bool) -> None:
    """Have a broker read its configuration again: the file and the options that it was started with.

    The configuration is checked as a whole first; if it cannot be used, error 700 says why, and the broker
    continues with the one that it has. Options that a running broker cannot change are named, and wait for
    the next start. A reload that takes away the right to reload from the user who asks for it says so first.
    """
    from malamute.protocol import admin

    if not (dry_run or yes):
        with connection.open() as client:
            if client.change(admin.BrokerReload(dry_run=True)).loses_right:
                confirm("This takes away your right to reload. Go on?", yes=yes, dry_run=dry_run)
    make_change(connection, admin.BrokerReload(dry_run=dry_run), as_json=as_json)


@broker.command(epilog=examples("malamute broker backup monday", "malamute broker backup $(date +%F) --json"))
@click.argument("directory")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@connects
@json_option
def backup(directory: str, *, dry_run: bool, connection: ConnectionOptions, as_json: bool) -> None:
    """Copy the store of a running broker into DIRECTORY, which must not hold one.

    It is a directory of the broker's machine, below the one that the option storage.backups names. The broker
    continues meanwhile; a backup is a data directory, which `malamute journal restore` or `broker run --data`
    takes.
    """
    from malamute.protocol import admin

    with connection.open() as client, bar("backup", "seconds"):
        made = client.change(
            admin.JournalBackup(directory=directory, dry_run=dry_run), timeout=BACKUP_SECONDS
        )
    show_map(made.as_map(), as_json=as_json)
