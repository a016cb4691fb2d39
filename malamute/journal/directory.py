"""The files of a store: locking the directory, opening and allocating the file, and LMDB's errors.

The order when a store is opened: take the lock, make the file if there is none, check the pages, open the
environment, check that the file was not cut off, check the format, and only then change anything: allocate
the space. Reading a mapped page behind the end of a file that was cut off would kill the process.

The lock is `flock` on a file of its own. The kernel releases it at the end of the process, even of a killed
one, so there are no stale locks; the process id in the file is for the error message only.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import lmdb

from malamute.errors import (
    StorageFull,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreLost,
    StoreTooNew,
    StoreTooOld,
)
from malamute.journal import format as codec
from malamute.journal.blocks import decode_block
from malamute.journal.format import BLOCK, CHUNK, META, STREAM, Damaged, key
from malamute.journal.lmdb_pages.cursor import PageCursor
from malamute.journal.lmdb_pages.pages import check_pages

PAGE = mmap.PAGESIZE
"""The unit of allocation, in bytes."""

READING_TRIES = 10
"""Attempts to read pages that another process seems to write."""

BLOCK_BYTES = 512
"""The unit of `st_blocks`, for any block size of the disk."""

META_TWIN = key(META, 0, 1)
"""The key of the second meta record."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CORRUPT = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)


_OTHERS_READ_OR_WRITE = stat.S_IROTH | stat.S_IWOTH


def check_private(path: Path) -> None:
    """Check that only the owner and the owner's group can read or write a data directory, if it exists.

    Raises:
        StoreError: others have access, or the directory is inaccessible.
    """
    mode = _mode_of(path)
    if mode & _OTHERS_READ_OR_WRITE:
        raise _open_to_others(path, mode, "or name a new directory below it")
    if mode & stat.S_IXOTH and (mode := _mode_of(path / "data.mdb")) & _OTHERS_READ_OR_WRITE:
        raise _open_to_others(path / "data.mdb", mode, "and for its directory, too")


