"""The making of a pair, and the joining of its second node: the record of a directory, and the register.

A pair never makes itself: of two nodes started at once both could be the first. Nothing here runs beside a
broker, which has the directory.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from malamute.errors import InUse, NotFound
from malamute.journal import pair_record
from malamute.journal.directory import acquire_lock, open_environment, translated
from malamute.journal.disk import DiskStore
from malamute.journal.pair_record import PairRecord
from malamute.journal.standby import Standby
from malamute.pair import state
from malamute.pair.node import LEVEL
from malamute.pair.register import Register
from malamute.pair.state import Member, PairValue


class Joining:
    """A node that makes a pair or joins one, with its directory."""

    def __init__(
        self, name: str, directory: Path, size: int, link: str, urls: tuple[str, ...], register: Register
    ) -> None:
        self._name, self._directory, self._size = name, directory, size
        self._register = register
        self._link, self._urls = link, urls

    def create(self, *, is_dry: bool = False, forces: bool = False) -> PairValue:
        """Make a pair of this directory, with all that is in it; return the value of the register.

        With `forces`, a pair in the register is replaced. Raises: InUse for a pair that is there, and the
        errors of a store.
        """
        found, version = self._register.read()
        if found is not None and not forces:
            raise InUse(
                f"the register has a pair, whose primary is {found.primary}: expected `malamute pair join`, "
                "or another register"
            )
        before = self._before()
        if before is not None and not forces:
            raise InUse(
                f"{self._directory} is in a pair: expected `malamute broker run`, or `--force` where the "
                "register is lost"
            )
        timeline = max((number for number, _ in before.timelines), default=0) if before else 0
        record = PairRecord(secrets.token_bytes(16), secrets.token_bytes(16), whole=True)
        value = state.created(
            record.pair, self._name, self._member(record), timeline, secrets.token_bytes(16)
        )
        if not is_dry:
            self._register.prove()
            DiskStore.open(self._directory, size=self._size).close()
            _put_record(self._directory, record)
            if not self._register.swap(value, version):
                _put_record(self._directory, before)
                raise InUse("another node has made a pair just now: expected `malamute pair join`")
        return value

    def join(self, *, is_dry: bool = False, is_new: bool = False) -> PairValue:
        """Have this directory join the pair of the register, as a standby that has nothing yet.

        With `is_new` it becomes another one, as for a copy of a directory. Raises: NotFound without a pair,
        InUse and AccessRefused where the pair refuses it.
        """
        value, version = self._register.read()
        if value is None:
            raise NotFound("the register has no pair: expected `malamute pair create` at the other node")
        before = self._before()
        record = before if before is not None and before.pair == value.pair and not is_new else None
        joins = record or PairRecord(value.pair, secrets.token_bytes(16))
        joined = state.joined(value, self._name, self._member(joins), secrets.token_bytes(16))
        if not is_dry:
            self._register.prove()
            if record is None:
                Standby.open(self._directory, size=self._size, joins=joins).close()
            if not self._register.swap(joined, version):
                raise InUse("the register was changed meanwhile: try again")
        return joined

    def _before(self) -> PairRecord | None:
        """Return the record of the directory; None where it has none, or there is no store yet."""
        return _record(self._directory) if (self._directory / "data.mdb").is_file() else None

    def _member(self, record: PairRecord) -> Member:
        return Member(record.replica, LEVEL, self._link, self._urls)


def _record(directory: Path) -> PairRecord | None:
    return _with_record(directory, None, puts=False)


def _put_record(directory: Path, record: PairRecord | None) -> None:
    _with_record(directory, record, puts=True)


def _with_record(directory: Path, record: PairRecord | None, *, puts: bool) -> PairRecord | None:
    lock = acquire_lock(directory)
    try:
        environment, _ = open_environment(directory, 0, preallocate=False)
        try:
            with translated(), environment.begin(write=True) as transaction:
                found = pair_record.read(transaction)
                if puts and record is not None:
                    pair_record.put(transaction, record)
                elif puts:
                    pair_record.remove(transaction)
            return found
        finally:
            environment.close()
    finally:
        os.close(lock)
