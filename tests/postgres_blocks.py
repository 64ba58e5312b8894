"""Statements and helpers of the tests of the PostgreSQL engine: toy tables in a real server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import asyncpg

from holdfast.engine.postgres import PostgresBlockingEngine, PostgresEngine
from holdfast.ops.op import Op, Step, Stmt
from holdfast.sql.catalog import Block, _block

T = TypeVar("T")

TABLES = """
CREATE SCHEMA "holdfast";
CREATE TABLE "holdfast".counter(
  tenant text, name text, value int NOT NULL, PRIMARY KEY (tenant, name));
CREATE TABLE "holdfast".entry(
  tenant text, name text, id text, body bytea, small int, PRIMARY KEY (tenant, id));
"""

# `t.add` is the shape of a commit: it locks and moves a counter, and inserts children.
ADD = """t.add
-- Adds to each counter and stores the entries that come with it.
-- mode: write
-- children: entries(id, body, small)
-- returns: value, name
-- explains: known, value
-- merged by: name
-- step: guard
WITH req AS MATERIALIZED (
  SELECT * FROM unnest(:name::text[], :by::int[], :entries.n::int[], :entries.hi::int[])
    WITH ORDINALITY AS r(name, by, n, hi, ord)
), held AS MATERIALIZED (
  SELECT r.*, c.value FROM req r JOIN {schema}.counter c
    ON c.tenant = :tenant AND c.name = r.name ORDER BY c.name FOR NO KEY UPDATE OF c
), moved AS (
  UPDATE {schema}.counter c SET value = c.value + h.by FROM held h
  WHERE c.tenant = :tenant AND c.name = h.name AND h.by <> 0 RETURNING h.ord, c.value, c.name
), stored AS (
  INSERT INTO {schema}.entry(tenant, name, id, body, small)
  SELECT :tenant, h.name, x.id, x.body, x.small FROM held h
  CROSS JOIN LATERAL unnest((:entries.id::text[])[h.hi - h.n + 1 : h.hi],
    (:entries.body::bytea[])[h.hi - h.n + 1 : h.hi],
    (:entries.small::int[])[h.hi - h.n + 1 : h.hi]) AS x(id, body, small)
  WHERE h.by <> 0 ORDER BY x.id
)
SELECT ord, name, value FROM moved
-- step: refused
SELECT c.value, c.name IS NOT NULL AS known, 'spare' AS spare
FROM (SELECT 1) one LEFT JOIN {schema}.counter c ON c.tenant = :tenant AND c.name = :name
"""

ONE = """t.one
-- Moves one counter.
-- mode: write
-- returns: value
-- explains: known
-- step: guard
UPDATE {schema}.counter SET value = value + :by::int
WHERE tenant = :tenant AND name = :name AND value < 100 RETURNING value
-- step: refused
SELECT count(*) AS known FROM {schema}.counter WHERE tenant = :tenant AND name = :name
"""

SCRIPT = """t.script
-- Moves one counter, then stores entries, then answers with how many there are.
-- mode: write
-- children: entries(id, body)
-- returns: total
-- explains: known
-- step: guard
UPDATE {schema}.counter SET value = value + 1
WHERE tenant = :tenant AND name = :name RETURNING value AS moved
-- step: when entries
INSERT INTO {schema}.entry(tenant, name, id, body, small)
SELECT :tenant, :name, x.id, x.body, :moved::int
FROM unnest(:entries.id::text[], :entries.body::bytea[]) AS x(id, body)
-- step: rows
SELECT count(*) AS total FROM {schema}.entry WHERE tenant = :tenant AND name = :name
-- step: refused
SELECT count(*) AS known FROM {schema}.counter WHERE tenant = :tenant AND name = :name
"""

SLY = """t.sly
-- Writes, and then refuses.
-- mode: write
-- returns: nothing
-- explains: found
-- step: guard
WITH written AS (INSERT INTO {schema}.entry(tenant, name, id) VALUES (:tenant, :name, 'sly'))
SELECT NULL AS nothing WHERE false
-- step: refused
SELECT count(*) AS found FROM {schema}.entry WHERE id = 'sly'
"""

READ = """t.read
-- Reads a counter.
-- mode: read
-- returns: name, value
SELECT value, name FROM {schema}.counter WHERE tenant = :tenant AND name = :name
"""

SLEEP = """t.sleep
-- Waits on the server.
-- mode: write
-- returns: value
SELECT 1 AS value FROM pg_sleep(:seconds::float8)
"""

READ_ONLY = """
DO $$ BEGIN
  EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database());
