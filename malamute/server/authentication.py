"""Authentication of peers: the handler of libzmq's authentication protocol (ZAP, RFC 27), in the loop.

libzmq asks here about each connection, before handing over anything of it, and puts the user of the answer
into every frame of that connection (`User-Id`). Open listeners ask, too: a peer may call itself anything in
its own metadata, which only an answer from here outweighs.

A handshake whose password is being tried waits for its answer, and one that has to wait longer is to be tried
again (300). A connection with a key that no account has may still prove its user in HELLO, by a token or a
password, where there is an issuer or an account that has one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import zmq
from zmq.utils import z85

from malamute.access import Account, AccountBook
from malamute.access.token import Issuers
from malamute.core.identity.access import ANONYMOUS, Principal
from malamute.door.addresses import NO_GATEWAYS, Gateways
from malamute.door.sampling import Sampler
from malamute.errors import AccessRefused, InternalError, MalamuteError, TryLater
from malamute.protocol.messages import Hello
from malamute.protocol.passwords import unpack_login
from malamute.server.bearers import (
    METHOD,
    NO_ISSUER,
    NO_TOKEN,
    NOT_ASKED,
    UNPROVED,
    UNPROVED_REASON,
    Bearers,
    WaitingHello,
)
from malamute.server.edge import RefusedConnection
from malamute.server.guard import descriptor_of
from malamute.server.passwords import BUSY, Passwords, usable

ENDPOINT = "inproc://zeromq.zap.01"
VERSION = b"1.0"

OPEN, PEER, BEFORE = b"null", b"peer", b"curve-before"
"""Domains of listeners without authentication, with the uid of the peer, and with the previous key of the
broker. The domain of any other listener is its mechanism."""

BEARER = b"$token"
"""User in PLAIN of a client with a token, whose user is not proved yet."""

_PEER = re.compile(r"(localhost:([0-9]+):[0-9]+):[0-9]+")
"""Name that libzmq gives a peer on a socket of the file system: `localhost:UID:GID:PID`."""

OK, LATER, REFUSED, FAULTY = b"200", b"300", b"400", b"500"
"""Answers to libzmq: 300 has the client retry; 400 and 500 tell the client that it was refused."""

REQUESTS_MAX = 64
"""Handshakes answered in one iteration."""

BY_PASSWORD = "password"
"""Method of a user with a password in HELLO."""

_METHOD, _PROOF = "X-Method", "X-Proof"


class Reported:
    """Log of refused connections: a line for each reason and second, with the count."""

    def __init__(self, log: Any, timer: Callable[[], float] = monotonic) -> None:
        self._log = log
        self._sampler = Sampler(timer)

    def __call__(self, refusal: RefusedConnection) -> None:
        """Add a refusal."""
        if count := self._sampler.count(refusal.reason):
            self._log.warning(
                "connection refused",
                address=refusal.address,
                mechanism=refusal.mechanism,
                reason=refusal.reason,
                count=count,
                **({"key": refusal.key} if refusal.key else {}),
            )


class OldKeys:
    """Log of users who still connect with the previous key of the broker, with counts."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._counts: Counter[str] = Counter()

    def note(self, user: str, address: str) -> None:
        """Add a connection; each power of two is a line, so that no client fills the log."""
        self._counts[user] += 1
        count = self._counts[user]
        if not count & (count - 1):
            self._log.warning(
                "a client uses the key of before",
                user=user,
                address=address,
                count=count,
                hint="give it the public key of now, and the endpoint with curve+",
            )


class _Request(NamedTuple):
    """Question of libzmq about a connection: routing of the answer, address of the peer, and mechanism."""

    routing: bytes
    number: bytes
    address: str
    mechanism: str
    key: str = ""


