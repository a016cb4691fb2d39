"""Passwords beside the loop: a thread verifies one after the other, and the loop answers.

One takes some 50 ms, and on a busy machine a second, so few wait at a time. A client with a right password
before is known by a keyed digest: a thousand clients that reconnect cost a thousand digests.
Addresses from which wrong passwords come have to wait.

A client that waits too long for its answer connects again, with the same password. So a password is
verified once for all clients that wait for the result. Otherwise a slow machine would have the more to verify
the slower it is, for clients that have gone.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest
from typing import NamedTuple

from malamute.access import Account
from malamute.access.account import PasswordHash
from malamute.config.accounts import hash_password
from malamute.door.addresses import NO_GATEWAYS, Gateways
from malamute.door.failures import Failures
from malamute.errors import AccessRefused, InternalError, MalamuteError, TryLater
from malamute.protocol.limits import NAME_BYTES_MAX, PASSWORD_BYTES_MAX

TRYING_MAX = 64
"""Clients that wait for the thread; past it, a client has to try again."""

WRONG = "wrong user or password"
DISABLED = "disabled account"
TOO_MANY_WRONG = "too many wrong passwords"
BUSY = "too many at a time"
"""Why a client has to connect again, which is no fault of its own."""

Answer = Callable[[Account | MalamuteError], None]
"""Called with the account of a password, or with its error: `AccessRefused`, or `InternalError`."""


class Busy(TryLater):
    """Raised when too many clients wait for a thread: the client is to connect again."""


class _Login(NamedTuple):
    """A user and a password: its keyed `digest`, and the stored hash of the user's password."""

    name: str
    hashed: str
    digest: bytes


class _Tried(NamedTuple):
    """Result of a login. A `fault` is an error of the broker itself."""

    login: _Login
    right: bool = False
    fault: str = ""


class Passwords:
    """Verification of passwords for the accounts of `named`. For the loop's thread only."""

    def __init__(self, named: Callable[[str], Account | None], gateways: Gateways = NO_GATEWAYS) -> None:
        self._named = named
        self._failures = Failures(gateways)
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._thread = ThreadPoolExecutor(1, "malamute-passwords")
        self._trying: dict[_Login, list[tuple[str, Answer]]] = {}
        """Logins in progress, with the clients that wait for each: an address and its answer."""
        self._waiting = 0
        self._tried: deque[_Tried] = deque()
        self._right: dict[str, tuple[str, bytes]] = {}
        """Right passwords: by name, the stored hash of then and the digest."""
        self._secret = os.urandom(32)
        # Trying it for an unknown user takes as long as for others.
        self._nobody = PasswordHash.parse(hash_password("nobody"))

    def fileno(self) -> int:
        """Return the descriptor that has input when a password was verified."""
        return self._receiver.fileno()

    def prove(self, name: str, password: bytes, address: str, now: float, answer: Answer) -> None:
        """Verify the password of a user. The answer comes now, or by `update`.

        Raises:
            TryLater: too many passwords from this address were wrong.
            Busy: too many clients wait for an answer.
        """
        account = self._named(name)
        hashed = account.password if account else ""
        digest = blake2b(password, key=self._secret, digest_size=32).digest()
        known = self._right.get(name)
        if hashed and known and known[0] == hashed and compare_digest(known[1], digest):
            answer(usable(account, ""))
        elif len(password) > PASSWORD_BYTES_MAX or len(name) > NAME_BYTES_MAX:
            answer(AccessRefused(WRONG))
        elif self._failures.too_many(address, now, name):
            raise TryLater(TOO_MANY_WRONG)
        elif self._waiting >= TRYING_MAX:
            raise Busy(BUSY)
        else:
            self._wait(_Login(name, hashed, digest), password, address, answer)

    def _wait(self, login: _Login, password: bytes, address: str, answer: Answer) -> None:
        """Have a client wait for a login, which is verified once for all that wait for it."""
        waiting = self._trying.get(login)
        if waiting is None:
            waiting = self._trying[login] = []
            self._thread.submit(self._try, _Tried(login), password)
        self._waiting += 1
        waiting.append((address, answer))

    def _try(self, tried: _Tried, password: bytes) -> None:
        """Verify a password, in the thread."""
        hashed = tried.login.hashed
        try:
            kept = PasswordHash.parse(hashed) if hashed else self._nobody
            tried = tried._replace(right=kept.fits(password) and bool(hashed))
        except Exception as error:  # such as no memory for it: the client still needs its answer
            tried = tried._replace(fault=f"a fault of the broker's own: {type(error).__name__}")
        self._tried.append(tried)
        with suppress(OSError):  # the loop has ended
            self._sender.send(b"!")

    def update(self, now: float) -> None:
        """Answer logins that were verified."""
        with suppress(BlockingIOError):
            self._receiver.recv(TRYING_MAX)
        while self._tried:
            tried = self._tried.popleft()
            waiting = self._trying.pop(tried.login)
            self._waiting -= len(waiting)
            for address in dict.fromkeys(address for address, _ in waiting) if not tried.fault else ():
                self._note(tried, address, now)
            for _, answer in waiting:
                answer(InternalError(tried.fault) if tried.fault else self._outcome(tried))

    def _is_right(self, tried: _Tried) -> bool:
        """Whether a password is that of the account, which may have another one by now."""
        account = self._named(tried.login.name)
        return tried.right and account is not None and account.password == tried.login.hashed

    def _note(self, tried: _Tried, address: str, now: float) -> None:
        """Remember a right password, or count a wrong one: once for an address, however often it asked."""
        name, hashed, digest = tried.login
        if self._is_right(tried):
            self._right[name] = (hashed, digest)
        else:
            self._failures.add(address, now, name)

    def _outcome(self, tried: _Tried) -> Account | MalamuteError:
        account = self._named(tried.login.name)
        return usable(account if self._is_right(tried) else None, WRONG)

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(cancel_futures=True)
        self._receiver.close()
        self._sender.close()


def usable(account: Account | None, otherwise: str) -> Account | MalamuteError:
    """Return an account that may log in, or its error; `otherwise` is the reason without an account."""
    if account is None:
        return AccessRefused(otherwise)
    return AccessRefused(DISABLED) if account.disabled else account
