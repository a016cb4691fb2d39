"""Who a peer is: the handler of libzmq's authentication protocol (ZAP, RFC 27), in the broker's loop.

libzmq asks here about each connection, before anything that it sends is handed over, and puts the user that
the answer names into every frame of that connection (`User-Id`). It asks about open listeners, too: a peer
may call itself anything in its own metadata, which only an answer from here outweighs.

A password takes some 50 ms to try, so a thread of its own does that, for a few at a time. A client that was
right before is known by a keyed digest: a thousand clients that reconnect cost a thousand digests. Addresses
from which wrong passwords come have to wait, and a handshake that has to wait is one to be tried again (300).
"""

from __future__ import annotations

import os
import re
import socket
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest
from time import monotonic
from typing import Any, NamedTuple

import zmq
from zmq.utils import z85

from malamute.access import Account, AccountBook
from malamute.access.account import PasswordHash
from malamute.access.token import Issuers
from malamute.config.accounts import hash_password
from malamute.core.access import ANONYMOUS, Principal
from malamute.errors import AccessRefused
from malamute.protocol.limits import PASSWORD_BYTES_MAX
from malamute.protocol.messages import Hello
from malamute.server.addresses import NO_GATEWAYS, Gateways
from malamute.server.bearers import METHOD, NOT_ASKED, UNPROVED, Bearers, WaitingHello
from malamute.server.edge import RefusedConnection
from malamute.server.failures import Failures
from malamute.server.guard import descriptor_of

ENDPOINT = "inproc://zeromq.zap.01"
VERSION = b"1.0"

OPEN, PEER = b"null", b"peer"
"""The domains of listeners that ask no peer who it is, and of those that ask the system. That of each
listener is its mechanism."""

BEARER = b"$token"
"""What PLAIN has as the user of a client with a token, which is nobody yet."""

_PEER = re.compile(r"(localhost:([0-9]+):[0-9]+):[0-9]+")
"""What libzmq calls a peer on a socket of the file system: `localhost:UID:GID:PID`."""

OK, LATER, REFUSED, FAULTY = b"200", b"300", b"400", b"500"
"""What libzmq is answered: 300 has the client try again, and 400 and 500 tell it that it was refused."""

REQUESTS_MAX = 64
"""Handshakes that are answered in one iteration."""

TRYING_MAX = 64
"""Passwords that wait for the thread; with more, the client has to try again."""

BUSY = "too many at a time"
"""Why it has to then, which is no fault of its own."""

REASONS_MAX = 1_000
"""Different reasons that are reported."""

_METHOD = "X-Method"


class Reported:
    """Writes refusals to a log: one for each reason and second, with how many there were."""

    def __init__(self, log: Any, timer: Callable[[], float] = monotonic) -> None:
        self._log = log
        self._timer = timer
        self._waiting: Counter[str] = Counter()
        self._at: dict[str, float] = {}

    def __call__(self, refusal: RefusedConnection) -> None:
        """Take note of one."""
        reason, now = refusal.reason, self._timer()
        self._waiting[reason] += 1
        if now >= self._at.get(reason, now) and (reason in self._at or len(self._at) < REASONS_MAX):
            self._at[reason] = now + 1.0
            self._log.warning(
                "connection refused",
                address=refusal.address,
                mechanism=refusal.mechanism,
                reason=reason,
                count=self._waiting.pop(reason),
            )


class _Tried(NamedTuple):
    """A password that was tried for somebody; `digest` is it, keyed. A `fault` is why it could not be."""

    routing: bytes
    request: bytes
    address: str
    name: str
    hashed: str
    digest: bytes
    right: bool
    fault: str = ""


