"""The PostgreSQL engine, with statements made for these tests, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import asyncpg
import pytest

from holdfast.contract.errors import (
    CounterOverflow,
    ForeignDatabase,
    HandleClosed,
    Invalid,
    NotSupported,
    OutcomeUnknown,
    SchemaDrift,
    SchemaNewer,
    SchemaOlder,
    StoreBusy,
    StoreReadOnly,
    StoreUnreachable,
    WrongLoop,
    WrongProcess,
)
from holdfast.engine import postgres as engine_module
from holdfast.engine import postgres_schema
from holdfast.engine.postgres import PostgresBlockingEngine, PostgresEngine
from holdfast.engine.postgres_calls import compiled
from holdfast.ops.op import Op, Step, Stmt
from holdfast.sql.catalog import Block, CatalogError, _block
from holdfast.sql.migrations import expected_structure
from holdfast.testing.postgres_server import PostgresServer
from holdfast.testing.wire import Place, WireProxy

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
    return step("t.add", name=name, by=by, entries=entries or [])


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
        assert pool._queue.qsize() == pool.get_max_size()
        assert not self.engine._running


# --- round trips


def test_one_statement_is_one_round_trip_and_a_refusal_two(postgres_url: str) -> None:
    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url, pool_size=1) as store,
        ):
            await store.counters("c", "full", value=0)
            await store.sql.execute("UPDATE holdfast.counter SET value=100 WHERE name='full'")

            async def trips(op: Callable[..., Op[Any]], *args: Any) -> int:
                # The first run on a connection also parses the statement.
                await store.engine.write(op, *args)
                before = wire.round_trips
                await store.engine.write(op, *args)
                return wire.round_trips - before

            assert await trips(lambda: step("t.read", name="c")) == 1
            assert await trips(one, "c") == 1
            assert await trips(add, "c") == 1
            assert await trips(one, "full") == 2
            assert await trips(add, "nobody") == 2
            # BEGIN, the guard, the rows, COMMIT; nothing for the part that has no children.
            assert await trips(lambda: step("t.script", name="c", entries=[])) == 4

    run(main())


def test_the_driver_asks_for_no_types(postgres_url: str) -> None:
    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url, pooler=True, listen_url=wire.url) as store,
        ):
            await store.counters("c")
            await store.engine.write(add, "c", 1, [("e", b"x", 1)])
            store.engine.signals.subscribe("t")
            await store.engine.signals.listening.wait()
            store.engine.signals.publish("t")
            await until(lambda: asyncio.sleep(0, wire.texts[-1]), lambda t: "pg_notify" in t)
        assert not [text for text in wire.texts if "typeinfo" in text or "set_config" in text]
        assert not [text for text in wire.texts if text.upper().startswith("SET")]

    run(main())


def test_answers_are_in_the_order_of_the_signature(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c")
            assert await store.engine.write(add, "c", 3) == (False, [(3, "c")])
            assert await store.engine.write(add, "x", 3) == (True, [(False, None)])
            assert await store.engine.write(add, "c", 0) == (True, [(True, 3)])
            assert await store.engine.read(lambda: step("t.read", name="c")) == (False, [("c", 3)])
            assert await store.engine.read(lambda: step("t.read", name="x")) == (False, [])

    run(main())


def test_a_script_is_one_transaction(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c")

            def script(name: str, *ids: str) -> Op[Any]:
                return step("t.script", name=name, entries=[(i, b"x") for i in ids])

            assert await store.engine.write(script, "c", "1", "2") == (False, [(2,)])
            assert await store.engine.write(script, "c") == (False, [(2,)])
            assert await store.engine.write(script, "nobody", "3") == (True, [(0,)])
            # A unique violation undoes the whole, and the refused part explains.
            assert await store.engine.write(script, "c", "2") == (True, [(1,)])
            assert await store.value("c") == 2
            # The column of the guard fed the later part.
            assert await store.sql.fetchval("SELECT small FROM holdfast.entry WHERE id='1'") == 1
            store.whole()

    run(main())


def test_a_missing_parameter_is_a_defect_of_the_caller_alone(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c")
            for name in ("t.add", "t.one"):
                with pytest.raises(KeyError):
                    await store.engine.write(lambda n=name: step(n, name="c"))
            with pytest.raises(CatalogError):
                await store.engine.write(lambda: step("t.unknown"))
            store.whole()

    run(main())


# --- merging


def test_waiting_requests_share_calls_and_keep_their_answers(postgres_url: str) -> None:
    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url) as store,
        ):
            names = [f"c{n:02}" for n in range(40)]
            await store.counters(*names)
            await asyncio.gather(*(store.engine.write(add, name) for name in names[:2]))
            before = wire.syncs
            answers = await asyncio.gather(
                *(
                    store.engine.write(
                        add, name, n + 1, [(f"{name}-{i}", b"%d" % i, i) for i in range(n % 4)]
                    )
                    for n, name in enumerate(names)
                )
            )
            assert wire.syncs - before <= 8
            for n, (name, answer) in enumerate(zip(names, answers, strict=True)):
                assert answer == (False, [(n + 1 + (n < 2), name)])
                assert await store.entries(name) == n % 4

    run(main())


def test_one_key_is_never_in_flight_twice(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c", "d")
            answers = await asyncio.gather(*(store.engine.write(add, "c") for _ in range(30)))
            assert sorted(rows[0][0] for _, rows in answers) == list(range(1, 31))
            merger = store.engine._mergers["t.add"]
            assert not merger._taken
            assert not merger._ready
            await until(lambda: asyncio.sleep(0, merger._calls), lambda calls: calls == 0)

    run(main())


def test_batches_are_bounded_by_number_and_by_bytes(postgres_url: str) -> None:
    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url, max_group=5, max_group_bytes=1000) as store,
        ):
            names = [f"c{n:02}" for n in range(22)]
            await store.counters(*names)
            await asyncio.gather(*(store.engine.write(add, name) for name in names[:2]))
            before = wire.syncs
            await asyncio.gather(*(store.engine.write(add, name) for name in names))
            assert 6 <= wire.syncs - before <= 8
            before = wire.syncs
            big = [(name, 1, [(name, b"x" * 600, 1)]) for name in names[:6]]
            await asyncio.gather(*(store.engine.write(add, *args) for args in big))
            assert wire.syncs - before == 6

    run(main())


def test_tenants_never_share_a_call(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.sql.execute(
                "INSERT INTO holdfast.counter SELECT t, n::text, ascii(t)"
                " FROM unnest('{a,b,c}'::text[]) t, generate_series(1, 9) n"
            )

            def of(tenant: str, name: str) -> Op[Any]:
                answer = yield Step(
                    Stmt("t.add", tuple), {"tenant": tenant, "name": name, "by": 1, "entries": []}
                )
                return answer.rows[0][0]

            asked = [(t, str(n)) for n in range(1, 10) for t in "abc"]
            values = await asyncio.gather(*(store.engine.write(of, t, n) for t, n in asked))
            assert values == [ord(t) + 1 for t, _ in asked]

    run(main())


def test_the_data_error_of_one_member_is_its_own(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            names = [f"c{n}" for n in range(8)]
            await store.counters(*names)
            await store.sql.execute(
                "UPDATE holdfast.counter SET value = 2147483647 WHERE name = 'c3';"
                "INSERT INTO holdfast.entry(tenant, id) VALUES ('a', 'taken')"
            )
            asked: list[tuple[Any, ...]] = [(name, 1, [(name, b"x", 1)]) for name in names]
            asked[4] = ("c4", 1, [("taken", b"x", 1)])
            asked[5] = ("c5", 1, [("five", b"x", 2**40)])
            asked[6] = ("c6", 1, [("six", "not bytes", 1)])
            answers = await asyncio.gather(
                *(store.engine.write(add, *args) for args in asked), return_exceptions=True
            )
            for n in (0, 1, 2, 7):
                assert answers[n] == (False, [(1, f"c{n}")])
            assert isinstance(answers[3], CounterOverflow)
            assert answers[4] == (True, [(True, 0)])
            assert isinstance(answers[5], CounterOverflow)
            assert isinstance(answers[6], Invalid)
            assert [await store.entries(name) for name in names] == [1, 1, 1, 0, 0, 0, 0, 1]
            store.whole()

    run(main())


def test_a_waiting_call_lends_its_slot(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store, asyncio.timeout(5):
            await store.counters("held", "free", "stuck")
            other = await asyncpg.connect(postgres_url)
            async with other.transaction():
                await other.execute(
                    "SELECT FROM holdfast.counter WHERE name IN ('held', 'stuck') FOR UPDATE"
                )
                blocked = [
                    asyncio.ensure_future(store.engine.write(add, name))
                    for name in ("held", "stuck")
                ]
                await store.waiting(2)
                assert await store.engine.write(add, "free") == (False, [(1, "free")])
                assert not any(task.done() for task in blocked)
            assert [(await task)[0] for task in blocked] == [False, False]
            other.terminate()

    run(main())


# --- faults


def test_a_killed_backend_is_survived(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c", "d")
            for op, name in ((once, "c"), (lambda n, e: step("t.script", name=n, entries=[]), "d")):
                other = await asyncpg.connect(postgres_url)
                async with other.transaction():
                    await other.execute(
                        "SELECT FROM holdfast.counter WHERE name=$1 FOR UPDATE", name
                    )
                    task = asyncio.ensure_future(store.engine.write(op, name, "e"))
                    await store.waiting()
                    await store.sql.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE wait_event_type = 'Lock'"
                    )
                await task
                assert await store.value(name) == 1
                other.terminate()
            store.whole()

    run(main())


@pytest.mark.parametrize(
    ("place", "answer"),
    [
        ("before execute", "done"),
        ("after execute", "replayed"),
        ("mid reply", "replayed"),
    ],
)
def test_a_cut_statement_is_resolved(postgres_url: str, place: Any, answer: str) -> None:
    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url) as store,
        ):
            await store.counters("c")
            await store.engine.write(one, "c", 0)
            await store.engine.write(add, "c", 1)
            wire.cut(place)
            assert await store.engine.write(once, "c", "e") == answer
            assert wire.cuts.is_set()
            assert await store.entries("c") == 1
            assert await store.value("c") == 2
            store.whole()

    run(main())


@pytest.mark.parametrize(
    ("place", "answer"),
    [("before commit", (False, [(1,)])), ("after commit", (True, [(1,)]))],
)
def test_a_cut_commit_is_resolved(postgres_url: str, place: Any, answer: Any) -> None:
    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url) as store,
        ):
            await store.counters("c")
            wire.cut(place)
            op = step("t.script", name="c", entries=[("e", b"x")])
            op.close()
            got = await store.engine.write(
                lambda: step("t.script", name="c", entries=[("e", b"x")])
            )
            assert got == answer
            assert await store.entries("c") == 1
            assert await store.value("c") == 1

    run(main())


def test_what_stays_unknown_is_said(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "ATTEMPTS", 2)

    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url) as store,
        ):
            await store.counters("c")
            await store.engine.write(add, "c")

            async def keep_cutting() -> None:
                while True:
                    wire.cut("after execute")
                    await wire.cuts.wait()

            cutter = asyncio.ensure_future(keep_cutting())
            await asyncio.sleep(0)
            with pytest.raises(OutcomeUnknown) as caught:
                await store.engine.write(
                    lambda: step("t.one", name="c", by=1, session="s1", turn="t1", token="secret")
                )
            assert caught.value.operation == "t.one session=s1 turn=t1"
            with pytest.raises(StoreUnreachable):
                await store.engine.read(lambda: step("t.read", name="c"))
            cutter.cancel()

            def script() -> Op[Any]:
                return step("t.script", name="c", entries=[])

            monkeypatch.setattr(engine_module, "ATTEMPTS", 1)
            for place, said in (
                ("before execute", StoreUnreachable),
                ("before commit", OutcomeUnknown),
                ("after commit", OutcomeUnknown),
            ):
                wire.cut(cast(Place, place))
                with pytest.raises(said):
                    await store.engine.write(script)
            store.whole()

    run(main())


def test_a_hung_server_is_bounded(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "ATTEMPTS", 1)

    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url, command_timeout=0.2) as store,
        ):
            await store.counters("c")
            await store.engine.write(add, "c")
            wire.blackhole(True)
            with pytest.raises(OutcomeUnknown):
                await store.engine.write(add, "c")
            wire.blackhole(False)
            await store.engine.write(add, "c")
            store.whole()

    run(main())


def test_a_connection_that_was_given_up_is_not_used_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "ATTEMPTS", 1)

    async def main() -> None:
        own = """t.own
