"""`malamute auth`: permissions, the rules behind them, and the events about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from malamute.cli.admin import confirm, dry_run_option, yes_option
from malamute.cli.error_output import report
from malamute.cli.events import STREAM as EVENTS
from malamute.cli.exit_codes import ERROR, TIMED_OUT
from malamute.cli.options import (
    ConnectionOptions,
    ask_password,
    asks,
    connects,
    examples,
    json_option,
    waits,
)
from malamute.cli.printing import Function, Render, printable, prints_messages, to_json
from malamute.cli.settings import load
from malamute.cli.signals import until_stopped
from malamute.cli.subscribe import follow, window
from malamute.cli.tables import show_map, show_rows
from malamute.protocol.names import AUDIT

if TYPE_CHECKING:
    from malamute.client.session.message import Message


@click.group()
def auth() -> None:
    """Show permissions, and the rules behind them.

    ACTION is publish, subscribe, send, receive, request, offer, create, browse, view or admin; TARGET is
    KIND/NAME or KIND/NAME/SUBJECT, as in a rule. USER may be '' for clients without a name.
    """


RULES = ("* */#", "subscribe,view stream/$sys", "subscribe,view stream/$audit")
"""The rules of an administrator: everything, and what the broker reports."""


@auth.command(
    epilog=examples(
        "malamute auth enable admin --at tcp://127.0.0.1:9998",
        "malamute auth enable admin --url lab:9998 --dry-run",
    )
)
@click.argument("name")
@click.option(
    "--at", metavar="URL", help="The endpoint that asks for passwords, if it is not the one of --url."
)
@dry_run_option
@yes_option
@asks
def enable(
    name: str, *, at: str | None, dry_run: bool, yes: bool, connection: ConnectionOptions, as_json: bool
) -> None:
    """Begin rules on a running broker, with the account NAME, which may do everything.

    Without rules every client may do everything. With this account's rules, the first ones, all other clients
    may do nothing until `malamute user` or `malamute group` gives them rules. The command adds the account,
    with a password that it asks for, unless there is one. The rules are begun as
    NAME, so that somebody can log in to change them. The broker stores them.
    """
    from malamute.config.accounts import hash_password
    from malamute.errors import MalamuteError
    from malamute.protocol import admin

    confirm("From now on clients may do nothing without a rule. Begin rules?", yes=yes, dry_run=dry_run)
    own = connection.credentials
    password = "" if own else ask_password(twice=True)
    adding = admin.UserAdd(name=name, password=None if own else hash_password(password), dry_run=dry_run)
    with connection.open() as client:
        known = {row.name for row in client.query(admin.UsersQuery())}
        added = name not in known and not own
        if added:
            client.change(adding)
    if dry_run:
        show_map({"name": name, "added": added, "access_rules": [*RULES]}, as_json=as_json)
        return
    login = replace(
        connection, url=at or connection.url, credentials=own or {"user": name, "password": password}
    )
    try:
        with login.open() as client:
            done = client.change(admin.UserSet(name=name, added_rules=[*RULES]))
    except MalamuteError:
        if added:
            with connection.open() as client:
                client.change(admin.UserRemove(name=name))
        raise
    show_map({"name": name, "added": added, "access_rules": done.access_rules}, as_json=as_json)


def _asked(function: Any) -> Any:
    for decorate in (
        json_option,
        connects,
        click.option(
            "--config",
            "path",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Go by the rules of this file, and by the accounts that it names, and ask no broker.",
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
        from malamute.config.accounts import accounts_of
        from malamute.core.identity.access import AccessControl

        access = load(path, {}).access
        control = AccessControl(policy=access.policy(), accounts=accounts_of(access))
        return control.explain(user, action, target).as_map()
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
    """Show whether USER may do ACTION to TARGET, and the deciding rule.

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
    """List all rules for USER and TARGET, with the deciding one."""
    found = _explain(user, action, target, path, connection)
    show_rows(found["rules"], as_json=as_json)
    if not as_json and not found["rules"]:
        report(printable(_words(found)))


