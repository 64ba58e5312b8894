"""What schedules start: an instant that fires, and a run by hand, is an occurrence of a source.

The source is `schedule` and the id of the schedule; whatever is subscribed to it is started in the
transaction that decides the instant, so that neither is ever there without the other.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.contract.errors import Invalid, ScheduleUnknown
from holdfast.contract.processes import Pointer
from holdfast.contract.schedules import NewSchedule
from holdfast.contract.stores import Store
from holdfast.contract.triggers import (
    NewSubscription,
    Occurrence,
    OccurrenceFilter,
    ProcessTemplate,
    Subscription,
    TriggerDelivery,
)
from holdfast.testing.conformance.kit import Kit, all_pages
from holdfast.testing.conformance.schedule_kit import (
    HOUR,
    hourly,
    instants,
    skips,
    stored,
    tick_all,
)


async def subscribe(store: Store, key: str, schedule: str = "s", **given: Any) -> Subscription:
    """A subscription of the host to a schedule."""
    new = NewSubscription(key=key, source_type="schedule", source_key=schedule, **given)
    return (await store.triggers.register(new)).subscription


async def occurrences(store: Store, schedule: str = "s") -> list[Occurrence]:
    """What happened at a schedule, in the order of its instants, runs by hand first."""
    which = OccurrenceFilter(source_type="schedule", source_key=schedule)
    found = await all_pages(lambda after: store.triggers.occurrences(which=which, after=after))
    return sorted(found, key=lambda each: told(each)["instant_ms"] or 0)


def told(occurrence: Occurrence) -> dict[str, Any]:
    value: Any = occurrence.json()
    assert isinstance(value, dict)
    return value


async def deliveries(store: Store, occurrence: Occurrence) -> list[TriggerDelivery]:
    page = await store.triggers.deliveries(occurrence.occurrence)
    return list(page.items)


async def test_law_m20_an_instant_that_fires_is_an_occurrence(kit: Kit) -> None:
    """Each instant that fires is an occurrence of the source `schedule`, under a key that is made
    of the schedule and the instant; it says both, with the payload. (m20)"""
    async with kit.open() as store:
        first = await hourly(store, hours=2)
        old = await stored(store)
        await store.schedules.register(
            NewSchedule(
                schedule="s",
                timing=old.timing,
                missed="all",
                start_ms=first,
                payload={"room": 4},
            ),
            expected=1,
        )
        ticked = await store.schedules.tick()
        found = await occurrences(store)
        assert [each.key for each in found] == [each.occurrence for each in ticked.fired]
        assert [told(each) for each in found] == [
            {
                "schedule": "s",
                "instant_ms": first + n * HOUR,
                "request": None,
                "payload": {"room": 4},
            }
            for n in range(3)
        ]
        for each in found:
            assert (each.source_type, each.source_key, each.source) == ("schedule", "s", None)
            assert each.at_ms >= ticked.at_ms
            assert await deliveries(store, each) == []


async def test_law_m21_what_is_subscribed_to_a_schedule_is_started(kit: Kit) -> None:
    """With the instant that fires, the processes of all enabled subscriptions to the schedule are
    registered, each once; their input is the payload, or what is selected of it. (m21)"""
    async with kit.open() as store:
        first = await hourly(store, hours=1)
        await hourly(store, "other", hours=0)
        template = ProcessTemplate(
            kind="rounds", inputs={"when": Pointer(at="/instant_ms")}, recovery="external"
        )
        one = await subscribe(store, "one", process=template)
        two = await subscribe(store, "two")
        await subscribe(store, "off", enabled=False)
        await subscribe(store, "gone")
        await store.triggers.delete("gone")
        await tick_all(store, limit=1)
        found = await occurrences(store)
        assert [told(each)["instant_ms"] for each in found] == [first, first + HOUR]
        for each in found:
            made = await deliveries(store, each)
            assert [(d.key, d.subscription, d.state) for d in made] == [
                ("one", one.subscription, "started"),
                ("two", two.subscription, "started"),
            ]
            processes = [await store.processes.get(d.process) for d in made]
            assert [p.kind for p in processes if p is not None] == ["rounds", "task"]
            inputs = [msgspec.json.decode(p.input) for p in processes if p is not None]
            assert inputs == [{"when": told(each)["instant_ms"]}, told(each)]
            assert {p.cause for p in processes if p is not None} == {each.occurrence}
        (only,) = await occurrences(store, "other")
        assert await deliveries(store, only) == []
        assert len((await store.processes.list()).items) == 4


async def test_law_m22_who_cannot_be_started_is_told_why(kit: Kit) -> None:
    """A subscription whose schema has something against the payload gets a rejected delivery with
    the reason, and keeps the instant from nobody else. (m22)"""
    async with kit.open() as store:
        await hourly(store, hours=0)
        await subscribe(store, "picky", schema={"type": "string"})
        await subscribe(store, "other")
        ticked = await store.schedules.tick()
        assert (len(ticked.fired), ticked.stuck) == (1, ())
        (only,) = await occurrences(store)
        made = await deliveries(store, only)
        assert [(d.key, d.state) for d in made] == [("other", "started"), ("picky", "rejected")]
        assert made[1].reason
        assert await store.processes.get(made[1].process) is None


async def test_law_m23_what_has_fired_never_fires_again(kit: Kit) -> None:
    """An instant whose key is there already counts as fired and starts nothing, whatever became of
    the schedule meanwhile. (m23)"""
    async with kit.open() as store:
        first = await hourly(store, hours=2)
        old = await stored(store)
        await store.schedules.tick(limit=2)
        before = await occurrences(store)
        assert len(before) == 2
        await store.schedules.delete("s")
        await subscribe(store, "late")
        again = NewSchedule(
            schedule="s", timing=old.timing, missed="all", start_ms=first, payload=1
        )
        await store.schedules.register(again)
        ticked = await store.schedules.tick()
        assert instants(ticked) == [first, first + HOUR, first + 2 * HOUR]
        found = await occurrences(store)
        assert found[:2] == before
        assert [told(each)["payload"] for each in found] == [None, None, 1]
        assert [len(await deliveries(store, each)) for each in found] == [0, 0, 1]
        assert len((await store.processes.list()).items) == 1
        assert (await stored(store)).fired == 3


async def test_law_m24_a_schedule_is_run_by_hand(kit: Kit) -> None:
    """A run by hand happens once for each request, even when the schedule is paused; none of its
    instants is touched by that. What is subscribed to it is started. (m24)"""
    async with kit.open() as store, kit.open() as other:
        first = await hourly(store, hours=3)
        await subscribe(store, "one")
        before = await stored(store)
        run = await store.schedules.run_now("s", "r1")
        assert (run.ran, run.schedule) == (True, "s")
        assert run.at_ms >= before.created_at_ms
        again = await other.schedules.run_now("s", "r1")
        assert (again.ran, again.occurrence) == (False, run.occurrence)
        assert await stored(store) == msgspec.structs.replace(before, ran=1)
        await store.schedules.pause("s")
        second = await other.schedules.run_now("s", "r2")
        assert (second.ran, second.occurrence != run.occurrence) == (True, True)
        found = await occurrences(store)
        assert sorted(each.key for each in found) == sorted([run.occurrence, second.occurrence])
        (of_first,) = [each for each in found if each.key == run.occurrence]
        assert told(of_first) == {
            "schedule": "s",
            "instant_ms": None,
            "request": "r1",
            "payload": None,
        }
        assert len(await deliveries(store, of_first)) == 1
        assert len((await store.processes.list()).items) == 2
        await store.schedules.resume("s")
        assert await skips(store) == [(first, first + 3 * HOUR, 4, "paused")]
        assert (await stored(store)).ran == 2
        with pytest.raises(Invalid):
            await store.schedules.run_now("s", "")
        with pytest.raises(ScheduleUnknown):
            await store.schedules.run_now("t", "r1")


async def test_law_m25_a_request_that_is_asked_at_once_runs_once(kit: Kit) -> None:
    """However many ask for the same run at the same time, one is told that it ran. (m25)"""
    async with kit.open() as one, kit.open() as two:
        await hourly(one, hours=0)
        await subscribe(one, "k")
        asked = [one, two] * 4
        runs = await asyncio.gather(*(handle.schedules.run_now("s", "r") for handle in asked))
        assert sorted(run.ran for run in runs) == [False] * 7 + [True]
        assert (await stored(one)).ran == 1
        assert len((await one.processes.list()).items) == 1


async def test_law_m26_a_disable_that_returned_wins(kit: Kit) -> None:
    """When a subscription is disabled between two ticks, nothing is delivered to it from then on,
    and what was delivered before stays. (m26)"""
    async with kit.open() as store, kit.open() as other:
        await hourly(store, hours=3)
        await subscribe(store, "one")
        await other.schedules.tick(limit=2)
        await store.triggers.disable("one")
        await other.schedules.tick()
        found = await occurrences(store)
        assert [len(await deliveries(store, each)) for each in found] == [1, 1, 0, 0]
