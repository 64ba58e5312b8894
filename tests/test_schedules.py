"""Schedules in a store, looked at from behind: clocks that leap, rows that are damaged, rivals that
come between looking and deciding, and steps that fail.

Expected values are written by hand; what must hold whatever happens is that no instant is lost or
doubled.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast import Corrupt, Cron, Every, Limits, NewSchedule, Store, Ticked, Timing, Unavailable
from holdfast.core import cron
from holdfast.core import schedule_changes as changes
from holdfast.core import schedule_firing as firing
from holdfast.core import schedules as core
from holdfast.core.schedule_changes import BEFORE_ALL, Seen
from holdfast.ops import schedules as ops
from holdfast.ops.op import Op, Step, call
from holdfast.testing.faults import Place, Plan, wrap
from holdfast.testing.machine_world import Ticker

if TYPE_CHECKING:
    from tests.conftest import Database

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
TEN_YEARS = 3652 * DAY
# 2025-01-01T00:00Z
NEW_YEAR = 1_735_689_600_000


def at(hour: float) -> int:
    """So many hours after New Year."""
    return NEW_YEAR + int(hour * HOUR)


@contextlib.asynccontextmanager
async def on_a_clock(database: Database, clock: Ticker) -> AsyncIterator[Store]:
    """A handle that goes by a clock of its own."""
    async with database.open(clock=clock) as store:
        yield store


def fired(*ticks: Ticked) -> list[int]:
    """The instants that fired, in the order of their ticks."""
    return [each.instant_ms for tick in ticks for each in tick.fired]


async def outcome(store: Store, schedule: str, timing: Timing) -> list[int]:
    """The instants that the stretches of a schedule hold, which are as many as they say."""
    page = await store.schedules.skipped(schedule, limit=1000)
    assert page.next is None
    found: list[int] = []
    for skip in page.items:
        inside = list(core.instants(timing, skip.first_ms - 1, skip.last_ms))
        assert len(inside) == skip.count
        found += inside
    return found


# --- clocks


@pytest.mark.parametrize(
    "timing",
    [
        Every(interval_ms=90 * MINUTE),
        # Over the night in which the clocks go on.
        Cron(expression="30 1,2,3 * * *", zone="Europe/Berlin"),
    ],
    ids=["every", "cron"],
)
async def test_the_next_instants_are_those_that_fire(
    sqlite_database: Database, timing: Timing
) -> None:
    """Each of them fires when it has come, and nothing before it."""
    # 2025-03-29T00:00Z
    clock = Ticker(1_743_206_400_000)
    async with on_a_clock(sqlite_database, clock) as store:
        await store.schedules.register(NewSchedule(schedule="s", timing=timing))
        promised = await store.schedules.next("s", limit=8)
        assert len(promised) == 8
        for instant in promised:
            clock.now_ms = instant - 1
            before = await store.schedules.tick()
            assert (before.fired, before.skipped, before.next_at_ms) == ((), (), instant)
            clock.now_ms = instant
            assert fired(await store.schedules.tick()) == [instant]


LEAPS = [HOUR, -HOUR, TEN_YEARS, -TEN_YEARS]


@pytest.mark.parametrize("leap", LEAPS, ids=["+1h", "-1h", "+10y", "-10y"])
async def test_a_clock_that_leaps_between_workers(sqlite_database: Database, leap: int) -> None:
    """Two workers, one of which is wrong about the time, come to each instant once."""
    right, wrong = Ticker(at(0)), Ticker(at(0))
    timing = Every(interval_ms=HOUR)
    database = sqlite_database
    async with on_a_clock(database, right) as one, on_a_clock(database, wrong) as two:
        new = NewSchedule(schedule="s", timing=timing, missed="all", cap=2)
        await one.schedules.register(new)
        ticks: list[Ticked] = []
        for hour in (1, 2, 3, 4, 5, 6):
            right.now_ms = at(hour)
            wrong.now_ms = at(hour) + (leap if hour in (3, 4) else 0)
            ticks += [await two.schedules.tick(), await one.schedules.tick()]
        everything = fired(*ticks)
        skipped = await outcome(one, "s", timing)
        last = max(at(6), at(4) + leap)
        wanted = [at(n) for n in range(1, (last - NEW_YEAR) // HOUR + 1)]
        assert sorted(everything + skipped) == wanted
        if leap in (HOUR, -HOUR, -TEN_YEARS):
            assert skipped == []
        else:
            # At the third hour it was ten years on: the cap has left two, besides the one on time.
            gone = (at(3) + TEN_YEARS - NEW_YEAR) // HOUR
            assert skipped == [at(n) for n in range(3, gone - 2)]
            assert everything[2:6] == [at(n) for n in range(gone - 2, gone + 2)]
        found = await one.schedules.get("s")
        assert found is not None
        assert (found.fired, found.skipped) == (len(everything), len(skipped))


@pytest.mark.parametrize("leap", LEAPS, ids=["+1h", "-1h", "+10y", "-10y"])
async def test_a_server_goes_by_its_own_clock(
    postgres_database: Database, leap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose machine is wrong about the time fires what has come for the server."""
    async with postgres_database.open() as store:
        first = await register(store, "s")
        right, right_ns = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: right() + leap / 1000)
        monkeypatch.setattr(time, "time_ns", lambda: right_ns() + leap * 1_000_000)
        ticked = await store.schedules.tick()
        assert fired(ticked) == [first + n * HOUR for n in range(4)]
        assert (ticked.next_at_ms, ticked.skipped) == (first + 4 * HOUR, ())
        assert 0 <= ticked.fired[-1].late_ms < MINUTE