-- Names the backend of this connection.
-- mode: read
-- returns: pid
SELECT pg_backend_pid() AS pid
"""
        async with Opened(
            postgres_url,
            blocks={**BLOCKS, "t.own": _block(own)},
            pool_size=1,
            command_timeout=0.2,
        ) as store:
            before = await store.engine.read(lambda: step("t.own"))
            assert await store.engine.read(lambda: step("t.own")) == before
            with pytest.raises(OutcomeUnknown):
                await store.engine.write(lambda: step("t.sleep", seconds=9))
            assert await store.engine.read(lambda: step("t.own")) != before
            store.whole()

    run(main())


def test_what_was_unknown_stays_so_when_the_server_turns_read_only(postgres_url: str) -> None:
    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url, pool_size=1) as store,
        ):
            await store.counters("c")
            await store.engine.write(one, "c")
            await store.sql.execute(READ_ONLY)
            wire.cut("after execute")
            with pytest.raises(OutcomeUnknown):
                await store.engine.write(one, "c")
            assert await store.value("c") == 2

    run(main())


def test_an_immediate_restart_in_the_middle_loses_nothing(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.counters(*(f"c{n}" for n in range(8)))
            stop = asyncio.Event()
            done: list[int] = [0] * 8

            async def work(n: int) -> None:
                while not stop.is_set():
                    await store.engine.write(once, f"c{n}", f"{n}-{done[n]}")
                    done[n] += 1

            async def progress() -> None:
                goal = sum(done) + 50
                async with asyncio.timeout(20):
                    await until(lambda: asyncio.sleep(0, sum(done)), lambda now: now >= goal)

            tasks = [asyncio.ensure_future(work(n)) for n in range(8)]
            for _ in range(2):
                await progress()
                await asyncio.to_thread(postgres_server.restart, "immediate")
            await progress()
            stop.set()
            await asyncio.gather(*tasks)
            store.whole()
            store.sql = await asyncpg.connect(postgres_url)
            assert [await store.entries(f"c{n}") for n in range(8)] == done
            assert [await store.value(f"c{n}") for n in range(8)] == done

    run(main())


def test_rivals_are_repeated_and_a_lasting_lock_is_busy(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engine_module._SETTINGS, "lock_timeout", "20ms")
    monkeypatch.setattr(engine_module, "RIVAL_DELAYS", (0.001,) * 5)

    async def main() -> None:
        async with Opened(postgres_url) as store:
            names = ["a", "b", "held", "c", "d"]
            await store.counters(*names)
            other = await asyncpg.connect(postgres_url)
            async with other.transaction():
                await other.execute("SELECT FROM holdfast.counter WHERE name='held' FOR UPDATE")
                # The first two go out alone; the others share a call with the one that waits.
                answers: list[Any] = await asyncio.gather(
                    *(store.engine.write(add, name) for name in names), return_exceptions=True
                )
                assert isinstance(answers.pop(2), StoreBusy)
                assert answers == [(False, [(1, name)]) for name in "abcd"]
            assert await store.engine.write(add, "held") == (False, [(1, "held")])
            other.terminate()

    run(main())


def test_a_deadlocked_call_is_repeated(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.sql.execute(
                "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = 50',"
                " current_database()); END $$"
            )
            await store.counters("a", "b", "w", "x")
            engine = await open_engine(postgres_url)
            # Two calls in flight, so that the next two requests share one.
            warm = [asyncio.ensure_future(engine.write(add, name)) for name in "wx"]
            other = await asyncpg.connect(postgres_url)
            transaction = other.transaction()
            await transaction.start()
            # This one waits with patience: the engine's call is the one that is ended.
            await other.execute("SET LOCAL deadlock_timeout = '10s'")
            await other.execute("SELECT FROM holdfast.counter WHERE name='b' FOR UPDATE")
            await asyncio.gather(*warm)
            blockers = [asyncio.ensure_future(engine.write(add, name)) for name in "wx"]
            tasks = [asyncio.ensure_future(engine.write(add, name)) for name in "ab"]
            await store.waiting()
            await other.execute("SELECT FROM holdfast.counter WHERE name='a' FOR UPDATE")
            await transaction.rollback()
            answers = await asyncio.gather(*tasks)
            assert sorted(rows[0] for _, rows in answers) == [(1, "a"), (1, "b")]
            await asyncio.gather(*blockers)
            await engine.close()
            other.terminate()

    run(main())


def test_a_cut_call_of_many_is_resolved_for_each(postgres_url: str) -> None:
    async def main() -> None:
        async with (
            WireProxy(postgres_url) as wire,
            Opened(wire.url, direct=postgres_url) as store,
        ):
            names = [f"c{n:02}" for n in range(20)]
            await store.counters(*names)
            await asyncio.gather(*(store.engine.write(add, name, 0) for name in names))
            # The two calls that go out at once have one request each, the third has half the rest.
            wire.cut("after execute", nth=3)
            answers = await asyncio.gather(
                *(store.engine.write(once, name, name) for name in names)
            )
            assert wire.cuts.is_set()
            assert 8 <= answers.count("replayed") <= 10
            assert set(answers) == {"done", "replayed"}
            assert [await store.value(name) for name in names] == [1] * 20
            assert [await store.entries(name) for name in names] == [1] * 20
            store.whole()

    run(main())


def test_a_read_only_server_is_said_so(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c")
            await store.sql.execute(READ_ONLY)
            engine = await open_engine(postgres_url)
            with pytest.raises(StoreReadOnly):
                await engine.write(add, "c")
            assert await engine.read(lambda: step("t.read", name="c")) == (False, [("c", 0)])
            await engine.close()

    run(main())


def test_an_exhausted_pool_is_busy(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url, pool_size=1, acquire_timeout=0.05) as store:
            sleeper = asyncio.ensure_future(store.engine.write(lambda: step("t.sleep", seconds=9)))
            pid = await store.running("pg_sleep")
            with pytest.raises(StoreBusy):
                await store.engine.read(lambda: step("t.read", name="c"))
            await store.sql.execute("SELECT pg_cancel_backend($1)", pid)
            with pytest.raises(StoreBusy):
                await sleeper
            store.whole()

    run(main())


# --- cancellation


@pytest.mark.parametrize("op", ["add", "one", "script"])
def test_cancelled_at_every_moment(postgres_url: str, op: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url, pool_size=3) as store:
            await store.counters("c")
            ops: dict[str, Callable[[], Op[Any]]] = {
                "add": lambda: add("c"),
                "one": lambda: one("c"),
                "script": lambda: step("t.script", name="c", entries=[]),
            }
            await store.engine.write(ops[op])
            done = 1
            finished = 0
            for ticks in range(60):
                task = asyncio.ensure_future(store.engine.write(ops[op]))
                for _ in range(ticks):
                    await asyncio.sleep(0)
                    if task.done():
                        break
                cancelled = task.cancel()
                try:
                    await task
                    finished += 1
                    done += 1
                except asyncio.CancelledError:
                    assert cancelled
                    # The outcome is known: what was begun is done, what was not is not.
                    done += ticks > 0
                assert await store.value("c") == done
                store.whole()
            assert finished < 60

    run(main())


def test_a_cancelled_operation_is_not_repeated(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engine_module._SETTINGS, "lock_timeout", "20ms")
    monkeypatch.setattr(engine_module, "RIVAL_DELAYS", (0.001,) * 1000)
    monkeypatch.setattr(engine_module, "ATTEMPTS", 1000)

    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("held")
            started = asyncio.get_running_loop().time()
            async with connected(postgres_url) as other, other.transaction():
                await other.execute("SELECT FROM holdfast.counter FOR UPDATE")
                for op in (add, one):
                    task = asyncio.ensure_future(store.engine.write(op, "held"))
                    await store.waiting()
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    store.whole()
            # Repeating goes on for much longer than that.
            assert asyncio.get_running_loop().time() - started < engine_module.PATIENCE_SECONDS / 2
            assert await store.value("held") == 0

    run(main())


def test_after_a_storm_of_cancellations_the_pool_is_whole(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url, pool_size=4) as store:
            await store.counters(*(f"c{n}" for n in range(50)))

            async def stormy(n: int) -> int:
                kept = 0
                for turn in range(20):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.0005 * ((n + turn) % 9)):
                            await store.engine.write(add, f"c{n}")
                            kept += 1
                return kept

            kept = await asyncio.gather(*(stormy(n) for n in range(50)))
            store.whole()
            for n in range(50):
                assert kept[n] <= (await store.value(f"c{n}") or 0) <= 20

    run(main())


# --- handles


def test_handles_know_where_they_belong(postgres_url: str) -> None:
    async def main() -> PostgresEngine:
        async with Opened(postgres_url) as store:
            await store.counters("c")

            def elsewhere(work: Callable[[], Awaitable[Any]]) -> BaseException | None:
                async def body() -> None:
                    await work()

                try:
                    asyncio.run(body())
                except Exception as failure:
                    return failure
                return None

            async def read() -> Any:
                return await store.engine.read(lambda: step("t.read", name="c"))

            assert isinstance(await asyncio.to_thread(elsewhere, read), WrongLoop)
            assert isinstance(await asyncio.to_thread(elsewhere, store.engine.close), WrongLoop)
            store.engine._pid += 1
            with pytest.raises(WrongProcess):
                await read()
            with pytest.raises(WrongProcess):
                await store.engine.close()
            store.engine._pid -= 1
            task = asyncio.ensure_future(store.engine.write(add, "c"))
            await asyncio.sleep(0)
            await store.engine.close()
            # Closing waited for what was under way.
            assert await task == (False, [(1, "c")])
            with pytest.raises(HandleClosed):
                await read()
            with pytest.raises(HandleClosed):
                store.engine.on(store.sql)
            await asyncio.gather(store.engine.close(), store.engine.close())
            left = await store.sql.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'holdfast%'"
            )
            assert left == 0
            return store.engine

    run(main())


def test_opening_never_tells_the_password(postgres_url: str) -> None:
    def failure(url: str) -> Exception:
        try:
            run(open_engine(url))
        except Exception as caught:
            text = f"{caught!r} {caught} {caught.__cause__!r}"
            assert "s3cret" not in text, text
            return caught
        raise AssertionError(url)

    host = postgres_url.partition("?")[2]
    assert isinstance(failure(f"postgresql://u:s3cret@/nowhere?{host}"), StoreUnreachable)
    assert isinstance(failure("postgresql://u:s3cret@127.0.0.1:1/x"), StoreUnreachable)
    assert isinstance(failure("postgresql://u:s3cret@127.0.0.1:s3cret/x"), Invalid)
    assert isinstance(failure("mysql://u:s3cret@127.0.0.1/x"), Invalid)
    with pytest.raises(Invalid):
        run(open_engine(postgres_url, schema='x"y'))


def test_pooler_mode_leaves_no_named_statement(postgres_url: str) -> None:
    async def main() -> None:
        listed = """t.listed