def _mode_of(path: Path) -> int:
    """Return the mode of a file; 0 without a file."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreError(f"cannot use {path}: {error.strerror}") from error


def _open_to_others(path: Path, mode: int, remedy: str) -> StoreError:
    return StoreError(f"{path} is open to others (mode {mode:04o}): expected chmod o-rwx, {remedy}")


def open_own(path: Path, flags: int) -> int:
    """Open a file of the store itself, never through a link, which could lead a write to another file.

    Raises:
        OSError: the path is a link, or a second name of another file; or it cannot be opened.
    """
    # Opening a pipe would wait for its other end.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.ELOOP, "it is a link, or no file")
    return descriptor


def _open_own_or_refuse(path: Path, flags: int) -> int:
    try:
        return open_own(path, flags)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise StoreError(
            f"{path} is a link, or no file: expected one of the store's own; remove it"
        ) from error


def refuse_links(path: Path) -> None:
    """Raise `StoreError` if the lock file of LMDB is a link: LMDB would write to the target of the link."""
    with suppress(FileNotFoundError):
        os.close(_open_own_or_refuse(path / "lock.mdb", os.O_RDONLY))


def acquire_lock(path: Path, *, names_process: bool = True) -> int:
    """Lock the directory for this process; return the descriptor that holds the lock.

    A caller that only reads leaves the process id out of the file.

    Raises:
        StoreLocked: another process has the lock.
        StoreError: the file of the lock is a link.
    """
    refuse_links(path)
    descriptor = _open_own_or_refuse(path / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise StoreLocked(f"{path} is in use by {_in_words(holder)}") from error
    except BaseException:
        os.close(descriptor)
        raise
    if not names_process:
        return descriptor
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, b"%d\n" % os.getpid())
    except BaseException:  # a full disk; this process would hold the lock until its end
        os.close(descriptor)
        raise
    return descriptor


def _in_words(holder: str) -> str:
    """Return the words for the holder of a lock: the process of the id if it runs; a reader writes no id."""
    gone = not holder.isdigit()
    if not gone:
        try:
            os.kill(int(holder), 0)
        except (ProcessLookupError, OverflowError):
            gone = True
        except PermissionError:
            gone = False
    return "another process" if gone else f"process {holder}"


def open_environment(
    path: Path, size: int, preallocate: bool, *, reads_all: bool = False
) -> tuple[lmdb.Environment, int]:
    """Open or create the file at its full size; return the environment and the size.

    With `reads_all`, each value is read once before LMDB maps it, in case of a bad disk.

    Raises:
        StoreError: the file cannot be opened, or is not an intact store.
    """
    data = path / "data.mdb"
    there = data.stat().st_size if data.exists() else 0
    size = -(-max(size, there) // PAGE) * PAGE
    try:
        with translated():
            if there == 0:
                _create(path, size)
            _check_pages(data, values=reads_all)
            environment = _open(path, size)
    except OSError as error:
        raise StoreError(f"cannot open {data}: {error.strerror}") from error
    try:
        _check_length(environment, data)
        _check_meta(environment)
        if preallocate and there < size:
            _allocate_whole(data, size)
    except BaseException:
        environment.close()
        raise
    return environment, size


def _allocate_whole(data: Path, size: int) -> None:
    """Give the file its full size. Raises `StorageFull` with the size that would fit."""
    try:
        allocate(data, size)
    except StorageFull as error:
        free = os.statvfs(data.parent)
        room = data.stat().st_blocks * BLOCK_BYTES + free.f_bavail * free.f_frsize
        full = StorageFull(f"{error.text}: its disk has room for {room} bytes")
        full.hint = (
            "lower storage.size, give storage.directory a larger disk, or free this one; "
            "`storage.preallocate = false` takes the space only as it is needed"
        )
        raise full from error


def _create(path: Path, size: int) -> None:
    """Create the file under another name, and rename it when durable: LMDB refuses a partial one."""
    new = path / "new-data.mdb"
    new.unlink(missing_ok=True)
    with lmdb.open(str(new), subdir=False, lock=False, map_size=size, mode=0o640) as environment:
        _check_meta(environment)
    os.rename(new, path / "data.mdb")
    sync_directory(path)
    sync_directory(path.parent)


def open_again(environment: lmdb.Environment) -> lmdb.Environment:
    """Close an environment that no call is using, and open it anew. Raises StoreLost if that fails.

    A write error on LMDB's meta page breaks the environment for good: even reads are refused.
    """
    path, size = Path(environment.path()), int(environment.info()["map_size"])
    environment.close()
    try:
        return _open(path, size)
    except (lmdb.Error, OSError) as error:
        raise StoreLost(f"cannot open {path / 'data.mdb'} again: {error}") from error


def _open(path: Path, size: int) -> lmdb.Environment:
    environment = lmdb.open(str(path), map_size=size, max_dbs=0, max_spare_txns=2, mode=0o640)
    # A broker that was killed after writing its root may have left the previous root in the lock file. While
    # another process has that file open, readers miss the last commit. The next writer corrects the file.
    environment.begin(write=True).abort()
    return environment


def _check_pages(data: Path, *, values: bool = False) -> None:
    """Raise StoreCorrupt for damaged pages: LMDB would read outside of its map, which kills the process."""
    if faults := check_pages(data, values=values):
        page = f"page {faults[0].number}: {faults[0].reason}"
        state = "damaged, or cannot be read, in" if values else "damaged in"
        where = "values, or pages that lead to them" if values else "pages that lead to values"
        raise StoreCorrupt(f"{data} is {state} {len(faults)} {where}; {page}")


def check_pages_for_reading(path: Path) -> None:
    """Refuse damaged pages on behalf of a reader, which opens a store beside its broker or without one.

    LMDB overwrites no page below its newest root. So a fault is real if the roots are the same afterwards.
    Otherwise the broker is writing, and the pages are checked again. If it never stops, the check is left
    out: the broker has checked the pages at its own start.

    Raises:
        StoreCorrupt: the pages are damaged.
        StoreError: the file cannot be read.
    """
    data = path / "data.mdb"
    try:
        for _ in range(READING_TRIES):
            before = _roots(data)
            try:
                _check_pages(data)
                return
            except StoreCorrupt:
                if _roots(data) == before:
                    raise
    except OSError as error:
        raise StoreError(f"cannot read {error.filename or data}: {error.strerror}") from error


def _roots(data: Path) -> bytes:
    """Return the two pages of a file that have its roots."""
    with data.open("rb") as file:
        return file.read(2 * PAGE)


def _check_length(environment: lmdb.Environment, data: Path) -> None:
    """Raise StoreCorrupt if the file was cut off: a read behind its end would kill the process.

    LMDB itself leaves a file too short if it is killed after it took pages at the end and freed them in the
    same transaction. Such a file is intact; reading all of its values tells the two cases apart.
    """
    needed, there = used_bytes(environment), data.stat().st_size
    if there >= needed:
        return
    os.truncate(data, needed)
    if not _is_whole(environment):
        os.truncate(data, there)
        raise StoreCorrupt(f"{data} was cut off: it has {there} bytes, expected {needed}")


def _is_whole(environment: lmdb.Environment) -> bool:
    decoders = {CHUNK: codec.decode_chunk, STREAM: codec.decode_stream, BLOCK: decode_block}
    try:
        with environment.begin(buffers=True) as transaction, transaction.cursor() as cursor:
            for place, value in cursor:
                decode = decoders.get(place[0])
                if decode is not None:
                    decode(value)
        with environment.begin(write=True) as trial:  # reads LMDB's list of free pages
            trial.put(key(META), b"")
            trial.abort()
    except (codec.TooNew, codec.TooOld):
        return True  # `_check_meta` refuses the version
    except (lmdb.Error, Damaged):
        return False
    return True


def used_bytes(environment: lmdb.Environment) -> int:
    """Return the bytes up to the last page that was ever used."""
    return (int(environment.info()["last_pgno"]) + 1) * int(environment.stat()["psize"])


def lengthen(environment: lmdb.Environment) -> None:
    """Give the file the length that LMDB relies on, before it is closed."""
    data = Path(environment.path()) / "data.mdb"
    with suppress(OSError):  # the next start repeats the check
        if data.stat().st_size < used_bytes(environment):
            os.truncate(data, used_bytes(environment))


def _check_meta(environment: lmdb.Environment) -> None:
    """Refuse a file of another program before any change; write the meta record into an empty one."""
    with translated(), environment.begin() as transaction:
        empty = transaction.stat()["entries"] == 0
    if empty:
        meta = codec.Meta(codec.STORE_VERSION, os.urandom(16))
        with translated(), environment.begin(write=True) as transaction:
            put_meta(transaction, meta)
    else:
        with translated(), environment.begin() as transaction:
            read_meta(transaction)


def put_meta(transaction: lmdb.Transaction, meta: codec.Meta) -> None:
    """Store the meta record, and its twin in case of damage."""
    value = codec.encode_meta(meta)
    transaction.put(key(META), value)
    transaction.put(META_TWIN, value)


def read_meta(transaction: lmdb.Transaction | PageCursor) -> codec.Meta:
    """Return the meta record, or its twin. Raises: StoreTooNew, StoreTooOld, StoreCorrupt."""
    value, twin = transaction.get(key(META)), transaction.get(META_TWIN)
    try:
        return decode_meta(None if value is None else bytes(value))
    except (StoreCorrupt, StoreTooNew, StoreTooOld) as error:
        # A wrong bit may look like another format.
        is_another = not isinstance(error, StoreCorrupt) and codec.is_whole_meta(bytes(value or b""))
        if twin is None or is_another:
            raise
        with suppress(StoreCorrupt, StoreTooNew, StoreTooOld):
            return decode_meta(bytes(twin))
        raise


def decode_meta(value: bytes | None) -> codec.Meta:
    """Return the meta record. Raises: StoreTooNew, StoreTooOld, StoreCorrupt."""
    if value is None:
        raise StoreCorrupt("not a Malamute store, but another LMDB file")
    try:
        return codec.decode_meta(value)
    except codec.TooNew as error:
        raise StoreTooNew(str(error)) from error
    except codec.TooOld as error:
        raise StoreTooOld(str(error)) from error
    except Damaged as error:
        raise StoreCorrupt(str(error)) from error


def allocate(data: Path, size: int) -> None:
    """Allocate `size` bytes on the disk for a file. Raises StorageFull, and StoreError for other faults.

    After an allocation of the whole size at the start, a full disk cannot stop the ring.
    """
    descriptor = os.open(data, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, size)
        os.fsync(descriptor)
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(f"cannot allocate {size} bytes for {data}: {error.strerror}") from error
        raise StoreError(f"cannot allocate {data}: {error.strerror}") from error
    finally:
        os.close(descriptor)


def is_allocated(data: Path, size: int) -> bool:
    """Return whether a file has `size` bytes allocated on the disk."""
    return data.stat().st_blocks * BLOCK_BYTES >= size


def sync_directory(path: Path) -> None:
    """Fsync a directory, so that the names of new files survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def translated() -> Iterator[None]:
    """Raise LMDB's errors as Malamute's: StorageFull, StoreCorrupt or StoreError."""
    try:
        yield
    except lmdb.Error as error:
        _raise(error)


def _raise(error: lmdb.Error) -> NoReturn:
    """Raise an error of LMDB as one of Malamute's."""
    if isinstance(error, lmdb.MapFullError | lmdb.DiskError) or getattr(error, "code", 0) in _FULL:
        raise StorageFull(str(error)) from error
    if isinstance(error, _CORRUPT):
        raise StoreCorrupt(str(error)) from error
    raise StoreError(str(error)) from error
