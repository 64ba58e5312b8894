"""What the tests share that look behind the contract: raw rows, and raw writes, on each database.

The library never damages a store, so these tests do it for themselves, on a connection of their
own. On a file that connection is made by the same SQLite library as the store's: another copy of
the library in one process would drop the store's locks when it closes the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import apsw
import asyncpg
import pytest

import holdfast

pytest.register_assert_rewrite(
    "tests.faulting", "tests.process_race_laws", "tests.process_race_beside", "tests.process_rings"
)

Rows = dict[str, list[dict[str, Any]]]
Run = Callable[..., Awaitable[list[dict[str, Any]]]]

# The tables that have a tenant.
TABLES = {
    "sqlite": "SELECT s.name FROM sqlite_schema s WHERE s.type = 'table' AND EXISTS"
    " (SELECT 1 FROM pragma_table_info(s.name) c WHERE c.name = 'tenant') ORDER BY 1",
    "postgres": "SELECT table_name AS name FROM information_schema.columns"
    " WHERE table_schema = 'holdfast' AND column_name = 'tenant' ORDER BY 1",
}


@dataclasses.dataclass(frozen=True)
class Database:
    """One empty database of a kind, and what is done to it behind the store's back."""

    kind: str
    url: str

    @contextlib.asynccontextmanager
    async def open(self, tenant: str = "a", **options: Any) -> AsyncIterator[holdfast.Store]:
        """A handle on one tenant."""
        store = await holdfast.open(self.url, tenant=tenant, **options)
        try:
            yield store
        finally:
            await store.close()

    async def run(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        """Run one statement, with values for $1 and so on, and bypass what guards a column."""
        async with self.connected() as run:
            return await run(sql, *args)

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Run]:
        """A connection beside the store's, for several statements."""
        if self.kind == "sqlite":
            file = apsw.Connection(self.url)
            try:
                file.set_busy_timeout(10_000)
                file.pragma("ignore_check_constraints", True)
                yield _sqlite_run(file)
            finally:
                file.close()
            return
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute("SET search_path TO holdfast")

            async def run(sql: str, *args: Any) -> list[dict[str, Any]]:
                return [dict(row) for row in await connection.fetch(sql, *args)]

            yield run
        finally:
            await connection.close()

    async def drop_checks(self) -> None:
        """Take away what keeps damaged numbers out; on a file each raw write ignores it anyway."""
        if self.kind == "sqlite":
            return
        found = await self.run(
            "SELECT conname, conrelid::regclass::text AS name FROM pg_constraint"
            " WHERE contype = 'c' AND connamespace = 'holdfast'::regnamespace"
        )
        for row in found:
            await self.run(f"ALTER TABLE {row['name']} DROP CONSTRAINT {row['conname']}")

    async def rows(self, tenant: str) -> Rows:
        """Every row of a tenant, in each table that has one."""
        everything: Rows = {}
        async with self.connected() as run:
            for row in await run(TABLES[self.kind]):
                table = row["name"]
                found = await run(f"SELECT * FROM {table} WHERE tenant = $1", tenant)
                if found:
                    everything[table] = sorted(found, key=repr)
        return everything


def _sqlite_run(file: apsw.Connection) -> Run:
    names: list[str] = []

    def note(cursor: apsw.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
        names[:] = [column[0] for column in cursor.get_description()]
        return row

    file.row_trace = note

    async def run(sql: str, *args: Any) -> list[dict[str, Any]]:
        values = {str(number): value for number, value in enumerate(args, 1)}
        rows = file.execute(sql, values).fetchall()
        return [dict(zip(names, row, strict=True)) for row in rows]

    return run


def _database(kind: str, request: pytest.FixtureRequest) -> Database:
    return Database(kind, request.getfixturevalue(f"{kind}_url"))


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    """An empty database of each kind."""
    return _database(request.param, request)


@pytest.fixture
def sqlite_database(request: pytest.FixtureRequest) -> Database:
    """An empty database file."""
    return _database("sqlite", request)


@pytest.fixture
def postgres_database(request: pytest.FixtureRequest) -> Database:
    """An empty database on a server."""
    return _database("postgres", request)
