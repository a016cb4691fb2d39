"""A register in a row of PostgreSQL: the server that takes writes, and that has lost none of them.

Its own standbys have to be synchronous, or a failover of PostgreSQL may take a swap back.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from threading import Timer
from typing import Any
from urllib.parse import unquote, urldefrag, urlsplit

import psycopg

from malamute.pair.register import SECONDS, Register

TABLE = "malamute_register"

_MILLISECONDS = SECONDS * 1000
_OPTIONS = f"-c statement_timeout={_MILLISECONDS} -c lock_timeout={_MILLISECONDS} -c synchronous_commit=on"


class PostgresEngine:
    """Rows of a table, with counted versions; contents are compared, too, as a table may be emptied."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[Any] | None = None

    def get(self, key: str) -> tuple[bytes, object] | None:
        """Return the content of a row, of the table that may be made by this."""
        try:
            found = self._ask(f"SELECT value, version FROM {TABLE} WHERE key = %s", (key,)).fetchone()
        except psycopg.errors.UndefinedTable:
            self._ask(
                f"CREATE TABLE IF NOT EXISTS {TABLE}"
                " (key text PRIMARY KEY, version bigint NOT NULL, value bytea NOT NULL)",
                (),
            )
            return None
        return None if found is None else (bytes(found[0]), (found[1], bytes(found[0])))

    def put(self, key: str, data: bytes, version: Any) -> bool:
        """Insert or update a row; committed on return."""
        if version is None:
            self.get(key)
            insert = f"INSERT INTO {TABLE} VALUES (%s, 1, %s) ON CONFLICT DO NOTHING"
            return bool(self._ask(insert, (key, data)).rowcount)
        update = f"UPDATE {TABLE} SET version = version + 1, value = %s"
        condition = " WHERE key = %s AND version = %s AND value = %s"
        return bool(self._ask(update + condition, (data, key, *version)).rowcount)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, query: Any, arguments: Sequence[object]) -> psycopg.Cursor[Any]:
        """Execute a statement, in time also where the server has stopped in the middle of it."""
        connection = self._connection
        if connection is None or connection.closed:
            connection = self._connection = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=SECONDS,
                tcp_user_timeout=_MILLISECONDS,
                target_session_attrs="read-write",
                options=_OPTIONS,
            )
        # The kernel of a stopped server goes on acknowledging, so no time-out of TCP helps.
        with socket.socket(fileno=os.dup(connection.fileno())) as other:
            timer = Timer(SECONDS + 0.5, _shut, (other,))
            timer.start()
            try:
                return connection.execute(query, arguments)
            except psycopg.errors.UndefinedTable:
                raise
            except BaseException:
                self.close()
                raise
            finally:
                timer.cancel()


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def open_engine(url: str) -> Register:
    """Return the register of `postgresql://…#KEY`; without a key it is `malamute`."""
    plain, key = urldefrag(url)
    parts = urlsplit(plain)
    name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return Register(PostgresEngine(plain), unquote(key) or "malamute", name)
