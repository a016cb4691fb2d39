"""Proofs in HELLO: each is verified beside the loop, and its HELLO waits for that.

The signature of a bearer token takes a tenth of a millisecond to check, and every client that reaches a
listener may send one. So a thread of its own does that, for a few at a time, and addresses from which
refused ones come have to wait. `Passwords` tries passwords, and their HELLOs wait here. Nothing else of that
connection waits: a client says nothing between HELLO and WELCOME.

A connection whose user is still to be proved has a name of its own (`$token.1`), which libzmq puts into each
of its frames. With WELCOME that name stands for the user that was proved, as far as this session goes: one
that takes the routing id over has another name, and is nobody.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from malamute.access.token import Bearer, Issuers, TokenRefused
from malamute.core.identity.access import Principal
from malamute.door.addresses import NO_GATEWAYS, Gateways
from malamute.door.failures import Failures
from malamute.errors import AccessRefused, InternalError, MalamuteError, TryLater
from malamute.protocol.messages import BY_TYPE, Hello
from malamute.protocol.names import RESERVED_PREFIX
from malamute.server.passwords import BUSY, Busy

METHOD = "token"

UNPROVED = f"{RESERVED_PREFIX}token."
"""How the names of connections begin whose users are to be proved in HELLO."""

WAITING_MAX = 256
"""HELLOs that wait for their proof; with more, the client has to connect again."""

NO_TOKEN = (
    "the connection proves nobody, and HELLO has no token: expected the key of an account, a token, "
    "or a user and a password"
)
NOT_ASKED = "a token on a connection that needs none: expected none"
NO_ISSUER = "a token, and this broker has no issuer of tokens: expected a user and a password"
UNPROVED_REASON = "no token"
"""What is reported of a connection that proves nobody."""

_HELLO = BY_TYPE[Hello].opcode


class WaitingHello(NamedTuple):
    """A HELLO without its proof, and the connection that it came on, by its name, address and descriptor."""

    peer: bytes
    hello: Hello
    connection: str
    address: str
    descriptor: int


class ProvedHello(NamedTuple):
    """A HELLO, and its principal, or why it is refused."""

    waiting: WaitingHello
    outcome: Principal | MalamuteError


class _Verified(NamedTuple):
    """What was found of a token: whose it is or the error for its client, and why for the log."""

    found: Bearer | MalamuteError
    reason: str
    at: float


class Bearers:
    """The users of connections, by what HELLO has proved. Only the loop's thread calls it.

    `on_refusal` gets an address and a reason. Users who are disabled may not log in, whatever their tokens
    say. `wall` is the time by which tokens expire.
    """

    def __init__(
        self,
        issuers: Issuers,
        on_refusal: Callable[[str, str], None],
        is_disabled: Callable[[str], bool] = lambda user: False,
        wall: Callable[[], float] = time.time,
        gateways: Gateways = NO_GATEWAYS,
    ) -> None:
        self.issuers = issuers
        self._on_refusal = on_refusal
        self._is_disabled = is_disabled
        self._wall = wall
        self._names = count(1)
        self._failures = Failures(gateways)
        self._claimed: dict[bytes, tuple[str, str]] = {}
        """The connections of HELLOs that are under way, and the users that they prove."""
        self._users: dict[bytes, tuple[str, str]] = {}
        """The same of peers that were welcomed."""
        self._waiting: set[str] = set()
        """The connections whose proofs are being verified: one HELLO of each."""
        self._done: deque[tuple[WaitingHello, _Verified | Principal | MalamuteError]] = deque()
        self._thread = ThreadPoolExecutor(1, "malamute-tokens")
        # There is input while any that is done is not taken.
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    def fileno(self) -> int:
        """What has input when a HELLO is ready to be taken."""
        return self._receiver.fileno()

    def new_name(self) -> str:
        """The name of a connection whose user is to be proved."""
        return f"{UNPROVED}{next(self._names)}"

    def user(self, peer: bytes, connection: str) -> str:
        """The user of a peer on a connection: the one that was proved, or else its own name."""
        name, user = self._users.get(peer, ("", ""))
        return user if name == connection else connection

    def prove(self, waiting: WaitingHello, token: str, now: float) -> None:
        """Verify the token of a HELLO, which `pop` hands out when that is done.

        Raises:
            AccessRefused: there is none.
            TryLater: too many from there were refused, or as `wait`.
            Busy: as `wait`.
        """
        if not token:
            self._on_refusal(waiting.address, UNPROVED_REASON)
            raise AccessRefused(NO_TOKEN)
        if self._failures.too_many(waiting.address, now):
            self._on_refusal(waiting.address, "too many tokens refused")
            raise TryLater("too many tokens from this address were refused")
        self.wait(waiting)
        self._thread.submit(self._verify, waiting, token)

    def wait(self, waiting: WaitingHello) -> None:
        """Have a HELLO wait until it is `done`.

        Raises:
            TryLater: another one of this connection does.
            Busy: too many do.
        """
        if waiting.connection in self._waiting:
            raise TryLater("another HELLO of this connection waits for its proof")
        if len(self._waiting) >= WAITING_MAX:
            self._on_refusal(waiting.address, BUSY)
            raise Busy(BUSY)
        self._waiting.add(waiting.connection)

    def give_up(self, waiting: WaitingHello) -> None:
        """A HELLO waits no more."""
        self._waiting.discard(waiting.connection)

    def done(self, waiting: WaitingHello, found: _Verified | Principal | MalamuteError) -> None:
        """The proof of a HELLO was verified. Any thread may call this."""
        self._done.append((waiting, found))
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # so many bytes are there that it is full, or the loop has ended
            self._sender.send(b"!")

    def _verify(self, waiting: WaitingHello, token: str) -> None:
        """Verify a token. This is the thread's."""
        at = self._wall()
        found: Bearer | MalamuteError
        reason = ""
        try:
            found = self.issuers.verify(token, at)
        except TokenRefused as refused:
            found, reason = AccessRefused(str(refused)), refused.reason
        except Exception as error:
            found = InternalError(f"a fault of the broker's own with a token: {type(error).__name__}")
            reason = found.text
        self.done(waiting, _Verified(found, reason, at))

    def pop(self, now: float) -> Iterator[ProvedHello]:
        """The HELLOs whose proofs were verified. `now` is the loop's time."""
        self._claimed.clear()
        with suppress(BlockingIOError):
            self._receiver.recv(WAITING_MAX)
        try:
            while self._done:
                waiting, found = self._done.popleft()
                self.give_up(waiting)
                outcome = self._outcome(waiting, *found, now) if isinstance(found, _Verified) else found
                if isinstance(outcome, Principal):
                    self._claimed[waiting.peer] = waiting.connection, outcome.user
                else:
                    outcome.about, outcome.ref = _HELLO, waiting.hello.attempt
                yield ProvedHello(waiting, outcome)
        finally:
            if self._done:
                self._wake()

    def _outcome(
        self, waiting: WaitingHello, found: Bearer | MalamuteError, reason: str, at: float, now: float
    ) -> Principal | MalamuteError:
        if isinstance(found, Bearer) and found.key not in self.issuers.keys:
            found = AccessRefused("token refused: its key was removed meanwhile")
        if isinstance(found, Bearer) and self._is_disabled(found.user):
            found = AccessRefused(f"the account {found.user!r} is disabled")
        if not isinstance(found, Bearer):
            self._failures.add(waiting.address, now)
            self._on_refusal(waiting.address, reason or "token of nobody who may log in")
            return found
        # How long it is valid is counted: no step of a clock ends a session, or keeps one.
        expires_at = now + found.expires_at - at
        return Principal(
            found.user,
            method=METHOD,
            claims=found.claims,
            expires_at=expires_at,
            key=found.key,
            scope=found.scope,
        )

    def welcomed(self, peer: bytes) -> None:
        """A session was opened, by the HELLO that was taken last if there is one."""
        claimed = self._claimed.pop(peer, None)
        if claimed is not None:
            self._users[peer] = claimed
        else:
            self.forget(peer)

    def forget(self, peer: bytes) -> None:
        """The session of a peer has ended."""
        self._users.pop(peer, None)

    def close(self) -> None:
        """Verify no more."""
        self._thread.shutdown(cancel_futures=True)
        self._receiver.close()
        self._sender.close()
