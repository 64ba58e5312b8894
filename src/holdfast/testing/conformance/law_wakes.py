"""Wakes: how a process tells a session something.

A wake is work. It is put into the inbox of its target in the transaction that appends the event,
so that neither is ever there without the other, and it is claimed and settled like any other work.
"""

from __future__ import annotations

import asyncio

import pytest

from holdfast.contract.errors import EventConflict, Invalid, ProcessEnded, ProcessUnknown
from holdfast.contract.processes import (
    Appended,
    EventType,
    NewEvent,
    NewProcess,
    Scope,
    WakeRule,
)
from holdfast.contract.queue import WakeOrigin
from holdfast.contract.records import NewNode, Turn
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit, all_pages
from holdfast.testing.conformance.kit_processes import (
    NEVER,
    STEP,
    begin,
    denied,
    here,
    inbox,
    log,
    record,
    seen,
    stop,
)

PING = EventType(name="ping", wakes=WakeRule())


async def ping(
    store: Store, process: str = "p", text: str = "hello", *, wake: Scope | None = None
) -> Appended:
    """Append an event that wakes."""
    return await store.processes.append(process, NewEvent(type="ping", payload=text, wake=wake))


async def wakes(store: Store, process: str = "p", *, after: int = 0) -> list[int]:
    """The sequences of the events whose wakes were not seen to."""
    page = await store.processes.wakes(process, after=after)
    return [event.sequence for event in page.items]


async def test_law_169_each_event_wakes_once(kit: Kit) -> None:
    """Each event that wakes is work of its own, whatever its text, under a key made of process and
    sequence; the same event sent again is no second work, also after the first is done. (169)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await begin(store, wake=here())
        await begin(store, "q", wake=here())
        for process in ("p", "p", "q"):
            await ping(store, process, "the same")
        keyed = NewEvent(type="ping", payload="keyed", key="k")
        for _ in range(2):
            await store.processes.append("p", keyed)
        assert [work.key for work in await inbox(store, "s")] == [
            "process:p:event:1:wake",
            "process:p:event:2:wake",
            "process:q:event:1:wake",
            "process:p:event:3:wake",
        ]
        claimed = (await store.queue.claim("s", "one", limit=1)).claim
        assert claimed is not None
        await store.sessions.commit(Turn(session="s", turn="t", claims=[claimed.settlement]))
        assert (await store.processes.append("p", keyed)).replayed is True
        assert len(await inbox(store, "s")) == 4


async def test_law_170_the_work_of_a_wake_says_where_it_is_from(kit: Kit) -> None:
    """The work of a wake is an exclusive turn at the earliest boundary, with one item: the process,
    the type, the frame and the text; it names its event, and the event names it. (170)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await begin(store, wake=here("s", "f"))
        told = await ping(store)
        (work,) = await inbox(store, "s")
        assert (work.kind, work.delivery, work.slot, work.merge) == (
            "turn",
            "earliest",
            "exclusive",
            None,
        )
        assert (work.state, work.key) == ("ready", "process:p:event:1:wake")
        assert work.wake == WakeOrigin(process="p", sequence=1)
        (item,) = work.items
        assert item.json() == {
            "type": "process.wake",
            "process": "p",
            "event": "ping",
            "frame": "f",
            "input": "hello",
        }
        assert told.wake == "enqueued"
        event = told.event
        assert (event.wake, event.woken, event.work) == ("hello", here("s", "f"), work.work)
        assert event.acked_at_ms is None
        assert 0 <= work.enqueued_at_ms - event.at_ms < 60_000
        assert await log(store, "p") == (event,)
        await ping(store, wake=here("s"))
        last = (await inbox(store, "s"))[-1]
        assert last.items[0].json()["frame"] is None


