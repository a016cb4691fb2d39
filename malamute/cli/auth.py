"""`malamute auth`: who may do what, and by which rule."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from malamute.cli.events import STREAM
from malamute.cli.exit_codes import ERROR, TIMED_OUT
from malamute.cli.options import ConnectionOptions, connects, examples, json_option, waits
from malamute.cli.printing import Render, printable, prints_messages, to_json
from malamute.cli.settings import load
from malamute.cli.signals import until_stopped
from malamute.cli.subscribe import follow, window
from malamute.cli.tables import show_rows

if TYPE_CHECKING:
    from malamute.client.session.message import Message


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


def as_refusal(message: Message) -> bytes:
    """A refusal as a line for people: when, who, from where, what he wanted to do, and the rule."""
    headers = message.headers
    who = headers.get("user") or headers.get("address") or headers.get("client") or "-"
    wanted = f"{headers.get('action', '')} {headers.get('target', '')}".rstrip()
    parts = [who, headers.get("origin") or "-", wanted, headers.get("rule", "")]
    if (count := headers.get("count", 1)) != 1:
        parts.append(f"the last of {count} that were left out")
    when = message.time.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    return "  ".join([f"{when}Z", *(printable(str(part)) for part in parts)]).encode() + b"\n"


@auth.command(
    epilog=examples(
        "malamute auth log --wait 1", "malamute auth log ann --start since:1h", "malamute auth log --json"
    )
)
@click.argument("users", nargs=-1, metavar="[USER]...")
@click.option("--start", default="first", show_default=True, metavar="START", help="As for malamute sub.")
@click.option("--count", "-n", type=click.IntRange(min=1), help="End after this many refusals.")
@waits("End when none comes for so long; with --count, and fewer refusals, that is exit code 3.")
@connects
@prints_messages(as_refusal)
def log(
    users: tuple[str, ...],
    *,
    start: str,
    count: int | None,
    wait_seconds: float | None,
    connection: ConnectionOptions,
    render: Render,
) -> None:
    """Follow what was refused to each USER, or to all: who, from where, what, and by which rule.

    They are events of the broker. A principal has ten of them in ten seconds; what it was refused beyond
    that is one more, with how many they were.
    """
    from malamute.matching.expression import value_text

    where = " or ".join(f"user = {value_text(user)}" for user in users)
    with until_stopped(), connection.open() as client:
        with client.subscribe(
            STREAM, "access.refused.#", where=where, start=start, credit=window(count)
        ) as refusals:
            left = follow(refusals, render, count=count, wait_seconds=wait_seconds)
        if left:
            raise click.exceptions.Exit(TIMED_OUT)


def _words(found: dict[str, Any]) -> str:
    if not found["in_force"]:
        return "allowed: there are no rules"
    decided = f"{found['rule']} ({found['owner']})" if found["rule"] else "no rule allows it"
    if not found["allowed"]:
        return f"refused: {decided}"
    return f"{'allowed in part' if found['limited'] else 'allowed'}: {decided}"
