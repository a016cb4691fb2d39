"""Credentials of a client: a password, a CURVE key, which encrypts the connection, or a token.

Credentials not given to `connect` come from the environment: MALAMUTE_USER, MALAMUTE_PASSWORD,
MALAMUTE_CURVE, MALAMUTE_SERVER_KEY and MALAMUTE_TOKEN. With a server key the connection is encrypted, by a
temporary CURVE key for a client without one: that key proves no user, and HELLO has the token, or the user
and the password. Without a server key user and password are in the handshake, and a token uses a PLAIN
connection without a user.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import zmq

from malamute.client.contexts import CREDENTIALS
from malamute.errors import InvalidValue
from malamute.protocol.limits import TOKEN_BYTES_MAX
from malamute.protocol.passwords import PASSWORD_FORM, is_password, pack_login

_PROOFS = ("user", "curve", "token")
"""Proofs, of which one is needed. In the environment the first of them counts."""

SocketOptions = Mapping[int, bytes]


class Proof(NamedTuple):
    """The proof of a client: options of its socket, and the token for HELLO; empty for none.

    `act_as` is a user to be in place of the proved one, if any.
    """

    options: SocketOptions
    token: str = ""
    act_as: str = ""

    @property
    def is_mutual(self) -> bool:
        """Return whether the broker has to prove itself, by its key."""
        return zmq.CURVE_SERVERKEY in self.options


_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_HALF = r'^\s*{}-key\s*=\s*"([^"\n]*)"'


def credentials(
    environ: Mapping[str, str],
    user: str = "",
    password: str = "",
    curve: str | os.PathLike[str] = "",
    server_key: str | os.PathLike[str] = "",
    token: str = "",
    act_as: str = "",
) -> Proof:
    """Return the proof of a client; none by default.

    Raises:
        InvalidValue: the arguments contradict each other, or a key cannot be read.
    """
    if not (user or curve or token):
        act_as = act_as or environ.get("MALAMUTE_ACT_AS", "")
    return _proof(environ, user, password, curve, server_key, token)._replace(act_as=act_as)


def _proof(
    environ: Mapping[str, str],
    user: str,
    password: str,
    curve: str | os.PathLike[str],
    server_key: str | os.PathLike[str],
    token: str,
) -> Proof:
    if token := token_of(environ, token, user=user, curve=curve):
        server_key = server_key or environ.get("MALAMUTE_SERVER_KEY", "")
        return Proof(_of_nobody(server_key) if server_key else _PLAIN_OF_NOBODY, token)
    if not (user or curve):
        user, password = environ.get("MALAMUTE_USER", ""), password or environ.get("MALAMUTE_PASSWORD", "")
        curve = "" if user else environ.get("MALAMUTE_CURVE", "")
    elif user:
        password = password or environ.get("MALAMUTE_PASSWORD", "")
    server_key = server_key or environ.get("MALAMUTE_SERVER_KEY", "")
    if user and curve:
        raise InvalidValue("both a user and a curve key are given: expected one of them")
    if curve:
        return Proof(_curve(Path(curve), server_key))
    if password and not user:
        raise InvalidValue("a password without a user: expected both")
    return _login(user, password, server_key) if user else Proof({})


def _login(user: str, password: str, server_key: str | os.PathLike[str]) -> Proof:
    for what, text in (("user", user), ("password", password)):
        if not is_password(text):
            raise InvalidValue(f"invalid {what}: expected {PASSWORD_FORM}")
    if server_key:
        return Proof(_of_nobody(server_key), pack_login(user, password))
    return Proof({zmq.PLAIN_USERNAME: user.encode(), zmq.PLAIN_PASSWORD: password.encode()})


def given_by(environ: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return arguments of `connect` that stand for this environment, for use in another one.

    A server key is the key itself then, not a file. Raises `InvalidValue` if it cannot be read.
    """
    known = {name: value for name in CREDENTIALS if (value := environ.get(f"MALAMUTE_{name.upper()}"))}
    found = {**given}
    if not found.keys() & {*_PROOFS}:
        found.update({name: known[name] for name in [*filter(known.get, _PROOFS)][:1]})
        if "act_as" in known:
            found.setdefault("act_as", known["act_as"])
    for name, needed in (("password", {"user"}), ("server_key", {*_PROOFS})):
        if name in known and found.keys() & needed:
            found.setdefault(name, known[name])
    if "token" in found:
        found["token"] = found["token"].strip()
    if "server_key" in found:
        found["server_key"] = _server_key(found["server_key"]).decode()
    return found


def token_of(
    environ: Mapping[str, str],
    token: str = "",
    *,
    user: str = "",
    curve: str | os.PathLike[str] = "",
) -> str:
    """Return the token of a client; empty for none. Any given proof has precedence over the environment.

    Raises:
        InvalidValue: the token is invalid, or beside another proof. The text does not show it.
    """
    others = user or curve
    if not (token or others or environ.get("MALAMUTE_USER") or environ.get("MALAMUTE_CURVE")):
        token = environ.get("MALAMUTE_TOKEN", "").strip()
    if token and others:
        raise InvalidValue("a token beside a user or a curve key: expected one of them")
    if len(token) > TOKEN_BYTES_MAX or not token.isascii():
        raise InvalidValue(f"invalid token: expected at most {TOKEN_BYTES_MAX} characters of ASCII")
    return token


_PLAIN_OF_NOBODY: SocketOptions = {zmq.PLAIN_USERNAME: b"$token", zmq.PLAIN_PASSWORD: b"-"}


def _of_nobody(server_key: str | os.PathLike[str]) -> SocketOptions:
    """Return options of an encrypted connection that proves no user."""
    server = _server_key(server_key)
    public, secret = zmq.curve_keypair()
    return {zmq.CURVE_SERVERKEY: server, zmq.CURVE_PUBLICKEY: public, zmq.CURVE_SECRETKEY: secret}


def _curve(path: Path, server_key: str | os.PathLike[str]) -> SocketOptions:
    server = _server_key(server_key)
    public, secret = _read(path, "public"), _read(path, "secret")
    return {
        zmq.CURVE_SERVERKEY: server,
        zmq.CURVE_PUBLICKEY: public.encode(),
        zmq.CURVE_SECRETKEY: secret.encode(),
    }


def _server_key(server_key: str | os.PathLike[str]) -> bytes:
    if not zmq.has("curve"):
        raise InvalidValue("libzmq was built without CURVE: install pyzmq from its wheel")
    if not server_key:
        raise InvalidValue("no server_key: expected the public key of the broker, or the file that has it")
    given = os.fspath(server_key)
    return (given if _KEY.fullmatch(given) else _read(Path(given), "public")).encode()


def _read(path: Path, half: str) -> str:
    """Return one half of a key, from a file as pyzmq and `malamute keys new` write it."""
    try:
        if half == "secret" and path.stat().st_mode & 0o077:
            raise InvalidValue(f"{path} is open to others: expected chmod 600, as it has a secret key")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InvalidValue(f"{path}: key cannot be read: {error}") from None
    found = re.search(_HALF.format(half), text, re.MULTILINE)
    if found is None or not _KEY.fullmatch(found[1]):
        raise InvalidValue(f"{path}: there is no {half} key in it: expected what `malamute keys new` writes")
    return found[1]
