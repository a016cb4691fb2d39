"""A disk and a network of the broker's own that really fail: a file system in a file, a network namespace.

Both take root and Linux. `why_not` says what is missing. The file system is ext4 on a loop device, of its own
size. An error that is reported to ext4 makes it read-only until it is checked and mounted again, as it is
with `errors=remount-ro` on any disk.

A device that has less room than it says was tried, too, and is left out: where blocks that were allocated
and never written cannot be, ext4 (Linux 6.18) says of later writes that they are durable, and after the next
mount they read as zeros ("failed to convert unwritten extents to written extents -- potential data loss" in
the log of the kernel). No program on it can keep a promise.
The network is a pair of virtual links, one end of which is in the broker's namespace. There is another way
beside it where packets are lost or late (`bad_link`), which all of them take for a while.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from bad_link import BadLink, Packets

from malamute.journal.directory import sync_directory

TOOLS = {"disk": ("mount", "umount", "mkfs.ext4", "e2fsck", "losetup"), "network": ("ip",)}
SLACK_MIB = 192
"""What the file system has beside the store."""
MIB = 1 << 20
CAP_SYS_ADMIN = 21
"""As Linux has it."""
MEMORY = Path("/sys/fs/cgroup/memory")


def why_not(what: str) -> str:
    """Why there can be no such disk or network here; empty if there can."""
    if not sys.platform.startswith("linux"):
        return "no Linux"
    if not may_mount():
        return "no right to mount (CAP_SYS_ADMIN)"
    if what == "disk" and not Path("/dev/loop-control").exists():
        return "no loop devices"
    if missing := [tool for tool in TOOLS[what] if shutil.which(tool) is None]:
        return f"no {missing[0]}"
    return ""


def may_mount() -> bool:
    """Whether this process may mount file systems and make namespaces: root outside of a container may."""
    lines = Path("/proc/self/status").read_text().splitlines()
    mask = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    return bool(int(mask, 16) >> CAP_SYS_ADMIN & 1)


def _run(*words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, words)], check=check, capture_output=True, text=True)


class RealDisk:
    """A file system of its own for a directory, which is there from `mount` until `close`."""

    def __init__(self, place: Path, scratch: Path, size_mib: int) -> None:
        """Raises OSError or CalledProcessError where nothing can be mounted."""
        self.place, self._image, self._ballast = place, scratch / "disk", place / "ballast"
        with self._image.open("wb") as file:
            file.truncate((size_mib + SLACK_MIB) * MIB)
        _run("mkfs.ext4", "-q", "-m", "0", self._image)
        self.mount()

    def mount(self) -> None:
        """Have it in its place."""
        self.place.mkdir(parents=True, exist_ok=True)
        _run("mount", "-o", "loop,errors=remount-ro", self._image, self.place)
        self.place.chmod(0o700)

    @property
    def _device(self) -> str:
        lines = Path("/proc/mounts").read_text().splitlines()
        return next(line.split()[0] for line in lines if line.split()[1] == str(self.place))

    @contextmanager
    def full(self) -> Iterator[None]:
        """Leave no room in it for a while."""
        with self._ballast.open("wb") as file, suppress(OSError):
            while True:
                file.write(bytes(MIB))
                file.flush()
        try:
            yield
        finally:
            self._ballast.unlink()
            # It would be there again after an error that comes before this is on the disk.
            sync_directory(self.place)

    def fail(self) -> None:
        """It has met an error, and is read-only until it is mended."""
        name = Path(self._device).name
        Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("1")

    def mend(self) -> None:
        """Check it, and mount it again. Nobody may use it."""
        _run("umount", self.place)
        done = _run("e2fsck", "-fy", self._image, check=False)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        self.mount()

    def close(self) -> None:
        """Take it away, with all that is in it."""
        _run("umount", "--lazy", self.place, check=False)


class RealNetwork:
    """A network namespace with one way to it: `address` is in it, and `host` at the other end."""

    def __init__(self, number: int) -> None:
        """Raises CalledProcessError where there can be none."""
        self.name, self._link = f"malamute{number}", f"mlm{number}"
        self.host, self.address = (f"10.213.{number % 250}.{end}" for end in (1, 2))
        _run("ip", "netns", "add", self.name)
        try:
            _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
            _run("ip", "address", "add", f"{self.host}/30", "dev", self._link)
            self._inside("address", "add", f"{self.address}/30", "dev", "eth0")
            for link in ("lo", "eth0"):
                self._inside("link", "set", link, "up")
            self.up()
        except BaseException:
            self.close()
            raise

    def _inside(self, *words: str) -> None:
        _run("ip", "-n", self.name, *words)

    def down(self) -> None:
        """Nothing goes either way, and nobody is notified."""
        _run("ip", "link", "set", self._link, "down")

    def up(self) -> None:
        """It is there again."""
        _run("ip", "link", "set", self._link, "up")

    def swallow_answers(self) -> None:
        """What comes from inside gets nowhere."""
        self._inside("route", "add", "blackhole", f"{self.host}/32")

    def relent(self) -> None:
        """It gets through again."""
        self._inside("route", "del", "blackhole", f"{self.host}/32")

    @contextmanager
    def bad(self, packets: Packets, seed: float) -> Iterator[BadLink]:
        """All packets, those of connections that stand too, take a way where this happens to them."""
        outer, inner = (f"{self._link}{end}" for end in "oi")
        with closing(BadLink((outer, inner), seed)) as link:
            link.packets = packets
            _run("ip", "link", "set", inner, "netns", self.name)
            _run("ip", "link", "set", outer, "up")
            self._inside("link", "set", inner, "up")
            self._inside("route", "add", f"{self.host}/32", "dev", inner, "src", self.address)
            _run("ip", "route", "add", f"{self.address}/32", "dev", outer, "src", self.host)
            # The routes go with the devices.
            yield link

    def close(self) -> None:
        """Take it away."""
        _run("ip", "netns", "del", self.name, check=False)
        _run("ip", "link", "del", self._link, check=False)


class MemoryLimit:
    """So much more memory for a process than it has, as a control group counts it. With more it is killed."""

    def __init__(self, pid: int, spare_bytes: int) -> None:
        self._group = MEMORY / f"malamute{pid}"
        self._pid = pid
        self._group.mkdir()
        (self._group / "cgroup.procs").write_text(str(pid))
        # What it has already counts for the group where it was.
        (self._group / "memory.limit_in_bytes").write_text(str(spare_bytes))

    def lift(self) -> None:
        """There is no limit any more."""
        (self._group / "memory.limit_in_bytes").write_text("-1")
        with suppress(OSError):  # it has ended
            (MEMORY / "cgroup.procs").write_text(str(self._pid))
        with suppress(OSError):
            self._group.rmdir()