async def test_a_clock_that_went_back_resumes_nothing_twice(sqlite_database: Database) -> None:
    """Paused and resumed a year ago, a schedule goes on where it was."""
    clock = Ticker(at(0))
    async with on_a_clock(sqlite_database, clock) as store:
        await store.schedules.register(NewSchedule(schedule="s", timing=Every(interval_ms=HOUR)))
        clock.now_ms = at(5)
        assert fired(await store.schedules.tick()) == [at(5)]
        clock.now_ms = at(5) - 365 * DAY
        await store.schedules.pause("s")
        resumed = await store.schedules.resume("s")
        assert (resumed.decided_ms, resumed.next_at_ms) == (at(5), at(6))
        assert fired(await store.schedules.tick()) == []
        clock.now_ms = at(6)
        assert fired(await store.schedules.tick()) == [at(6)]


async def test_pauses_are_stretches_in_pages(sqlite_database: Database) -> None:
    """Each time is told by itself, in order."""
    clock = Ticker(at(0))
    async with on_a_clock(sqlite_database, clock) as store:
        await store.schedules.register(NewSchedule(schedule="s", timing=Every(interval_ms=HOUR)))
        for n in range(4):
            clock.now_ms = at(10 * n + 2.5)
            await store.schedules.tick()
            await store.schedules.pause("s")
            clock.now_ms = at(10 * n + 5.5)
            await store.schedules.resume("s")
        told: list[tuple[int, int, int, str, int]] = []
        after = None
        while True:
            page = await store.schedules.skipped("s", after=after, limit=2)
            told += [
                (each.first_ms, each.last_ms, each.count, each.reason, each.at_ms)
                for each in page.items
            ]
            after = page.next
            if after is None:
                break
        wanted: list[tuple[int, int, int, str, int]] = []
        for n in range(4):
            begun = 10 * n
            if n == 0:
                wanted.append((at(1), at(1), 1, "missed", at(2.5)))
            else:
                wanted.append((at(begun - 4), at(begun + 1), 6, "missed", at(begun + 2.5)))
            wanted.append((at(begun + 3), at(begun + 5), 3, "paused", at(begun + 5.5)))
        assert told == wanted


# --- what cannot be decided


async def register(store: Store, name: str, *, hours: int = 3, **given: Any) -> int:
    """A schedule of every hour that begins so many hours ago, by the store's clock, and makes up
    for what it missed; its first instant. The last one has just come."""
    probe = await store.schedules.register(
        NewSchedule(schedule="probe", timing=Every(interval_ms=HOUR))
    )
    await store.schedules.delete("probe")
    first = probe.schedule.created_at_ms - hours * HOUR
    timing = Every(interval_ms=HOUR, anchor_ms=first)
    wanted: dict[str, Any] = {"missed": "all", "timing": timing, "start_ms": first, **given}
    await store.schedules.register(NewSchedule(schedule=name, **wanted))
    return first


