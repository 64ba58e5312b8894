"""The races of schedules: some callers tick while another one changes what they tick.

`HOLDFAST_ROUNDS` is twice the number of rounds of each race on each database. What may come out of
a round is said by the race itself; what holds after each is that no instant was lost or doubled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from holdfast import (
    BlockingStore,
    Every,
    NewSchedule,
    NewSubscription,
    Occurrence,
    OccurrenceFilter,
    Schedule,
    ScheduleUnknown,
    Ticked,
)
from holdfast.testing.postgres_server import PostgresServer
from tests.racing import ROUNDS, Call, Callers, Check, Race, callers_on, troubles

HOUR = 3_600_000
# 2025-01-01T00:00Z: each schedule here has the twelve instants of the hours from then on.
FIRST = 1_735_689_600_000
HOURS = [FIRST + n * HOUR for n in range(12)]
CAP = 9
Told = list[tuple[int, str]]


def hourly(name: str, **given: Any) -> NewSchedule:
    wanted: dict[str, Any] = {"timing": Every(interval_ms=HOUR), "payload": 1, **given}
    return NewSchedule(
        schedule=name, missed="all", cap=CAP, start_ms=HOURS[0], until_ms=HOURS[-1], **wanted
    )


def prepared(store: BlockingStore, name: str) -> None:
    """A schedule that is due, and two that are subscribed to it."""
    for key in ("a", "b"):
        store.triggers.register(
            NewSubscription(key=f"{name}-{key}", source_type="schedule", source_key=name)
        )
    store.schedules.register(hourly(name))


def ticking(store: BlockingStore) -> list[Ticked]:
    """Tick until there is nothing left that is not somebody else's."""
    ticks = [store.schedules.tick(limit=2)]
    while ticks[-1].more:
        ticks.append(store.schedules.tick(limit=2))
    return ticks


def finished(store: BlockingStore, answers: Sequence[Any]) -> Told:
    """What all ticks have told, and the last ones, until nothing is left: each of it once."""
    ticks = [tick for answer in answers if isinstance(answer, list) for tick in answer]
    while not ticks or ticks[-1].more or ticks[-1].contended:
        ticks.append(store.schedules.tick())
    ticks += ticking(store)
    assert not [stuck for tick in ticks for stuck in tick.stuck]
    return [(fired.instant_ms, fired.occurrence) for tick in ticks for fired in tick.fired]


def happened(store: BlockingStore, name: str) -> list[Occurrence]:
    which = OccurrenceFilter(source_type="schedule", source_key=name)
    return list(store.triggers.occurrences(which=which, limit=1000).items)


def started_once(store: BlockingStore, name: str, keys: str = "ab") -> None:
    """What has happened was delivered to each subscription, and has started a process of it."""
    for occurrence in happened(store, name):
        deliveries = store.triggers.deliveries(occurrence.occurrence).items
        assert [one.key for one in deliveries] == [f"{name}-{key}" for key in keys]
        for one in deliveries:
            process = store.processes.get(one.process)
            assert one.state == "started"
            assert process is not None
            assert process.cause == occurrence.occurrence


def accounted(store: BlockingStore, name: str, told: Told) -> dict[str, int]:
    """What has fired and was skipped are the instants, each once, and what fired is what the ticks
    have told; how many were skipped for each reason."""
    found = store.schedules.get(name)
    assert found is not None
    skips = store.schedules.skipped(name).items
    skipped = [at for one in skips for at in HOURS if one.first_ms <= at <= one.last_ms]
    assert sorted([*(at for at, _ in told), *skipped]) == HOURS
    assert (found.fired, found.skipped, found.next_at_ms) == (len(told), len(skipped), None)
    assert {one.key for one in happened(store, name)} == {key for _, key in told}
    counts: dict[str, int] = {}
    for one in skips:
        counts[one.reason] = counts.get(one.reason, 0) + one.count
    assert sum(counts.values()) == len(skipped)
    return counts


# --- the races: what is there before, the four calls, and what may come out


