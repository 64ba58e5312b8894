"""Operations on schedules, failed before and after each of their steps and with their answer lost.

The law is that of the other fault tests: a failed operation leaves all of itself or nothing, and
asked again it comes to where an undisturbed one ends. A tick is in parts on a server, one for each
schedule, and each of them is whole: what is decided of a schedule is there with all that it starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast.contract.errors import ScheduleUnknown
from holdfast.contract.processes import NewGrant, Pointer
from holdfast.contract.schedules import Cron, Every, NewSchedule, RanNow, Scheduled, Ticked
from holdfast.contract.stores import Store
from holdfast.contract.triggers import NewSubscription, OccurrenceFilter, ProcessTemplate
from holdfast.testing.conformance.kit import all_pages
from holdfast.testing.conformance.kit_processes import here
from tests.faulting import Act, Kept, Struck, strike_everywhere

if TYPE_CHECKING:
    from tests.conftest import Database

HOUR = 3_600_000
# 2025-01-01T00:00Z: each schedule here has the ten instants of the hours from then on.
FIRST = 1_735_689_600_000
HOURS = [FIRST + n * HOUR for n in range(10)]
HOURLY = Every(interval_ms=HOUR)
ALL_PER = {"all": 4, "cron": 4, "one": 1, "skip": 0}
"""How many of them fire, the latest, when they are ticked now."""


def hourly(name: str, **given: Any) -> NewSchedule:
    """A schedule of exactly these hours, which are over."""
    wanted: dict[str, Any] = {"timing": HOURLY, "missed": "all", "cap": 4, "payload": name, **given}
    return NewSchedule(schedule=name, start_ms=HOURS[0], until_ms=HOURS[-1], **wanted)


async def prepare(store: Store, kept: Kept) -> None:
    """Schedules that are due, one that is paused, and one that has fired and was run by hand; with
    subscriptions of the host and of a session, of which one rejects what every schedule says."""
    for session in ("s", "t"):
        await store.sessions.create(session)
    grants = [NewGrant(scope=here("s"), kind="k"), NewGrant(scope=here("t", "frame"))]
    processes = {
        "grants": ProcessTemplate(grants=grants, wake=here("s")),
        "rejects": ProcessTemplate(inputs={"n": Pointer(at="/nothing")}),
    }
    for source in ("all", "one", "paused", "ended"):
        for key, process in processes.items():
            await store.triggers.register(
                NewSubscription(
                    owner=here("s") if source == "one" else None,
                    key=f"{key}-{source}",
                    source_type="schedule",
                    source_key=source,
                    process=process,
                )
            )
    await store.schedules.register(hourly("ended"))
    assert len((await store.schedules.tick()).fired) == 4
    assert (await store.schedules.run_now("ended", "asked")).ran
    await store.schedules.register(hourly("all"))
    await store.schedules.register(hourly("cron", timing=Cron(expression="0 * * * *")))
    await store.schedules.register(hourly("one", missed="one"))
    await store.schedules.register(hourly("skip", missed="skip"))
    await store.schedules.register(hourly("paused"))
    await store.schedules.pause("paused")


ACTS: dict[str, Act] = {
    "register": lambda s, k: s.schedules.register(hourly("new")),
    "register again": lambda s, k: s.schedules.register(hourly("all")),
    "replace": lambda s, k: s.schedules.register(
        hourly("all", timing=Every(interval_ms=HOUR // 2)), expected=1
    ),
    "replace what it says": lambda s, k: s.schedules.register(
        hourly("all", payload="other"), expected=1
    ),
    "pause": lambda s, k: s.schedules.pause("all"),
    "pause again": lambda s, k: s.schedules.pause("paused"),
    "resume": lambda s, k: s.schedules.resume("paused"),
    "delete": lambda s, k: s.schedules.delete("ended"),
    "run_now": lambda s, k: s.schedules.run_now("all", "new"),
    "run_now what is paused": lambda s, k: s.schedules.run_now("paused", "new"),
    "run_now again": lambda s, k: s.schedules.run_now("ended", "asked"),
    "tick": lambda s, k: s.schedules.tick(),
}
REVISIONS = {"pause": 2, "pause again": 2, "resume": 3}


async def check_again(name: str, struck: Struck) -> None:
    """The second time answers what is true then, and ends where an undisturbed one ends."""
    done = struck.done
    again = await ACTS[name](struck.store, struck.kept)
    if isinstance(again, Scheduled):
        assert again.created is (name == "register" and not done)
        assert again.changed is (name.startswith("replace") and not done)
    elif isinstance(again, RanNow):
        assert again.ran is (name != "run_now again" and not done)
    elif isinstance(again, Ticked):
        left = {row["schedule"]: row for row in struck.found["schedule"]}
        open_ = {schedule for schedule in ALL_PER if left[schedule]["next_at_ms"] is not None}
        assert len(again.fired) == sum(ALL_PER[schedule] for schedule in open_)
        assert {one.schedule for one in again.skipped} == open_
        assert (again.contended, again.stuck, again.more) == ((), (), False)
    elif name == "delete":
        assert again is not done
        with pytest.raises(ScheduleUnknown):
            await struck.store.schedules.pause("ended")
    else:
        assert again.revision == REVISIONS[name]
        assert again.paused is (name != "resume")
    assert await struck.rows() == struck.undisturbed, struck.at


BLOCKING = ("replace", "run_now", "tick")
CASES = [("async", name) for name in ACTS] + [("blocking", name) for name in BLOCKING]


@pytest.mark.parametrize(("colour", "name"), CASES)
async def test_a_failed_operation_on_schedules_is_never_half_stored(
    database: Database, colour: str, name: str
) -> None:
    async def check(struck: Struck) -> None:
        await consistent(struck.store)
        await check_again(name, struck)
        await consistent(struck.store)

    parts = name == "tick"
    await strike_everywhere(database, colour, prepare, ACTS[name], check, in_parts=parts)


async def consistent(store: Store) -> None:
    """What has fired and what was skipped of a schedule are its instants up to where it is decided,
    each once; what has fired has its deliveries, and those that have started their processes."""
    for found in await all_pages(lambda after: store.schedules.list(after=after)):
        which = OccurrenceFilter(source_type="schedule", source_key=found.schedule)
        happened = (await store.triggers.occurrences(which=which)).items
        said: list[Any] = [one.json() for one in happened]
        fired = [one["instant_ms"] for one in said if one["request"] is None]
        assert len(said) - len(fired) == found.ran
        assert (len(fired), max(fired, default=None)) == (found.fired, found.last_at_ms)
        skips = (await store.schedules.skipped(found.schedule)).items
        assert sum(one.count for one in skips) == found.skipped
        if found.timing in (HOURLY, Cron(expression="0 * * * *")):
            skipped = [at for one in skips for at in HOURS if one.first_ms <= at <= one.last_ms]
            assert len(skipped) == found.skipped
            decided = [at for at in HOURS if at <= found.decided_ms]
            assert sorted(fired + skipped) == decided
            following = HOURS[len(decided) :]
            assert found.next_at_ms == (following[0] if following and not found.paused else None)
        subscribed = found.schedule in ("all", "one", "paused", "ended")
        for one in happened:
            page = await store.triggers.deliveries(one.occurrence)
            states = [delivery.state for delivery in page.items]
            assert states == (["started", "rejected"] if subscribed else [])
            for delivery in page.items[:1]:
                process = await store.processes.get(delivery.process)
                assert process is not None
                assert process.cause == one.occurrence
                assert await store.processes.granted(here("s"), delivery.process) is not None


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_what_is_ticked_on_comes_to_the_same(database: Database, limit: int) -> None:
    """Whatever of a small tick was done, and wherever the next ones begin, the latest of each
    schedule have fired in the end, and the ones before them were skipped."""

    async def act(store: Store, kept: Kept) -> Ticked:
        return await store.schedules.tick(limit=limit)

    async def check(struck: Struck) -> None:
        await consistent(struck.store)
        while (await act(struck.store, struck.kept)).more:
            pass
        await consistent(struck.store)
        for name, count in ALL_PER.items():
            found = await struck.store.schedules.get(name)
            assert found is not None
            assert (found.fired, found.skipped) == (count, 10 - count), name
            assert found.last_at_ms == (HOURS[-1] if count else None)
            assert found.next_at_ms is None

    await strike_everywhere(database, "async", prepare, act, check, in_parts=True)


async def test_a_replacement_that_was_done_is_not_moved_by_its_second_try(
    database: Database,
) -> None:
    """The same definition is no change, whatever revision is expected; what somebody else has made
    of it meanwhile is not undone."""

    async def act(store: Store, kept: Kept) -> Scheduled:
        return await store.schedules.register(hourly("all", cap=7), expected=1)

    async def check(struck: Struck) -> None:
        await struck.store.schedules.pause("all")
        if struck.done:
            again = await act(struck.store, struck.kept)
            assert (again.changed, again.schedule.revision, again.schedule.paused) == (
                False,
                3,
                True,
            )
        else:
            with pytest.raises(Exception, match="is at revision 2, not 1"):
                await act(struck.store, struck.kept)

    await strike_everywhere(database, "async", prepare, act, check)
