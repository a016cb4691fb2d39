"""`malamute bucket`: values by key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from malamute.cli import completion
from malamute.cli.admin import removes, show_list
from malamute.cli.escaping import for_terminal
from malamute.cli.options import ConnectionOptions, asks, examples
from malamute.cli.payload import body_given
from malamute.cli.printing import body_fields, printable, to_json
from malamute.cli.tables import show_map
from malamute.cli.units import DurationRange
from malamute.errors import NotFound

if TYPE_CHECKING:
    from malamute.client.session.watching import KeyValue

bucket_argument = click.argument("name", metavar="BUCKET", shell_complete=completion.names("buckets"))
key_argument = click.argument("key", metavar="KEY")
expect_option = click.option(
    "--expect", type=int, metavar="REVISION", help="The revision that KEY has to have; 0 is no such key."
)


@click.group("bucket")
def bucket() -> None:
    """Buckets: values by key, each with a revision and perhaps a time to live."""


@bucket.command("list")
@asks
def listing(*, connection: ConnectionOptions, as_json: bool) -> None:
    """List the buckets: their keys, the memory that these take, and how many clients watch some."""
    show_list(connection, "buckets", as_json=as_json)


@bucket.command("get", epilog=examples("malamute bucket get results job-1"))
@bucket_argument
@key_argument
@asks
def get(name: str, key: str, *, connection: ConnectionOptions, as_json: bool) -> None:
    """Print the value of KEY; --json adds its revision and time to live."""
    with connection.open() as client:
        found = client.bucket(name).get(key)
    if found is None:
        raise NotFound(f"there is no key {key!r} in bucket {name!r}")
    if as_json:
        click.echo(to_json(_fields(key, found)))
    else:
        click.echo(for_terminal(found.value), nl=False)


@bucket.command(
    "put",
    epilog=examples(
        "malamute bucket put results job-1 done --ttl 1h",
        "malamute bucket put leader node a --expect 0     # only if there is no such key",
    ),
)
@bucket_argument
@key_argument
@click.argument("value", required=False)
@click.option(
    "--ttl", type=DurationRange(min=0, min_open=True), metavar="DURATION", help="After what time KEY expires."
)
@expect_option
@asks
def put(
    name: str,
    key: str,
    value: str | None,
    *,
    ttl: float | None,
    expect: int | None,
    connection: ConnectionOptions,
    as_json: bool,
) -> None:
    """Set KEY to VALUE, or to the standard input, and print its revision."""
    body = body_given(value, connection.timeout_seconds)
    with connection.open() as client:
        revision = client.bucket(name).put(key, body, ttl=ttl, expect=expect)
    show_map({"bucket": name, "key": key, "revision": revision}, as_json=as_json)


@bucket.command("delete")
@bucket_argument
@key_argument
@expect_option
@removes("Delete the key {key} of {name}?")
@asks
def delete(
    name: str, key: str, *, expect: int | None, dry_run: bool, connection: ConnectionOptions, as_json: bool
) -> None:
    """Delete KEY."""
    with connection.open() as client:
        keys = client.bucket(name)
        found = keys.get(key)
        deleted = found is not None and (dry_run or keys.delete(key, expect=expect))
    if found is None:
        raise NotFound(f"there is no key {key!r} in bucket {name!r}")
    show_map(
        {"bucket": name, "key": key, "revision": found.revision, "deleted": bool(deleted)}, as_json=as_json
    )


@bucket.command("watch", epilog=examples("malamute bucket watch settings mode limit --json"))
@bucket_argument
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@click.option("--count", "-n", type=click.IntRange(1), help="End after so many changes.")
@asks
def watch(
    name: str, keys: tuple[str, ...], *, count: int | None, connection: ConnectionOptions, as_json: bool
) -> None:
    """Print the state of each KEY, and then each newer one."""
    with connection.open() as client, client.bucket(name).watch(*keys) as changes:
        for number, (key, found) in enumerate(changes, 1):
            if as_json:
                click.echo(to_json(_fields(key, found)))
            else:
                click.echo(f"{printable(key)}: {_words(found)}")
            if number == count:
                break


def _fields(key: str, found: KeyValue | None) -> dict[str, Any]:
    """Return a key with its value for JSON; without a value, if it is not there."""
    if found is None:
        return {"key": key, "revision": 0}
    ttl = {} if found.ttl is None else {"ttl": found.ttl}
    return {"key": key, "revision": found.revision, **ttl, **body_fields(found.value)}


def _words(found: KeyValue | None) -> str:
    if found is None:
        return "not there"
    return printable(found.value.decode(errors="backslashreplace"))
