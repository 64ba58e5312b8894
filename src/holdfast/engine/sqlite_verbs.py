"""The schema verbs on a database file: what an operator asks for without opening the store.

Only `apply` changes anything. A file that is not there is an empty store, and is not made by
looking at it; one that is there is left as it is, with the log that a crash has left beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw

from holdfast.engine import sqlite_schema
from holdfast.engine.sqlite import wall_clock_ms
from holdfast.engine.sqlite_errors import translate
from holdfast.sql.migrations import SchemaStatus, migrations


class SqliteVerbs:
    """The verbs on one file; each opens a connection of its own and closes it."""

    def __init__(self, path: str, clock: Callable[[], int] = wall_clock_ms) -> None:
        self._path = path
        self._clock = clock

    def status(self) -> SchemaStatus:
        """What the file is, against what this holdfast knows."""
        known = migrations("sqlite")
        if not os.path.exists(self._path):
            return SchemaStatus(found=0, expected=len(known), oldest_reader=0, pending=known)
        with self._connected(changing=False) as connection:
            connection.execute("BEGIN")
            return sqlite_schema.status(connection)

    def script(self) -> str:
        """The pending migrations as one text; empty when there are none."""
        status = self.status()
        return sqlite_schema.script(after=status.found) if status.pending else ""

    def apply(self) -> SchemaStatus:
        """Bring the file up to date, making it when it is not there."""
        with self._connected(changing=True) as connection:
            sqlite_schema.status(connection).require_usable(migrate=True)
            sqlite_schema.become_wal(connection, sqlite_schema.BUSY_MS)
            status = sqlite_schema.apply(connection, self._clock)
        status.require_usable(migrate=False)
        return status

    @contextmanager
    def _connected(self, *, changing: bool) -> Iterator[apsw.Connection]:
        sqlite_schema.refuse_network(self._path)
        try:
            connection = self._connection(changing)
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                connection.close()
        except apsw.Error as failure:
            raise translate(failure, self._path) from failure

    def _connection(self, changing: bool) -> apsw.Connection:
        if changing:
            return sqlite_schema.connect(
                self._path,
                read_only=False,
                synchronous="full",
                query_only=False,
                create=True,
                busy_ms=sqlite_schema.BUSY_MS,
            )
        # A read-only connection would leave the log and the shared memory that it makes behind; one
        # that may write removes them. But a log that was there before is not for us to fold in.
        writable = os.access(self._path, os.W_OK)
        kind = apsw.SQLITE_OPEN_READWRITE if writable else apsw.SQLITE_OPEN_READONLY
        crashed = os.path.exists(f"{self._path}-wal")
        connection = apsw.Connection(self._path, flags=kind | apsw.SQLITE_OPEN_NOMUTEX)
        connection.set_busy_timeout(sqlite_schema.BUSY_MS)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(crashed))
        connection.execute("PRAGMA query_only = ON")
        return connection