async def test_a_damaged_schedule_is_stuck_and_holds_up_no_other(database: Database) -> None:
    """Even when all that are due before it are damaged, and a tick does one instant only."""
    async with database.open() as store:
        for n in range(5):
            await register(store, f"bad{n}", hours=9)
        first = await register(store, "good", hours=1)
        await database.run("UPDATE schedule SET payload = $1 WHERE schedule <> 'good'", b'"x"')
        for n in range(2):
            ticked = await store.schedules.tick(limit=1)
            assert fired(ticked) == [first + n * HOUR]
            assert [(each.schedule, each.code) for each in ticked.stuck] == [
                (f"bad{n}", "corrupt") for n in range(5)
            ]
            assert "its digest does not match" in ticked.stuck[0].reason
        last = await store.schedules.tick(limit=1)
        assert (last.fired, len(last.stuck), last.more) == ((), 5, False)
        assert last.next_at_ms == first + 2 * HOUR
        for ask in (store.schedules.get, store.schedules.pause, store.schedules.next):
            with pytest.raises(Corrupt) as damaged:
                await ask("bad0")
            assert (damaged.value.table, damaged.value.key) == ("schedule", "bad0")
        assert await store.schedules.delete("bad0") is True


@pytest.mark.parametrize(
    "change",
    [
        "timing = $1",
        "missed = 'skip'",
        "cap = 7",
        "grace_ms = 7",
        "start_ms = NULL",
        "until_ms = 7",
        "digest = $1",
    ],
    ids=lambda change: change.split()[0],
)
async def test_each_part_of_a_definition_is_proved(database: Database, change: str) -> None:
    """Nothing is decided by what nobody registered."""
    async with database.open() as store:
        await register(store, "s")
        await database.run(f"UPDATE schedule SET {change}", *([b"x"] if "$1" in change else []))
        ticked = await store.schedules.tick()
        assert (ticked.fired, [each.code for each in ticked.stuck]) == ((), ["corrupt"])


