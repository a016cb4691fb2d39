"""Who somebody is: the handler of ZAP, and tokens."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from functools import cache
from typing import Any
from unittest.mock import patch

import zmq
from fuzz_frames import frames_of
from zmq.utils import z85

from malamute.access import Account, Accounts
from malamute.access import account as account_module
from malamute.access.token import REASONS, Issuer, Issuers, TokenRefused
from malamute.config.accounts import hash_password
from malamute.server.authentication import FAULTY, LATER, OK, REFUSED, Authenticator
from malamute.server.bearers import UNPROVED

KEY = bytes(range(32))
NAME, AUDIENCE, NOW = "i", "m", 1_700_000_000.0


class _Socket:
    """What the handler answers on."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send_multipart(self, frames: Any) -> None:
        self.sent.append(frames)

    def recv_multipart(self, _: int) -> Any:
        raise zmq.Again


class _AtOnce:
    def submit(self, task: Callable[..., None], *arguments: Any) -> None:
        task(*arguments)


@cache
def _handler() -> tuple[Authenticator, _Socket]:
    """A handler whose passwords cost nothing and are tried at once."""
    with patch.object(account_module, "SCRYPT_COST", 2):
        handler = Authenticator(
            zmq.Context.instance(),
            Accounts(
                [
                    Account("ann", key=z85.encode(KEY).decode()),
                    Account("bob", hash_password("secret"), uid=1000),
                    Account(
                        "out", hash_password("secret"), key=z85.encode(KEY[::-1]).decode(), disabled=True
                    ),
                ]
            ),
        )
    handler.passwords._thread.shutdown()
    handler._socket.close(0)
    socket: Any = _Socket()
    handler._socket, handler.passwords._thread = socket, _AtOnce()  # type: ignore[assignment]  # they do what is asked
    return handler, socket


def zap(data: bytes) -> None:
    """Each request has one answer, and nobody is somebody without a proof."""
    handler, socket = _handler()
    socket.sent.clear()
    failures = handler.passwords._failures
    failures.__init__(failures._gateways)  # type: ignore[misc]  # each input by itself
    frames = frames_of(data)
    handler._ask([b"peer", b"", *frames], NOW)
    handler.update(NOW)
    if len(frames) < 6:
        assert socket.sent == []
        return
    ((_, _, _, request, status, _, user, _),) = socket.sent
    assert request == frames[1]
    assert status in (OK, LATER, REFUSED, FAULTY)
    if status != OK:
        assert user == b""
    if user and not user.startswith(UNPROVED.encode()):
        assert user in (b"ann", b"bob")
        assert {KEY, b"secret"} & {*frames} or re.match(rb"localhost:0*1000:", frames[3])


@cache
def _issuer() -> tuple[Any, Issuers]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = Ed25519PrivateKey.from_private_bytes(KEY)
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    return key, Issuers([Issuer(NAME, AUDIENCE, ["EdDSA"], pem, scope_claim="scope", leeway_seconds=1.0)])


def _check_reason(error: TokenRefused) -> None:
    assert error.reason in REASONS


def token(data: bytes) -> None:
    """A text is a token of somebody, or is refused for one of the reasons; also if it is signed well."""
    key, issuers = _issuer()
    header, _, claims = data.partition(b"\n")
    unsigned = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (header, claims))
    signature = base64.urlsafe_b64encode(key.sign(unsigned)).rstrip(b"=")
    for text in (data.decode("utf-8", "replace"), (unsigned + b"." + signature).decode()):
        try:
            bearer = issuers.verify(text, NOW)
        except TokenRefused as error:
            _check_reason(error)
            continue
        assert bearer.user
        assert bearer.expires_at > NOW
