"""What a schedule starts, looked at from behind: steps that fail, rivals that come between looking
and firing, what is there already, and what is too much at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from holdfast import (
    Every,
    Limits,
    NewGrant,
    NewOccurrence,
    NewProcess,
    NewSchedule,
    NewSubscription,
    OccurrenceFilter,
    ProcessTemplate,
    Scope,
    Store,
    Ticked,
    Unavailable,
)
from holdfast.core import triggers
from holdfast.core.schedules import instant_key
from holdfast.ops.op import Answer, Step
from holdfast.testing.faults import Place, Plan, wrap
from tests.test_schedules import HOUR, PLACES, register

if TYPE_CHECKING:
    from tests.conftest import Database


async def subscribe(store: Store, key: str, schedule: str = "s", **given: Any) -> str:
    """A subscription of the host to a schedule; its id."""
    new = NewSubscription(key=key, source_type="schedule", source_key=schedule, **given)
    return (await store.triggers.register(new)).subscription.subscription


async def delivered(store: Store, schedule: str = "s") -> dict[str, list[tuple[str, str]]]:
    """What became of each occurrence of a schedule: the keys of its subscriptions, and how."""
    which = OccurrenceFilter(source_type="schedule", source_key=schedule)
    page = await store.triggers.occurrences(which=which, limit=1000)
    found: dict[str, list[tuple[str, str]]] = {}
    for each in page.items:
        made = await store.triggers.deliveries(each.occurrence)
        found[each.key] = [(d.key, d.state) for d in made.items]
    return found


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
async def test_a_tick_that_fails_starts_nothing_twice(
    database: Database, place: Place, step: int
) -> None:
    """Wherever it fails, an occurrence is never there without what it starts, nor twice."""
    plan = Plan()
    async with database.open() as store:
        firsts = {name: await register(store, name) for name in ("r", "s")}
        for name in firsts:
            await subscribe(store, f"one-{name}", name)
            await subscribe(store, f"two-{name}", name)
        plan.arm(place, step=step)
        with contextlib.suppress(Unavailable):
            await wrap(store, plan).schedules.tick()
        assert plan.struck()
        for name in firsts:
            for made in (await delivered(store, name)).values():
                assert made == [(f"one-{name}", "started"), (f"two-{name}", "started")]
        await store.schedules.tick()
        for name, first in firsts.items():
            wanted = {instant_key(name, first + n * HOUR) for n in range(4)}
            assert (await delivered(store, name)).keys() == wanted
        assert len((await store.processes.list()).items) == 16
        rows = await database.rows("a")
        assert len(rows["trigger_delivery"]) == len(rows["process"]) == 16
        assert len(rows["trigger_occurrence"]) == 8
        assert [row["fired"] for row in rows["schedule"]] == [4, 4]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("step", [1, 2, 3])
async def test_a_run_that_fails_is_asked_for_again(
    database: Database, place: Place, step: int
) -> None:
    """The same request runs once."""
    plan = Plan()
    async with database.open() as store:
        await register(store, "s")
        await subscribe(store, "one")
        plan.arm(place, step=step)
        with pytest.raises(Unavailable):
            await wrap(store, plan).schedules.run_now("s", "r")
        run = await store.schedules.run_now("s", "r")
        found = await store.schedules.get("s")
        assert found is not None
        assert found.ran == 1
        assert await delivered(store) == {run.occurrence: [("one", "started")]}
        assert len((await store.processes.list()).items) == 1


# --- rivals


async def disable(store: Store) -> None:
    """A subscription is disabled."""
    await store.triggers.disable("one")


async def delete(store: Store) -> None:
    """A subscription is deleted."""
    await store.triggers.delete("one")


async def another(store: Store) -> None:
    """Somebody else subscribes."""
    await subscribe(store, "two")


@pytest.mark.parametrize("act", ["tick", "run"])
@pytest.mark.parametrize(
    ("first", "rival", "left"),
    [
        (True, disable, []),
        (True, delete, []),
        (True, another, ["one", "two"]),
        (False, another, ["two"]),
    ],
    ids=["disable", "delete", "another", "the first"],
)
async def test_who_subscribes_between_looking_and_firing_is_asked_for(
    postgres_database: Database,
    act: str,
    first: bool,
    rival: Callable[[Store], Awaitable[None]],
    left: list[str],
) -> None:
    """What a rival has been told is done decides: nothing is delivered by an older look."""
    async with postgres_database.open() as store, postgres_database.open() as other:
        await register(store, "s", hours=0)
        if first:
            await subscribe(store, "one")
        engine: Any = store._view.engine
        plainly = engine._step
        came: list[str] = []

        async def stepping(step: Step) -> Answer:
            if step.stmt.name == "schedules.fire" and not came:
                came.append("rival")
                await rival(other)
            answer: Answer = await plainly(step)
            return answer

        engine._step = stepping
        if act == "tick":
            ticked = await store.schedules.tick()
            assert (len(ticked.fired), ticked.contended) == (1, ())
        else:
            assert (await store.schedules.run_now("s", "r")).ran is True
        assert came == ["rival"]
        (made,) = (await delivered(store)).values()
        assert [key for key, _ in made] == left


async def disabled(store: Store) -> object:
    """A subscription is disabled."""
    return await store.triggers.disable("one")


async def deleted(store: Store) -> object:
    """A session that is to see what is started is deleted."""
    return await store.sessions.delete("seeing")


@pytest.mark.parametrize("rival", [disabled, deleted], ids=lambda each: each.__name__)
async def test_what_is_fired_by_is_held_until_it_is_written(
    postgres_database: Database, rival: Callable[[Store], Awaitable[object]]
) -> None:
    """Who takes it back is told so after the tick, and what the tick has started is there then."""
    async with postgres_database.open() as store, postgres_database.open() as other:
        await register(store, "s", hours=0)
        await store.sessions.create("seeing")
        grants = [NewGrant(scope=Scope(session="seeing"))]
        await subscribe(store, "one", process=ProcessTemplate(grants=grants))
        connection = await asyncpg.connect(postgres_database.url)
        try:
            transaction = connection.transaction()
            await transaction.start()
            assert len((await store.on(connection).schedules.tick()).fired) == 1
            asked = asyncio.ensure_future(rival(other))
            async with postgres_database.connected() as run:
                waiting = "SELECT 1 AS w FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                while not (asked.done() or await run(waiting)):
                    await asyncio.sleep(0)
            assert not asked.done()
            await transaction.commit()
            await asked
        finally:
            await connection.close()
        (made,) = (await delivered(store)).values()
        assert made == [("one", "started")]
        rows = await postgres_database.rows("a")
        assert len(rows.get("process_grant", [])) == (0 if rival is deleted else 1)


async def test_a_run_says_what_the_schedule_says_now(postgres_database: Database) -> None:
    """Between looking and running it has become another one."""
    async with postgres_database.open() as store, postgres_database.open() as other:
        first = await register(store, "s", hours=0)
        engine: Any = store._view.engine
        plainly = engine._step
        came: list[str] = []

        async def stepping(step: Step) -> Answer:
            if step.stmt.name == "schedules.fire" and not came:
                came.append("rival")
                timing = Every(interval_ms=HOUR, anchor_ms=first)
                new = NewSchedule(schedule="s", timing=timing, payload="new", start_ms=first)
                await other.schedules.register(new, expected=1)
            answer: Answer = await plainly(step)
            return answer

        engine._step = stepping
        assert (await store.schedules.run_now("s", "r")).ran is True
        page = await store.triggers.occurrences()
        said: Any = page.items[0].json()
        assert (came, said["payload"]) == (["rival"], "new")


async def test_who_waits_for_something_to_do_is_told(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a tick that fires, and by a run; not by one that has nothing to say."""
    told: list[str] = []
    async with database.open() as store:
        engine: Any = store._view.engine
        monkeypatch.setattr(type(engine), "publish", lambda self, names: told.extend(names))
        await register(store, "s")
        for act in (
            store.schedules.tick(),
            store.schedules.tick(),
            store.schedules.run_now("s", "r"),
            store.schedules.run_now("s", "r"),
        ):
            await act
        assert told == ["processes a", "processes a"]


