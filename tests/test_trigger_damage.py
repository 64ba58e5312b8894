"""What damaged rows of triggers are answered with, on both databases.

A subscription that is damaged keeps an occurrence from nobody else, and is not passed over in
silence: its delivery is rejected, and says why. Every other read of damage is a typed error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    Corrupt,
    NewOccurrence,
    NewSubscription,
    ProcessTemplate,
    Scope,
    Store,
    SubscriptionFilter,
)

if TYPE_CHECKING:
    from tests.conftest import Database

SOURCE: dict[str, Any] = {"source_type": "type", "source_key": "source"}
OWNER = Scope(session="s")
HAPPENS = NewOccurrence(**SOURCE, key="happens", payload={"a": 1}, source={"b": 2})
# What is written over a subscription, and what its delivery says of it.
DAMAGE = {
    "definition": ("definition = {bytes}", "its digest is wrong"),
    "digest": ("digest = {bytes}", "its digest is wrong"),
    "owner": ("owner_frame = 'elsewhere'", "its digest is wrong"),
}

OCCURRENCE = {"payload": "payload = {bytes}", "source": "source = {bytes}", "gone": "source = NULL"}


async def subscribed(store: Store) -> None:
    for key in ("a", "b", "c"):
        await store.triggers.register(
            NewSubscription(**SOURCE, owner=OWNER, key=key, process=ProcessTemplate(label=key))
        )


async def damage(database: Database, table: str, change: str, where: str) -> None:
    blob = "x'0102'" if database.kind == "sqlite" else r"'\x0102'::bytea"
    schema = "" if database.kind == "sqlite" else "holdfast."
    await database.run(f"UPDATE {schema}{table} SET {change.format(bytes=blob)} WHERE {where}")


@pytest.mark.parametrize("what", DAMAGE)
async def test_a_damaged_subscription_is_told_and_keeps_nothing_from_others(
    database: Database, what: str
) -> None:
    """The healthy ones are delivered to."""
    change, reason = DAMAGE[what]
    async with database.open() as store:
        await subscribed(store)
        await damage(database, "trigger_subscription", change, "key = 'b'")
        done = await store.triggers.ingest(HAPPENS)
        told = {delivery.key: delivery for delivery in done.deliveries}
        assert {key: one.state for key, one in told.items()} == {
            "a": "started",
            "b": "rejected",
            "c": "started",
        }
        assert reason in (told["b"].reason or "")
        assert "trigger_subscription" in (told["b"].reason or "")
        assert await store.processes.get(told["b"].process) is None
        with pytest.raises(Corrupt) as corrupt:
            await store.triggers.list(which=SubscriptionFilter(session="s"))
        assert corrupt.value.table == "trigger_subscription"
        assert corrupt.value.key.endswith("/b")


@pytest.mark.parametrize("column", ["name", "source_key"])
async def test_columns_are_what_was_registered(database: Database, column: str) -> None:
    """A subscription that is found by what it was not registered for is not handed out, and is not
    delivered to."""
    async with database.open() as store:
        await subscribed(store)
        await damage(database, "trigger_subscription", f"{column} = 'other'", "key = 'b'")
        with pytest.raises(Corrupt, match="its columns are not what was registered"):
            await store.triggers.get("b", owner=OWNER)
        happens = NewOccurrence(source_type="type", source_key="other", key="other")
        for delivery in (await store.triggers.ingest(happens)).deliveries:
            assert (delivery.key, delivery.state) == ("b", "rejected")
        assert await store.triggers.get("a", owner=OWNER) is not None


async def test_a_damaged_reservation_is_rejected_when_it_is_started(database: Database) -> None:
    """What is damaged between a reservation and its start is told by its delivery."""
    async with database.open() as store:
        await subscribed(store)
        name = (await store.triggers.record(HAPPENS)).occurrence.occurrence
        await damage(database, "trigger_subscription", "digest = {bytes}", "key = 'a'")
        reserved = await store.triggers.reserve(name)
        assert [one.state for one in reserved] == ["rejected", "reserved", "reserved"]
        await damage(database, "trigger_delivery", "definition = {bytes}", "key = 'b'")
        started = await store.triggers.start(name)
        assert [(one.key, one.state) for one in started] == [("b", "rejected"), ("c", "started")]


@pytest.mark.parametrize("what", OCCURRENCE)
async def test_a_damaged_occurrence_is_corrupt(database: Database, what: str) -> None:
    """It is neither answered nor delivered, and it is no conflict of whoever asks again."""
    async with database.open() as store:
        await subscribed(store)
        name = (await store.triggers.record(HAPPENS)).occurrence.occurrence
        await store.triggers.reserve(name)
        await damage(database, "trigger_occurrence", OCCURRENCE[what], "key = 'happens'")
        for ask in (
            store.triggers.occurrence(name),
            store.triggers.start(name),
            store.triggers.ingest(HAPPENS),
            store.triggers.record(HAPPENS),
            store.triggers.occurrences(),
        ):
            with pytest.raises(Corrupt) as corrupt:
                await ask
            assert (corrupt.value.table, corrupt.value.key) == ("trigger_occurrence", name)
        assert len((await store.triggers.reserved()).items) == 3