async def test_law_173_a_wake_is_seen_to_once(kit: Kit) -> None:
    """The wakes of a process are its events that wake, later than a sequence, until they are acked;
    to ack again is the same answer, and where there is no such wake the answer is False. (173)"""
    async with kit.open() as store, kit.open() as other:
        await store.sessions.create("s")
        await begin(store, events=(STEP, PING), wake=here())
        for name in ("ping", "step", "ping", "ping"):
            await store.processes.append("p", NewEvent(type=name))
        assert await wakes(store) == [1, 3, 4]
        assert await wakes(store, after=1) == [3, 4]
        assert await wakes(store, after=4) == []
        page = await store.processes.wakes("p", limit=2)
        assert ([event.sequence for event in page.items], page.next is None) == ([1, 3], False)
        before = await record(store)
        assert await other.processes.ack("p", 3) is True
        assert await store.processes.ack("p", 3) is True
        assert await wakes(other) == [1, 4]
        acked = (await log(store, "p"))[2]
        assert acked.acked_at_ms is not None
        for sequence in (2, 5, 0):
            assert await store.processes.ack("p", sequence) is False
        assert await record(store) == before
        assert len(await inbox(store, "s")) == 3
        for call in (store.processes.wakes(NEVER), store.processes.ack(NEVER, 1)):
            with pytest.raises(ProcessUnknown):
                await call


