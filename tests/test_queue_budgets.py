"""What queued work may cost: round trips, statements, and rows read whatever else is queued.

Costs are counted and never timed. On a server the counts of the tables and indexes are read inside
the transaction that ran the operation; on a file the steps of SQLite's machine are counted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

import holdfast
from holdfast.contract.queue import Claim, NewWork
from holdfast.contract.records import Fence, NewNode, Turn
from holdfast.stores import Store
from holdfast.testing.postgres_server import PostgresServer
from holdfast.testing.wire import WireProxy
from tests.backlogs import Row, fill_file, fill_server, now_ms, work_rows
from tests.test_budgets import Statements

SHORT, LONG, MANY, SESSIONS = 10, 100_000, 20_000, 20_000
LIMIT = 4
# How many rows more may be read where many wait: the pages of an index have one bound each.
SLACK = 8
# A deeper tree is a few blocks more for each time that a place is looked up in it.
DEEPER = 3
# No operation on so little work reads more rows than this, be they of tables or of indexes.
A_FEW = 250
BEHIND = ("claimed", "delayed", "dead", "done")

Cost = dict[str, tuple[int, int, int]]


class Bench:
    """One session with a backlog, and what the acts before have left for the next ones."""

    def __init__(self, store: Store, session: str, fence: Fence | None) -> None:
        self.store = store
        self.session = session
        self.fence = fence
        self.number = 0

    def name(self) -> str:
        """A name that was not used before."""
        self.number += 1
        return f"{self.session}-{os.getpid()}-{self.number}"

    def work(self, **fields: Any) -> NewWork:
        """New work that joins no other."""
        return NewWork(session=self.session, payloads=["new"], **fields)

    async def claimed(self, **options: Any) -> Claim:
        """A claim on the head of the inbox."""
        found = await self.store.queue.claim(
            self.session, "me", fence=self.fence, limit=LIMIT, **options
        )
        assert found.claim is not None, found.why_not
        return found.claim

    async def settle(self, claim: Claim) -> object:
        """The turn that settles a claim."""
        turn = Turn(
            session=self.session,
            turn=self.name(),
            nodes=[NewNode(body=1)],
            fence=self.fence,
            claims=[claim.settlement],
        )
        return await self.store.sessions.commit(turn)


# An act is prepared, and then done; only the second half is counted.
Act = Callable[[Bench, Any], Awaitable[object]]


async def nothing(bench: Bench) -> object:
    return None


async def keyed(bench: Bench) -> object:
    return (await bench.store.queue.enqueue(bench.work(key=bench.name()))).work.key


async def put(bench: Bench) -> object:
    return (await bench.store.queue.enqueue(bench.work())).work.work


async def taken(bench: Bench) -> Claim:
    return await bench.claimed()


async def head(bench: Bench) -> object:
    claim = await bench.claimed()
    await bench.store.queue.abandon(claim)
    return [work.work for work in claim.work]


async def given_back(bench: Bench, claim: Claim) -> None:
    assert await bench.store.queue.abandon(claim, error="why") == len(claim.work)


ACTS: dict[str, tuple[Callable[[Bench], Awaitable[Any]], Act]] = {
    "enqueue": (nothing, lambda b, _: b.store.queue.enqueue(b.work())),
    "enqueue with a key": (nothing, lambda b, _: b.store.queue.enqueue(b.work(key=b.name()))),
    "enqueue again": (keyed, lambda b, key: b.store.queue.enqueue(b.work(key=key))),
    "claim": (nothing, lambda b, _: b.claimed()),
    "claim these": (head, lambda b, works: b.claimed(works=works)),
    "abandon": (taken, given_back),
    "settle": (taken, lambda b, claim: b.settle(claim)),
    "why": (nothing, lambda b, _: b.store.queue.why(b.session)),
    "get": (put, lambda b, work: b.store.queue.get(b.session, work)),
    "cancel": (put, lambda b, work: b.store.queue.cancel(b.session, work)),
}


def inbox(state: str, many: int) -> list[str]:
    """The states of an inbox: so much in front, and ready work behind it."""
    return [state] * many + ["ready"] * SHORT


def rows_of_all(tenant: str) -> Iterator[Row]:
    """A short and a long inbox of each kind."""
    now = now_ms()
    for state in ("ready", *BEHIND):
        for length, many in (("short", 1), ("long", LONG if state == "ready" else MANY)):
            yield from work_rows(tenant, f"{state}-{length}", inbox(state, many), now=now)


async def prepare(store: Store) -> dict[str, Fence | None]:
    """The sessions of these inboxes. Where work is claimed it is so under a lane that is held."""
    fences: dict[str, Fence | None] = {}
    for state in ("ready", *BEHIND):
        for length in ("short", "long"):
            session = f"{state}-{length}"
            await store.sessions.create(session)
            fences[session] = None
            if state == "claimed":
                lane = await store.lanes.claim(session, "me", ttl_ms=3_600_000)
                fences[session] = lane.fence
    return fences


# --- PostgreSQL

Grown = tuple[str, dict[str, Fence | None]]


@pytest.fixture(scope="module", params=["analyzed", "no statistics"])
def grown(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[Grown]:
    """Long and short inboxes, and two tenants of few and of many sessions with work; the planner
    knows their sizes, or, as it is when they have just grown, nothing at all."""
    name = f"queue_{request.param.replace(' ', '_')}"
    url = postgres_server.create_database(name)
    yield url, asyncio.run(_grow(url, request.param == "analyzed"))
    postgres_server.drop_database(name)


async def _grow(url: str, analyzed: bool) -> dict[str, Fence | None]:
    async with await holdfast.open(url, tenant="a") as store:
        fences = await prepare(store)
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET search_path TO holdfast")
        for table in ("session", "work"):
            await connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        await fill_server(url, rows_of_all("a"))
        for tenant, many in (("few", SHORT), ("many", SESSIONS)):
            async with await holdfast.open(url, tenant=tenant) as store:
                await store.sessions.create("s0")
            columns = await connection.fetchval(
                "SELECT string_agg(column_name, ', ') FROM information_schema.columns WHERE"
                " table_schema = 'holdfast' AND table_name = 'session' AND is_generated = 'NEVER'"
                " AND column_name <> 'session'"
            )
            await connection.execute(
                f"INSERT INTO session (session, {columns}) SELECT 's' || g, {columns}"
                f" FROM session, generate_series(1, {many - 1}) g WHERE tenant = $1",
                tenant,
            )
            one = [r for n in range(many) for r in work_rows(tenant, f"s{n}", ["ready"], now=n + 1)]
            await fill_server(url, one)
        if analyzed:
            await connection.execute("ANALYZE session, work")
    finally:
        await connection.close()
    return fences


COUNTS = (
    "SELECT c.relname AS name, pg_stat_get_xact_numscans(c.oid) AS scans,"
    " pg_stat_get_xact_tuples_returned(c.oid) AS rows,"
    " pg_stat_get_xact_blocks_fetched(c.oid) AS blocks"
    " FROM pg_class c WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind IN ('r', 'i')"
)
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'"


async def counted(connection: Any) -> Cost:
    """How often each table was read whole and each index searched, rows found, blocks touched."""
    return {
        row["name"]: (row["scans"], row["rows"], row["blocks"])
        for row in await connection.fetch(COUNTS)
    }


@asynccontextmanager
async def undone(url: str, tenant: str) -> AsyncIterator[tuple[Any, Store]]:
    """A store inside a transaction that leaves nothing behind."""
    connection = await asyncpg.connect(url)
    try:
        async with (
            await holdfast.open(url, tenant=tenant, pool_size=1) as store,
            rolled_back(connection),
        ):
            yield connection, store.on(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def rolled_back(connection: Any) -> AsyncIterator[None]:
    """A transaction that is taken back."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield
    finally:
        await transaction.rollback()


