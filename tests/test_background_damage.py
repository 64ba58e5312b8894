"""What damaged rows of processes and triggers are answered with, on both databases.

As with sessions, damage is a typed error that names the row, wherever it is read, and whoever does
not need that row goes on. A subscription that is damaged starts nothing and says so.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.contract.errors import (
    Corrupt,
    CounterOverflow,
    HoldfastError,
)
from holdfast.contract.limits import MAX_INT
from holdfast.contract.processes import (
    EventType,
    ExternalRef,
    NewEvent,
    NewGrant,
    NewProcess,
    ProcessFilter,
    Wait,
    WakeRule,
)
from holdfast.contract.stores import Store
from holdfast.contract.triggers import (
    NewOccurrence,
    NewSubscription,
    OccurrenceFilter,
    ProcessTemplate,
    SubscriptionFilter,
)
from holdfast.core.triggers import occurrence_id
from holdfast.stores import Store as AsyncStore
from holdfast.testing.conformance.kit_processes import here
from tests.test_damage import bounded_reads, flipped, opened

if TYPE_CHECKING:
    from tests.conftest import Database

__all__ = ["bounded_reads"]

AT_S = here("s")
STEP, CALL = EventType(name="step"), EventType(name="call", wakes=WakeRule())
PARTS: dict[str, Any] = {
    "kind": "kind",
    "definition": "def",
    "events": (STEP, CALL),
    "origin": AT_S,
    "parent": "above",
    "wake": AT_S,
    "grants": [NewGrant(scope=AT_S)],
}
# The log of the process that is damaged: started, step, call, step, waiting.
FIRST, SECOND, LAST = NewEvent(type="step", key="1"), NewEvent(type="call", key="2"), 5
WAIT = Wait(type="call", after=7)


async def fill(store: Store) -> None:
    """Three processes that will be damaged, one that will not, and what triggers know."""
    await store.sessions.create("s")
    for name in ("p", "ended", "away", "other"):
        recovery: Any = "external" if name == "away" else "rerunnable"
        await store.processes.register(NewProcess(process=name, recovery=recovery, **PARTS))
    for name in ("p", "other"):
        await store.processes.claim(name, "me", ttl_ms=0)
        for event in (FIRST, SECOND, NewEvent(type="step")):
            await store.processes.append(name, event)
        await store.processes.suspend(name, WAIT)
    await store.processes.end("ended", output="out", authority="operator")
    await store.processes.set_external("away", REF)
    for key in ("damaged", "whole"):
        await store.triggers.register(subscription(key), operation=f"op-{key}")
    for key in ("o", "other"):
        await store.triggers.ingest(happened(key))
    found = await store.triggers.record(happened("r"))
    await store.triggers.reserve(found.occurrence.occurrence)


REF = ExternalRef(backend="b", id="1")


def subscription(key: str) -> NewSubscription:
    return NewSubscription(
        owner=AT_S, key=key, source_type="x", source_key="y", process=ProcessTemplate(), name="n"
    )


def happened(key: str) -> NewOccurrence:
    return NewOccurrence(source_type="x", source_key="y", key=key, payload="of it", source="why")


async def others_go_on(store: Store) -> None:
    """What stands beside the damaged rows is read, appended to, leased, ended and started."""
    page = await store.processes.events("other")
    assert [event.sequence for event in page.items] == [1, 2, 3, 4, 5]
    appended = await store.processes.append("other", SECOND)
    assert (appended.replayed, appended.event.sequence) == (True, 3)
    lease = await store.processes.claim("other", "you")
    assert lease.generation == 2
    ended = await store.processes.end("other", output="fine", lease=lease)
    assert (ended.state, ended.sequence) == ("completed", LAST + 1)
    assert (await store.triggers.get("whole", owner=AT_S)) is not None
    found = await store.triggers.ingest(happened("later"))
    states = {delivery.key: delivery.state for delivery in found.deliveries}
    assert states["whole"] == "started"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Damage:
    """What is done to one row: the last bit of a column is turned over, or it is set to something.
    `names` is the table and the key that the error names."""

    table: str
    where: str
    flip: str = ""
    set: str = ""
    names: tuple[str, str]

    async def do(self, database: Database, tenant: str) -> None:
        where = f"tenant = '{tenant}' AND {self.where}"
        found = await database.run(f"SELECT * FROM {self.table} WHERE {where}")
        assert len(found) == 1
        if self.set:
            await database.run(f"UPDATE {self.table} SET {self.set} WHERE {where}")
        else:
            turned = flipped(found[0][self.flip])
            await database.run(f"UPDATE {self.table} SET {self.flip} = $1 WHERE {where}", turned)


Check = Callable[[str, Store, Damage], Awaitable[None]]


async def each(database: Database, damages: dict[str, Damage], check: Check) -> None:
    """Do each of these to a tenant of its own; afterwards whatever is not damaged goes on."""
    async with opened(database) as opening:
        assert isinstance(opening, AsyncStore)
        view = opening._view
        stores = {of: AsyncStore(dataclasses.replace(view, tenant=of)) for of in damages}
        await asyncio.gather(*(fill(store) for store in stores.values()))
        await database.drop_checks()
        for name, damage in damages.items():
            await damage.do(database, name)
            await check(name, stores[name], damage)
            await others_go_on(stores[name])


Read = Callable[[Store], Awaitable[object]]


async def all_corrupt(store: Store, reads: dict[str, Read], names: tuple[str, str]) -> None:
    """Each of these says that the row is damaged, and says so again."""
    for name, read in (*reads.items(), *reads.items()):
        try:
            await read(store)
        except Corrupt as damaged:
            assert (damaged.table, damaged.key) == names, name  # noqa: PT017
            assert not damaged.retryable  # noqa: PT017
        else:
            pytest.fail(f"{names}: {name} says nothing")


# --- processes


def reads_of(process: str) -> dict[str, Read]:
    """Everything that reads the record of a process."""
    recovery: Any = "external" if process == "away" else "rerunnable"
    again = NewProcess(process=process, recovery=recovery, **PARTS)
    states: Any = ("completed",) if process == "ended" else ("running",)
    of_s = ProcessFilter(states=states, session="s")
    return {
        "get": lambda s: s.processes.get(process),
        "list": lambda s: s.processes.list(which=ProcessFilter(states=states)),
        "list of an origin": lambda s: s.processes.list(which=of_s),
        "grants": lambda s: s.processes.grants(AT_S),
        "changes": lambda s: s.processes.changes(),
        "register again": lambda s: s.processes.register(again),
    }


def of_process(process: str, flip: str = "", **how: Any) -> Damage:
    where = f"process = '{process}'"
    names = ("process", process)
    return Damage(table="process", where=where, flip=flip, **{"names": names, **how})


def of_event(process: str, seq: int, flip: str = "", **how: Any) -> Damage:
    where = f"process = '{process}' AND seq = {seq}"
    return Damage(table="process_event", where=where, flip=flip, **how)


WAITING = ("process_event", "p/process.waiting")
EXTERNAL = ("process_event", "away/process.external")
RECORDS = {
    "registration": of_process("p", "registration"),
    "identity": of_process("p", "identity"),
    "kind": of_process("p", "kind"),
    "definition": of_process("p", "definition"),
    "recovery": of_process("p", "recovery"),
    "wake": of_process("p", "wake_session"),
    "parent": of_process("p", "parent"),
    "counter": of_process("p", set="last_event = -1"),
    "an-end-that-is-none": of_process("p", set="ended_event = 2"),
    "no-wait": of_process("p", set="wait_event = 99", names=WAITING),
    "another-wait": of_process("p", set="wait_event = 2", names=WAITING),
    "no-reference": of_process("away", set="external_event = 99", names=EXTERNAL),
    "no-end": of_process("ended", set="ended_event = 99"),
    "output": of_event("ended", 1, "output", names=("process_event", "ended/process.completed")),
    "authority": of_event("ended", 1, "authority", names=("process", "ended")),
    "wait": of_event("p", 5, "payload", names=WAITING),
    "reference": of_event("away", 1, "payload", names=EXTERNAL),
}


async def test_a_damaged_record_is_told_by_every_read_of_it(database: Database) -> None:
    async def check(name: str, store: Store, damage: Damage) -> None:
        process = damage.where.split("'")[1]
        reads = reads_of(process)
        if name == "recovery":
            # Whoever took it for one that may be run again would run it twice.
            reads["claim"] = lambda s: s.processes.claim(process, "me")
        await all_corrupt(store, reads, damage.names)

    await each(database, RECORDS, check)


async def test_a_process_in_no_state_is_never_taken_for_one_that_has_ended(
    database: Database,
) -> None:
    """A worker that was told `ProcessEnded` would let go of it."""

    async def check(name: str, store: Store, damage: Damage) -> None:
        reads = reads_of("p")
        for name in ("list", "list of an origin"):
            # A state that there is not is asked for by nobody.
            del reads[name]
        reads |= {
            "claim": lambda s: s.processes.claim("p", "me"),
            "end": lambda s: s.processes.end("p", authority="operator"),
            "cancel": lambda s: s.processes.request_cancel("p"),
            "suspend": lambda s: s.processes.suspend("p", Wait(until_ms=1)),
        }
        await all_corrupt(store, reads, damage.names)

    await each(database, {"state": of_process("p", "state")}, check)


# --- events

CALLED = ("process_event", "p/call")
EVENTS = {
    "payload": of_event("p", 3, "payload", names=CALLED),
    "wake": of_event("p", 3, "wake", names=CALLED),
    "digest": of_event("p", 3, "digest", names=CALLED),
    "type": of_event("p", 3, set="type = 'cald'", names=("process_event", "p/cald")),
    "key": of_event("p", 3, set="key = '3'", names=CALLED),
    "output": of_event("p", 3, set="output = payload", names=CALLED),
    "ends": of_event("p", 3, set="ends = 'failed'", names=CALLED),
    "authority": of_event("p", 3, set="authority = 'lapse'", names=CALLED),
    "ordinal": of_event("p", 3, set="ordinal = 9", names=CALLED),
    "no-ordinal": of_event("p", 3, set="ordinal = 0", names=CALLED),
}


async def test_a_damaged_event_is_told_by_every_read_of_it(database: Database) -> None:
    async def check(name: str, store: Store, damage: Damage) -> None:
        reads: dict[str, Read] = {
            "events": lambda s: s.processes.events("p"),
            "later events": lambda s: s.processes.events("p", after=2, limit=1),
            "recent": lambda s: s.processes.recent("p"),
            "wakes": lambda s: s.processes.wakes("p"),
        }
        if name != "type":
            reads["events of a type"] = lambda s: s.processes.events("p", type="call")
        if name != "key":
            # To tell a repeated caller of a conflict would be to say that they had changed it.
            reads["append again"] = lambda s: s.processes.append("p", SECOND)
        await all_corrupt(store, reads, damage.names)
        record = await store.processes.get("p")
        assert record is not None
        assert record.wait == WAIT

    await each(database, EVENTS, check)


async def test_an_event_that_is_not_there_any_more_is_told(database: Database) -> None:
    """The sequences of a log are dense, so that whoever reads it knows what is missing."""
    async with opened(database) as store:
        await fill(store)
        await database.run("DELETE FROM process_event WHERE process = 'p' AND seq = 3")
        reads: dict[str, Read] = {
            "events": lambda s: s.processes.events("p"),
            "later events": lambda s: s.processes.events("p", after=2),
            "recent": lambda s: s.processes.recent("p", limit=4),
        }
        await all_corrupt(store, reads, ("process_event", "p/3"))
        page = await store.processes.events("p", after=3)
        assert [event.sequence for event in page.items] == [4, 5]
        await others_go_on(store)


COUNTERS: dict[str, tuple[str, int, type[HoldfastError]]] = {
    "negative": ("last_event", -1, Corrupt),
    "behind": ("last_event", 2, Corrupt),
    "full": ("last_event", MAX_INT, CounterOverflow),
    "negative-generation": ("lease_generation", -1, Corrupt),
    "full-generation": ("lease_generation", MAX_INT, CounterOverflow),
}


async def test_a_damaged_counter_of_a_process_is_refused_and_nothing_changes(
    database: Database,
) -> None:
    async def check(name: str, store: Store, damage: Damage) -> None:
        column, _, error = COUNTERS[name]
        acts: list[Callable[[], Awaitable[object]]] = [lambda: store.processes.claim("p", "you")]
        if column == "last_event":
            acts = [
                lambda: store.processes.append("p", NewEvent(type="call")),
                lambda: store.processes.append("p", NewEvent(type="step", key="new")),
                lambda: store.processes.end("p", authority="operator"),
            ]
        before = await database.rows(name)
        for act in (*acts, *acts):
            with pytest.raises(error) as caught:
                await act()
            assert type(caught.value) is error
            assert not caught.value.retryable
            if isinstance(caught.value, Corrupt) and caught.value.table == "database":
                # On a file it is the key of the event, or of its work, that refuses it.
                assert name == "behind"
                assert "UNIQUE constraint failed" in caught.value.reason
            elif isinstance(caught.value, Corrupt):
                assert (caught.value.table, caught.value.key) == damage.names
        assert await database.rows(name) == before

    damages = {
        name: of_process("p", set=f"{column} = {value}")
        for name, (column, value, _) in COUNTERS.items()
    }
    await each(database, damages, check)


# --- triggers


def of_trigger(table: str, flip: str = "", key: str = "damaged", **how: Any) -> Damage:
    table = f"trigger_{table}"
    return Damage(table=table, where=f"key = '{key}'", flip=flip, **how)


SUBSCRIPTION = ("trigger_subscription", "s//damaged")
SUBSCRIPTIONS = {
    "definition": of_trigger("subscription", "definition", names=SUBSCRIPTION),
    "digest": of_trigger("subscription", "digest", names=SUBSCRIPTION),
    "name": of_trigger("subscription", "name", names=SUBSCRIPTION),
    "type": of_trigger("subscription", "source_type", names=SUBSCRIPTION),
    "source": of_trigger("subscription", "source_key", names=SUBSCRIPTION),
    "revision": of_trigger("subscription", set="revision = 0", names=SUBSCRIPTION),
    "incarnation": of_trigger("subscription", set="incarnation = -1", names=SUBSCRIPTION),
}


async def test_a_damaged_subscription_is_told_and_starts_nothing(database: Database) -> None:
    async def check(name: str, store: Store, damage: Damage) -> None:
        reads: dict[str, Read] = {
            "get": lambda s: s.triggers.get("damaged", owner=AT_S),
            "list": lambda s: s.triggers.list(),
            "list of a session": lambda s: s.triggers.list(which=SubscriptionFilter(session="s")),
            "register again": lambda s: s.triggers.register(subscription("damaged")),
        }
        await all_corrupt(store, reads, damage.names)
        found = await store.triggers.ingest(happened("new"))
        told = {delivery.key: delivery for delivery in found.deliveries}
        assert told["whole"].state == "started"
        if name in ("definition", "digest", "name"):
            assert told["damaged"].state == "rejected"
            assert "trigger_subscription s//damaged" in (told["damaged"].reason or "")
        elif name in ("type", "source"):
            # It is at another source now, and there it is told.
            assert "damaged" not in told

    await each(database, SUBSCRIPTIONS, check)


async def test_a_subscription_that_has_come_to_another_source_starts_nothing_there(
    database: Database,
) -> None:
    """What it was registered for is not where it is found: it is rejected, and says why."""

    async def check(name: str, store: Store, damage: Damage) -> None:
        def elsewhere(key: str) -> NewOccurrence:
            return NewOccurrence(source_type="x", source_key="z", key=key)

        found = await store.triggers.ingest(elsewhere("one"))
        assert [delivery.state for delivery in found.deliveries] == ["rejected"]
        assert "not what was registered" in (found.deliveries[0].reason or "")
        recorded = await store.triggers.record(elsewhere("two"))
        reserved = await store.triggers.reserve(recorded.occurrence.occurrence)
        assert [delivery.state for delivery in reserved] == ["rejected"]

    moved = of_trigger("subscription", set="source_key = 'z'", names=SUBSCRIPTION)
    await each(database, {"moved": moved}, check)


RECEIPT = ("trigger_receipt", "op-damaged")
RECEIPTS = {
    "intent": of_trigger("receipt", "intent", names=RECEIPT),
    "definition": of_trigger("receipt", "definition", names=RECEIPT),
    "digest": of_trigger("receipt", "digest", names=RECEIPT),
    "revision": of_trigger("receipt", set="revision = 0", names=RECEIPT),
}


async def test_a_damaged_receipt_of_a_change_is_no_conflict_of_the_caller(
    database: Database,
) -> None:
    async def check(name: str, store: Store, damage: Damage) -> None:
        before = await database.rows(name)
        reads: dict[str, Read] = {
            "register again": lambda s: s.triggers.register(
                subscription("damaged"), operation="op-damaged"
            ),
        }
        await all_corrupt(store, reads, damage.names)
        assert await database.rows(name) == before

    await each(database, RECEIPTS, check)


# The ids of occurrences are made of what they are about, and are the same in every tenant.
OF_O = occurrence_id("x", "y", "o")
OCCURRENCE = ("trigger_occurrence", OF_O)
OCCURRENCES = {
    column: of_trigger("occurrence", column, key="o", names=OCCURRENCE)
    for column in ("payload", "source", "digest", "source_type", "source_key", "key")
}


async def test_a_damaged_occurrence_is_told_and_is_not_there_a_second_time(
    database: Database,
) -> None:
    async def check(name: str, store: Store, damage: Damage) -> None:
        reads: dict[str, Read] = {
            "occurrence": lambda s: s.triggers.occurrence(OF_O),
            "occurrences": lambda s: s.triggers.occurrences(),
            "ingest again": lambda s: s.triggers.ingest(happened("o")),
            "record again": lambda s: s.triggers.record(happened("o")),
            "start": lambda s: s.triggers.start(OF_O),
        }
        if not name.startswith("source_"):
            which = OccurrenceFilter(source_type="x", source_key="y")
            reads["of a source"] = lambda s: s.triggers.occurrences(which=which)
        before = await database.rows(name)
        await all_corrupt(store, reads, damage.names)
        assert await database.rows(name) == before

    await each(database, OCCURRENCES, check)


DELIVERIES = {
    name: Damage(
        table="trigger_delivery",
        where=f"key = 'damaged' AND occurrence = '{OF_O}'",
        set=change,
        names=("trigger_delivery", f"{OF_O}/s//damaged"),
    )
    for name, change in {
        "process": "process = 'delivery:0'",
        "subscription": "subscription = 'nobody'",
        "state": "state = 'lost'",
        "not-rejected": "reason = 'why'",
        "not-told-why": "state = 'rejected'",
    }.items()
}


async def test_a_damaged_delivery_is_told(database: Database) -> None:
    async def check(name: str, store: Store, damage: Damage) -> None:
        reads: dict[str, Read] = {
            "deliveries": lambda s: s.triggers.deliveries(OF_O),
            "ingest again": lambda s: s.triggers.ingest(happened("o")),
        }
        await all_corrupt(store, reads, damage.names)

    await each(database, DELIVERIES, check)


async def test_what_is_reserved_and_damaged_is_rejected_and_keeps_nobody_else(
    database: Database,
) -> None:
    async def check(name: str, store: Store, damage: Damage) -> None:
        occurrence = (await store.triggers.reserved()).items[0].occurrence
        told = await store.triggers.start(occurrence)
        assert [delivery.state for delivery in told] == ["rejected", "started"]
        assert "its digest is wrong" in (told[0].reason or "")
        assert await store.processes.get(told[0].process) is None
        assert (await store.triggers.reserved()).items == ()

    where = "key = 'damaged' AND state = 'reserved'"
    damages = {
        column: Damage(table="trigger_delivery", where=where, flip=column, names=("", ""))
        for column in ("definition", "digest")
    }
    await each(database, damages, check)
