"""Bans of addresses with many connections and no session: the system drops their packets.

Every program that reaches a listener may begin a handshake, and with CURVE that takes libzmq's thread half a
millisecond: a thousand a second take half a core. libzmq has no hook before that, and no option against it.
So an address with too many failed connections within a second is banned for a while: a
filter of the kernel at the listening sockets (classic BPF, `SO_ATTACH_FILTER` of socket(7)) drops its packets
before there is a connection.

A gateway has many users, and one of them may make connections fail: addresses in `listen.gateways` are never
banned. Connections that were refused by a busy broker do not count.

Connections that are open have sockets of their own: no session ends by a ban. A client at the same address
that has no session waits until the ban is over. There are no bans on other systems than Linux.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from struct import Struct, unpack

from malamute.door.addresses import NO_GATEWAYS, OF_THIS_MACHINE, Gateways, network_of

WINDOW_SECONDS = 1.0
"""Length of the window in which failures are counted."""

BAN_SECONDS = 5.0
"""Length of a ban."""

BANS_MAX = 256
"""Addresses that are banned at a time. With one more, the oldest ban is over."""

_ATTACH_FILTER, _DETACH_FILTER = 26, 27

_INSTRUCTION = Struct("=HBBI")
"""Instruction of classic BPF: code, instructions to skip if true and if false, and an operand."""
_PROGRAM = Struct("@HP")
_LOAD_WORD, _LOAD_BYTE, _AND, _SKIP, _SKIP_UNLESS_EQUAL, _RETURN = 0x20, 0x30, 0x54, 0x05, 0x15, 0x06

_NETWORK_HEADER = 2**32 - 0x100000
"""Offset of the IP header, as the filter counts."""
_SOURCE_V4, _SOURCE_V6 = _NETWORK_HEADER + 12, _NETWORK_HEADER + 8
_DROP, _ACCEPT = 0, 2**32 - 1

_Instruction = tuple[int, int, int, int]


class Bans:
    """Banned addresses, and counts of failed connections.

    An address is banned with more than `failures_max` failures in a second. With 0, there are no bans; a
    gateway is never banned.
    """

    def __init__(self, failures_max: int, gateways: Gateways = NO_GATEWAYS) -> None:
        self._gateways = gateways
        self._failures_max = failures_max if sys.platform == "linux" else 0
        self._listeners: list[int] = []
        self._failures: Counter[bytes] = Counter()
        self._counted_since = 0.0
        self.until: OrderedDict[bytes, float] = OrderedDict()
        """End of each ban, in this order."""

    def watch(self, listener: int) -> None:
        """Keep banned addresses from a listening socket until it is closed."""
        self._listeners.append(listener)
        if self.until:  # bans of another socket, which listened before
            self._apply()

    def count(self, address: str, now: float) -> bool:
        """Count a failed connection. Returns whether its address is banned from now on."""
        network = self._counted(address)
        if not network or not self._failures_max or not self._listeners:
            return False
        self._begin_window(now)
        self._failures[network] += 1
        # Once only: more may be on their way.
        if self._failures[network] != self._failures_max + 1:
            return False
        self.until[network] = now + BAN_SECONDS
        self.until.move_to_end(network)
        if len(self.until) > BANS_MAX:
            self.until.popitem(last=False)
        return self._apply()

    def excuse(self, address: str, now: float) -> None:
        """Excuse a connection that is about to end by no fault of its own."""
        self._begin_window(now)
        self._failures[self._counted(address)] -= 1

    def _counted(self, address: str) -> bytes:
        """Return the network of an address that is counted and banned; empty for none."""
        return b"" if address in OF_THIS_MACHINE or address in self._gateways else network_of(address)

    def _begin_window(self, now: float) -> None:
        if now >= self._counted_since + WINDOW_SECONDS:
            self._counted_since = now
            self._failures.clear()

    def check(self, now: float) -> None:
        """Lift expired bans."""
        before = len(self.until)
        while self.until and next(iter(self.until.values())) <= now:
            self.until.popitem(last=False)
        if len(self.until) < before:
            self._apply()

    def next_check(self) -> float | None:
        """Return the time of the next `check`, or None."""
        return next(iter(self.until.values()), None)

    def _apply(self) -> bool:
        """Set the filters of the system. Returns whether it has them: without filters there are no bans."""
        try:
            for listener in self._listeners:
                keep_out(listener, self.until)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            self.until.clear()
            self._failures_max = 0
            # The filter until now must not stay for ever.
            for listener in self._listeners:
                with suppress(OSError):
                    keep_out(listener, ())
        return bool(self.until)


_UNSUPPORTED = frozenset((errno.ENOPROTOOPT, errno.EINVAL, errno.EPERM, errno.ENOMEM, errno.EBADF))
"""Errors of a system without such filters, or without room for one."""


def keep_out(listener: int, networks: Iterable[bytes]) -> None:
    """Have the system drop packets from these networks alone to a socket. Raises `OSError`."""
    instructions = [_INSTRUCTION.pack(*instruction) for instruction in _filter([*networks])]
    code = ctypes.create_string_buffer(b"".join(instructions))
    program = _PROGRAM.pack(len(instructions), ctypes.addressof(code))
    option, value = (_ATTACH_FILTER, program) if networks else (_DETACH_FILTER, bytes(4))
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, listener)
    try:
        connection.setsockopt(socket.SOL_SOCKET, option, value)
    finally:
        connection.detach()


def _filter(networks: Sequence[bytes]) -> Iterator[_Instruction]:
    """Return a program on the source of a packet: first the version of IP, then word by word."""
    v4 = [*_drop([network for network in networks if len(network) == 4], _SOURCE_V4)]
    yield _LOAD_BYTE, 0, 0, _NETWORK_HEADER
    yield _AND, 0, 0, 0xF0
    yield _SKIP_UNLESS_EQUAL, 1, 0, 0x40
    yield _SKIP, 0, 0, len(v4)
    yield from v4
    yield from _drop([network for network in networks if len(network) == 8], _SOURCE_V6)


def _drop(networks: Iterable[bytes], source: int) -> Iterator[_Instruction]:
    for network in networks:
        words = unpack(f"!{len(network) // 4}I", network)
        for place, word in enumerate(words):
            yield _LOAD_WORD, 0, 0, source + 4 * place
            yield _SKIP_UNLESS_EQUAL, 0, 2 * (len(words) - place) - 1, word
        yield _RETURN, 0, 0, _DROP
    yield _RETURN, 0, 0, _ACCEPT
