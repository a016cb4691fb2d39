"""`malamute top`: watch a broker, live, with keys; or print its screen once, or as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from malamute.cli.keyboard import keys, pressed
from malamute.cli.options import ConnectionOptions, asks, examples
from malamute.cli.printing import printable, to_json
from malamute.cli.screen import VIEWS, Look, Snapshot, arranged, picture, press, summary
from malamute.cli.signals import until_stopped
from malamute.cli.tables import show_rows
from malamute.cli.units import DurationRange
from malamute.errors import TimedOut

if TYPE_CHECKING:
    from malamute.client.sync.client import Client

PATIENCE_SECONDS = 1.0
"""Seconds that the screen waits for a broker."""


@click.command(epilog=examples("malamute top", "malamute top --view queues --count 1", "malamute top --json"))
@click.option(
    "--interval",
    "interval_seconds",
    type=DurationRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="DURATION",
    help="How often to look.",
)
@click.option("--count", "-n", type=click.IntRange(min=1), help="End after looking so many times.")
@click.option(
    "--view",
    type=click.Choice([*VIEWS]),
    default="streams",
    show_default=True,
    help="The view to begin with.",
)
@asks
def top(
    interval_seconds: float, *, count: int | None, view: str, connection: ConnectionOptions, as_json: bool
) -> None:
    """Watch the activity of a broker: its streams, queues, clients and users, sorted as you like.

    The keys stand at the foot of the screen. Without a terminal all views are printed once, or --count times;
    with --json the broker's answers, one object a line.
    """
    look = Look(view=[*VIEWS].index(view))
    with until_stopped(), connection.open() as client:
        if as_json:
            for now in _snapshots(client, interval_seconds, count):
                click.echo(to_json(now.as_map()))
        elif sys.stdin.isatty() and sys.stdout.isatty():
            _watch(client, look, interval_seconds, count)
        else:
            _print(client, interval_seconds, count or 1)


def take(client: Client, timeout: float | None = None) -> Snapshot:
    """Query a broker for a snapshot. Raises `TimedOut`."""
    from malamute.protocol import admin

    return Snapshot(
        time.monotonic(),
        client.query(admin.StatusQuery(), timeout=timeout),
        client.query(admin.StreamsQuery(), timeout=timeout),
        client.query(admin.MailboxesQuery(), timeout=timeout),
        client.query(admin.ServicesQuery(), timeout=timeout),
        client.query(admin.ClientsQuery(), timeout=timeout),
    )


def _snapshots(client: Client, interval_seconds: float, count: int | None) -> Iterator[Snapshot]:
    taken = 0
    while True:
        yield take(client)
        taken += 1
        if taken == count:
            return
        time.sleep(interval_seconds)


def _print(client: Client, interval_seconds: float, count: int) -> None:
    before = None
    for now in _snapshots(client, interval_seconds, count):
        click.echo(summary(now, before))
        for name, view in VIEWS.items():
            show_rows(arranged(Look(), view(now, before)), as_json=False, title=f"\n{name}")
        before = now


def _watch(client: Client, look: Look, interval_seconds: float, count: int | None) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    title = f"malamute top   {client.url}"
    # Events of the connection would be written across the screen: its title has them instead.
    client.on_event = lambda event: None
    before, now, taken = None, take(client), 1
    with keys() as keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
        due = time.monotonic() + interval_seconds
        while True:
            state = "" if client.connected else "   no connection"
            shown = picture(look, now, before, title=printable(title) + state, lines=console.height)
            live.update(shown, refresh=True)
            for key in pressed(keyboard, due - time.monotonic()):
                if (next_look := press(look, key)) is None:
                    return
                look = next_look
            if time.monotonic() >= due:
                due = time.monotonic() + interval_seconds
                if not look.paused:
                    if taken == count:
                        return
                    before, now, taken = _next(client, before, now, taken)


def _next(client: Client, before: Any, now: Snapshot, taken: int) -> tuple[Any, Snapshot, int]:
    try:
        # A key that is pressed meanwhile waits for this.
        return now, take(client, timeout=PATIENCE_SECONDS), taken + 1
    except TimedOut:
        return before, now, taken
