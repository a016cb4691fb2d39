"""`malamute auth`: who may do what, and by which rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from malamute.cli.exit_codes import ERROR
from malamute.cli.options import ConnectionOptions, connects, examples, json_option
from malamute.cli.printing import printable, to_json
from malamute.cli.settings import load
from malamute.cli.tables import show_rows


@click.group()
def auth() -> None:
    """Ask who may do what, and why.

    ACTION is publish, subscribe, send, receive, request, offer, browse, view or admin; TARGET is
    KIND/NAME or KIND/NAME/SUBJECT, as in a rule. USER may be '' for clients without a name.
    """


def _asked(function: Any) -> Any:
    for decorate in (
        json_option,
        connects,
        click.option(
            "--config",
            "path",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Go by the rules of this file, and ask no broker.",
        ),
        click.argument("target"),
        click.argument("action"),
        click.argument("user"),
    ):
        function = decorate(function)
    return function


def _explain(
    user: str, action: str, target: str, path: Path | None, connection: ConnectionOptions
) -> dict[str, Any]:
    if path is not None:
        from malamute.access import explain

        return explain(load(path, {}).access.policy(), user, action, target).as_map()
    from malamute.protocol import admin

    with connection.open() as client:
        found = client.query(admin.AccessQuery(user=user, action=action, target=target))
    return {**found.as_map()}


@auth.command(
    epilog=examples(
        "malamute auth check ann publish stream/prices/fx.eur",
        "malamute auth check ann receive mailbox/ann --config malamute.toml",
    )
)
@_asked
def check(
    user: str, action: str, target: str, *, path: Path | None, connection: ConnectionOptions, as_json: bool
) -> None:
    """Tell whether USER may do ACTION to TARGET, and which rule decides.

    The rules are those of a running broker, or with --config those of a file. The exit code is 0 if it is
    allowed and 1 if not.
    """
    found = _explain(user, action, target, path, connection)
    if as_json:
        click.echo(to_json(found))
    else:
        click.echo(printable(_words(found)))
    if not found["allowed"]:
        raise click.exceptions.Exit(ERROR)


@auth.command(epilog=examples("malamute auth explain ann subscribe stream/patients"))
@_asked
def explain(
    user: str, action: str, target: str, *, path: Path | None, connection: ConnectionOptions, as_json: bool
) -> None:
    """List all rules about what USER does to TARGET, and which of them decides."""
    found = _explain(user, action, target, path, connection)
    show_rows(found["rules"], as_json=as_json)
    if not as_json and not found["rules"]:
        click.echo(printable(_words(found)), err=True)


def _words(found: dict[str, Any]) -> str:
    if not found["in_force"]:
        return "allowed: there are no rules"
    decided = f"{found['rule']} ({found['owner']})" if found["rule"] else "no rule allows it"
    if not found["allowed"]:
        return f"refused: {decided}"
    return f"{'allowed in part' if found['limited'] else 'allowed'}: {decided}"