async def cost(connection: Any, act: Callable[[], Awaitable[object]]) -> Cost:
    """What an act costs on the server, and where."""
    before = await counted(connection)
    await act()
    after = await counted(connection)
    found = {
        name: (now[0] - before[name][0], now[1] - before[name][1], now[2] - before[name][2])
        for name, now in after.items()
        if now != before[name]
    }
    tables = {row["tablename"] for row in await connection.fetch(TABLES)}
    whole = {name for name, (scans, _, _) in found.items() if name in tables and scans}
    assert not whole, f"read whole: {whole}"
    return found


def compare(what: str, short: Cost, long: Cost) -> None:
    """The long one reads the same rows of the same indexes."""
    told = f"{what}:\n  short {short}\n  long  {long}"
    assert {n for n, c in long.items() if c[0]} == {n for n, c in short.items() if c[0]}, told
    searched = sum(scans for scans, _, _ in long.values())
    assert sum(c[1] for c in long.values()) <= sum(c[1] for c in short.values()) + SLACK, told
    allowed = sum(c[2] for c in short.values()) + searched * DEEPER + SLACK
    assert sum(c[2] for c in long.values()) <= allowed, told


@pytest.mark.parametrize("name", ACTS)
async def test_claims_do_not_grow_with_the_backlog(grown: Grown, name: str) -> None:
    url, fences = grown
    first, act = ACTS[name]
    for state in ("ready", *BEHIND):
        costs: list[Cost] = []
        for length in ("short", "long"):
            session = f"{state}-{length}"
            async with undone(url, "a") as (connection, store):
                bench = Bench(store, session, fences[session])
                prepared = await first(bench)
                costs.append(await cost(connection, lambda: act(bench, prepared)))  # noqa: B023
        compare(f"{name} behind what is {state}", *costs)