async def test_without_the_parser_a_schedule_waits_for_who_has_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stuck here, and due for the next one."""
    async with database.open() as store:
        await register(store, "s", timing=Cron(expression="0 * * * *"), missed="one")
        await register(store, "every")
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "cronsim", None)
            cron.calendar.cache_clear()
            ticked = await store.schedules.tick()
            assert [(each.schedule, each.code) for each in ticked.stuck] == [("s", "not-supported")]
            assert len(ticked.fired) == 4
            await store.schedules.pause("every")
        cron.calendar.cache_clear()
        assert {each.schedule for each in (await store.schedules.tick()).fired} == {"s"}


# --- between looking and deciding


def look(tenant: str, schedule: str) -> Op[tuple[Seen, core.Decision, int]]:
    """What a tick sees of a schedule, and what it decides."""
    rows = yield from call(
        ops.DUE, tenant=tenant, upper_ms=None, after_ms=BEFORE_ALL, after="", limit=9
    )
    for row in rows:
        if row[3] == schedule:
            seen = changes.seen_of(tenant, row[3:])
            return seen, core.due(core.plan_of(seen.stored), row[0], 100), row[0]
    raise AssertionError("it is not due")


def decide(tenant: str, seen: Seen, decision: core.Decision, now_ms: int) -> Op[bool]:
    """Write down what was decided then."""
    _, params = firing.fitting(tenant, seen, decision, now_ms, [], 0, Limits())
    answer = yield Step(ops.FIRE, params)
    return not answer.refused


async def nothing(store: Store, first: int) -> None:
    """Nobody comes between."""


async def tick(store: Store, first: int) -> None:
    """Somebody else ticks."""
    await store.schedules.tick()


async def tick_once(store: Store, first: int) -> None:
    """Somebody else decides a part."""
    await store.schedules.tick(limit=1)


async def pause(store: Store, first: int) -> None:
    """Somebody pauses it."""
    await store.schedules.pause("s")


async def resume(store: Store, first: int) -> None:
    """Somebody pauses it, and resumes it."""
    await store.schedules.pause("s")
    await store.schedules.resume("s")


async def replace(store: Store, first: int) -> None:
    """Somebody gives it another payload, and so what happens is something else."""
    await register_again(store, first, expected=1)


async def delete(store: Store, first: int) -> None:
    """Somebody removes it."""
    await store.schedules.delete("s")


async def reborn(store: Store, first: int) -> None:
    """Somebody removes it, and registers another one that begins with the same numbers."""
    await store.schedules.delete("s")
    await register_again(store, first, expected=None)


async def register_again(store: Store, first: int, *, expected: int | None) -> None:
    timing = Every(interval_ms=HOUR, anchor_ms=first)
    other = NewSchedule(
        schedule="s", timing=timing, missed="all", start_ms=first, payload="another"
    )
    await store.schedules.register(other, expected=expected)


BETWEEN = [tick, tick_once, pause, resume, replace, delete, reborn]


@pytest.mark.parametrize("between", [nothing, *BETWEEN], ids=lambda each: each.__name__)
async def test_who_looked_before_a_rival_came_writes_nothing(
    database: Database, between: Callable[[Store, int], Awaitable[None]]
) -> None:
    """What was decided of a schedule is written of that schedule, as it was then, or not at all."""
    async with database.open() as store, database.open() as rival:
        first = await register(store, "s")
        engine = store._view.engine
        seen, decision, now_ms = await engine.read(look, "a", "s")
        assert decision.fire == tuple(first + n * HOUR for n in range(4))
        await between(rival, first)
        before = await database.rows("a")
        written = await engine.write(decide, "a", seen, decision, now_ms)
        assert written is (between is nothing)
        assert (await database.rows("a") == before) is (between is not nothing)


def look_by_id(tenant: str, schedule: str) -> Op[tuple[Seen, int]]:
    """What somebody who is about to change a schedule sees of it."""
    row = (yield from call(ops.READ, tenant=tenant, schedule=schedule))[0]
    return changes.seen_of(tenant, row[1:]), row[0]


def change(tenant: str, seen: Seen, params: dict[str, Any]) -> Op[bool]:
    """Write down what was to be changed then."""
    answer = yield Step(ops.CHANGE, {**params, **seen.proof(tenant)})
    return not answer.refused


@pytest.mark.parametrize("between", [nothing, *BETWEEN], ids=lambda each: each.__name__)
async def test_who_looked_before_a_rival_came_changes_nothing(
    database: Database, between: Callable[[Store, int], Awaitable[None]]
) -> None:
    """A schedule is changed as it was looked at, or not at all."""
    async with database.open() as store, database.open() as rival:
        first = await register(store, "s")
        engine = store._view.engine
        seen, now_ms = await engine.read(look_by_id, "a", "s")
        params = changes.paused(seen, now_ms)
        assert params is not None
        await between(rival, first)
        before = await database.rows("a")
        written = await engine.write(change, "a", seen, params)
        assert written is (between is nothing)
        assert (await database.rows("a") == before) is (between is not nothing)


# --- faults

PLACES: list[Place] = ["before", "after", "answer"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("step", [1, 2, 3, 4])
async def test_a_tick_that_fails_is_ticked_on(database: Database, place: Place, step: int) -> None:
    """Wherever it fails, each instant fires once, and each that does not is told once."""
    plan = Plan()
    async with database.open() as store:
        faulty = wrap(store, plan)
        firsts = {name: await register(store, name, cap=2) for name in ("r", "s", "t")}
        plan.arm(place, step=step)
        with pytest.raises(Unavailable):
            await faulty.schedules.tick()
        assert plan.struck()
        if database.kind == "sqlite" and place != "answer":
            assert (await database.rows("a")).get("schedule_skip", []) == []
        await faulty.schedules.tick()
        for name, first in firsts.items():
            found = await store.schedules.get(name)
            assert found is not None
            assert (found.fired, found.skipped) == (3, 1)
            assert (found.decided_ms, found.last_at_ms) == (first + 3 * HOUR, first + 3 * HOUR)
            page = await store.schedules.skipped(name)
            assert [(each.first_ms, each.count) for each in page.items] == [(first, 1)]
        again = await store.schedules.tick()
        assert (again.fired, again.skipped, again.contended) == ((), (), ())


CHANGES: dict[str, Callable[[Store], Awaitable[object]]] = {
    "register": lambda store: store.schedules.register(
        NewSchedule(schedule="new", timing=Every(interval_ms=HOUR))
    ),
    "replace": lambda store: store.schedules.register(
        NewSchedule(schedule="s", timing=Every(interval_ms=DAY)), expected=1
    ),
    "pause": lambda store: store.schedules.pause("s"),
    "resume": lambda store: store.schedules.resume("paused"),
    "delete": lambda store: store.schedules.delete("s"),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_that_fails_is_made_again(database: Database, name: str) -> None:
    """Failed at any step it is there as a whole or not at all, and asked again it ends the same."""
    act = CHANGES[name]
    ended: list[Any] = []
    places: list[tuple[Place, int]] = [("before", 9), *((p, n) for n in (1, 2) for p in PLACES)]
    for number, (place, step) in enumerate(places):
        plan = Plan()
        async with database.open(f"t{number}") as store:
            await register(store, "s", hours=3)
            await register(store, "paused", hours=3)
            await store.schedules.pause("paused")
            faulty = wrap(store, plan)
            plan.arm(place, step=step)
            with contextlib.suppress(Unavailable):
                await act(faulty)
            if plan.struck():
                await act(faulty)
            rows = await database.rows(f"t{number}")
            ended.append(
                [
                    (row["schedule"], row.get("revision"), row.get("count"), row.get("reason"))
                    for table in ("schedule", "schedule_skip")
                    for row in sorted(rows.get(table, []), key=lambda row: str(row["schedule"]))
                ]
            )
    assert all(each == ended[0] for each in ended), ended


# --- rivals


async def test_pauses_and_ticks_at_once_lose_nothing(database: Database) -> None:
    """Whoever comes first: what fired and what was skipped are the instants, each once."""
    names = [f"s{n}" for n in range(6)]
    async with contextlib.AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(database.open()) for _ in range(4)]
        firsts = {name: await register(stores[0], name, hours=40, cap=30) for name in names}

        async def ticking(store: Store) -> list[Ticked]:
            return [await store.schedules.tick(limit=5) for _ in range(12)]

        async def fiddling(store: Store) -> None:
            for n, name in enumerate(names * 2):
                await store.schedules.pause(name)
                await store.schedules.resume(name)
                await store.schedules.tick(limit=n % 3 + 1)

        fiddler = asyncio.create_task(fiddling(stores[3]))
        ticked = await asyncio.gather(*map(ticking, stores[:3]))
        await fiddler
        while (await stores[0].schedules.tick()).more:
            pass
        told = [(f.schedule, f.instant_ms) for each in ticked for t in each for f in t.fired]
        assert len(told) == len(set(told))
        for name, first in firsts.items():
            found = await stores[0].schedules.get(name)
            assert found is not None
            assert found.fired + found.skipped == 41
            skipped = await outcome(stores[0], name, found.timing)
            assert len(skipped) == len(set(skipped)) == found.skipped
            mine = {instant for schedule, instant in told if schedule == name}
            assert not mine & set(skipped)
            assert set(skipped) | mine <= {first + n * HOUR for n in range(41)}


async def test_what_is_registered_at_once_is_one_schedule(database: Database) -> None:
    """One caller is told that it was made, and the others that it was there."""
    new = NewSchedule(schedule="s", timing=Every(interval_ms=HOUR), start_ms=NEW_YEAR)
    async with database.open() as one, database.open() as two:
        answers = await asyncio.gather(*(store.schedules.register(new) for store in [one, two] * 4))
        assert sorted(each.created for each in answers) == [False] * 7 + [True]
        assert len({each.schedule for each in answers}) == 1
        paused = await asyncio.gather(*(store.schedules.pause("s") for store in [one, two] * 4))
        assert {each.revision for each in paused} == {2}


def test_the_blocking_twin_ticks(sqlite_path: Any) -> None:
    """The same, without an event loop."""
    clock = Ticker(at(0))
    with holdfast.open_sync(str(sqlite_path), clock=clock) as store:
        store.schedules.register(NewSchedule(schedule="s", timing=Every(interval_ms=HOUR)))
        clock.leap(HOUR)
        assert [each.instant_ms for each in store.schedules.tick().fired] == [at(1)]
