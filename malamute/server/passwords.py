"""Passwords beside the loop: a thread tries one after the other, and the loop answers when it has.

To try one takes some 50 ms, so that is done for a few at a time. A client that was right before is known by a
keyed digest: a thousand clients that reconnect cost a thousand digests. Addresses from which wrong passwords
come have to wait.
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
"""Passwords that wait for the thread; with more, the client has to try again."""

WRONG = "wrong user or password"
DISABLED = "disabled account"
TOO_MANY_WRONG = "too many wrong passwords"
BUSY = "too many at a time"
"""Why a client has to connect again, which is no fault of its own."""

Answer = Callable[[Account | MalamuteError], None]
"""Gets the account that a password opens, or why it opens none: `AccessRefused`, or `InternalError`."""


class Busy(TryLater):
    """Raised when more wait for a thread than may: the client is to connect again."""


class _Tried(NamedTuple):
    """A password that was tried for somebody; `digest` is it, keyed. A `fault` is why it could not be."""

    address: str
    name: str
    hashed: str
    digest: bytes
    answer: Answer
    right: bool = False
    fault: str = ""


class Passwords:
    """Tries passwords for the accounts that `named` finds. Only the loop's thread calls it."""

    def __init__(self, named: Callable[[str], Account | None], gateways: Gateways = NO_GATEWAYS) -> None:
        self._named = named
        self._failures = Failures(gateways)
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._thread = ThreadPoolExecutor(1, "malamute-passwords")
        self._trying = 0
        self._tried: deque[_Tried] = deque()
        self._right: dict[str, tuple[str, bytes]] = {}
        """The passwords that were right: by name, what was kept then and the digest."""
        self._secret = os.urandom(32)
        # Trying it for an unknown user takes as long as for others.
        self._nobody = PasswordHash.parse(hash_password("nobody"))

    def fileno(self) -> int:
        """What has input when a password was tried."""
        return self._receiver.fileno()

    def prove(self, name: str, password: bytes, address: str, now: float, answer: Answer) -> None:
        """Find out whether this is the password of a user. The answer comes now, or by `update`.

        Raises:
            TryLater: too many from there were wrong.
            Busy: too many are being tried.
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
        elif self._trying >= TRYING_MAX:
            raise Busy(BUSY)
        else:
            self._trying += 1
            self._thread.submit(self._try, _Tried(address, name, hashed, digest, answer), password)

    def _try(self, tried: _Tried, password: bytes) -> None:
        """Try a password. This is the thread's."""
        try:
            kept = PasswordHash.parse(tried.hashed) if tried.hashed else self._nobody
            tried = tried._replace(right=kept.fits(password) and bool(tried.hashed))
        except Exception as error:  # such as no memory for it: the client still needs its answer
            tried = tried._replace(fault=f"a fault of the broker's own: {type(error).__name__}")
        self._tried.append(tried)
        with suppress(OSError):  # the loop has ended
            self._sender.send(b"!")

    def update(self, now: float) -> None:
        """Answer what was tried meanwhile."""
        with suppress(BlockingIOError):
            self._receiver.recv(TRYING_MAX)
        while self._tried:
            tried = self._tried.popleft()
            self._trying -= 1
            tried.answer(InternalError(tried.fault) if tried.fault else self._outcome(tried, now))

    def _outcome(self, tried: _Tried, now: float) -> Account | MalamuteError:
        account = self._named(tried.name)
        # It may have another one by now.
        right = tried.right and account is not None and account.password == tried.hashed
        if right:
            self._right[tried.name] = (tried.hashed, tried.digest)
        else:
            self._failures.add(tried.address, now, tried.name)
        return usable(account if right else None, WRONG)

    def close(self) -> None:
        """Try no more."""
        self._thread.shutdown(cancel_futures=True)
        self._receiver.close()
        self._sender.close()


def usable(account: Account | None, otherwise: str) -> Account | MalamuteError:
    """An account that may log in, or why it may not; `otherwise` is for none."""
    if account is None:
        return AccessRefused(otherwise)
    return AccessRefused(DISABLED) if account.disabled else account
