"""What the laws of schedules share: some that have begun hours ago, by the clock of the store."""

from __future__ import annotations

from holdfast.contract.schedules import Every, Missed, NewSchedule, Schedule, Ticked
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import all_pages

HOUR = 3_600_000


async def now(store: Store) -> int:
    """What time it is for the store: a schedule that is over before it begins is told."""
    made = await store.schedules.register(
        NewSchedule(schedule="now", timing=Every(interval_ms=HOUR))
    )
    await store.schedules.delete("now")
    return made.schedule.created_at_ms


async def hourly(
    store: Store, schedule: str = "s", *, hours: int = 10, missed: Missed = "all", cap: int = 100
) -> int:
    """A schedule of every hour that begins so many hours ago; its first instant. The last one is
    now, and on time for as long as a minute."""
    first = await now(store) - hours * HOUR
    await store.schedules.register(
        NewSchedule(
            schedule=schedule,
            timing=Every(interval_ms=HOUR, anchor_ms=first),
            missed=missed,
            cap=cap,
            start_ms=first,
        )
    )
    return first


async def stored(store: Store, schedule: str = "s") -> Schedule:
    found = await store.schedules.get(schedule)
    assert found is not None
    return found


async def skips(store: Store, schedule: str = "s") -> list[tuple[int, int, int, str]]:
    """What was skipped: first, last, how many, and why."""
    pages = await all_pages(lambda after: store.schedules.skipped(schedule, after=after))
    return [(each.first_ms, each.last_ms, each.count, each.reason) for each in pages]


def instants(ticked: Ticked, schedule: str = "s") -> list[int]:
    return [each.instant_ms for each in ticked.fired if each.schedule == schedule]


async def tick_all(store: Store, limit: int = 100) -> list[Ticked]:
    """Tick until there is no more to be done."""
    ticks = [await store.schedules.tick(limit=limit)]
    while ticks[-1].more:
        ticks.append(await store.schedules.tick(limit=limit))
    return ticks
