"""What the operations on triggers may cost, whatever number of subscriptions there is.

Round trips are counted and never timed. On a file it is the steps of the machine that are compared:
what one more delivery costs does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.contract.errors import OccurrenceConflict, TooLarge
from holdfast.contract.limits import Limits
from holdfast.contract.processes import NewGrant, Pointer, Scope
from holdfast.contract.triggers import NewOccurrence, NewSubscription, ProcessTemplate
from holdfast.stores import Store
from holdfast.testing.wire import WireProxy

FEW, MANY = 1, 300
PROCESS = ProcessTemplate(
    kind="job",
    inputs={"what": Pointer(at="/what")},
    wake=Scope(session="woken"),
    grants=[NewGrant(scope=Scope(session="woken")), NewGrant(scope=Scope(session="seeing"))],
)


def happened(count: int, key: str) -> NewOccurrence:
    return NewOccurrence(
        source_type="counted", source_key=f"s{count}", key=f"{key}-{count}", payload={"what": key}
    )


async def subscribe(store: Store, count: int) -> None:
    """So many subscriptions to one source."""
    for nth in range(count):
        named: dict[str, Any] = {"source_type": "counted", "source_key": f"s{count}"}
        owner = Scope(session=f"owner-{nth % 7}") if nth % 2 else None
        new = NewSubscription(owner=owner, key=f"k{count}-{nth}", process=PROCESS, **named)
        await store.triggers.register(new)


async def ingested(store: Store, count: int, key: str) -> None:
    done = await store.triggers.ingest(happened(count, key))
    assert done.recorded
    assert [delivery.state for delivery in done.deliveries] == ["started"] * count


async def ingested_again(store: Store, count: int, key: str) -> None:
    done = await store.triggers.ingest(happened(count, "first"))
    assert not done.recorded
    assert len(done.deliveries) == count


async def conflicting(store: Store, count: int, key: str) -> None:
    other = NewOccurrence(
        source_type="counted", source_key=f"s{count}", key=f"first-{count}", payload=key
    )
    with pytest.raises(OccurrenceConflict):
        await store.triggers.ingest(other)


async def recorded(store: Store, count: int, key: str) -> str:
    done = await store.triggers.record(happened(count, key))
    return done.occurrence.occurrence


async def reserved_and_started(store: Store, count: int, key: str) -> None:
    name = await recorded(store, count, key)
    assert len(await store.triggers.reserve(name)) == count
    assert len(await store.triggers.start(name)) == count


Act = Callable[[Store, int, str], Awaitable[object]]
ROUND_TRIPS: dict[str, tuple[int, Act]] = {
    "ingest": (2, ingested),
    "ingest again": (2, ingested_again),
    "ingest something else": (1, conflicting),
    "record": (1, recorded),
    # One to record, two to reserve; to start there are two, and one that finds nothing left.
    "record, reserve, start": (6, reserved_and_started),
    "disable": (1, lambda s, n, key: s.triggers.disable(f"k{n}-0")),
    "register again": (
        1,
        lambda s, n, key: s.triggers.register(
            NewSubscription(
                key=f"k{n}-0", source_type="counted", source_key=f"s{n}", process=PROCESS
            )
        ),
    ),
    "get": (1, lambda s, n, key: s.triggers.get(f"k{n}-0")),
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
async def test_round_trips_do_not_grow_with_subscriptions(postgres_url: str, name: str) -> None:
    """One subscription or three hundred: the same number of round trips."""
    budget, act = ROUND_TRIPS[name]
    async with (
        WireProxy(postgres_url) as wire,
        await holdfast.open(wire.url, pool_size=1) as store,
    ):
        spent: dict[int, set[int]] = {}
        for count in (FEW, MANY):
            await subscribe(store, count)
            await store.triggers.ingest(happened(count, "first"))
            for nth in range(4):
                before = wire.round_trips
                await act(store, count, f"nth-{nth}")
                if nth >= 2:
                    # The first ones may prepare a statement.
                    spent.setdefault(count, set()).add(wire.round_trips - before)
        assert spent == {FEW: {budget}, MANY: {budget}}


class Steps:
    """The steps of SQLite's machine that any connection takes meanwhile."""

    def __init__(self) -> None:
        self.taken = 0

    def __enter__(self) -> Steps:
        apsw.connection_hooks.append(self._watch)
        return self

    def __exit__(self, *trouble: object) -> None:
        apsw.connection_hooks.remove(self._watch)

    def _watch(self, connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._note)

    def _note(self, event: dict[str, Any]) -> None:
        self.taken += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]


async def test_a_delivery_on_a_file_costs_the_same_among_many(sqlite_path: Path) -> None:
    """What is done for each delivery does not depend on how many there are."""
    with Steps() as steps:
        async with await holdfast.open(str(sqlite_path), readers=1) as store:
            each: dict[str, dict[int, float]] = {}
            for count in (30, MANY):
                await subscribe(store, count)
                for act in (ingested, reserved_and_started):
                    await act(store, count, f"first-{act.__name__}")
                    before = steps.taken
                    await act(store, count, f"second-{act.__name__}")
                    spent = (steps.taken - before) / count
                    each.setdefault(act.__name__, {})[count] = spent
    for name, costs in each.items():
        assert costs[MANY] <= costs[30] * 1.1, f"{name}: {each}"


async def test_one_occurrence_is_delivered_to_so_many_at_once(sqlite_path: Path) -> None:
    """More than that is refused, and nothing is stored; just as many are delivered."""
    limits = Limits(commit_rows=5)
    async with await holdfast.open(str(sqlite_path), limits=limits) as store:
        await subscribe(store, 5)
        await ingested(store, 5, "all")
        extra = NewSubscription(key="one-more", source_type="counted", source_key="s5")
        await store.triggers.register(extra)
        with pytest.raises(TooLarge, match="subscriptions is 6"):
            await store.triggers.ingest(happened(5, "too-many"))
        name = await recorded(store, 5, "too-many")
        with pytest.raises(TooLarge, match="subscriptions is 6"):
            await store.triggers.reserve(name)


async def test_a_fan_out_has_a_size(sqlite_path: Path) -> None:
    """What an ingest would register is bounded by its bytes, and so is what it makes of them; a
    start takes as many at a time as that."""
    limits = Limits(commit_bytes=20_000)
    async with await holdfast.open(str(sqlite_path), limits=limits) as store:
        for nth in range(9):
            new = NewSubscription(key=f"k{nth}", source_type="counted", source_key="s9")
            await store.triggers.register(new)
        large = NewOccurrence(
            source_type="counted", source_key="s9", key="large", payload="x" * 5_000
        )
        with pytest.raises(TooLarge, match="processes") as refused:
            await store.triggers.ingest(large)
        # What was made before it was too much, and not all nine.
        assert refused.value.actual < 30_000
        name = (await store.triggers.record(large)).occurrence.occurrence
        assert len(await store.triggers.reserve(name)) == 9
        started = await store.triggers.start(name)
        assert [delivery.state for delivery in started] == ["started"] * 9
