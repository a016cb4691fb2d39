"""A register in a file, for two nodes on one host: compared under a lock, written beside, and renamed."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from malamute.errors import ConfigError
from malamute.journal.directory import sync_directory
from malamute.pair.register import SECONDS, Register
from malamute.pair.state import VALUE_BYTES_MAX

PAUSE_SECONDS = 0.005


class FileEngine:
    """Files; the content is its version, for it never comes back."""

    def get(self, key: str) -> tuple[bytes, object] | None:
        """Return the content of a file."""
        try:
            with open(key, "rb") as file:
                data = file.read(VALUE_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        return data, data

    def put(self, key: str, data: bytes, version: object) -> bool:
        """Replace the file if it has this content; durable on return."""
        path, new = Path(key), Path(f"{key}.new")
        with _locked(f"{key}.lock"):
            found = self.get(key)
            if (None if found is None else found[1]) != version:
                return False
            file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, data)
                os.fsync(file)
            finally:
                os.close(file)
            new.rename(path)
            sync_directory(path.parent)
        return True

    def close(self) -> None:
        """Release nothing."""


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold the lock of a file. Raises: TimeoutError for one that another process keeps."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        until = time.monotonic() + SECONDS
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > until:
                raise TimeoutError(f"another process has held the lock {path} for {SECONDS} s")
            time.sleep(PAUSE_SECONDS)
        yield
    finally:
        os.close(file)


def open_engine(url: str) -> Register:
    """Return the register of `file:PATH`. Raises: ConfigError for a path that is not absolute."""
    path = unquote(urlsplit(url).path)
    if not path.startswith("/") or urlsplit(url).netloc:
        raise ConfigError(
            f"register {url!r}: expected an absolute path, such as file:/var/lib/malamute/pair.json"
        )
    return Register(FileEngine(), path, url)
