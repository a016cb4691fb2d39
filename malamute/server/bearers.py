"""Proofs in HELLO, verified beside the loop while their HELLO waits.

The signature of a bearer token takes a tenth of a millisecond to check, and every client that reaches a
listener may send one. So a thread verifies a few at a time, and addresses with refused tokens have to wait.
`Passwords` verifies passwords, and their HELLOs wait here. No other command of that
connection waits: a client sends none between HELLO and WELCOME.

A connection whose user is still to be proved has a name of its own (`$token.1`), which libzmq puts into each
of its frames. With WELCOME that name stands for the proved user of this session: a connection that
takes the routing id over has another name, and no user.
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
"""Prefix of the names of connections whose users are to be proved in HELLO."""

WAITING_MAX = 256
"""HELLOs that wait for their proof; past it, the client has to connect again."""

NO_TOKEN = (
    "the connection proves nobody, and HELLO has no token: expected the key of an account, a token, "
    "or a user and a password"
)
NOT_ASKED = "a token on a connection that needs none: expected none"
NO_ISSUER = "a token, and this broker has no issuer of tokens: expected a user and a password"
UNPROVED_REASON = "no token"
"""Reported reason for a connection without any proof."""

_HELLO = BY_TYPE[Hello].opcode


class WaitingHello(NamedTuple):
    """HELLO without its proof, and the name, address and descriptor of its connection."""

    peer: bytes
    hello: Hello
    connection: str
    address: str
    descriptor: int


class ProvedHello(NamedTuple):
    """HELLO with its principal, or with the error that refuses it."""

    waiting: WaitingHello
    outcome: Principal | MalamuteError


class _Verified(NamedTuple):
    """Result for a token: its user or the error for its client, and the reason for the log."""

    found: Bearer | MalamuteError
    reason: str
    at: float


class Bearers:
    """Users of connections, as proved in HELLO. For the loop's thread only.

    `on_refusal` gets an address and a reason. Disabled users may not log in by any token.
    `wall` is the clock by which tokens expire.
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
        """Connections of HELLOs in progress, and the users that they prove."""
        self._users: dict[bytes, tuple[str, str]] = {}
        """Connections and users of welcomed peers."""
        self._waiting: set[str] = set()
        """Connections whose proofs are being verified: one HELLO of each."""
        self._done: deque[tuple[WaitingHello, _Verified | Principal | MalamuteError]] = deque()
        self._thread = ThreadPoolExecutor(1, "malamute-tokens")
        # There is input until each result is taken.
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor that has input when a HELLO is ready."""
        return self._receiver.fileno()

    def new_name(self) -> str:
        """Return the name for a connection whose user is to be proved."""
        return f"{UNPROVED}{next(self._names)}"

    def user(self, peer: bytes, connection: str) -> str:
        """Return the proved user of a peer on a connection, or else the name of the connection."""
        name, user = self._users.get(peer, ("", ""))
        return user if name == connection else connection

    def prove(self, waiting: WaitingHello, token: str, now: float) -> None:
        """Verify the token of a HELLO, which `pop` returns afterwards.

        Raises:
            AccessRefused: there is no token.
            TryLater: too many tokens of this address were refused, or as `wait`.
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
            TryLater: another HELLO of this connection waits.
            Busy: too many HELLOs wait.
        """
        if waiting.connection in self._waiting:
            raise TryLater("another HELLO of this connection waits for its proof")
        if len(self._waiting) >= WAITING_MAX:
            self._on_refusal(waiting.address, BUSY)
            raise Busy(BUSY)
        self._waiting.add(waiting.connection)

    def give_up(self, waiting: WaitingHello) -> None:
        """Remove a waiting HELLO."""
        self._waiting.discard(waiting.connection)

    def done(self, waiting: WaitingHello, found: _Verified | Principal | MalamuteError) -> None:
        """Pass on the result of a proof. For any thread."""
        self._done.append((waiting, found))
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # the socket is full of wake-ups, or the loop has ended
            self._sender.send(b"!")

    def _verify(self, waiting: WaitingHello, token: str) -> None:
        """Verify a token, in the thread."""
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
        """Return the HELLOs whose proofs were verified. `now` is the loop's time."""
        self._claimed.clear()
        with suppress(BlockingIOError):
            self._receiver.recv(WAITING_MAX)
        try:
            while self._done:
                waiting, found = self._done.popleft()
                self.give_up(waiting)
                outcome = self._outcome(waiting, *found, now) if isinstance(found, _Verified) else found
                if isinstance(outcome, Principal) and waiting.hello.renews:
                    outcome = self._renewal(waiting, outcome)
                if isinstance(outcome, Principal):
                    self._claimed[waiting.peer] = waiting.connection, outcome.user
                else:
                    outcome.about, outcome.ref = _HELLO, waiting.hello.attempt
                yield ProvedHello(waiting, outcome)
        finally:
            if self._done:
                self._wake()

    def _renewal(self, waiting: WaitingHello, proved: Principal) -> Principal | MalamuteError:
        """A proof is renewed on the connection that has the first one, by the same user."""
        if self._users.get(waiting.peer) == (waiting.connection, proved.user):
            return proved
        return AccessRefused("renewal refused: expected a token of the same user, on the same connection")

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
        # The rest of its validity is counted: no step of a clock ends or keeps a session.
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
        """Note the open session of the HELLO that was taken last, if there is one."""
        claimed = self._claimed.pop(peer, None)
        if claimed is not None:
            self._users[peer] = claimed
        else:
            self.forget(peer)

    def forget(self, peer: bytes) -> None:
        """Remove the session of a peer."""
        self._users.pop(peer, None)

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(cancel_futures=True)
        self._receiver.close()
        self._sender.close()
