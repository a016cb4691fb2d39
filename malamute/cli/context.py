"""`malamute context`: names for brokers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from malamute.cli.admin import removes
from malamute.cli.error_output import BadInput, report
from malamute.cli.options import (
    ConnectionOptions,
    ask_password,
    asks,
    complete_context,
    examples,
    json_option,
)
from malamute.cli.tables import show_map, show_rows
from malamute.cli.units import DurationRange
from malamute.client.contexts import Context, Contexts, file_of, load, save


@click.group()
def context() -> None:
    """Names for the brokers that you work with.

    A context has a URL, and perhaps an address, a timeout, and credentials. Commands connect to, in this
    order: --url; the context that --context names; MALAMUTE_URL; the context that MALAMUTE_CONTEXT names; the
    context of `malamute context use`; tcp://127.0.0.1:9999. The first one given is used as a whole, and
    options such as --address have precedence over it.
    """


name_argument = click.argument("name", shell_complete=complete_context)


@context.command(
    epilog=examples(
        "malamute context add office --url tcp://broker.example.org:9999 --address alice --use",
        "malamute context add office --url tcp://broker.example.org:9999 --curve ann.key_secret "
        "--server-key broker.key",
        "malamute stream list --context office",
    )
)
@click.argument("name")
@click.option("--url", required=True, help="The broker.")
@click.option("--address", metavar="NAME", help="Connect as the owner of this mailbox.")
@click.option(
    "--timeout", type=DurationRange(min=0, min_open=True), metavar="DURATION", help="How long to wait."
)
@click.option("--user", metavar="NAME", help="Log in under this name; asks for the password.")
@click.option("--curve", metavar="FILE", help="The secret key to connect with, as of `malamute keys new`.")
@click.option("--token", "has_token", is_flag=True, help="Log in with a bearer token; asks for it.")
@click.option("--act-as", metavar="USER", help="Have the rights of this user, if a rule allows that.")
@click.option("--server-key", metavar="KEY", help="The public key of the broker, or the file that has it.")
@click.option("--use", "used", is_flag=True, help="Use it from now on where no other is named.")
@click.option("--replace", is_flag=True, help="Replace a context of this name.")
@json_option
def add(
    name: str,
    *,
    used: bool,
    replace: bool,
    as_json: bool,
    user: str | None,
    has_token: bool,
    **given: Any,
) -> None:
    """Give a broker a NAME.

    The password of a --user, or a --token, is kept in the file of the contexts, which only its owner can
    read. Without a terminal it is a line of standard input.
    """
    path = file_of(os.environ)
    contexts = load(path)
    if name in contexts.by_name and not replace:
        raise BadInput(f"there is a context {name!r} already: give --replace to replace it")
    contexts.by_name[name] = _with_credentials(Context(**given), user, has_token=has_token)
    if used:
        contexts.current = name
    save(path, contexts)
    show_map(_row(contexts, name), as_json=as_json)


@context.command()
@name_argument
@json_option
def use(name: str, *, as_json: bool) -> None:
    """Use the context NAME from now on by default."""
    path = file_of(os.environ)
    contexts = load(path)
    contexts.get(name)
    contexts.current = name
    save(path, contexts)
    show_map(_row(contexts, name), as_json=as_json)


@context.command("list")
@json_option
def listing(*, as_json: bool) -> None:
    """List the contexts, with the one in use."""
    contexts = load(file_of(os.environ))
    if not contexts.by_name and not as_json:
        report("no contexts")
    show_rows([_row(contexts, name) for name in sorted(contexts.by_name)], as_json=as_json)


@context.command()
@asks
def show(*, connection: ConnectionOptions, as_json: bool) -> None:
    """Show the connection and the user of a command with these options."""
    said = Context(connection.url, connection.address, connection.timeout_seconds)
    shown = said.with_credentials(connection.credentials).shown()
    show_map({"context": connection.context or None, **shown}, as_json=as_json)


@context.command()
@name_argument
@removes("Forget the context {name}, with its credentials?")
@json_option
def delete(name: str, *, dry_run: bool, as_json: bool) -> None:
    """Delete the context NAME."""
    path = file_of(os.environ)
    contexts = load(path)
    removed = contexts.get(name)
    row = _row(contexts, name)
    del contexts.by_name[name]
    if contexts.current == name:
        contexts.current = ""
    if not dry_run:
        save(path, contexts)
    show_map({**row, **removed.shown()}, as_json=as_json)


def _with_credentials(context: Context, user: str | None, *, has_token: bool) -> Context:
    """Return the context with a password or token, and with absolute paths of keys. Raises `InvalidValue`."""
    from malamute.client.link.credentials import credentials, token_of

    found = context.credentials()
    for field in {"curve", "server_key"} & found.keys():
        # The broker's key may be given itself, in place of a file.
        if Path(found[field]).is_file():
            found[field] = str(Path(found[field]).resolve())
    if user is not None:
        found |= {"user": user, "password": ask_password()}
    if has_token:
        if not (token := ask_password("Token")):
            raise BadInput("no token: expected one")
        found["token"] = token_of({}, token, user=found.get("user", ""), curve=found.get("curve", ""))
    credentials({}, **found)
    return context.with_credentials(found)


def _row(contexts: Contexts, name: str) -> dict[str, Any]:
    return {"name": name, "current": name == contexts.current, **contexts.by_name[name].shown()}
