"""What the operations on schedules may cost: round trips, and rows read whatever else there is.

Costs are counted and never timed. A tick looks once, and writes once for each schedule that it
decides; for one that somebody has subscribed to it looks once more. How many instants fire at once,
how many are subscribed, and how many schedules are not due is of no matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import apsw
import asyncpg
import pytest

import holdfast
from holdfast import Every, NewSchedule, NewSubscription, Store
from holdfast.testing.postgres_server import PostgresServer
from holdfast.testing.wire import WireProxy
from tests.backlogs import now_ms
from tests.test_budgets import Statements
from tests.test_queue_budgets import Cost, compare, cost, undone

HOUR = 3_600_000
FEW, MANY = 10, 20_000
NEVER = 9_000_000_000_000

EVERY = Every(interval_ms=HOUR)


async def behind(store: Store, name: str, hours: int, **given: int) -> None:
    """A schedule with so many instants that have come, of which the last is on time."""
    first = now_ms() - (hours - 1) * HOUR
    timing = Every(interval_ms=HOUR, anchor_ms=first)
    await store.schedules.register(
        NewSchedule(schedule=name, timing=timing, missed="all", start_ms=first, **given)
    )


async def subscribe(store: Store, name: str, count: int) -> None:
    for nth in range(count):
        await store.triggers.register(
            NewSubscription(key=f"{name}-{nth}", source_type="schedule", source_key=name)
        )


# --- round trips


@pytest.mark.parametrize(
    ("schedules", "instants", "subscribed", "budget"),
    [
        (0, 0, 0, 1),
        (1, 1, 0, 2),
        (1, 60, 0, 2),
        (7, 3, 0, 8),
        (1, 1, 1, 3),
        (1, 20, 30, 3),
        (7, 2, 2, 15),
    ],
)
async def test_round_trips_of_a_tick(
    postgres_url: str, schedules: int, instants: int, subscribed: int, budget: int
) -> None:
    """One to look; one for each schedule that is decided, and one more when it is subscribed to."""
    async with (
        WireProxy(postgres_url) as wire,
        await holdfast.open(wire.url, pool_size=1) as store,
    ):
        spent: list[int] = []
        for nth in range(6):
            for n in range(schedules):
                await subscribe(store, f"s{nth}-{n}", subscribed)
                await behind(store, f"s{nth}-{n}", instants)
            before = wire.round_trips
            ticked = await store.schedules.tick(limit=1000)
            spent.append(wire.round_trips - before)
            assert len(ticked.fired) == schedules * instants
        # The first ones may prepare a statement.
        assert spent[3:] == [budget] * 3


async def test_what_is_skipped_asks_for_no_subscription(postgres_url: str) -> None:
    """A schedule of which nothing fires is one look and one write, whoever has subscribed."""
    async with (
        WireProxy(postgres_url) as wire,
        await holdfast.open(wire.url, pool_size=1) as store,
    ):
        spent: list[int] = []
        for nth in range(6):
            await subscribe(store, f"s{nth}", 2)
            first = now_ms() - 10 * HOUR
            timing = Every(interval_ms=HOUR, anchor_ms=first - HOUR // 2)
            new = NewSchedule(schedule=f"s{nth}", timing=timing, missed="skip", start_ms=first)
            await store.schedules.register(new)
            before = wire.round_trips
            ticked = await store.schedules.tick()
            spent.append(wire.round_trips - before)
            assert (len(ticked.fired), len(ticked.skipped)) == (0, 1)
        assert spent[3:] == [2] * 3


Act = Callable[[Store, int], Awaitable[object]]
ROUND_TRIPS: dict[str, tuple[int, Act]] = {
    # To look, and to write what is another one then.
    "register": (2, lambda s, n: s.schedules.register(NewSchedule(schedule=f"n{n}", timing=EVERY))),
    "register again": (
        1,
        lambda s, n: s.schedules.register(NewSchedule(schedule="same", timing=EVERY)),
    ),
    "replace": (
        2,
        lambda s, n: s.schedules.register(
            NewSchedule(schedule="other", timing=EVERY, payload=n), expected=n + 1
        ),
    ),
    "pause": (2, lambda s, n: s.schedules.pause(f"p{n}")),
    "resume": (2, lambda s, n: s.schedules.resume(f"r{n}")),
    "resume again": (1, lambda s, n: s.schedules.resume("same")),
    "run now": (3, lambda s, n: s.schedules.run_now("same", f"request-{n}")),
    # A transaction of two statements.
    "delete": (4, lambda s, n: s.schedules.delete(f"p{n}")),
    "get": (1, lambda s, n: s.schedules.get("same")),
    "list": (1, lambda s, n: s.schedules.list()),
    "next": (1, lambda s, n: s.schedules.next("same")),
    "skipped": (1, lambda s, n: s.schedules.skipped("skipped")),
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
async def test_round_trips_by_hand(postgres_url: str, name: str) -> None:
    budget, act = ROUND_TRIPS[name]
    async with (
        WireProxy(postgres_url) as wire,
        await holdfast.open(wire.url, pool_size=1) as store,
    ):
        for named in ("same", "other", *(f"{kind}{n}" for kind in "pr" for n in range(6))):
            new = NewSchedule(schedule=named, timing=EVERY, payload=-1)
            if named == "same":
                new = NewSchedule(schedule=named, timing=EVERY)
            await store.schedules.register(new)
            if named.startswith("r"):
                await store.schedules.pause(named)
        await behind(store, "skipped", 5, cap=1)
        await store.schedules.tick()
        await subscribe(store, "same", 3)
        spent: list[int] = []
        for nth in range(6):
            before = wire.round_trips
            await act(store, nth)
            spent.append(wire.round_trips - before)
        assert spent[3:] == [budget] * 3


# --- among many others


async def _others(url: str, tenant: str, many: int) -> None:
    """So many schedules of a tenant that are not due, of which one was registered."""
    async with await holdfast.open(url, tenant=tenant) as store:
        await store.schedules.register(NewSchedule(schedule="other", timing=EVERY, start_ms=NEVER))
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET search_path TO holdfast")
        columns = await connection.fetchval(
            "SELECT string_agg(column_name, ', ') FROM information_schema.columns WHERE"
            " table_schema = 'holdfast' AND table_name = 'schedule' AND column_name <> 'schedule'"
        )
        await connection.execute(
            f"INSERT INTO schedule (schedule, {columns}) SELECT 'other' || g, {columns}"
            f" FROM schedule, generate_series(1, {many}) g WHERE tenant = $1",
            tenant,
        )
        await connection.execute(
            "INSERT INTO schedule_skip (tenant, schedule, first_ms, last_ms, count, reason, at_ms)"
            f" SELECT $1, 'other', g, g, 1, 'missed', g FROM generate_series(1, {many}) g",
            tenant,
        )
    finally:
        await connection.close()


@pytest.fixture(scope="module", params=["analyzed", "no statistics"])
def grown(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[str]:
    """A tenant of few schedules, and one of many; the planner knows how many, or nothing at all."""
    name = f"schedules_{request.param.replace(' ', '_')}"
    url = postgres_server.create_database(name)
    asyncio.run(_grow(url, request.param == "analyzed"))
    yield url
    postgres_server.drop_database(name)


async def _grow(url: str, analyzed: bool) -> None:
    for tenant, many in (("few", FEW), ("many", MANY)):
        await _others(url, tenant, many)
    connection = await asyncpg.connect(url)
    try:
        if analyzed:
            await connection.execute("ANALYZE holdfast.schedule, holdfast.schedule_skip")
    finally:
        await connection.close()


async def prepare(store: Store) -> None:
    """What the acts are about: a schedule that is due, and is subscribed to."""
    await behind(store, "s", 5)
    await subscribe(store, "s", 2)


ACTS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "tick": lambda store: store.schedules.tick(),
    "get": lambda store: store.schedules.get("s"),
    "list": lambda store: store.schedules.list(after="r", limit=3),
    "next": lambda store: store.schedules.next("s"),
    "skipped": lambda store: store.schedules.skipped("other", limit=3),
    "pause": lambda store: store.schedules.pause("s"),
    "run now": lambda store: store.schedules.run_now("s", "r"),
}
INDEXES = {"tick": "schedule_due", "list": "schedule_pkey", "skipped": "schedule_skip_pkey"}


@pytest.mark.parametrize("name", ACTS)
async def test_what_is_not_due_costs_nothing(grown: str, name: str) -> None:
    """The same rows of the same indexes are read, whatever else is scheduled."""
    costs: list[Cost] = []
    for tenant in ("few", "many"):
        async with undone(grown, tenant) as (connection, store):
            await prepare(store)
            costs.append(await cost(connection, lambda: ACTS[name](store)))
            assert INDEXES.get(name, "schedule_pkey") in costs[-1]
    compare(name, *costs)


async def test_what_is_not_due_costs_nothing_on_a_file(sqlite_path: Path) -> None:
    """No table is read whole, and the machine takes the same steps."""
    for tenant, many in (("few", FEW), ("many", MANY)):
        async with await holdfast.open(str(sqlite_path), tenant=tenant) as store:
            await store.schedules.register(
                NewSchedule(schedule="other", timing=EVERY, start_ms=NEVER)
            )
        file = apsw.Connection(str(sqlite_path))
        columns = file.execute(
            "SELECT group_concat(name, ', ') FROM pragma_table_info('schedule')"
            " WHERE name <> 'schedule'"
        ).get
        numbers = f"WITH RECURSIVE n(g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM n LIMIT {many})"
        with file:
            file.execute(
                f"{numbers} INSERT INTO schedule (schedule, {columns})"
                f" SELECT 'other' || g, {columns} FROM schedule, n WHERE tenant = ?",
                (tenant,),
            )
            file.execute(
                f"{numbers} INSERT INTO schedule_skip"
                " SELECT ?, 'other', g, g, 1, 'missed', g FROM n",
                (tenant,),
            )
        file.close()
    spent: dict[str, list[int]] = {}
    with Statements() as statements:
        for tenant in ("few", "many"):
            async with await holdfast.open(str(sqlite_path), tenant=tenant, readers=1) as store:
                await prepare(store)
                for name, act in ACTS.items():
                    statements.clear()
                    await act(store)
                    # What a statement has made for itself is read whole: a row, or a page.
                    assert statements.whole_rows <= 4, (name, statements.whole_rows)
                    spent.setdefault(name, []).append(statements.steps)
    for name, (few, many_steps) in spent.items():
        assert many_steps <= few * 1.1 + 20, f"{name}: {spent}"
