"""A server that crashes beneath appends to processes and beneath what is ingested.

What was acknowledged is there, once, where its answer says. What was repeated under a key is one
event and one occurrence, and nothing is there in part: logs are dense, and each wake and each
delivery has its work and its process, and no work and no process is there without one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

import holdfast
from holdfast.contract.errors import GrantUnknown, OutcomeUnknown, Unavailable
from holdfast.contract.processes import Appended, EventType, NewEvent, NewProcess, WakeRule
from holdfast.contract.stores import Store
from holdfast.contract.triggers import Ingested, NewOccurrence, NewSubscription, ProcessTemplate
from holdfast.testing.conformance.kit import all_pages
from holdfast.testing.conformance.kit_processes import here, inbox, log
from holdfast.testing.postgres_server import PostgresServer
from holdfast.testing.wire import Place
from tests.test_server_restarts import own_server, through

__all__ = ["own_server"]

RESTARTS = 3
ACKS_BETWEEN = 40
PROCESSES = ("p0", "p1")
SESSIONS = ("s0", "s1")
TYPES = (EventType(name="step"), EventType(name="call", wakes=WakeRule()))
KEYS = ("a", "b", "c")

T = TypeVar("T")


class Ledger:
    """What was sent under which key, and what was acknowledged."""

    def __init__(self) -> None:
        self.events: dict[tuple[str, str], Appended] = {}
        self.occurrences: dict[str, Ingested] = {}
        self.acked: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.asked_again = 0

    def acknowledged(self) -> int:
        return len(self.events) + len(self.occurrences) + self.acked.total()

    async def until_answered(self, act: Callable[[], Awaitable[T]]) -> T:
        """Ask again, as the errors say one may."""
        while True:
            try:
                return await act()
            except Unavailable:
                self.asked_again += 1
                await asyncio.sleep(0.01)

    async def append(self, store: Store, process: str, number: int) -> None:
        """An event with a key is asked for until it is there; every other one wakes."""
        key, type = f"k{number}", ("step", "call")[number % 2]
        event = NewEvent(type=type, payload=number, key=key)
        answer = await self.until_answered(lambda: store.processes.append(process, event))
        self.events[process, key] = answer

    async def append_once(self, store: Store, process: str) -> None:
        """Without a key nobody can ask again: an unknown outcome stays unknown."""
        try:
            await store.processes.append(process, NewEvent(type="call", payload="once"))
        except OutcomeUnknown:
            self.unknown[process] += 1
        except Unavailable:
            await asyncio.sleep(0.01)
        else:
            self.acked[process] += 1

    async def ingest(self, store: Store, number: int) -> None:
        """What has happened is asked for until it is there."""
        happened = NewOccurrence(source_type="x", source_key="y", key=f"o{number}", payload=number)
        answer = await self.until_answered(lambda: store.triggers.ingest(happened))
        self.occurrences[answer.occurrence.occurrence] = answer


async def prepare(store: Store) -> None:
    """Two processes that wake two sessions, and three subscriptions to one source."""
    for process, session in zip(PROCESSES, SESSIONS, strict=True):
        await store.sessions.create(session)
        await store.processes.register(
            NewProcess(process=process, events=TYPES, wake=here(session))
        )
    for key in KEYS:
        template = ProcessTemplate(label=key)
        await store.triggers.register(
            NewSubscription(key=key, source_type="x", source_key="y", process=template)
        )


async def check_events(store: Store, ledger: Ledger) -> None:
    for process, session in zip(PROCESSES, SESSIONS, strict=True):
        events = await log(store, process)
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        record = await store.processes.get(process)
        assert record is not None
        assert record.sequence == len(events)
        keyed = {event.key: event for event in events if event.key is not None}
        once = [event for event in events if event.key is None]
        assert len(keyed) + len(once) == len(events)
        acked = {key: told for (of, key), told in ledger.events.items() if of == process}
        assert {key: told.event for key, told in acked.items()} == keyed
        least = ledger.acked[process]
        assert least <= len(once) <= least + ledger.unknown[process]
        for type in ("step", "call"):
            number = sum(event.type == type for event in events)
            assert await store.processes.count(process, type) == number
        # Every wake is work, and all work is of a wake.
        woken = {event.work: event.sequence for event in events if event.type == "call"}
        assert None not in woken
        work = await inbox(store, session)
        assert {found.work: found.wake.sequence for found in work if found.wake} == woken
        assert len(work) == len(woken)
        assert (await store.queue.counts(session=session)).ready == len(woken)


async def check_deliveries(store: Store, ledger: Ledger) -> None:
    found = await all_pages(lambda after: store.triggers.occurrences(after=after))
    assert {of.occurrence for of in found} == set(ledger.occurrences)
    started: set[str] = set()
    for of in found:
        page = await store.triggers.deliveries(of.occurrence)
        assert page.items == ledger.occurrences[of.occurrence].deliveries
        assert [(told.key, told.state) for told in page.items] == [(k, "started") for k in KEYS]
        started |= {told.process for told in page.items}
    running = await all_pages(lambda after: store.processes.list(after=after))
    assert {process.process for process in running} == started | set(PROCESSES)
    assert len(started) == len(KEYS) * len(found)


async def test_crashes_of_the_server_leave_no_event_and_no_delivery_in_part(
    own_server: PostgresServer,
) -> None:
    store = await holdfast.open(own_server.create_database("background"))
    await prepare(store)
    ledger, ended = Ledger(), asyncio.Event()
    numbers = itertools.count()

    async def appends(process: str) -> None:
        while not ended.is_set():
            await ledger.append(store, process, next(numbers))
            await ledger.append_once(store, process)

    async def ingests() -> None:
        while not ended.is_set():
            await ledger.ingest(store, next(numbers))

    # Three tasks share each process, so that appends also wait for each other.
    acts = [*(appends(process) for process in PROCESSES * 3), ingests(), ingests()]
    tasks = [asyncio.create_task(act) for act in acts]
    for _ in range(RESTARTS):
        before = ledger.acknowledged()
        while ledger.acknowledged() < before + ACKS_BETWEEN:
            done, _ = await asyncio.wait(tasks, timeout=0.02, return_when="FIRST_EXCEPTION")
            for task in done:
                task.result()
        await asyncio.to_thread(own_server.restart, "immediate")
    ended.set()
    await asyncio.gather(*tasks)
    await check_events(store, ledger)
    await check_deliveries(store, ledger)
    await store.close()
    print(
        f"{len(ledger.events)} events with a key, {ledger.acked.total()} without,"
        f" {len(ledger.occurrences)} occurrences, {ledger.asked_again} asked again,"
        f" {ledger.unknown.total()} unknown for good"
    )
    assert ledger.acknowledged() >= RESTARTS * ACKS_BETWEEN


async def test_a_lost_answer_is_never_made_good_by_doing_it_twice(
    own_server: PostgresServer,
) -> None:
    """The store asks again by itself and finds what it has done, also where nobody gave a key."""
    url = own_server.create_database("lost")
    async with through(url) as (wire, store):
        await prepare(store)
        places: list[Place] = ["after execute", "before execute", "mid reply"]
        # What a process has declared is known from here on: an append is one statement.
        await store.processes.append("p0", NewEvent(type="step", payload="first"))
        ledger = Ledger()
        for number in range(12):
            for type in ("step", "call"):
                wire.cut(places[number % 3])
                answer = await store.processes.append("p0", NewEvent(type=type, payload=number))
                assert wire.cuts.is_set()
                assert (answer.replayed, answer.event.key) == (False, None)
            wire.cut(places[number % 3])
            await ledger.append(store, "p0", 2 * number + 1)
            wire.cut(places[number % 3])
            await ledger.ingest(store, number)
        events = await log(store, "p0")
        assert [event.sequence for event in events] == list(range(1, 1 + 1 + 3 * 12))
        payloads = [event.json() for event in events if event.type == "call" and not event.key]
        assert payloads == list(range(12))
        assert len(await inbox(store, "s0")) == 2 * 12
        assert [len(told.deliveries) for told in ledger.occurrences.values()] == [len(KEYS)] * 12
        running = await all_pages(lambda after: store.processes.list(after=after))
        assert len(running) == len(PROCESSES) + len(KEYS) * 12


async def test_a_refusal_that_its_own_first_try_has_caused_is_told_as_unknown(
    own_server: PostgresServer,
) -> None:
    """The first try was done and its answer lost, the second is refused because of it. To say that
    it was refused would be to say that it was not done."""
    url = own_server.create_database("refusals")
    async with through(url) as (wire, store):
        await prepare(store)
        await store.processes.grant(here("s0"), "p0")
        wire.cut("after commit")
        with pytest.raises(OutcomeUnknown):
            await store.processes.transfer(here("s0"), here("s1"), ["p0"])
        assert await store.processes.granted(here("s1"), "p0") is not None
        with pytest.raises(GrantUnknown):
            await store.processes.transfer(here("s0"), here("s1"), ["p0"])
        wire.cut("after execute")
        with pytest.raises(OutcomeUnknown):
            await store.triggers.disable("a", expected=1)
        found = await store.triggers.get("a")
        assert found is not None
        assert (found.enabled, found.revision) == (False, 2)
        # With an operation the second try is given the answer of the first.
        wire.cut("after execute")
        told = await store.triggers.disable("b", expected=1, operation="op")
        assert (told.enabled, told.revision) == (False, 2)