async def test_plans_that_were_made_on_an_empty_queue_hold_when_it_has_grown(
    postgres_url: str,
) -> None:
    """A connection keeps its plans until somebody counts the rows anew, which may take a while."""
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute("SET plan_cache_mode = force_generic_plan")
        async with await holdfast.open(postgres_url, tenant="a") as store:
            fences = await prepare(store)
            for table in ("session", "work"):
                await connection.execute(
                    f"ALTER TABLE holdfast.{table} SET (autovacuum_enabled = off)"
                )
            inside = store.on(connection)
            for first, act in ACTS.values():
                async with rolled_back(connection):
                    bench = Bench(inside, "ready-short", None)
                    for _ in range(LIMIT * 2):
                        await put(bench)
                    await act(bench, await first(bench))
            await fill_server(postgres_url, rows_of_all("a"))
            for name, (first, act) in ACTS.items():
                for state in ("ready", *BEHIND):
                    session = f"{state}-long"
                    async with rolled_back(connection):
                        bench = Bench(inside, session, fences[session])
                        prepared = await first(bench)
                        found = await cost(connection, lambda: act(bench, prepared))  # noqa: B023
                    rows = sum(c[1] for c in found.values())
                    assert rows < A_FEW, f"{name} behind what is {state}: {found}"
    finally:
        await connection.close()


async def test_the_next_session_is_found_among_many_at_the_same_cost(grown: Grown) -> None:
    url, _ = grown
    costs: list[Cost] = []
    for tenant in ("few", "many"):
        async with undone(url, tenant) as (connection, store):

            async def next_one(store: Store = store) -> None:
                found = await store.queue.claim_next("me", limit=LIMIT)
                assert found.claim is not None
                assert found.claim.session == "s0"

            costs.append(await cost(connection, next_one))
            assert costs[-1]["session_due"][0] >= 1
    compare("claim_next", *costs)


async def test_the_indexes_that_claims_are_named_for_are_used(grown: Grown) -> None:
    url, _ = grown
    async with undone(url, "a") as (connection, store):
        bench = Bench(store, "ready-long", None)
        assert "work_ready" in await cost(connection, bench.claimed)
        keyed_work = bench.work(key="a-key")
        found = await cost(connection, lambda: store.queue.enqueue(keyed_work))
        assert "work_key" in found
        assert "work_ready" in await cost(connection, lambda: store.queue.why("ready-long"))


