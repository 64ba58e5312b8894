"""Schedules: what is to happen again and again, and what became of it.

A schedule has a timing, and the timing has instants. Each instant that has come fires once or is
skipped, for a reason that is kept; whoever ticks decides it, and any number may tick at once. The
store's clock says what has come. A schedule is registered once, changed under its revision, and
paused, resumed, run and deleted by hand.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from holdfast.contract.errors import Invalid, ScheduleMoved, ScheduleUnknown, TooLarge
from holdfast.contract.records import Json
from holdfast.contract.schedules import Cron, Every, Missed, NewSchedule
from holdfast.testing.conformance.kit import Kit, all_pages
from holdfast.testing.conformance.schedule_kit import (
    HOUR,
    hourly,
    instants,
    now,
    skips,
    stored,
    tick_all,
)


async def test_law_m01_the_same_registration_is_the_same_schedule(kit: Kit) -> None:
    """The same definition under the same id is answered as it is now and changes nothing, whatever
    has fired since, and whether it is paused. (m01)"""
    new = NewSchedule(schedule="s", timing=Every(interval_ms=HOUR), payload={"room": 4})
    async with kit.open() as store, kit.open() as other:
        made = await store.schedules.register(new)
        assert (made.created, made.changed, made.schedule.revision) == (True, False, 1)
        assert made.schedule == await stored(other)
        assert (made.schedule.missed, made.schedule.cap) == ("one", 100)
        assert (made.schedule.grace_ms, made.schedule.json()) == (60_000, {"room": 4})
        assert (made.schedule.fired, made.schedule.skipped, made.schedule.ran) == (0, 0, 0)
        assert made.schedule.updated_at_ms == made.schedule.created_at_ms
        paused = await store.schedules.pause("s")
        again = await other.schedules.register(new)
        assert (again.created, again.changed, again.schedule) == (False, False, paused)
        fenced = await other.schedules.register(new, expected=7)
        assert (fenced.created, fenced.changed, fenced.schedule) == (False, False, paused)


OTHERS = {
    "timing": Every(interval_ms=2 * HOUR),
    "missed": "skip",
    "cap": 99,
    "grace_ms": 1,
    "payload": 1,
    "start_ms": 5,
    "until_ms": 9_000_000_000_000,
}


@pytest.mark.parametrize("name", OTHERS)
async def test_law_m02_another_definition_is_another_revision(kit: Kit, name: str) -> None:
    """Another definition under the same id is refused with ScheduleMoved, unless the caller names
    the revision that it replaces; it becomes the next one, and asked for again it is answered.
    (m02)"""
    new = NewSchedule(schedule="s", timing=Every(interval_ms=HOUR))
    other = msgspec.structs.replace(new, **{name: OTHERS[name]})
    async with kit.open() as store:
        made = (await store.schedules.register(new)).schedule
        for expected in (None, 2):
            with pytest.raises(ScheduleMoved) as moved:
                await store.schedules.register(other, expected=expected)
            assert (moved.value.schedule, moved.value.actual) == ("s", 1)
            assert (moved.value.expected, moved.value.code) == (expected, "schedule-moved")
            assert await stored(store) == made
        done = await store.schedules.register(other, expected=1)
        assert (done.created, done.changed, done.schedule.revision) == (False, True, 2)
        assert done.schedule == await stored(store)
        if name != "payload":
            assert getattr(done.schedule, name) == OTHERS[name]
        else:
            assert done.schedule.json() == 1
        again = await store.schedules.register(other, expected=1)
        assert (again.created, again.changed, again.schedule) == (False, False, done.schedule)


async def test_law_m03_one_of_two_replacements_wins(kit: Kit) -> None:
    """Of definitions that replace the same revision at the same time one is kept, and the others
    are refused. (m03)"""
    async with kit.open() as store, kit.open() as other:
        await store.schedules.register(NewSchedule(schedule="s", timing=Every(interval_ms=HOUR)))
        answers = await asyncio.gather(
            *(
                handle.schedules.register(
                    NewSchedule(schedule="s", timing=Every(interval_ms=HOUR), payload=n), expected=1
                )
                for n, handle in enumerate([store, other] * 3)
            ),
            return_exceptions=True,
        )
        won = [each for each in answers if not isinstance(each, BaseException)]
        assert len(won) == 1
        assert {type(each) for each in answers if each is not won[0]} == {ScheduleMoved}
        assert won[0].schedule == await stored(store)
        assert won[0].schedule.revision == 2


async def test_law_m04_what_has_come_fires_once_and_in_order(kit: Kit) -> None:
    """Each instant from the start on fires once, oldest first; the schedule says how many have, and
    which was the last and is the next one. (m04)"""
    async with kit.open() as store:
        first = await hourly(store)
        ticked = await store.schedules.tick()
        assert instants(ticked) == [first + n * HOUR for n in range(11)]
        assert [each.occurrence for each in ticked.fired[:1]] == [f"schedule:{first}:s"]
        assert [each.late_ms for each in ticked.fired[-1:]] == [ticked.at_ms - first - 10 * HOUR]
        assert (ticked.skipped, ticked.contended, ticked.stuck) == ((), (), ())
        assert (ticked.more, ticked.next_at_ms) == (False, first + 11 * HOUR)
        found = await stored(store)
        assert (found.fired, found.skipped, found.last_at_ms) == (11, 0, first + 10 * HOUR)
        assert (found.decided_ms, found.next_at_ms) == (first + 10 * HOUR, first + 11 * HOUR)
        assert (found.revision, found.updated_at_ms) == (1, found.created_at_ms)
        again = await store.schedules.tick()
        assert (again.fired, again.more, again.next_at_ms) == ((), False, first + 11 * HOUR)


@pytest.mark.parametrize(
    ("missed", "cap", "fired", "skipped", "reason"),
    [
        ("skip", 100, [10], (0, 9, 10), "missed"),
        ("one", 100, [10], (0, 9, 10), "missed"),
        ("all", 3, [7, 8, 9, 10], (0, 6, 7), "capped"),
    ],
)
async def test_law_m05_what_was_missed_is_fired_or_kept(
    kit: Kit,
    missed: Missed,
    cap: int,
    fired: list[int],
    skipped: tuple[int, int, int],
    reason: str,
) -> None:
    """Of the instants that were missed "skip" fires none, "one" the latest unless one on time
    stands for it, "all" the latest up to the cap; the others are kept as one stretch with their
    number and the reason. (m05)"""
    async with kit.open() as store:
        first = await hourly(store, missed=missed, cap=cap)
        ticked = await store.schedules.tick()
        assert instants(ticked) == [first + n * HOUR for n in fired]
        assert await skips(store) == [
            (first + skipped[0] * HOUR, first + skipped[1] * HOUR, skipped[2], reason)
        ]
        assert ticked.skipped == (await store.schedules.skipped("s")).items
        assert ticked.skipped[0].at_ms == ticked.at_ms
        found = await stored(store)
        assert (found.fired, found.skipped) == (len(fired), skipped[2])


async def test_law_m06_one_fires_the_latest_when_none_is_on_time(kit: Kit) -> None:
    """With "one" and nothing on time, the latest that was missed fires. (m06)"""
    async with kit.open() as store:
        first = await now(store) - 10 * HOUR - HOUR // 2
        timing = Every(interval_ms=HOUR, anchor_ms=first)
        await store.schedules.register(NewSchedule(schedule="s", timing=timing, start_ms=first))
        assert instants(await store.schedules.tick()) == [first + 10 * HOUR]
        assert await skips(store) == [(first, first + 9 * HOUR, 10, "missed")]


async def test_law_m07_a_tick_fires_up_to_its_limit(kit: Kit) -> None:
    """A tick fires at most as many instants as it is asked to, and says that there is more; ticked
    on, it comes to the same. (m07)"""
    async with kit.open() as store:
        first = await hourly(store, cap=8)
        ticks = await tick_all(store, limit=4)
        assert [len(each.fired) for each in ticks] == [4, 4, 1]
        fired = [each for ticked in ticks for each in instants(ticked)]
        assert fired == [first + n * HOUR for n in range(2, 11)]
        assert await skips(store) == [(first, first + HOUR, 2, "capped")]
        assert ticks[-1].next_at_ms == first + 11 * HOUR


async def test_law_m08_who_is_far_behind_makes_no_other_late(kit: Kit) -> None:
    """The limit of a tick is shared out among the schedules that are due. (m08)"""
    async with kit.open() as store:
        first = await hourly(store, "behind", hours=90)
        times = {name: await hourly(store, name, hours=0) for name in ("x", "y", "z")}
        ticked = await store.schedules.tick(limit=8)
        assert instants(ticked, "behind") == [first, first + HOUR]
        for name, instant in times.items():
            assert instants(ticked, name) == [instant]
        assert ticked.more is True


async def test_law_m09_any_number_may_tick_at_once(kit: Kit) -> None:
    """However many tick at the same time, each instant fires once; who comes second is told that
    the schedule was contended, and nothing else. (m09)"""
    async with kit.open() as one, kit.open() as two, kit.open() as three:
        firsts = [await hourly(one, f"s{n}", hours=20) for n in range(4)]
        fired: list[tuple[str, int]] = []
        more = True
        while more:
            ticks = await asyncio.gather(*(h.schedules.tick(limit=7) for h in (one, two, three)))
            fired += [(each.schedule, each.instant_ms) for tick in ticks for each in tick.fired]
            more = any(tick.more or tick.contended for tick in ticks)
        wanted = [(f"s{n}", first + h * HOUR) for n, first in enumerate(firsts) for h in range(21)]
        assert sorted(fired) == wanted
        for n in range(4):
            assert (await stored(one, f"s{n}")).fired == 21


async def test_law_m10_paused_nothing_fires(kit: Kit) -> None:
    """A paused schedule fires nothing; resumed, it goes on from now, and what had not fired, or
    came meanwhile, is kept as skipped. Both are one revision, and done again they change nothing.
    (m10)"""
    async with kit.open() as store:
        first = await hourly(store)
        paused = await store.schedules.pause("s")
        assert (paused.paused, paused.revision, paused.next_at_ms) == (True, 2, None)
        assert paused == await stored(store) == await store.schedules.pause("s")
        ticked = await store.schedules.tick()
        assert (ticked.fired, ticked.more, ticked.next_at_ms) == ((), False, None)
        assert await store.schedules.next("s", limit=1) == (first + 11 * HOUR,)
        resumed = await store.schedules.resume("s")
        assert (resumed.paused, resumed.revision, resumed.skipped) == (False, 3, 11)
        assert resumed.next_at_ms == first + 11 * HOUR
        assert resumed == await stored(store) == await store.schedules.resume("s")
        assert await skips(store) == [(first, first + 10 * HOUR, 11, "paused")]
        assert (await store.schedules.tick()).fired == ()


async def test_law_m11_another_timing_lets_the_old_one_pass(kit: Kit) -> None:
    """When another timing replaces one, what of the old one had not fired is skipped, and the new
    one goes on from there, however early it begins; one that is paused stays so. (m11)"""
    async with kit.open() as store:
        first = await hourly(store)
        half = Every(interval_ms=HOUR, anchor_ms=first + HOUR // 2)
        new = NewSchedule(schedule="s", timing=half, missed="all", start_ms=first)
        done = await store.schedules.register(new, expected=1)
        assert await skips(store) == [(first, first + 10 * HOUR, 11, "replaced")]
        assert (done.schedule.skipped, done.schedule.paused) == (11, False)
        assert done.schedule.next_at_ms == first + 10 * HOUR + HOUR // 2
        assert (await store.schedules.tick()).fired == ()
        await store.schedules.pause("s")
        back = msgspec.structs.replace(new, timing=Every(interval_ms=HOUR, anchor_ms=first))
        paused = await store.schedules.register(back, expected=3)
        assert (paused.schedule.paused, paused.schedule.next_at_ms) == (True, None)


async def test_law_m12_the_same_timing_goes_on_where_it_was(kit: Kit) -> None:
    """When a definition with the same instants replaces one, nothing is skipped by that: what had
    not fired is decided by the new rules. (m12)"""
    async with kit.open() as store:
        first = await hourly(store, missed="skip")
        assert len((await store.schedules.tick(limit=1)).fired) == 1
        assert await skips(store) == [(first, first + 9 * HOUR, 10, "missed")]
        await hourly(store, "t", missed="skip")
        old = await stored(store, "t")
        done = await store.schedules.register(
            NewSchedule(
                schedule="t",
                timing=old.timing,
                missed="all",
                payload="new",
                start_ms=old.start_ms,
            ),
            expected=1,
        )
        assert (done.schedule.skipped, done.schedule.decided_ms) == (0, old.decided_ms)
        assert len((await store.schedules.tick()).fired) == 11


async def test_law_m13_a_schedule_comes_to_its_end(kit: Kit) -> None:
    """The instant at `until_ms` is the last one; after it nothing is next. (m13)"""
    async with kit.open() as store:
        first = await now(store) - 3 * HOUR
        await store.schedules.register(
            NewSchedule(
                schedule="s",
                timing=Every(interval_ms=HOUR, anchor_ms=first),
                missed="all",
                start_ms=first,
                until_ms=first + 2 * HOUR,
            )
        )
        ticked = await store.schedules.tick()
        assert instants(ticked) == [first, first + HOUR, first + 2 * HOUR]
        assert (ticked.more, ticked.next_at_ms) == (False, None)
        assert (await stored(store)).next_at_ms is None
        assert await store.schedules.next("s") == ()


async def test_law_m14_the_next_instants_are_told(kit: Kit) -> None:
    """The next instants are those of the timing that are still to come, in order; what is overdue
    is not among them. (m14)"""
    async with kit.open() as store:
        first = await hourly(store)
        wanted = tuple(first + n * HOUR for n in (11, 12, 13))
        assert await store.schedules.next("s", limit=3) == wanted
        await store.schedules.tick()
        assert await store.schedules.next("s", limit=3) == wanted
        await store.schedules.register(
            NewSchedule(
                schedule="c",
                timing=Cron(expression="0 9 29 2 *", zone="Europe/Berlin"),
                # 2096-01-01T00:00Z
                start_ms=3_976_214_400_000,
            )
        )
        # 2096-02-29T08:00Z and 2104-02-29T08:00Z: 2100 is no leap year.
        told = await store.schedules.next("c", limit=2)
        assert told == (3_981_340_800_000, 4_233_715_200_000)


async def test_law_m15_a_deleted_schedule_is_gone(kit: Kit) -> None:
    """A schedule is deleted with what was skipped of it, and the answer says whether it was there.
    Registered again it begins anew. (m15)"""
    async with kit.open() as store:
        first = await hourly(store, missed="skip")
        await store.schedules.tick()
        assert await store.schedules.delete("s") is True
        assert await store.schedules.delete("s") is False
        assert await store.schedules.get("s") is None
        assert (await store.schedules.tick()).next_at_ms is None
        made = await store.schedules.register(
            NewSchedule(schedule="s", timing=Every(interval_ms=HOUR, anchor_ms=first))
        )
        assert (made.created, made.schedule.revision, made.schedule.skipped) == (True, 1, 0)
        assert await skips(store) == []


async def test_law_m16_an_unknown_schedule_is_refused(kit: Kit) -> None:
    """What is asked of a schedule that is not there is refused with ScheduleUnknown; reading it
    answers None. (m16)"""
    async with kit.open() as store:
        assert await store.schedules.get("s") is None
        asked = store.schedules
        for attempt in (asked.pause, asked.resume, asked.next, asked.skipped):
            with pytest.raises(ScheduleUnknown) as refused:
                await attempt("s")
            assert (refused.value.schedule, refused.value.code) == ("s", "schedule-unknown")


async def test_law_m17_schedules_are_listed_in_pages(kit: Kit) -> None:
    """Schedules are listed in the order of their ids, each once, page by page. (m17)"""
    async with kit.open() as store:
        for name in ("b", "a", "C", "d"):
            await hourly(store, name)
        pages = await all_pages(lambda after: store.schedules.list(after=after, limit=3))
        assert [each.schedule for each in pages] == ["C", "a", "b", "d"]
        assert (await store.schedules.list(limit=4)).next is None


async def test_law_m18_schedules_of_tenants_are_apart(kit: Kit) -> None:
    """A schedule of one tenant is neither seen, changed nor ticked by another one. (m18)"""
    async with kit.open() as store, kit.open(kit.other_tenant()) as other:
        await hourly(store)
        assert await other.schedules.get("s") is None
        assert (await other.schedules.list()).items == ()
        assert await other.schedules.delete("s") is False
        with pytest.raises(ScheduleUnknown):
            await other.schedules.pause("s")
        assert (await other.schedules.tick()).fired == ()
        assert len((await store.schedules.tick()).fired) == 11


WRONG: list[tuple[dict[str, Json], str]] = [
    ({"schedule": ""}, "schedule"),
    ({"cap": 0}, "cap"),
    ({"missed": "some"}, "missed"),
    ({"grace_ms": -1}, "grace_ms"),
    ({"start_ms": 5, "until_ms": 4}, "until_ms"),
]


async def test_law_m19_a_wrong_definition_is_refused(kit: Kit) -> None:
    """What cannot be kept is refused with Invalid, which names the field, or with TooLarge; so is a
    cursor of something else, and a page of no size. Nothing is stored by it. (m19)"""
    good = NewSchedule(schedule="s", timing=Every(interval_ms=HOUR))
    async with kit.open() as store:
        for wrong, field in WRONG:
            with pytest.raises(Invalid) as refused:
                await store.schedules.register(msgspec.structs.replace(good, **wrong))
            assert refused.value.field == field
        for timing, field in (
            (Cron(expression="61 * * * *"), "timing.expression"),
            (Cron(expression="0 0 30 2 *"), "timing.expression"),
            (Cron(expression="0 9 * * *", zone="Europe/Atlantis"), "timing.zone"),
            (Every(interval_ms=999), "timing.interval_ms"),
        ):
            with pytest.raises(Invalid) as refused:
                await store.schedules.register(NewSchedule(schedule="s", timing=timing))
            assert refused.value.field == field
        with pytest.raises(TooLarge):
            await store.schedules.register(msgspec.structs.replace(good, schedule="s" * 161))
        with pytest.raises(Invalid):
            await store.schedules.register(good, expected=0)
        with pytest.raises(Invalid):
            await store.schedules.tick(limit=0)
        with pytest.raises(Invalid):
            await store.schedules.skipped("s", after="x")
        assert (await store.schedules.list()).items == ()