class Authenticator:
    """Answers libzmq which peers may connect. Only the loop's thread calls it."""

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
        """How many were refused, by the reason."""
        self.on_refusal = on_refusal
        self._socket = context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind(ENDPOINT)
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._thread = ThreadPoolExecutor(1, "malamute-passwords")
        self._trying = 0
        self._tried: deque[_Tried] = deque()
        self._right: dict[str, tuple[str, bytes]] = {}
        """The passwords that were right: by name, what was kept then and the digest."""
        self._secret = os.urandom(32)
        self._failures = Failures(gateways)
        # Trying it for an unknown user takes as long as for others.
        self._nobody = PasswordHash.parse(hash_password("nobody"))

    @property
    def inputs(self) -> Sequence[Any]:
        """What to poll for input."""
        return self._socket, self._receiver.fileno(), self.bearers.fileno()

    def update(self, now: float) -> None:
        """Answer what libzmq asks, and what was tried meanwhile."""
        with suppress(BlockingIOError):
            self._receiver.recv(TRYING_MAX)
        while self._tried:
            self._answer_tried(self._tried.popleft(), now)
        with suppress(zmq.Again):
            for _ in range(REQUESTS_MAX):
                self._ask(self._socket.recv_multipart(zmq.NOBLOCK), now)

    def principal(self, part: Any) -> Principal:
        """The principal of a frame, as was found out when it connected; the policy knows its groups."""
        user = user_of(part)
        return Principal(user, method=str(part.get(_METHOD))) if user else ANONYMOUS

    def identify(self, peer: bytes, hello: Hello, part: Any, now: float) -> Principal | None:
        """The principal of the HELLO in this frame; None if its token is to prove it first: `bearers.take`.

        Raises:
            AccessRefused: there is no token where one is needed, or one where none is.
            TryLater: its token cannot be verified now.
        """
        name = user_of(part)
        if not name.startswith(UNPROVED):
            if hello.token:
                raise AccessRefused(NOT_ASKED)
            return self.principal(part)
        waiting = WaitingHello(
            peer, hello._replace(token=""), name, _place(address_of(part)), descriptor_of(part)
        )
        self.bearers.prove(waiting, hello.token, now)
        return None

    def user(self, peer: bytes, part: Any) -> str:
        """Whose a frame is that a peer has sent."""
        name = user_of(part)
        return self.bearers.user(peer, name) if name.startswith(UNPROVED) else name

    def _is_disabled(self, user: str) -> bool:
        return self.accounts.is_disabled(user)

    def note_foreign(self, part: Any) -> None:
        """Note that somebody has spoken in the session of another one."""
        user = user_of(part)
        who = "nobody" if user.startswith(UNPROVED) else f"the user {user!r}"
        self._note("", "", f"{who} in a session of another")

    def _ask(self, frames: list[bytes], now: float) -> None:
        if len(frames) < 8:
            # Without a request there is nothing to answer.
            self._note("", "", "malformed request")
            return
        routing, _, version, request, domain, address, _, mechanism, *credentials = frames
        where, how = address.decode("utf-8", "replace"), mechanism.decode("utf-8", "replace")
        if version != VERSION:
            self._refuse(routing, request, where, how, "unknown version of ZAP", FAULTY)
        elif how == "NULL" and domain == OPEN:
            self._reply(routing, request, OK, "", "", "null")
        elif how == "NULL" and domain == PEER and (peer := _PEER.fullmatch(where)):
            account = self.accounts.with_uid(int(peer[2]))
            self._decide(routing, request, where, "PEER", account, "unknown uid")
        elif how == "CURVE" and len(credentials) == 1 and len(credentials[0]) == 32:
            account = self.accounts.with_key(z85.encode(credentials[0]).decode())
            if account is None and self.bearers.issuers:
                self._reply(routing, request, OK, "", self.bearers.new_name(), METHOD)
                return
            self._decide(routing, request, where, how, account, "unknown key")
        elif how == "PLAIN" and len(credentials) == 2:
            if credentials[0] == BEARER and self.bearers.issuers:
                self._reply(routing, request, OK, "", self.bearers.new_name(), METHOD)
                return
            self._try_password(routing, request, _place(where), credentials, now)
        else:
            self._refuse(routing, request, where, how, "malformed credentials", FAULTY)

    def _decide(
        self,
        routing: bytes,
        request: bytes,
        where: str,
        how: str,
        account: Account | None,
        otherwise: str,
        claimed: str = "",
    ) -> None:
        if account is None:
            self._refuse(routing, request, where, how, otherwise, claimed=claimed)
        elif account.disabled:
            self._refuse(routing, request, where, how, "disabled account", claimed=account.name)
        else:
            self._reply(routing, request, OK, "", account.name, how.lower())

    def _try_password(
        self, routing: bytes, request: bytes, where: str, credentials: Sequence[bytes], now: float
    ) -> None:
        name, password = credentials[0].decode("utf-8", "replace"), credentials[1]
        account = self.accounts.named(name)
        hashed = account.password if account else ""
        digest = blake2b(password, key=self._secret, digest_size=32).digest()
        known = self._right.get(name)
        if hashed and known and known[0] == hashed and compare_digest(known[1], digest):
            self._decide(routing, request, where, "PLAIN", account, "", name)
        elif len(password) > PASSWORD_BYTES_MAX:
            self._refuse(routing, request, where, "PLAIN", "wrong user or password", claimed=name)
        elif self._failures.too_many(where, now, name):
            self._refuse(routing, request, where, "PLAIN", "too many wrong passwords", LATER, name)
        elif self._trying >= TRYING_MAX:
            self._refuse(routing, request, where, "PLAIN", BUSY, LATER, name)
        else:
            self._trying += 1
            tried = _Tried(routing, request, where, name, hashed, digest, right=False)
            self._thread.submit(self._try, tried, password)

    def _try(self, tried: _Tried, password: bytes) -> None:
        """Try a password. This is the thread's."""
        try:
            kept = PasswordHash.parse(tried.hashed) if tried.hashed else self._nobody
            tried = tried._replace(right=kept.fits(password) and bool(tried.hashed))
        except Exception as error:  # such as no memory for it: the handshake still needs its answer
            tried = tried._replace(fault=f"a fault of the broker's own: {type(error).__name__}")
        self._tried.append(tried)
        with suppress(OSError):  # the loop has ended
            self._sender.send(b"!")

    def _answer_tried(self, tried: _Tried, now: float) -> None:
        self._trying -= 1
        if tried.fault:
            self._refuse(
                tried.routing, tried.request, tried.address, "PLAIN", tried.fault, FAULTY, tried.name
            )
            return
        account = self.accounts.named(tried.name)
        # It may have another one by now.
        right = tried.right and account is not None and account.password == tried.hashed
        if right:
            self._right[tried.name] = (tried.hashed, tried.digest)
        else:
            self._failures.add(tried.address, now, tried.name)
        known = account if right else None
        wrong = "wrong user or password"
        self._decide(tried.routing, tried.request, tried.address, "PLAIN", known, wrong, tried.name)

    def _refuse(
        self,
        routing: bytes,
        request: bytes,
        where: str,
        how: str,
        reason: str,
        status: bytes = REFUSED,
        claimed: str = "",
    ) -> None:
        self._note(where, how, reason, claimed)
        self._reply(routing, request, status, reason)

    def _note(self, where: str, how: str, reason: str, claimed: str = "") -> None:
        self.refused[reason] += 1
        self.on_refusal(RefusedConnection(_place(where), how, reason, claimed, reason == BUSY))

    def _reply(
        self, routing: bytes, request: bytes, status: bytes, text: str, user: str = "", method: str = ""
    ) -> None:
        known = metadata(_METHOD, method) if method else b""
        reply = (routing, b"", VERSION, request, status, text.encode(), user.encode(), known)
        self._socket.send_multipart(reply)

    def close(self) -> None:
        """Answer no more. The sockets that ask have to be closed before."""
        self.bearers.close()
        self._thread.shutdown(cancel_futures=True)
        self._socket.close(0)
        self._receiver.close()
        self._sender.close()


def _place(address: str) -> str:
    """Where a peer is. Another process of the same user is no other address."""
    peer = _PEER.fullmatch(address)
    return peer[1] if peer else address


def metadata(name: str, value: str) -> bytes:
    """A property as ZMTP has it."""
    return bytes([len(name)]) + name.encode() + len(value).to_bytes(4, "big") + value.encode()


def user_of(part: Any) -> str:
    """The user of the connection that a frame came on; empty if nobody asked."""
    return _property(part, "User-Id")


def address_of(part: Any) -> str:
    """The address from which the connection was made on which a frame came; empty if it has none."""
    return _property(part, "Peer-Address")


def _property(part: Any, name: str) -> str:
    try:
        return str(part.get(name))
    except zmq.ZMQError:
        return ""