def as_refusal(message: Message) -> bytes:
    """Return a refusal as a line for people: the time, user, address, action, target, and the rule."""
    headers = message.headers
    wanted = f"{headers.get('action', '')} {headers.get('target', '')}".rstrip()
    return _line(message, wanted, headers.get("rule", ""))


def as_change(message: Message) -> bytes:
    """Return a change as a line for people: time, user, address, change, result, and the body as it is."""
    headers = message.headers
    outcome = [headers.get("outcome", ""), headers.get("error", "")]
    body = message.body.decode("utf-8", "backslashreplace")
    return _line(message, message.subject, ": ".join(filter(None, outcome)), body)


def _line(message: Message, *parts: Any) -> bytes:
    headers = message.headers
    when = message.time.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    who = headers.get("user") or headers.get("address") or headers.get("client") or "-"
    if (count := headers.get("count", 1)) != 1:
        parts = (*parts, f"the last of {count} that were left out")
    fields = (f"{when}Z", who, headers.get("origin") or "-", *parts)
    return "  ".join(printable(str(field)) for field in fields).encode("utf-8", "backslashreplace") + b"\n"


def _follows(as_line: Render, what: str) -> Callable[[Function], Function]:
    """Add the arguments and options of a command that follows events about users."""

    def decorate(function: Function) -> Function:
        decorators: tuple[Callable[[Function], Function], ...] = (
            prints_messages(as_line),
            connects,
            waits(f"End when none comes for so long; with --count, and fewer {what}, that is exit code 3."),
            click.option("--count", "-n", type=click.IntRange(min=1), help=f"End after so many {what}."),
            click.option(
                "--start", default="first", show_default=True, metavar="START", help="As for malamute sub."
            ),
            click.argument("users", nargs=-1, metavar="[USER]..."),
        )
        for add in decorators:
            function = add(function)
        return function

    return decorate


def _follow(
    stream: str,
    patterns: tuple[str, ...],
    render: Render,
    *,
    users: tuple[str, ...],
    start: str,
    count: int | None,
    wait_seconds: float | None,
    connection: ConnectionOptions,
) -> None:
    """Print the messages about some users, or all, in a stream of the broker's own."""
    from malamute.matching.expression import value_text

    named = [(value_text(user), value_text(f"user/{user}")) for user in users]
    where = " or ".join(
        f"user = {user} or action = 'connect' and target = {claimed}" for user, claimed in named
    )
    with until_stopped(), connection.open() as client:
        with client.subscribe(stream, *patterns, where=where, start=start, credit=window(count)) as messages:
            left = follow(messages, render, count=count, wait_seconds=wait_seconds)
        if left:
            raise click.exceptions.Exit(TIMED_OUT)


@auth.command(
    epilog=examples(
        "malamute auth log --wait 1", "malamute auth log ann --start since:1h", "malamute auth log --json"
    )
)
@_follows(as_refusal, "refusals")
def log(*, render: Render, **options: Any) -> None:
    """Follow the refusals of each USER, or of all: time, user, address, action, and rule.

    Refusals are events of the broker: at most ten for each user in ten seconds, and one more with the number
    of the others. Refused connections are named by their address, since their user is unproved.
    """
    _follow(EVENTS, ("access.refused.#",), render, **options)


@auth.command(
    epilog=examples(
        "malamute auth changes --wait 1",
        "malamute auth changes ann --start since:1d",
        "malamute auth changes --json",
    )
)
@_follows(as_change, "changes")
def changes(*, render: Render, **options: Any) -> None:
    """Follow the audit: each administrative change of each USER, or of all, done or refused.

    A line has the user, the address, the change, its result, and the values before and after.
    """
    _follow(AUDIT, (), render, **options)


def _words(found: dict[str, Any]) -> str:
    if not found["in_force"]:
        return "allowed: there are no rules"
    decided = f"{found['rule']} ({found['owner']})" if found["rule"] else "no rule allows it"
    if not found["allowed"]:
        return f"refused: {decided}"
    return f"{'allowed in part' if found['limited'] else 'allowed'}: {decided}"