async def test_law_174_a_wake_without_a_target_is_an_event(kit: Kit) -> None:
    """A wake of a process that has no target is appended with its text, and is no work. (174)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await begin(store)
        told = await ping(store)
        event = told.event
        assert (told.wake, event.wake) == ("no-target", "hello")
        assert (event.woken, event.work) == (None, None)
        assert await wakes(store) == [1]
        assert await inbox(store, "s") == ()
        assert await store.processes.ack("p", 1) is True
        assert await wakes(store) == []


async def test_law_175_an_event_may_wake_somebody_else(kit: Kit) -> None:
    """An event wakes the target of its process, or the scope it names itself. (175)"""
    async with kit.open() as store:
        for session in ("s", "t"):
            await store.sessions.create(session)
        await begin(store, wake=here("s"))
        await begin(store, "q")
        assert (await ping(store)).event.woken == here("s")
        assert (await ping(store, wake=here("t", "f"))).event.woken == here("t", "f")
        assert (await ping(store, "q", wake=here("t"))).event.woken == here("t")
        origins = [work.wake for work in await inbox(store, "t")]
        assert origins == [
            WakeOrigin(process="p", sequence=2),
            WakeOrigin(process="q", sequence=1),
        ]
        assert len(await inbox(store, "s")) == 1


async def test_law_x40_a_target_that_is_gone_gets_nothing(kit: Kit) -> None:
    """An event that wakes a session that is unknown or deleted is appended with its text, is no
    work, and brings nothing into being; once the session exists, the next event wakes it. (x40)"""
    async with kit.open() as store:
        await store.sessions.create("gone")
        await store.sessions.delete("gone")
        await begin(store, wake=here("late"))
        for wake in (None, here("ghost"), here("gone")):
            told = await ping(store, wake=wake)
            assert (told.wake, told.event.wake) == ("target-gone", "hello")
            assert (told.event.woken, told.event.work) == (None, None)
        assert await wakes(store) == [1, 2, 3]
        assert await store.sessions.get("late") is None
        await store.sessions.create("late")
        assert await inbox(store, "late") == ()
        assert (await ping(store)).wake == "enqueued"
        assert [work.wake for work in await inbox(store, "late")] == [
            WakeOrigin(process="p", sequence=4)
        ]


async def test_law_x41_a_refused_event_wakes_nobody(kit: Kit) -> None:
    """An event that is refused is no work. (x41)"""
    ends = EventType(name="done", ends="completed", wakes=WakeRule())
    async with kit.open() as store:
        await store.sessions.create("s")
        await begin(store, events=(PING, ends), wake=here())
        await store.processes.append("p", NewEvent(type="ping", payload="a", key="k"))
        async with denied(store, EventConflict):
            await store.processes.append("p", NewEvent(type="ping", payload="b", key="k"))
        async with denied(store, Invalid):
            await store.processes.append("p", NewEvent(type="done", payload="b"))
        await stop(store)
        async with denied(store, ProcessEnded):
            event = NewEvent(type="done", payload="b", key="d")
            await store.processes.append("p", event, authority="operator")
        assert len(await inbox(store, "s")) == 1


async def test_law_x42_an_end_may_wake(kit: Kit) -> None:
    """A type that ends its process, declared or one of the core, may wake as well: the end, its
    output and the work are there together, once. (x42)"""
    core = EventType(name="process.failed", ends="failed", wakes=WakeRule())
    async with kit.open() as store:
        await store.sessions.create("s")
        await begin(store, events=(core,), wake=here())
        for _ in range(2):
            await store.processes.end("p", "failed", "broke", authority="operator")
        (work,) = await inbox(store, "s")
        assert work.wake == WakeOrigin(process="p", sequence=1)
        assert work.items[0].json()["input"] == "broke"
        assert work.items[0].json()["event"] == "process.failed"
        (event,) = await log(store, "p")
        assert (event.ends, event.output, event.work) == ("failed", b'"broke"', work.work)


async def test_law_x43_work_of_wakes_is_settled_by_a_turn(kit: Kit) -> None:
    """The work of a wake is claimed and settled by a turn as all work is, and the log of the
    process does not notice; its event still says which work it was. (x43)"""
    async with kit.open() as store:
        await store.sessions.create("s")
        await begin(store, wake=here())
        told = await ping(store)
        claimed = (await store.queue.claim("s", "one")).claim
        assert claimed is not None
        assert [work.work for work in claimed.work] == [told.event.work]
        before = await seen(store, "p")
        nodes = [NewNode(body="woken")]
        turn = Turn(session="s", turn="t", nodes=nodes, claims=[claimed.settlement])
        await store.sessions.commit(turn)
        assert await seen(store, "p") == before
        (work,) = await inbox(store, "s")
        assert (work.state, work.settled_by) == ("done", "t")
        await goes_on_with_pings(store)


async def goes_on_with_pings(store: Store) -> None:
    """The process still wakes."""
    before = await record(store)
    told = await ping(store)
    assert (told.wake, told.event.sequence) == ("enqueued", before.sequence + 1)


async def test_law_x44_concurrent_wakes_are_all_work(kit: Kit) -> None:
    """Events of several processes that wake one session at the same time on several handles are
    each one work there, in the order of their sequences for each process. (x44)"""
    async with kit.open() as one, kit.open() as two, kit.open() as three:
        await one.sessions.create("s")
        for process in ("p", "q"):
            await begin(one, process, wake=here())
        told = await asyncio.gather(
            *(
                ping(handle, process)
                for _ in range(3)
                for handle in (one, two, three)
                for process in ("p", "q")
            )
        )
        assert {answer.wake for answer in told} == {"enqueued"}
        works = await all_pages(lambda after: one.queue.list("s", after=after))
        for process in ("p", "q"):
            mine = [w.wake.sequence for w in works if w.wake and w.wake.process == process]
            assert mine == list(range(1, 10))
        assert {work.work for work in works} == {answer.event.work for answer in told}


async def test_law_x45_a_wake_goes_to_its_own_tenant(kit: Kit) -> None:
    """A process wakes a session of its own tenant only, whatever else has its id. (x45)"""
    async with kit.open() as store, kit.open(kit.other_tenant()) as other:
        await other.sessions.create("s")
        await begin(store, wake=here())
        assert (await ping(store)).wake == "target-gone"
        assert await inbox(other, "s") == ()
        await store.sessions.create("s")
        assert (await ping(store)).wake == "enqueued"
        assert await inbox(other, "s") == ()
        assert len(await inbox(store, "s")) == 1
        registered = await other.processes.register(NewProcess(process="p", events=[PING]))
        assert registered.created is True
