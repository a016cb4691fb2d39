"""`malamute keys`: CURVE keys, in files as pyzmq writes them, and the public keys of token issuers."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from malamute.cli.error_output import report
from malamute.cli.options import examples, json_option
from malamute.cli.tables import show_map, show_rows
from malamute.errors import ConfigError

_NAME = re.compile(r"[^\s/\0]+")
_PUBLIC, _SECRET = ".key", ".key_secret"


@click.group()
def keys() -> None:
    """Make and show CURVE keys: NAME.key is public, NAME.key_secret is for its owner alone.

    The public keys of an issuer of tokens can be fetched, too.
    """


_directory = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    show_default="the working directory",
    help="The directory of the files.",
)


@keys.command(epilog=examples("malamute keys new broker", "malamute keys new ann --dir keys"))
@click.argument("name")
@_directory
@json_option
def new(name: str, *, directory: Path, as_json: bool) -> None:
    """Make a key, and write its halves to NAME.key and NAME.key_secret, which must not exist."""
    import zmq

    if not _NAME.fullmatch(name):
        raise ConfigError(f"invalid name {name!r} of a key: expected one of a file, without spaces")
    public, secret = (half.decode() for half in zmq.curve_keypair())
    paths = directory / f"{name}{_SECRET}", directory / f"{name}{_PUBLIC}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write(paths[0], public, secret)
        _write(paths[1], public)
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}") from None
    show_map(
        {"name": name, "public": public, "file": str(paths[1]), "secret_file": str(paths[0])}, as_json=as_json
    )


def _write(path: Path, public: str, secret: str = "") -> None:
    lines = ["metadata", "curve", f'    public-key = "{public}"']
    if secret:
        lines.append(f'    secret-key = "{secret}"')
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(os.open(path, flags, 0o600 if secret else 0o644), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


@keys.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def show(file: Path, *, as_json: bool) -> None:
    """Show the public half of the key in FILE, and never the secret one."""
    show_map({"file": str(file), "public": public_of(file)}, as_json=as_json)


@keys.command("list")
@_directory
@json_option
def listing(*, directory: Path, as_json: bool) -> None:
    """List the keys in a directory."""
    rows = [
        {
            "name": path.name.removesuffix(_PUBLIC),
            "public": public_of(path),
            "secret_here": path.with_name(path.name + "_secret").exists(),
        }
        for path in sorted(directory.glob(f"*{_PUBLIC}"))
    ]
    show_rows(rows, as_json=as_json)
    if not rows and not as_json:
        report("no keys")


@keys.command(epilog=examples("malamute keys fetch https://login.example.org issuer.jwks"))
@click.argument("issuer")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def fetch(issuer: str, file: Path, *, as_json: bool) -> None:
    """Fetch the public keys of ISSUER into FILE, from the address in its discovery document.

    The file is written if the keys have changed, and stays as it was after an error. A running broker reads
    it at `malamute broker reload`.
    """
    from malamute.cli.issuer_keys import keys_of
    from malamute.config.accounts import write_private

    found = keys_of(issuer)
    try:
        changed = not file.exists() or file.read_bytes() != found.encode()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    if changed:
        write_private(file, found, mode=0o644)
    show_map({"issuer": issuer, "file": str(file), "changed": changed}, as_json=as_json)


def public_of(path: Path) -> str:
    """Return the public half of the key in a file. Raises `ConfigError`."""
    from malamute.config.accounts import read_public_key

    return read_public_key(path)