def ticks(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    prepared(store, name)

    def check(store: BlockingStore, answers: Sequence[Any]) -> None:
        told = finished(store, answers)
        assert accounted(store, name, told) == {"capped": 12 - CAP}
        started_once(store, name)

    return [ticking] * 4, check


def ticks_against_pause(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    """Nothing fires after a pause has returned, and nothing is lost by it."""
    prepared(store, name)

    def pause(store: BlockingStore) -> tuple[Schedule, int]:
        return store.schedules.pause(name), len(happened(store, name))

    def check(store: BlockingStore, answers: Sequence[Any]) -> None:
        told = finished(store, answers)
        paused, count = answers[0]
        assert (paused.fired, paused.revision) == (count, 2) == (len(told), 2)
        assert store.schedules.get(name) == paused
        resumed = store.schedules.resume(name)
        assert accounted(store, name, told).get("paused", 0) == 12 - paused.fired - paused.skipped
        assert (resumed.fired, resumed.skipped) == (len(told), 12 - len(told))
        started_once(store, name)

    return [pause, *[ticking] * 3], check


def ticks_against_resume(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    """What had not fired by the pause is skipped by one who resumes, whoever ticks meanwhile."""
    prepared(store, name)

    def turn(store: BlockingStore) -> Schedule:
        store.schedules.pause(name)
        return store.schedules.resume(name)

    def check(store: BlockingStore, answers: Sequence[Any]) -> None:
        told = finished(store, answers)
        counts = accounted(store, name, told)
        # Either tick or pause was first; when it was a tick, it has skipped what the cap is for.
        assert counts.get("capped", 0) in (0, 12 - CAP)
        assert {"capped", "paused"} >= counts.keys()
        started_once(store, name)

    return [turn, turn, ticking, ticking], check


def ticks_against_replacement(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    """One of two replacements comes first, and what had not fired by then is skipped by it."""
    prepared(store, name)

    def replace(minutes: int) -> Call:
        timing = Every(interval_ms=minutes * 60_000)
        new = hourly(name, timing=timing)
        return lambda store: store.schedules.register(new, expected=1)

    def check(store: BlockingStore, answers: Sequence[Any]) -> None:
        told = finished(store, answers)
        counts = accounted(store, name, told)
        assert {"capped", "replaced"} >= counts.keys()
        codes = [getattr(answer, "code", "changed") for answer in answers[:2]]
        assert sorted(codes) == ["changed", "schedule-moved"]
        started_once(store, name)

    return [replace(30), replace(20), ticking, ticking], check


def ticks_against_deletion(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    """Nothing fires after it was deleted, and nothing of it is left but what has fired."""
    prepared(store, name)

    def delete(store: BlockingStore) -> tuple[bool, set[str]]:
        return store.schedules.delete(name), {one.key for one in happened(store, name)}

    def check(store: BlockingStore, answers: Sequence[Any]) -> None:
        told = finished(store, answers)
        deleted, there = answers[0]
        assert deleted
        assert {key for _, key in told} == there == {one.key for one in happened(store, name)}
        with pytest.raises(ScheduleUnknown):
            store.schedules.skipped(name)
        store.schedules.register(hourly(name))
        store.schedules.pause(name)
        assert store.schedules.skipped(name).items == ()
        store.schedules.delete(name)
        started_once(store, name)

    return [delete, *[ticking] * 3], check


def ticks_against_another_life(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    """It is deleted and registered again as it was: what had fired fires again, and starts nothing
    that was started."""
    prepared(store, name)

    def again(store: BlockingStore) -> bool:
        store.schedules.delete(name)
        return store.schedules.register(hourly(name)).created

    def check(store: BlockingStore, answers: Sequence[Any]) -> None:
        told = finished(store, answers)
        assert answers[0] is True
        found = store.schedules.get(name)
        assert found is not None
        assert (found.revision, found.fired, found.skipped) == (1, CAP, 12 - CAP)
        keys = [one.key for one in happened(store, name)]
        assert len(keys) == len(set(keys)) == CAP
        assert set(keys) == {key for _, key in told}
        assert all(told.count(one) <= 2 for one in told)
        started_once(store, name)

    return [again, *[ticking] * 3], check


def ticks_against_runs(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    """One of two runs for the same request runs, and takes nothing from the ticks."""
    prepared(store, name)

    def run(store: BlockingStore) -> Any:
        return store.schedules.run_now(name, "request")

    def check(store: BlockingStore, answers: Sequence[Any]) -> None:
        told = finished(store, answers)
        assert sorted(answer.ran for answer in answers[:2]) == [False, True]
        by_hand = (0, answers[0].occurrence)
        found = store.schedules.get(name)
        assert found is not None
        assert (found.ran, found.fired, found.skipped) == (1, CAP, 12 - CAP)
        keys = sorted(key for _, key in [*told, by_hand])
        assert sorted(one.key for one in happened(store, name)) == keys
        started_once(store, name)

    return [run, run, ticking, ticking], check


def ticks_against_disable(store: BlockingStore, name: str) -> tuple[list[Call], Check]:
    """What fires after a subscription was disabled is not delivered to it."""
    prepared(store, name)

    def disable(store: BlockingStore) -> set[str]:
        store.triggers.disable(f"{name}-a")
        return {one.occurrence for one in happened(store, name)}

    def check(store: BlockingStore, answers: Sequence[Any]) -> None:
        told = finished(store, answers)
        assert accounted(store, name, told) == {"capped": 12 - CAP}
        for occurrence in happened(store, name):
            deliveries = store.triggers.deliveries(occurrence.occurrence).items
            keys = [one.key for one in deliveries]
            earlier = occurrence.occurrence in answers[0]
            assert keys == [f"{name}-b"] or (earlier and keys == [f"{name}-a", f"{name}-b"])

    return [disable, *[ticking] * 3], check


RACES = [
    ticks,
    ticks_against_pause,
    ticks_against_resume,
    ticks_against_replacement,
    ticks_against_deletion,
    ticks_against_another_life,
    ticks_against_runs,
    ticks_against_disable,
]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def callers(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: PostgresServer,
) -> Iterator[Callers]:
    with callers_on(request.param, tmp_path_factory.mktemp("races"), postgres_server) as callers:
        yield callers


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.__name__)
def test_race(callers: Callers, postgres_server: PostgresServer, race: Race) -> None:
    """Each instant once, and the right answer for each of the callers."""
    before = troubles(postgres_server)
    callers.run(race, max(1, ROUNDS // 2))
    assert troubles(postgres_server) == before
