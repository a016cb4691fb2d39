"""Reports to systemd: the protocol of sd_notify(3), without its library.

A service of `Type=notify` gets the address of a datagram socket as `NOTIFY_SOCKET`. The broker reports
there that it is ready, reloads its configuration or stops. With `WatchdogSec=` it has to give a sign of life
too, and does so in the loop and nowhere else: a broker whose loop hangs is restarted.

A report never waits for the other side, since a supervisor must not hold up the broker. A report that was not
taken is repeated: a system that starts may be busy, and would end a service that is never ready.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from time import CLOCK_MONOTONIC, clock_gettime_ns, monotonic
from typing import Self

BEATS = 4
"""Signs of life within the time of the watchdog. The loop has an iteration a second at least."""


class Supervisor:
    """Program that has started the broker, at an address; without an address, none."""

    def __init__(
        self, address: str = "", watchdog_seconds: float = 0.0, timer: Callable[[], float] = monotonic
    ) -> None:
        """Connect. `watchdog_seconds` is the time without a sign of life until a restart; 0 is never."""
        # An abstract address is written with an @ in place of the NUL.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        self._interval = watchdog_seconds / BEATS if address else 0.0
        self._timer = timer
        self._next = timer()
        self._reloading = False
        self._unsaid = ""
        """State that the other side has not taken yet."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """Return the supervisor in the environment of this process; none if that is invalid."""
        address = environment.get("NOTIFY_SOCKET", "")
        watchdog, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
        watched = watchdog.isdecimal() and pid in ("", str(os.getpid()))
        return cls(address if address[:1] in ("/", "@") else "", int(watchdog) / 1e6 if watched else 0.0)

    def ready(self) -> None:
        """Report that clients can connect."""
        self._say("READY=1")

    def reloading(self) -> None:
        """Report the start of a reload."""
        self._reloading = True
        self._say(f"RELOADING=1\nMONOTONIC_USEC={clock_gettime_ns(CLOCK_MONOTONIC) // 1_000}")

    def reloaded(self) -> None:
        """Report the end of a reload, done or refused."""
        if self._reloading:
            self._reloading = False
            self.ready()

    def stopping(self) -> None:
        """Report the shutdown."""
        self._say("STOPPING=1")

    def iterated(self) -> None:
        """Report a sign of life after an iteration of the loop, if it is time for one."""
        if self._unsaid:
            self._say(self._unsaid)
        if self._interval and (now := self._timer()) >= self._next:
            self._next = now + self._interval
            self._send("WATCHDOG=1")

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _say(self, words: str) -> None:
        self._unsaid = "" if self._send(words) else words

    def _send(self, words: str) -> bool:
        """Send a report. Returns False if the other side takes none now."""
        if self._socket is not None:
            try:
                self._socket.sendto(words.encode(), self._address)
            except BlockingIOError:
                return False
            except (OSError, ValueError):  # there is none
                pass
        return True
