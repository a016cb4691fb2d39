"""How a client proves who it is: by a password, or by a CURVE key, which encrypts the connection as well.

What `connect` is not given comes from the environment: MALAMUTE_USER, MALAMUTE_PASSWORD, MALAMUTE_CURVE and
MALAMUTE_SERVER_KEY.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import zmq

from malamute.errors import InvalidValue

TEXT_BYTES_MAX = 255
"""The longest user or password that libzmq sends."""

SocketOptions = Mapping[int, bytes]

_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_HALF = r'^\s*{}-key\s*=\s*"([^"\n]*)"'


def credentials(
    environ: Mapping[str, str],
    user: str = "",
    password: str = "",
    curve: str | os.PathLike[str] = "",
    server_key: str | os.PathLike[str] = "",
) -> SocketOptions:
    """The options of a socket that prove who a client is; none where nothing is given.

    Raises:
        InvalidValue: they contradict each other, or a key cannot be read.
    """
    if not (user or curve):
        user, password = environ.get("MALAMUTE_USER", ""), password or environ.get("MALAMUTE_PASSWORD", "")
        curve = "" if user else environ.get("MALAMUTE_CURVE", "")
    elif user:
        password = password or environ.get("MALAMUTE_PASSWORD", "")
    server_key = server_key or environ.get("MALAMUTE_SERVER_KEY", "")
    if user and curve:
        raise InvalidValue("both a user and a curve key are given: expected one of them")
    if curve:
        return _curve(Path(curve), server_key)
    if password and not user:
        raise InvalidValue("a password without a user: expected both")
    if not user:
        return {}
    for what, text in (("user", user), ("password", password)):
        if not 1 <= len(text.encode()) <= TEXT_BYTES_MAX:
            raise InvalidValue(f"invalid {what}: expected 1 to {TEXT_BYTES_MAX} bytes")
    return {zmq.PLAIN_USERNAME: user.encode(), zmq.PLAIN_PASSWORD: password.encode()}


def _curve(path: Path, server_key: str | os.PathLike[str]) -> SocketOptions:
    if not zmq.has("curve"):
        raise InvalidValue("libzmq was built without CURVE: install pyzmq from its wheel")
    if not server_key:
        raise InvalidValue("no server_key: expected the public key of the broker, or the file that has it")
    given = os.fspath(server_key)
    server = given if _KEY.fullmatch(given) else _read(Path(given), "public")
    public, secret = _read(path, "public"), _read(path, "secret")
    return {
        zmq.CURVE_SERVERKEY: server.encode(),
        zmq.CURVE_PUBLICKEY: public.encode(),
        zmq.CURVE_SECRETKEY: secret.encode(),
    }


def _read(path: Path, half: str) -> str:
    """One half of a key, from a file as pyzmq and `malamute keys new` write it."""
    try:
        if half == "secret" and path.stat().st_mode & 0o077:
            raise InvalidValue(f"{path} is open to others: expected chmod 600, as it has a secret key")
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidValue(f"{path}: key cannot be read: {error}") from None
    found = re.search(_HALF.format(half), text, re.MULTILINE)
    if found is None or not _KEY.fullmatch(found[1]):
        raise InvalidValue(f"{path}: there is no {half} key in it: expected what `malamute keys new` writes")
    return found[1]
