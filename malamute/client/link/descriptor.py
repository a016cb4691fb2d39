"""One file for the event loop of another library: readable when a client has something to do.

The files of a socket change with each connection, and are edge-triggered: any use of the socket may clear
them. An epoll stands for those of the present connection and for a bell. A call that has received something,
or leaves something behind, rings it.
"""

from __future__ import annotations

import os
from contextlib import suppress

from malamute.client.link.greenlets import original
from malamute.client.link.link import Link


class Descriptor:
    """The file of one client."""

    def __init__(self) -> None:
        select = original("select")
        self._epoll = select.epoll()
        self._readable: int = select.EPOLLIN
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, self._readable)
        self._watched: tuple[Link, tuple[int, int]] | None = None

    def fileno(self) -> int:
        """Return the number of the file."""
        return int(self._epoll.fileno())

    def watch(self, link: Link) -> None:
        """Watch the files of the present link."""
        if self._watched is None or self._watched[0] is not link:
            self._watched = link, link.files
            for file in link.files:
                self._epoll.register(file, self._readable)

    def unwatch(self) -> None:
        """Watch no link: its socket is about to be closed."""
        if self._watched is not None:
            for file in self._watched[1]:
                self._epoll.unregister(file)
            self._watched = None

    def ring(self) -> None:
        """Make the file readable, until `hear`."""
        os.eventfd_write(self._bell, 1)

    def hear(self) -> None:
        """Stop the bell."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)

    def close(self) -> None:
        """Close the file."""
        self.unwatch()
        self._epoll.close()
        os.close(self._bell)