async def test_a_schedule_that_somebody_holds_is_not_waited_for(
    postgres_database: Database,
) -> None:
    """It is contended, and the others are decided meanwhile."""
    async with postgres_database.open() as store, postgres_database.connected() as run:
        await register(store, "r")
        await register(store, "s")
        await run("BEGIN")
        await run("SELECT FROM schedule WHERE schedule = 'r' FOR UPDATE")
        ticked = await store.schedules.tick()
        assert ticked.contended == ("r",)
        assert {each.schedule for each in ticked.fired} == {"s"}
        await run("ROLLBACK")
        assert {each.schedule for each in (await store.schedules.tick()).fired} == {"r"}


# --- what is there already


async def test_a_key_that_is_taken_counts_as_fired(database: Database) -> None:
    """Whatever it says, and wherever it is from: nothing is started by it."""
    async with database.open() as store:
        first = await register(store, "s", hours=2)
        await subscribe(store, "one")
        for n, source in ((0, "schedule"), (1, "elsewhere")):
            taken = NewOccurrence(
                source_type=source,
                source_key="s",
                key=instant_key("s", first + n * HOUR),
                payload="another",
            )
            assert (await store.triggers.record(taken)).recorded is True
        ticked = await store.schedules.tick()
        assert len(ticked.fired) == 3
        rows = await database.rows("a")
        assert [row["fired"] for row in rows["schedule"]] == [3]
        assert len(rows["trigger_occurrence"]) == 3
        assert await delivered(store) == {
            instant_key("s", first): [],
            instant_key("s", first + 2 * HOUR): [("one", "started")],
        }
        assert len((await store.processes.list()).items) == 1


