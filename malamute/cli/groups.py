"""`malamute group`: the groups of users in a running broker, and the rules of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from malamute.cli.admin import changes, show_list
from malamute.cli.options import ConnectionOptions, asks, examples
from malamute.cli.tables import show_map
from malamute.errors import NotFound

if TYPE_CHECKING:
    from malamute.protocol import admin


@click.group()
def group() -> None:
    """Add, change and list groups of users, each with rules.

    A running broker stores groups, and applies each change at once: sessions of users in the group gain and
    lose permissions. Groups of the configuration are changed there, with `malamute broker reload`. `malamute
    user set` sets the groups of an account.
    """


_rules = click.option("--rule", "-r", "rules", multiple=True, help="A rule of the group; may be repeated.")


@group.command(
    epilog=examples(
        "malamute group add traders --rule 'subscribe stream/prices' --rule 'receive mailbox/{user}'",
    )
)
@click.argument("name")
@_rules
@changes()
def add(name: str, *, rules: Sequence[str], dry_run: bool) -> admin.GroupAdd:
    """Add the group NAME."""
    from malamute.protocol import admin

    return admin.GroupAdd(name=name, access_rules=[*rules], dry_run=dry_run)


@group.command(
    "set",
    epilog=examples(
        "malamute group set traders --rule 'subscribe stream/prices'",
        "malamute group set traders --add-rule 'publish stream/orders' --remove-rule 'send mailbox/#'",
    ),
)
@click.argument("name")
@_rules
@click.option("--add-rule", "added", multiple=True, help="A rule to add; may be repeated.")
@click.option("--remove-rule", "removed", multiple=True, help="A rule to remove; may be repeated.")
@changes()
def set_(
    name: str, *, rules: Sequence[str], added: Sequence[str], removed: Sequence[str], dry_run: bool
) -> admin.GroupSet:
    """Change the rules of the group NAME.

    --rule replaces all rules; --rule '' leaves none. --add-rule and --remove-rule preserve the other rules,
    even if another operator changes them at the same time.
    """
    from malamute.protocol import admin

    if not (rules or added or removed):
        raise click.UsageError("nothing to change: expected at least one of the options")
    return admin.GroupSet(
        name=name,
        access_rules=[*filter(None, rules)] if rules else None,
        added_rules=[*added],
        removed_rules=[*removed],
        dry_run=dry_run,
    )


@group.command()
@click.argument("name")
@changes(question="Remove the group {name}? Its users lose its permissions.")
def remove(name: str, *, dry_run: bool) -> admin.GroupRemove:
    """Remove the group NAME. Its users lose its permissions; their accounts keep its name."""
    from malamute.protocol import admin

    return admin.GroupRemove(name=name, dry_run=dry_run)


@group.command("list")
@asks
def listing(*, connection: ConnectionOptions, as_json: bool) -> None:
    """List the groups of the configuration and of the store, with their rules."""
    show_list(connection, "groups", as_json=as_json)


@group.command()
@click.argument("name")
@asks
def show(name: str, *, connection: ConnectionOptions, as_json: bool) -> None:
    """Show the group NAME: its source, and its rules."""
    from malamute.protocol.admin import GroupsQuery

    with connection.open() as client:
        found = [row.as_map() for row in client.query(GroupsQuery()) if row.name == name]
    if not found:
        raise NotFound(f"there is no group {name!r}")
    show_map(found[0], as_json=as_json)