async def test_an_idle_checkpoint_writes_nothing(grown: Grown) -> None:
    """A claim that finds nothing takes no lock and no transaction id, so it cannot have written,
    and it is one round trip."""
    url, _ = grown
    async with (
        WireProxy(url) as wire,
        await holdfast.open(wire.url, tenant="idle", pool_size=1) as store,
    ):
        await store.sessions.create("never")
        await store.sessions.create("done")
        await store.queue.enqueue(NewWork(session="done", key="k", payloads=[1]))
        claim = (await store.queue.claim("done", "me")).claim
        assert claim is not None
        turn = Turn(session="done", nodes=[NewNode(body=1)], claims=[claim.settlement])
        await store.sessions.commit(turn)
        await store.sessions.create("later")
        await store.queue.enqueue(NewWork(session="later", delay_ms=3_600_000, payloads=[1]))
        for session, why in (
            ("never", "empty"),
            ("done", "empty"),
            ("later", "not-yet-available"),
        ):
            fence = (await store.lanes.claim(session, "me")).fence
            for _ in range(3):
                before = wire.round_trips
                found = await store.queue.claim(session, "me", fence=fence, boundary="checkpoint")
                spent = wire.round_trips - before
                assert found.why_not == why
            assert spent == 1
            async with undone(url, "idle") as (connection, inside):
                found = await inside.queue.claim(session, "me", fence=fence, boundary="checkpoint")
                assert found.why_not == why
                sql = "SELECT pg_current_xact_id_if_assigned()::text"
                assert await connection.fetchval(sql) is None