END $$
"""

BLOCKS: dict[str, Block] = {
    block.name: block for block in map(_block, (ADD, ONE, SCRIPT, SLY, READ, SLEEP))
}


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


async def until(look: Callable[[], Awaitable[T]], reached: Callable[[T], bool]) -> T:
    """Look again and again at what only the server knows."""
    while True:
        found = await look()
        if reached(found):
            return found
        await asyncio.sleep(0.002)


def step(name: str, /, **params: Any) -> Op[tuple[bool, list[tuple[Any, ...]]]]:
    """An operation of one step, which answers what the step did."""
    answer = yield Step(Stmt(name, tuple), {"tenant": "a", **params})
    return answer.refused, [tuple(row) for row in answer.rows]


def add(
    name: str, by: int = 1, entries: list[tuple[str, bytes, Any]] | None = None
) -> Op[tuple[bool, list[tuple[Any, ...]]]]:
    rows = entries or []
    size = sum(len(body) for _, body, _ in rows)
    return step("t.add", name=name, by=by, entries=rows, payload_bytes=size)


def one(name: str, by: int = 1) -> Op[tuple[bool, list[tuple[Any, ...]]]]:
    return step("t.one", name=name, by=by)


def once(name: str, entry: str) -> Op[str]:
    """What every operation of the library is: repeatable, because its id settles it."""
    answer = yield Step(
        Stmt("t.add", tuple),
        {"tenant": "a", "name": name, "by": 1, "entries": [(entry, b"body", 1)]},
    )
    return "replayed" if answer.refused else "done"


async def open_engine(url: str, **options: Any) -> PostgresEngine:
    # The servers of tests do without fsync.
    options = {"blocks": BLOCKS, "allow_unsafe": True, **options}
    return await PostgresEngine.open(url, **options)


def open_blocking(url: str) -> PostgresBlockingEngine:
    return PostgresBlockingEngine.open(url, blocks=BLOCKS, allow_unsafe=True)


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


class Opened:
    """An engine over the test's tables, and a plain connection beside it."""

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url
        self._direct = options.pop("direct", url)
        self._options = options

    async def __aenter__(self) -> Opened:
        # The driver tells the loop when a connection comes back in the middle of a transaction.
        self._told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: self._told.append(told))
        self.sql = await asyncpg.connect(self._direct)
        if await self.sql.fetchval("SELECT to_regclass('holdfast.counter')") is None:
            await self.sql.execute(TABLES)
        self.engine = await open_engine(self._url, **self._options)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.close()
        self.sql.terminate()
        assert self._told == []

    async def counters(self, *names: str, value: int = 0) -> None:
        await self.sql.executemany(
            "INSERT INTO holdfast.counter VALUES ('a', $1, $2)", [(name, value) for name in names]
        )

    async def value(self, name: str) -> int | None:
        value: int | None = await self.sql.fetchval(
            "SELECT value FROM holdfast.counter WHERE tenant = 'a' AND name = $1", name
        )
        return value

    async def entries(self, name: str) -> int:
        count: int = await self.sql.fetchval(
            "SELECT count(*) FROM holdfast.entry WHERE name = $1", name
        )
        return count

    async def waiting(self, count: int = 1) -> None:
        """Return when this many backends wait for a lock."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await until(lambda: self.sql.fetchval(query), lambda found: found >= count)

    async def running(self, text: str) -> int:
        """The process id of the backend that runs a statement with this text."""
        query = (
            "SELECT pid FROM pg_stat_activity WHERE query LIKE $1 AND state = 'active'"
            " AND pid <> pg_backend_pid()"
        )
        pid = await until(lambda: self.sql.fetchval(query, f"%{text}%"), bool)
        return int(pid)

    def whole(self) -> None:
        """Every connection of the pool is free again."""
        pool = self.engine._pool
        assert pool._queue.qsize() + len(self.engine._kept) == pool.get_max_size()
        assert not self.engine._running