class Authenticator:
    """Answers to libzmq: which peers may connect. For the loop's thread only."""

    def __init__(
        self,
        context: zmq.Context[Any],
        accounts: AccountBook,
        on_refusal: Callable[[RefusedConnection], None] = lambda refusal: None,
        issuers: Issuers | None = None,
        gateways: Gateways = NO_GATEWAYS,
    ) -> None:
        self.accounts = accounts
        self.bearers = Bearers(
            issuers or Issuers(),
            lambda address, reason: self._note(address, "TOKEN", reason),
            self._is_disabled,
            gateways=gateways,
        )
        self.refused: Counter[str] = Counter()
        """Refused connections by reason."""
        self.on_refusal = on_refusal
        self.on_key_before: Callable[[str, str], None] = lambda user, address: None
        """Called with user and address of each client with the previous key of the broker; the user is empty
        if no account has the client's key."""
        self._socket = context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind(ENDPOINT)
        self.passwords = Passwords(lambda name: self.accounts.named(name), gateways)

    @property
    def inputs(self) -> Sequence[Any]:
        """Sockets and descriptors to poll for input."""
        return self._socket, self.passwords.fileno(), self.bearers.fileno()

    def update(self, now: float) -> None:
        """Answer questions of libzmq, and logins whose passwords were verified."""
        self.passwords.update(now)
        with suppress(zmq.Again):
            for _ in range(REQUESTS_MAX):
                self._ask(self._socket.recv_multipart(zmq.NOBLOCK), now)

    def principal(self, part: Any) -> Principal:
        """Return the principal of a frame, as proved when it connected; the policy knows its groups."""
        user = user_of(part)
        if not user:
            return ANONYMOUS
        return Principal(user, method=str(part.get(_METHOD)), proof=_property(part, _PROOF))

    def identify(self, peer: bytes, hello: Hello, part: Any, now: float) -> Principal | None:
        """Return the principal of the HELLO in a frame, or None while its proof is verified: `bearers.pop`.

        Raises:
            AccessRefused: a proof is missing, or is there where none is needed.
            TryLater: the proof cannot be verified now.
            Busy: too many proofs wait.
        """
        name = user_of(part)
        if not name.startswith(UNPROVED):
            if hello.token:
                raise AccessRefused(NOT_ASKED)
            return self.principal(part)
        waiting = WaitingHello(
            peer, hello._replace(token=""), name, _place(address_of(part)), descriptor_of(part)
        )
        if login := unpack_login(hello.token):
            self._prove_login(waiting, *login, now)
        elif hello.token and not self.bearers.issuers:
            raise AccessRefused(NO_ISSUER)
        elif not hello.token:
            # The key may be one that was replaced.
            self._note(waiting.address, "TOKEN", UNPROVED_REASON, key=_property(part, _PROOF))
            raise AccessRefused(NO_TOKEN)
        else:
            self.bearers.prove(waiting, hello.token, now)
        return None

    def _prove_login(self, waiting: WaitingHello, name: str, password: str, now: float) -> None:
        self.bearers.wait(waiting)
        try:
            answer = partial(self._answer_hello, waiting, name)
            self.passwords.prove(name, password.encode(), waiting.address, now, answer)
        except TryLater as error:
            self.bearers.give_up(waiting)
            self._note(waiting.address, BY_PASSWORD, error.text, name)
            raise

    def _answer_hello(self, waiting: WaitingHello, name: str, found: Account | MalamuteError) -> None:
        if isinstance(found, MalamuteError):
            self._note(waiting.address, BY_PASSWORD, found.text, name)
            self.bearers.done(waiting, found)
        else:
            proof = found.proof(BY_PASSWORD)
            self.bearers.done(waiting, Principal(found.name, method=BY_PASSWORD, proof=proof))

    def user(self, peer: bytes, part: Any) -> str:
        """Return the user of a frame from a peer."""
        name = user_of(part)
        return self.bearers.user(peer, name) if name.startswith(UNPROVED) else name

    def _is_disabled(self, user: str) -> bool:
        return self.accounts.is_disabled(user)

    def note_foreign(self, part: Any) -> None:
        """Report a frame in the session of another user."""
        user = user_of(part)
        who = "nobody" if user.startswith(UNPROVED) else f"the user {user!r}"
        self._note(address_of(part), "", f"{who} in a session of another")

    def _ask(self, frames: list[bytes], now: float) -> None:
        if len(frames) < 8:
            # Without a request there is nothing to answer.
            self._note("", "", "malformed request")
            return
        routing, _, version, number, domain, address, _, mechanism, *credentials = frames
        where, how = address.decode("utf-8", "replace"), mechanism.decode("utf-8", "replace")
        request = _Request(routing, number, where, how)
        if version != VERSION:
            self._refuse(request, InternalError("unknown version of ZAP"))
        elif how == "NULL" and domain == OPEN:
            self._reply(request, OK, "", "", "null")
        elif how == "NULL" and domain == PEER and (peer := _PEER.fullmatch(where)):
            account = self.accounts.with_uid(int(peer[2]))
            self._decide(request._replace(mechanism="PEER"), account, "unknown uid")
        elif how == "CURVE" and len(credentials) == 1 and len(credentials[0]) == 32:
            self._find_key(request._replace(key=z85.encode(credentials[0]).decode()), domain)
        elif how == "PLAIN" and len(credentials) == 2:
            if credentials[0] == BEARER and self.bearers.issuers:
                self._reply(request, OK, "", self.bearers.new_name(), METHOD)
            else:
                self._prove_password(request, credentials[0].decode("utf-8", "replace"), credentials[1], now)
        else:
            self._refuse(request, InternalError("malformed credentials"))

    def _find_key(self, request: _Request, domain: bytes) -> None:
        """Answer for a client with a proved key."""
        account = self.accounts.with_key(request.key)
        if domain == BEFORE:
            self.on_key_before(account.name if account else "", _place(request.address))
        if account is None and (self.bearers.issuers or self.accounts.have_passwords):
            self._reply(request, OK, "", self.bearers.new_name(), METHOD, request.key)
        else:
            self._decide(request, account, "unknown key")

    def _prove_password(self, request: _Request, name: str, password: bytes, now: float) -> None:
        try:
            self.passwords.prove(
                name, password, _place(request.address), now, partial(self._answer, request, name)
            )
        except TryLater as error:
            self._refuse(request, error, name)

    def _decide(self, request: _Request, account: Account | None, otherwise: str) -> None:
        self._answer(request, account.name if account else "", usable(account, otherwise))

    def _answer(self, request: _Request, claimed: str, found: Account | MalamuteError) -> None:
        """Answer with the account, or refuse the peer that `claimed` this name."""
        if isinstance(found, MalamuteError):
            self._refuse(request, found, claimed)
        else:
            method = request.mechanism.lower()
            self._reply(request, OK, "", found.name, method, found.proof(method))

    def _refuse(self, request: _Request, error: MalamuteError, claimed: str = "") -> None:
        self._note(request.address, request.mechanism, error.text, claimed, request.key)
        status = FAULTY if isinstance(error, InternalError) else REFUSED
        self._reply(request, LATER if isinstance(error, TryLater) else status, error.text)

    def _note(self, where: str, how: str, reason: str, claimed: str = "", key: str = "") -> None:
        self.refused[reason] += 1
        self.on_refusal(RefusedConnection(_place(where), how, reason, claimed, reason == BUSY, key))

    def _reply(
        self, request: _Request, status: bytes, text: str, user: str = "", method: str = "", proof: str = ""
    ) -> None:
        properties = {_METHOD: method, _PROOF: proof}
        known = b"".join(metadata(name, value) for name, value in properties.items() if value)
        reply = (request.routing, b"", VERSION, request.number, status, text.encode(), user.encode(), known)
        self._socket.send_multipart(reply)

    def close(self) -> None:
        """Close the handler; sockets that ask have to be closed before."""
        self.bearers.close()
        self.passwords.close()
        self._socket.close(0)


def _place(address: str) -> str:
    """Return the address of a peer: one for all processes of a user on this machine."""
    peer = _PEER.fullmatch(address)
    return peer[1] if peer else address


def metadata(name: str, value: str) -> bytes:
    """Return a property in the format of ZMTP."""
    return bytes([len(name)]) + name.encode() + len(value).to_bytes(4, "big") + value.encode()


def user_of(part: Any) -> str:
    """Return the user of the connection of a frame; empty without authentication."""
    return _property(part, "User-Id")


def address_of(part: Any) -> str:
    """Return the remote address of the connection of a frame; empty if it has none."""
    return _property(part, "Peer-Address")


def _property(part: Any, name: str) -> str:
    try:
        return str(part.get(name))
    except zmq.ZMQError:
        return ""
