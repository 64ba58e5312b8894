"""Operations on triggers, failed before and after each of their steps and with their answer lost.

The law is that of the other fault tests. Whatever the second time is asked about is named here by a
key, an operation or an id, so that it comes to where an undisturbed one ends, whatever was done.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from holdfast.contract.errors import SubscriptionMoved, SubscriptionUnknown
from holdfast.contract.limits import MAX_INT
from holdfast.contract.processes import NewGrant, Pointer, Scope
from holdfast.contract.stores import Store
from holdfast.contract.triggers import (
    Ingested,
    NewOccurrence,
    NewSubscription,
    ProcessTemplate,
    Recorded,
    Subscribed,
    TriggerDelivery,
)
from holdfast.stores import Store as AsyncStore
from holdfast.testing.conformance.kit import all_pages
from holdfast.testing.conformance.kit_processes import here
from tests.faulting import Act, Kept, Struck, strike_everywhere

if TYPE_CHECKING:
    from tests.conftest import Database

AT_S, AT_T = here("s"), here("t", "frame")
# Of these subscriptions the second rejects every payload here, and the last is not delivered to.
OWNERS: list[tuple[Scope | None, str, dict[str, Any]]] = [
    (None, "a", {"grants": [NewGrant(scope=AT_S, kind="k"), NewGrant(scope=AT_T)]}),
    (None, "b", {"inputs": {"n": Pointer(at="/nothing")}}),
    (AT_S, "a", {"grants": [NewGrant(scope=AT_T, label="l")], "wake": AT_S}),
    (AT_T, "a", {"recovery": "external"}),
    (AT_T, "off", {}),
]
STARTED, REJECTED = "started", "rejected"
STATES = [STARTED, REJECTED, STARTED, STARTED]


def rule(owner: Scope | None, key: str, **how: Any) -> NewSubscription:
    """A subscription to the one source there is."""
    process = ProcessTemplate(**how)
    return NewSubscription(
        owner=owner, key=key, source_type="x", source_key="y", process=process, enabled=key != "off"
    )


def happened(key: str) -> NewOccurrence:
    """What happens at that source."""
    return NewOccurrence(source_type="x", source_key="y", key=key, payload={"n": key}, source="z")


async def prepare(store: Store, kept: Kept) -> None:
    """Subscriptions of the host and of two sessions, one that was deleted, and occurrences that
    were recorded, reserved and ingested."""
    for session in ("s", "t"):
        await store.sessions.create(session)
    for owner, key, how in OWNERS:
        await store.triggers.register(rule(owner, key, **how))
    await store.triggers.register(rule(None, "deleted"))
    await store.triggers.delete("deleted")
    for key in ("recorded", "reserved"):
        found = await store.triggers.record(happened(key))
        kept[key] = found.occurrence.occurrence
    assert len(await store.triggers.reserve(kept["reserved"])) == 4
    ingested = await store.triggers.ingest(happened("ingested"))
    assert [delivery.state for delivery in ingested.deliveries] == STATES
    for delivery in ingested.deliveries:
        if delivery.state == STARTED:
            await store.processes.end(delivery.process, authority="operator")
    kept["ingested"] = ingested.occurrence.occurrence


def changes(verb: str, **how: Any) -> Act:
    """A subscription switched or deleted, at its revision, with a receipt or without."""
    key = "off" if verb == "enable" else "a"
    return lambda s, k: getattr(s.triggers, verb)(key, owner=AT_T, **how)


MORE = rule(AT_S, "a", label="more")
ACTS: dict[str, Act] = {
    "register": lambda s, k: s.triggers.register(rule(AT_S, "new")),
    "register with a receipt": lambda s, k: s.triggers.register(rule(None, "new"), operation="op"),
    "register again": lambda s, k: s.triggers.register(rule(None, "b", **OWNERS[1][2])),
    "register a change": lambda s, k: s.triggers.register(MORE, expected=1, operation="op"),
    "register what was deleted": lambda s, k: s.triggers.register(
        rule(None, "deleted"), operation="op"
    ),
    "enable": changes("enable"),
    "enable with a receipt": changes("enable", expected=1, operation="op"),
    "disable": changes("disable"),
    "disable with a receipt": changes("disable", expected=1, operation="op"),
    "delete": changes("delete"),
    "delete with a receipt": changes("delete", expected=1, operation="op"),
    "record": lambda s, k: s.triggers.record(happened("new")),
    "reserve": lambda s, k: s.triggers.reserve(k["recorded"]),
    "start": lambda s, k: s.triggers.start(k["reserved"]),
    "ingest": lambda s, k: s.triggers.ingest(happened("new")),
    "ingest again": lambda s, k: s.triggers.ingest(happened("ingested")),
    "prune": lambda s, k: s.triggers.prune(before_ms=MAX_INT),
    "delete a session": lambda s, k: s.sessions.delete("s"),
}


async def check_again(name: str, struck: Struck) -> None:
    """The second time answers what is true then, and ends where an undisturbed one ends."""
    done = struck.done
    again = await ACTS[name](struck.store, struck.kept)
    if isinstance(again, Subscribed):
        # With a receipt the first answer is given again.
        first = name != "register again" and not (name == "register" and done)
        assert again.changed is first
        assert again.created is (first and name != "register a change")
    elif isinstance(again, Recorded):
        assert again.recorded is not done
    elif isinstance(again, Ingested):
        assert again.recorded is (name == "ingest" and not done)
        assert [delivery.state for delivery in again.deliveries] == STATES
    elif name == "start":
        assert [found.state for found in again] == ([] if done else STATES)
    elif name == "reserve":
        assert [found.state for found in again] == ([] if done else ["reserved"] * 4)
    elif name == "prune":
        # What is only recorded starts nothing, what is reserved is still to be started.
        names = sorted([struck.kept["recorded"], struck.kept["ingested"]])
        assert sorted(again.occurrences) == ([] if done else names)
    elif name == "delete a session":
        assert again.deleted is not done
    assert await struck.rows() == struck.undisturbed, struck.at


BLOCKING = ("ingest", "start", "register a change")
CASES = [("async", name) for name in ACTS] + [("blocking", name) for name in BLOCKING]


@pytest.mark.parametrize(("colour", "name"), CASES)
async def test_a_failed_operation_on_triggers_is_never_half_stored(
    database: Database, colour: str, name: str
) -> None:
    async def check(struck: Struck) -> None:
        await check_again(name, struck)
        await consistent(struck.store)

    await strike_everywhere(database, colour, prepare, ACTS[name], check)


async def consistent(store: Store) -> None:
    """Each delivery that says that it has started has its process, and each process its delivery,
    with the grants of its template."""
    started: dict[str, str] = {}
    for occurrence in await all_pages(lambda after: store.triggers.occurrences(after=after)):
        for found in (await store.triggers.deliveries(occurrence.occurrence)).items:
            if found.state == STARTED:
                started[found.process] = occurrence.occurrence
    page = await store.processes.changes(limit=100)
    there = {change.process: change.record for change in page.items}
    assert set(started) <= set(there)
    for name, record in there.items():
        assert record is not None
        assert record.cause is not None
        if name in started:
            assert record.cause == started[name]
        else:
            assert await store.triggers.occurrence(record.cause) is None


async def test_what_is_started_in_parts_is_whole_in_each_of_them(database: Database) -> None:
    """A handle that may write two rows at a time starts two deliveries at a time: what is not
    started yet is reserved still, and the next time goes on with it."""

    async def act(store: Store, kept: Kept) -> tuple[TriggerDelivery, ...]:
        assert isinstance(store, AsyncStore)
        limits = msgspec.structs.replace(store._view.limits, commit_rows=2)
        few = AsyncStore(dataclasses.replace(store._view, limits=limits))
        return await few.triggers.start(kept["reserved"])

    left: set[int] = set()

    async def check(struck: Struck) -> None:
        page = await struck.store.triggers.reserved()
        left.add(len(page.items))
        rows = struck.found["trigger_delivery"]
        started = {row["process"] for row in rows if row["state"] == STARTED}
        assert started == {row["process"] for row in struck.found["process"]}
        again = await act(struck.store, struck.kept)
        assert {found.process for found in again} == {found.process for found in page.items}
        assert await struck.rows() == struck.undisturbed
        await consistent(struck.store)

    await strike_everywhere(database, "async", prepare, act, check, in_parts=True)
    assert left == ({0, 4} if database.kind == "sqlite" else {0, 2, 4})


async def test_a_change_without_a_receipt_may_be_told_of_its_own_change(
    database: Database,
) -> None:
    """Where the first time was done, a second one with the old revision meets the new one. What an
    operation is for is that it does not."""

    async def act(store: Store, kept: Kept) -> Subscribed:
        return await store.triggers.register(
            rule(AT_S, "a", label=f"another {len(kept)}"), expected=1
        )

    async def check(struck: Struck) -> None:
        if not struck.done:
            assert (await act(struck.store, struck.kept)).subscription.revision == 2
            return
        # The same definition is no change, so it is no conflict either.
        assert not (await act(struck.store, struck.kept)).changed
        with pytest.raises(SubscriptionMoved) as caught:
            await struck.store.triggers.disable("a", owner=AT_S, expected=1)
        assert caught.value.actual == 2

    await strike_everywhere(database, "async", prepare, act, check)


async def test_a_deleted_subscription_is_not_switched_by_a_second_try(database: Database) -> None:
    """A disable whose answer was lost meets what has happened since, unless it has a receipt."""

    async def act(store: Store, kept: Kept) -> Any:
        return await store.triggers.disable("a", owner=AT_T, operation="op")

    async def check(struck: Struck) -> None:
        await struck.store.triggers.delete("a", owner=AT_T)
        if struck.done:
            again = await act(struck.store, struck.kept)
            assert (again.revision, again.enabled, again.deleted_at_ms) == (2, False, None)
        else:
            with pytest.raises(SubscriptionUnknown):
                await act(struck.store, struck.kept)
        assert await struck.store.triggers.get("a", owner=AT_T) is None

    await strike_everywhere(database, "async", prepare, act, check)