async def test_a_process_that_has_the_id_is_left_alone(database: Database) -> None:
    """The delivery is rejected, gives nobody a grant, and keeps the instant from no one else."""
    async with database.open() as store:
        first = await register(store, "s", hours=0)
        await store.sessions.create("seeing")
        template = ProcessTemplate(grants=[NewGrant(scope=Scope(session="seeing"))])
        one = await subscribe(store, "one", process=template)
        await subscribe(store, "two", process=template)
        occurrence = triggers.occurrence_id("schedule", "s", instant_key("s", first))
        squatter = triggers.process_id(occurrence, one)
        await store.processes.register(NewProcess(process=squatter, kind="squatter"))
        await store.schedules.tick()
        (made,) = (await delivered(store)).values()
        assert made == [("one", "rejected"), ("two", "started")]
        found = await store.processes.get(squatter)
        assert found is not None
        assert found.kind == "squatter"
        granted = await store.processes.grants(Scope(session="seeing"))
        assert len(granted.items) == 1
        assert granted.items[0].process.process != squatter


async def test_grants_of_deleted_sessions_are_left_out(database: Database) -> None:
    """What is started is started without them."""
    async with database.open() as store:
        await register(store, "s", hours=1)
        for session in ("gone", "here"):
            await store.sessions.create(session)
        grants = [NewGrant(scope=Scope(session=session)) for session in ("gone", "here")]
        await subscribe(store, "one", process=ProcessTemplate(grants=grants))
        await store.sessions.delete("gone")
        assert len((await store.schedules.tick()).fired) == 2
        rows = await database.rows("a")
        assert [row["session"] for row in rows["process_grant"]] == ["here", "here"]


# --- what is too much at once


async def test_a_batch_is_no_more_than_a_handle_may_write(database: Database) -> None:
    """Of a schedule that many have subscribed to fewer fire at once, and all of them in the end."""
    async with database.open(limits=Limits(commit_rows=6)) as store:
        first = await register(store, "s", hours=6)
        await subscribe(store, "one")
        await subscribe(store, "two")
        ticks: list[Ticked] = [await store.schedules.tick()]
        while ticks[-1].more:
            ticks.append(await store.schedules.tick())
        assert [len(each.fired) for each in ticks] == [2, 2, 2, 1]
        fired = [each.instant_ms for tick in ticks for each in tick.fired]
        assert fired == [first + n * HOUR for n in range(7)]
        assert len((await store.processes.list()).items) == 14


async def test_a_batch_is_no_more_bytes_than_a_handle_may_write(database: Database) -> None:
    """The instants are halved until they fit, and one that does not fit alone is stuck."""
    payload = "x" * 3000
    async with database.open() as store:
        await register(store, "s", hours=3, payload=payload)
    async with database.open(limits=Limits(commit_bytes=7000)) as store:
        counts: list[int] = []
        while True:
            ticked = await store.schedules.tick()
            counts.append(len(ticked.fired))
            if not ticked.more:
                break
        assert counts == [2, 2]
        await register(store, "t", hours=0, payload=payload)
    async with database.open(limits=Limits(commit_bytes=3000)) as store:
        ticked = await store.schedules.tick()
        assert [(each.schedule, each.code) for each in ticked.stuck] == [("t", "too-large")]


async def test_more_subscriptions_than_a_handle_may_write_are_stuck(database: Database) -> None:
    """They are told, and another handle may."""
    async with database.open() as store:
        await register(store, "s", hours=0)
        await register(store, "t", hours=0)
        for n in range(4):
            await subscribe(store, f"k{n}")
        async with database.open(limits=Limits(commit_rows=3)) as small:
            ticked = await small.schedules.tick()
            assert [(each.schedule, each.code) for each in ticked.stuck] == [("s", "too-large")]
            assert {each.schedule for each in ticked.fired} == {"t"}
        assert {each.schedule for each in (await store.schedules.tick()).fired} == {"s"}
        assert len((await store.processes.list()).items) == 4


async def test_a_payload_has_room_for_what_is_said_around_it(database: Database) -> None:
    """What would be too large when it happens is refused when it is registered."""
    async with database.open(limits=Limits(payload_bytes=1000)) as store:
        with pytest.raises(Exception, match="payload is"):
            await store.schedules.register(
                NewSchedule(schedule="s", timing=Every(interval_ms=HOUR), payload="x" * 900)
            )
        await register(store, "s", hours=0, payload="x" * 600)
        assert len((await store.schedules.tick()).fired) == 1
