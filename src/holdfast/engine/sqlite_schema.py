"""Opening a database file: what it is, whether it may be used, and bringing it up to date."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import apsw

from holdfast.contract.errors import ForeignDatabase, NotSupported, StoreBusy, StoreMoved
from holdfast.sql.migrations import SchemaStatus, differences, migrations

APPLICATION_ID = 0x484F4C44  # "HOLD"
BUSY_MS = 15_000
# The log is cut down to this when it starts over.
LOG_BYTES = 64 * 1024 * 1024
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "fuse.sshfs", "afs", "ceph"}
SYNCHRONOUS = {"full": "FULL", "normal": "NORMAL"}


class StoreFile:
    """The file a handle was opened on, known by its inode, which stays taken while it is open."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.identity = self._look()

    def _look(self) -> tuple[int, int]:
        # A stat does not open the file: closing a descriptor of it would drop SQLite's locks.
        found = os.stat(self._path)
        return found.st_dev, found.st_ino

    def require(self) -> None:
        """Raise when the path does not lead to the file any more."""
        try:
            found = self._look()
        except OSError as gone:
            raise StoreMoved(path=self._path) from gone
        if found != self.identity:
            raise StoreMoved(path=self._path)


def connect(
    path: str,
    *,
    read_only: bool,
    synchronous: str,
    query_only: bool,
    create: bool = True,
    busy_ms: int = BUSY_MS,
) -> apsw.Connection:
    """One connection with every setting the store relies on."""
    flags = apsw.SQLITE_OPEN_NOMUTEX
    if read_only:
        flags |= apsw.SQLITE_OPEN_READONLY
    else:
        flags |= apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    connection = apsw.Connection(path, flags=flags, statementcachesize=500)
    connection.set_busy_timeout(busy_ms)
    # Without it the planner looks at bound values and prepares a guard again on each execution.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS[synchronous]}")
    connection.execute("PRAGMA trusted_schema = OFF")
    if query_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


def become_wal(connection: apsw.Connection, busy_ms: int = BUSY_MS) -> None:
    """Switch to WAL. The busy handler does not cover this switch, so it is retried here."""
    deadline = time.monotonic() + busy_ms / 1000
    pause = 0.001
    while True:
        try:
            mode = connection.pragma("journal_mode", "wal")
        except (apsw.BusyError, apsw.LockedError) as busy:
            if time.monotonic() > deadline:
                raise StoreBusy(reason="another process keeps the file locked") from busy
        else:
            if mode in ("wal", "memory"):
                connection.pragma("journal_size_limit", LOG_BYTES)
                connection.wal_autocheckpoint(0)
                return
            raise NotSupported(what="this file", reason=f"its journal mode stays {mode}")
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(pause * 2, 0.05)


def filesystem(path: str, mountinfo: str) -> str:
    """The kind of file system a path is on, by the text of /proc/self/mountinfo."""
    kind, longest = "", -1
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        # A space, a tab, a newline and a backslash are written as octal numbers.
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # Of two mounts on one point, the later one is on top.
        if inside and len(point) >= longest:
            longest, kind = len(point), fields[fields.index("-") + 1]
    return kind


def refuse_network(path: str, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """A write-ahead log needs shared memory, which a network file system does not give."""
    if not mounts.exists():
        return
    kind = filesystem(os.path.realpath(path), mounts.read_text("utf-8", "replace"))
    if kind in NETWORK:
        raise NotSupported(
            what=f"a store on {kind}",
            reason="it cannot share memory between processes; use a local disk or PostgreSQL",
        )


def identify(connection: apsw.Connection) -> int:
    """The schema version of a store, 0 for an empty database; anything else is foreign."""
    try:
        application = connection.pragma("application_id")
        version = connection.pragma("user_version")
        objects = connection.execute("SELECT count(*) FROM sqlite_schema").get
    except apsw.NotADBError as broken:
        raise ForeignDatabase(
            found="a file that is no database", expected=f"application id {APPLICATION_ID}"
        ) from broken
    if application == APPLICATION_ID:
        return int(version)
    if application == 0 and version == 0 and objects == 0:
        return 0
    raise ForeignDatabase(
        found=f"application id {application}, user version {version}, {objects} objects",
        expected=f"application id {APPLICATION_ID}",
    )


def structure(connection: apsw.Connection) -> dict[str, str]:
    """Each object of the database and the text that made it."""
    rows = connection.execute(
        "SELECT type || ' ' || name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
    )
    return {name: " ".join(sql.split()) for name, sql in rows}


def status(connection: apsw.Connection) -> SchemaStatus:
    """What the database is, against what this holdfast knows. Changes nothing."""
    known = migrations("sqlite")
    found = identify(connection)
    lines: list[str] = []
    oldest = 0
    applied: list[tuple[int, str, int]]
    if found:
        applied = connection.execute(  # type: ignore[assignment]
            "SELECT version, checksum, oldest_reader FROM migration ORDER BY version"
        ).fetchall()
        oldest = applied[-1][2] if applied else found
        for version, checksum, _ in applied:
            if version <= len(known) and known[version - 1].checksum != checksum:
                lines.append(f"migration {version} was applied from another text")
    if found == len(known):
        lines.extend(differences("sqlite", structure(connection)))
    return SchemaStatus(
        found=found,
        expected=len(known),
        oldest_reader=oldest,
        pending=known[found:],
        differences=tuple(lines),
    )


def apply(connection: apsw.Connection, clock: Callable[[], int]) -> SchemaStatus:
    """Apply what is pending, in one transaction. Rivals wait, then find nothing left to do."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = identify(connection)
        for migration in migrations("sqlite")[found:]:
            connection.execute(migration.text)
            connection.execute(
                "INSERT INTO migration (version, name, checksum, oldest_reader, applied_at_ms)"
                " VALUES (?, ?, ?, ?, ?)",
                (
                    migration.version,
                    migration.name,
                    migration.checksum,
                    migration.oldest_reader,
                    clock(),
                ),
            )
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", migration.version)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return status(connection)


def script(*, after: int = 0) -> str:
    """The migrations after a version as one text, to be read or to be run by hand."""
    lines = ["BEGIN IMMEDIATE;"]
    for migration in migrations("sqlite"):
        if migration.version > after:
            lines.append(f"\n-- {migration.version:04d} {migration.name}")
            lines.append(migration.text.rstrip())
            lines.append(
                "INSERT INTO migration (version, name, checksum, oldest_reader, applied_at_ms)\n"
                f"VALUES ({migration.version}, '{migration.name}', '{migration.checksum}',"
                f" {migration.oldest_reader},\n"
                "  CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER));"
            )
            lines.append(f"PRAGMA application_id = {APPLICATION_ID};")
            lines.append(f"PRAGMA user_version = {migration.version};")
    lines.append("\nCOMMIT;\n")
    return "\n".join(lines)