-- Lists the statements that the server keeps for this connection.
-- mode: read
-- returns: count, application
SELECT count(*) AS count, current_setting('application_name') AS application
FROM pg_prepared_statements WHERE name <> ''
"""
        blocks = {**BLOCKS, "t.listed": _block(listed)}
        async with Opened(postgres_url) as store:
            await store.counters("c")
            for pooler, kept in ((True, 0), (False, 1)):
                engine = await open_engine(postgres_url, blocks=blocks, pooler=pooler, pool_size=1)
                await engine.write(add, "c")
                _, rows = await engine.read(lambda: step("t.listed"))
                assert min(rows[0][0], 1) == kept
                await engine.close()

    run(main())


# --- the caller's own transaction


def test_on_a_connection_the_caller_commits(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c")
            mine = await asyncpg.connect(postgres_url)
            on = store.engine.on(mine)
            with pytest.raises(Invalid):
                await on.write(add, "c")
            async with mine.transaction():
                assert await on.write(add, "c", 1, [("e", b"x", 1)]) == (False, [(1, "c")])
                assert await on.read(lambda: step("t.read", name="c")) == (False, [("c", 1)])
                assert await on.write(add, "nobody") == (True, [(False, None)])
                # A guard that wrote before it refused has written nothing.
                assert await on.write(lambda: step("t.sly", name="c")) == (True, [(0,)])
                # A unique violation is a refusal here too, and spoils nothing.
                assert await on.write(add, "c", 1, [("e", b"x", 1)]) == (True, [(True, 1)])
                assert await store.value("c") == 0
            assert await store.value("c") == 1
            transaction = mine.transaction()
            await transaction.start()
            await on.write(lambda: step("t.script", name="c", entries=[("f", b"x")]))
            await transaction.rollback()
            assert (await store.value("c"), await store.entries("c")) == (1, 1)
            async with mine.transaction():
                for op in (
                    lambda: step("t.script", name="c", entries=[("g", "no bytes")]),
                    lambda: step("t.script", name="c", entries=[(None, b"x")]),
                ):
                    with pytest.raises(Invalid):
                        await on.write(op)
            assert (await store.value("c"), await store.entries("c")) == (1, 1)
            async with mine.transaction():
                await mine.execute("SET LOCAL lock_timeout = '20ms'")
                async with store.sql.transaction():
                    await store.sql.execute("SELECT FROM holdfast.counter FOR UPDATE")
                    with pytest.raises(StoreBusy):
                        await on.write(add, "c")
            mine.terminate()

    run(main())


# --- signals


def test_signals_reach_other_engines_and_survive_their_connection(postgres_url: str) -> None:
    async def main() -> None:
        async with Opened(postgres_url) as store, asyncio.timeout(10):
            other = await open_engine(postgres_url)
            local = store.engine.signals.subscribe("session s1")
            far = other.signals.subscribe("session s1")
            deaf = other.signals.subscribe("session s2")
            await asyncio.gather(
                store.engine.signals.listening.wait(), other.signals.listening.wait()
            )
            for subscription in (local, far, deaf):
                # The first connection wakes everybody once.
                assert await subscription.wait(0)
                assert not await subscription.wait(0)
            store.engine.signals.publish("session s1")
            assert await local.wait(0)
            assert await far.wait(5)
            assert not await deaf.wait(0)
            for n in range(2000):
                store.engine.signals.publish(f"session {n:0200}")
            store.engine.signals.publish("session s2")
            assert await deaf.wait(5)

            other.signals.listening.clear()
            await store.sql.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'holdfast signals'"
            )
            await other.signals.listening.wait()
            # What was said meanwhile may be lost, so everybody looks.
            assert await deaf.wait(5)
            assert await far.wait(5)
            store.engine.signals.publish("session s2")
            assert await deaf.wait(5)
            deaf.close()
            far.close()
            assert not other.signals._subscriptions
            await other.close()

    run(main())


# --- blocking callers


def test_blocking_callers_from_many_threads(postgres_url: str) -> None:
    async def tables() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c")

    run(tables())
    engine = open_blocking(postgres_url)
    errors: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for turn in range(25):
                assert engine.write(once, "c", f"{n}-{turn}") == "done"
        except BaseException as failure:
            errors.append(failure)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert engine.read(lambda: step("t.read", name="c")) == (False, [("c", 200)])
    engine.close()
    engine.close()
    with pytest.raises(HandleClosed):
        engine.read(lambda: step("t.read", name="c"))


def test_an_interrupted_blocking_caller_leaves_the_engine_healthy(postgres_url: str) -> None:
    async def tables() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c")

    run(tables())
    engine = open_blocking(postgres_url)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), 2))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        engine.write(lambda: step("t.sleep", seconds=0.4))
    assert engine.write(add, "c") == (False, [(1, "c")])
    engine.close()


def test_a_fork_is_refused(postgres_url: str) -> None:
    async def tables() -> None:
        async with Opened(postgres_url) as store:
            await store.counters("c")

    run(tables())
    engine = open_blocking(postgres_url)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            engine.write(add, "c")
        except WrongProcess:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert engine.write(add, "c") == (False, [(1, "c")])
    engine.close()


# --- compiling


def test_what_has_no_meaning_here_is_found_at_open() -> None:
    @dataclass
    class Case:
        text: str
        said: str

    head = "t.x\n-- Does something.\n-- mode: write\n-- children: nodes(node, n)\n"
    plain = "t.x\n-- Does something.\n-- mode: write\n-- children: nodes(node)\n"
    refused = "\n-- step: refused\nSELECT 1\n"
    for case in (
        Case(head + "SELECT 1\n", "counts"),
        Case(plain + "-- step: each nodes\nSELECT :nodes.node\n", "each"),
        Case(plain + "SELECT :nodes.kind\n", "no column"),
        Case(plain + "SELECT :edges.node\n", "no children"),
        Case(
            plain + "-- merged by: a\n-- step: guard\nSELECT 1\n-- step: plain\nSELECT 2" + refused,
            "one guard",
        ),
    ):
        with pytest.raises(CatalogError, match=case.said):
            compiled(_block(case.text), '"holdfast"')


# --- the schema


def test_sixteen_first_opens_at_once(postgres_url: str) -> None:
    async def main() -> None:
        engines = await asyncio.gather(
            *(open_engine(postgres_url, blocks=None, pool_size=1) for _ in range(16))
        )
        await asyncio.gather(*(engine.close() for engine in engines))
        async with connected(postgres_url) as connection:
            found = await postgres_schema.status(connection, "holdfast")
            assert found.found == found.expected > 0
            assert not found.pending
            assert not found.differences

    run(main())


def test_the_structure_does_not_depend_on_the_name_of_the_schema(postgres_url: str) -> None:
    async def main() -> None:
        async with connected(postgres_url) as connection:
            structures = []
            for schema in ("holdfast", "user", "session", "s"):
                async with connection.transaction():
                    text = postgres_schema.script(schema)
                    await connection.execute(text.replace("BEGIN;", "").replace("COMMIT;", ""))
                structures.append(await postgres_schema.structure(connection, schema))
            assert structures[0]
            assert all(structure == structures[0] for structure in structures)
            assert structures[0] == expected_structure("postgres")
            assert await connection.fetchval("SHOW search_path") == '"$user", public'

    run(main())


def test_what_drifted_is_named(postgres_url: str) -> None:
    async def main() -> None:
        async with connected(postgres_url) as connection:
            assert (await postgres_schema.status(connection, "holdfast")).found == 0
            with pytest.raises(SchemaOlder):
                await open_engine(postgres_url, blocks=None, migrate=False)
            assert (await postgres_schema.apply(connection, "holdfast")).differences == ()
            await connection.execute("ALTER TABLE holdfast.session ALTER title DROP NOT NULL")
            with pytest.raises(SchemaDrift, match=r"session\.title"):
                await open_engine(postgres_url, blocks=None)
            await connection.execute(
                "ALTER TABLE holdfast.session ALTER title SET NOT NULL;"
                "UPDATE holdfast.migration SET checksum = 'other' WHERE version = 1"
            )
            with pytest.raises(SchemaDrift, match="another text"):
                await open_engine(postgres_url, blocks=None)
            await connection.execute(
                "INSERT INTO holdfast.migration SELECT max(version) + 1, 'next', 'x', 99, 0"
                " FROM holdfast.migration"
            )
            with pytest.raises(SchemaNewer):
                await open_engine(postgres_url, blocks=None)

    run(main())


def test_a_server_that_forgets_is_refused(postgres_server: PostgresServer) -> None:
    settings = {"fsync": "off", "synchronous_commit": "off"}
    with PostgresServer(postgres_server.bindir, settings=settings) as server:
        with pytest.raises(NotSupported, match="fsync"):
            run(open_engine(server.url(), allow_unsafe=False))
        server.settings["fsync"] = "on"
        server.restart()
        with pytest.warns(RuntimeWarning, match="synchronous_commit"):
            engine = PostgresBlockingEngine.open(server.url(), blocks=BLOCKS)
        engine.close()


def test_script_of_the_schema_is_text() -> None:
    text = postgres_schema.script("other")
    assert '"other"' in text
    assert "{schema}" not in text


def test_a_foreign_schema_is_refused(postgres_url: str) -> None:
    async def main() -> None:
        async with connected(postgres_url) as connection:
            await connection.execute(
                "CREATE SCHEMA holdfast; CREATE TABLE holdfast.customers(id int)"
            )
            for call in (postgres_schema.status, postgres_schema.apply):
                with pytest.raises(ForeignDatabase, match="customers"):
                    await call(connection, "holdfast")
            await connection.execute("CREATE TABLE holdfast.migration(id int)")
            with pytest.raises(ForeignDatabase, match="customers, migration"):
                await postgres_schema.status(connection, "holdfast")

    run(main())
