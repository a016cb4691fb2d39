"""The user that a broker runs as when root has started it: `broker.user`.

Root may listen on any port and make files anywhere, and a broker needs no more of root than that. So it opens
its store as the other user, listens as root, and then is the other user for good, before it answers anybody.
A thread of libzmq may have begun a handshake by then; the other user reads and checks its data.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from malamute.errors import ConfigError

ROOT = 0


class ProcessUser(NamedTuple):
    """A user of the system with the user's groups, the first of which files get."""

    name: str
    uid: int
    groups: tuple[int, ...]

    @classmethod
    def find(cls, text: str) -> ProcessUser:
        """`NAME` with the groups of that user, or `NAME:GROUP` with this one alone; both may be numbers.

        Raises:
            ConfigError: there is no such user or group, it is root, or only root could become that user.
        """
        name, _, group = text.partition(":")
        uid, gid = _user(name)
        if group:
            groups: tuple[int, ...] = (_group(group),)
        elif gid is None:
            raise ConfigError(f"broker.user = {text!r}: no group is known of that number: expected UID:GROUP")
        else:
            groups = (gid, *(other for other in os.getgrouplist(name, gid) if other != gid))
        if uid == ROOT or ROOT in groups:
            raise ConfigError(f"broker.user = {text!r}: expected a user and a group other than root's")
        if os.geteuid() != ROOT:
            raise ConfigError(
                f"broker.user = {text!r}: only root can start a broker that runs as another user: "
                "start it as root, or as that user and without the option"
            )
        return cls(name, uid, groups)

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Run a block as this user, and as root afterwards, in the whole process."""
        before = os.getgroups(), os.getegid()
        self._set_groups(real=False)
        os.seteuid(self.uid)
        try:
            yield
        finally:
            os.seteuid(ROOT)
            os.setegid(before[1])
            os.setgroups(before[0])

    def become(self) -> None:
        """Become this user for good."""
        self._set_groups(real=True)
        os.setresuid(self.uid, self.uid, self.uid)

    def _set_groups(self, *, real: bool) -> None:
        os.setgroups(self.groups)
        if real:
            os.setresgid(self.groups[0], self.groups[0], self.groups[0])
        else:
            os.setegid(self.groups[0])

    def own(self, path: Path) -> None:
        """Give the user a file that root has just made."""
        os.chown(path, self.uid, self.groups[0], follow_symlinks=False)

    def prepare(self, directory: Path) -> None:
        """See to it that the user can use a data directory, which is made if it is not there.

        Raises:
            ConfigError: the user cannot.
        """
        if not directory.exists():
            directory.mkdir(0o700, parents=True)
            self.own(directory)
        parent = directory.absolute().parent
        with self.acting():
            # The entry of a new store is made durable there.
            if not os.access(parent, os.R_OK | os.X_OK, effective_ids=True):
                raise ConfigError(
                    f"{parent} is not for the user {self.name!r} to read: expected chmod o+rx {parent}"
                )
            good = os.access(directory, os.R_OK | os.W_OK | os.X_OK, effective_ids=True)
            entries = [*directory.iterdir()] if good else []
            if not good or not all(
                os.access(each, os.R_OK | os.W_OK, effective_ids=True) for each in entries
            ):
                raise ConfigError(
                    f"the data in {directory} is not for the user {self.name!r} to read and write: "
                    f"expected chown -R {self.name} {directory}"
                )


def _user(name: str) -> tuple[int, int | None]:
    """The number of a user, and of the user's own group where that is known."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        if not name.isdecimal():
            raise ConfigError(f"broker.user: there is no user {name!r} on this system") from None
        return int(name), None
    return found.pw_uid, found.pw_gid


def _group(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        if not name.isdecimal():
            raise ConfigError(f"broker.user: there is no group {name!r} on this system") from None
        return int(name)