ROUND_TRIPS: dict[str, tuple[int, Callable[[Bench], Awaitable[Any]], Act]] = {
    **{name: (1, first, act) for name, (first, act) in ACTS.items()},
    # The key is taken: what has it is looked for by its id, which a retry has, and by its key.
    "enqueue again": (3, *ACTS["enqueue again"]),
    # What is removed is read before, so that damage is told and not removed.
    "cancel": (2, *ACTS["cancel"]),
    "renew": (1, taken, lambda b, claim: b.store.queue.renew(claim)),
    "claim_next": (1, nothing, lambda b, _: b.store.queue.claim_next("me", lane_ttl_ms=0)),
    "counts": (1, nothing, lambda b, _: b.store.queue.counts(session=b.session)),
    "list": (1, nothing, lambda b, _: b.store.queue.list(b.session, limit=5)),
    "prune": (1, nothing, lambda b, _: b.store.queue.prune()),
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
async def test_round_trips_of_the_queue(postgres_url: str, name: str) -> None:
    budget, first, act = ROUND_TRIPS[name]
    async with (
        WireProxy(postgres_url) as wire,
        await holdfast.open(wire.url, pool_size=1) as store,
    ):
        await store.sessions.create("s")
        for _ in range(60):
            await store.queue.enqueue(NewWork(session="s", payloads=["body"]))
        bench = Bench(store, "s", None)
        spent: list[int] = []
        for _ in range(6):
            prepared = await first(bench)
            before = wire.round_trips
            await act(bench, prepared)
            spent.append(wire.round_trips - before)
        # The first ones may prepare a statement.
        assert spent[2:] == [budget] * 4


# --- SQLite


async def test_claims_on_a_file_do_not_grow_with_the_backlog(sqlite_path: Path) -> None:
    async with await holdfast.open(str(sqlite_path), tenant="a") as store:
        fences = await prepare(store)
    fill_file(sqlite_path, rows_of_all("a"))
    with Statements() as statements:
        async with await holdfast.open(str(sqlite_path), tenant="a", readers=1) as store:
            # The connection that reads makes itself ready first.
            await store.queue.why("ready-short")
            for name, (first, act) in ACTS.items():
                for state in ("ready", *BEHIND):
                    costs: dict[str, tuple[int, int]] = {}
                    for length in ("short", "long"):
                        session = f"{state}-{length}"
                        bench = Bench(store, session, fences[session])
                        bench.number = len(statements.texts)
                        prepared = await first(bench)
                        statements.clear()
                        held = await act(bench, prepared)
                        costs[length] = len(statements.texts), statements.steps
                        assert statements.whole_rows == 0, name
                        if isinstance(held, Claim):
                            await store.queue.abandon(held)
                    what = f"{name} behind what is {state}: {costs}"
                    assert costs["long"][0] == costs["short"][0], what
                    assert costs["long"][1] <= costs["short"][1] * 1.1 + 20, what


async def test_the_next_session_on_a_file_is_found_among_many_at_the_same_cost(
    sqlite_path: Path,
) -> None:
    for tenant in ("few", "many"):
        async with await holdfast.open(str(sqlite_path), tenant=tenant) as store:
            await store.sessions.create("s0")
    file = apsw.Connection(str(sqlite_path))
    columns = ", ".join(
        row[0]
        for row in file.execute("SELECT name FROM pragma_table_info('session')")
        if row[0] != "session"
    )
    for tenant, many in (("few", SHORT), ("many", SESSIONS)):
        file.execute(
            "WITH RECURSIVE g(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < ?)"
            f" INSERT INTO session (session, {columns}) SELECT 's' || n, {columns} FROM session, g"
            " WHERE tenant = ? AND session = 's0'",
            (many - 1, tenant),
        )
    file.close()
    for tenant, many in (("few", SHORT), ("many", SESSIONS)):
        # Half of them became due in the same moment.
        fill_file(
            sqlite_path,
            [
                row
                for n in range(many)
                for row in work_rows(tenant, f"s{n}", ["ready"], now=max(n + 1, many // 2))
            ],
        )
    with Statements() as statements:
        costs: dict[str, list[tuple[int, int]]] = {}
        for tenant in ("few", "many"):
            async with await holdfast.open(str(sqlite_path), tenant=tenant, readers=1) as store:
                for held in range(SHORT):
                    statements.clear()
                    found = await store.queue.claim_next("me", limit=LIMIT)
                    assert found.claim is not None
                    spent = len(statements.texts), statements.steps
                    costs.setdefault(tenant, []).append(spent)
                    if held % 2:
                        # A lane that is renewed is in front again, and is passed over.
                        assert found.lane is not None
                        await store.lanes.renew(found.lane.fence)
    for few, many_of_them in zip(costs["few"], costs["many"], strict=True):
        assert many_of_them[0] == few[0], costs
        assert many_of_them[1] <= few[1] * 1.1 + 20, costs


async def test_an_idle_checkpoint_leaves_a_file_alone(sqlite_path: Path) -> None:
    """No page of it is written: the log does not grow, and others see the same version."""
    async with await holdfast.open(str(sqlite_path)) as store:
        await store.sessions.create("never")
        await store.sessions.create("later")
        await store.queue.enqueue(NewWork(session="later", delay_ms=3_600_000, payloads=[1]))
        for session, why in (("never", "empty"), ("later", "not-yet-available")):
            fence = (await store.lanes.claim(session, "me")).fence
            other = apsw.Connection(str(sqlite_path))
            try:
                before = other.pragma("data_version"), os.stat(f"{sqlite_path}-wal").st_size
                with Statements() as statements:
                    found = await store.queue.claim(
                        session, "me", fence=fence, boundary="checkpoint"
                    )
                after = other.pragma("data_version"), os.stat(f"{sqlite_path}-wal").st_size
            finally:
                other.close()
            assert found.why_not == why
            assert after == before
            assert statements.whole_rows == 0


# --- a hundred thousand in front


async def check_head(store: Store, fence: Fence | None) -> None:
    """Of a hundred thousand rows the claim takes exactly the first ones, in their order."""
    found = await store.queue.claim("ready-long", "me", fence=fence, limit=3)
    assert found.claim is not None
    assert [work.work for work in found.claim.work] == ["w1", "w2", "w3"]
    again = await store.queue.claim("ready-long", "me", fence=fence, limit=2)
    assert again.claim is not None
    assert [work.work for work in again.claim.work] == ["w4", "w5"]
    assert await store.queue.abandon(found.claim) == 3
    first = await store.queue.claim("ready-long", "me", fence=fence, limit=1)
    assert first.claim is not None
    assert [work.work for work in first.claim.work] == ["w1"]
    counts = await store.queue.counts(session="ready-long")
    assert (counts.ready, counts.claimed) == (LONG + SHORT - 3, 3)


async def test_a_claim_on_a_hundred_thousand_takes_exactly_the_head(grown: Grown) -> None:
    url, fences = grown
    async with undone(url, "a") as (_, store):
        await check_head(store, fences["ready-long"])


async def test_a_claim_on_a_hundred_thousand_of_a_file_takes_exactly_the_head(
    sqlite_path: Path,
) -> None:
    async with await holdfast.open(str(sqlite_path), tenant="a") as store:
        await store.sessions.create("ready-long")
    now = now_ms()
    fill_file(sqlite_path, work_rows("a", "ready-long", inbox("ready", LONG), now=now))
    async with await holdfast.open(str(sqlite_path), tenant="a") as store:
        await check_head(store, None)
