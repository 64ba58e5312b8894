"""Waits: until a head moves, until there is work to claim, an event, or the end of a process.

A wait is a promise to notice, not a promise to win: what was waited for is there when the wait
ends, and somebody else may be quicker to take it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from holdfast.contract.errors import (
    HandleClosed,
    Invalid,
    LaneLost,
    ProcessEnded,
    ProcessUnknown,
    SessionDeleted,
    SessionUnknown,
)
from holdfast.contract.processes import Const, EventType, NewEvent, NewProcess, Scope, WakeRule
from holdfast.contract.queue import NewWork
from holdfast.contract.records import NewNode, Turn
from holdfast.contract.stores import Store
from holdfast.testing.conformance.kit import Kit, grow

T = TypeVar("T")
# Long enough that no law passes because a wait gave up.
LONG_MS = 30_000
# How long a wait may take to notice on a busy machine: a poll is at most a second.
NOTICE_SECONDS = 10.0


@asynccontextmanager
async def waiting(wait: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """The wait, under way; it ends inside."""
    task = asyncio.ensure_future(wait)
    # Let it look and find nothing; whether it has done so yet changes no answer.
    await asyncio.wait({task}, timeout=0.2)
    try:
        yield task
        await asyncio.wait({task}, timeout=NOTICE_SECONDS)
        assert task.done(), "the wait goes on, although what it waited for is there"
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=LONG_MS / 1000)


async def enqueue(store: Store, session: str, **more: Any) -> str:
    """Put one work into the inbox."""
    return (await store.queue.enqueue(NewWork(session=session, payloads=["x"], **more))).work.work


async def test_law_w01_a_head_that_is_there_answers_at_once(kit: Kit) -> None:
    """A wait for a head above a revision answers at once when the head is above it already, with
    the head as it is now, not with the one that came next after it. (w01)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b", "c")
        head = await store.waits.head("s", after=1, timeout_ms=0)
        assert head is not None
        assert (head.revision, head.leaf) == (3, "c")
        assert head == await store.sessions.head("s")


async def test_law_w02_a_wait_wakes_when_the_head_moves(kit: Kit) -> None:
    """A wait wakes when a turn is committed, whichever handle commits it. (w02)"""
    async with kit.open() as store, kit.open() as other:
        await grow(store, "s", "a")
        for writer, node, revision in ((store, "b", 2), (other, "c", 3)):
            wait = store.waits.head("s", after=revision - 1, timeout_ms=LONG_MS)
            async with waiting(wait) as task:
                assert not task.done()
                await grow(writer, "s", node)
            head = task.result()
            assert head is not None
            assert (head.revision, head.leaf) == (revision, node)


async def test_law_w03_a_rewind_moves_the_head_too(kit: Kit) -> None:
    """A wait wakes when the head is moved back, because that is a new revision. (w03)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b")
        async with waiting(store.waits.head("s", after=2, timeout_ms=LONG_MS)) as task:
            await store.sessions.rewind("s", turn="back", revision=1, reason="again")
        head = task.result()
        assert head is not None
        assert (head.revision, head.leaf) == (3, "a")


async def test_law_w04_a_wait_never_answers_an_old_head(kit: Kit) -> None:
    """A wait never answers a head that is not above the revision, whatever else happens meanwhile:
    it answers None when the time is up. (w04)"""
    async with kit.open() as store:
        await grow(store, "s", "a", "b")
        await store.sessions.create("other")
        async with waiting(store.waits.head("s", after=2, timeout_ms=400)) as task:
            await grow(store, "other", "x")
            await store.sessions.update("s", title="renamed")
            again = Turn(session="s", turn="t-b", nodes=[NewNode(id="b", body="b")])
            assert (await store.sessions.commit(again)).replayed
        assert task.result() is None
        assert await store.waits.head("s", after=2, timeout_ms=0) is None
        assert await store.waits.head("s", after=99, timeout_ms=0) is None


async def test_law_w05_no_change_falls_between_the_look_and_the_wait(kit: Kit) -> None:
    """A change at any moment around the beginning of a wait ends it: many waits that begin while
    the head moves on all see it move. (w05)"""
    async with kit.open() as store, kit.open() as other:
        await grow(store, "s")
        for revision in range(1, 21):
            wait = store.waits.head("s", after=revision - 1, timeout_ms=LONG_MS)
            head, receipt = await asyncio.wait_for(
                asyncio.gather(wait, other.sessions.commit(Turn(session="s"))), NOTICE_SECONDS
            )
            assert head is not None
            assert head.revision == receipt.revision == revision


async def test_law_w06_a_wait_for_what_cannot_come_is_refused(kit: Kit) -> None:
    """A wait on a session that does not exist is refused, and one on a session that is deleted
    meanwhile ends with that. (w06)"""
    async with kit.open() as store:
        with pytest.raises(SessionUnknown):
            await store.waits.head("s", after=0, timeout_ms=LONG_MS)
        with pytest.raises(SessionUnknown):
            await store.waits.work("s", timeout_ms=LONG_MS)
        await grow(store, "s", "a")
        async with (
            waiting(store.waits.head("s", after=1, timeout_ms=LONG_MS)) as head,
            waiting(store.waits.work("s", timeout_ms=LONG_MS)) as work,
        ):
            await store.sessions.delete("s")
        assert isinstance(head.exception(), SessionDeleted)
        assert isinstance(work.exception(), SessionDeleted)


async def test_law_w07_work_that_is_there_answers_at_once(kit: Kit) -> None:
    """A wait for work answers at once when there is some to claim, of the session and of any; work
    that is settled, cancelled, dead or held by somebody is none. (w07)"""
    async with kit.open() as store:
        await grow(store, "s")
        assert not await store.waits.work("s", timeout_ms=0)
        assert not await store.waits.work(timeout_ms=0)
        await enqueue(store, "s", max_attempts=1)
        assert await store.waits.work("s", timeout_ms=0)
        assert await store.waits.work(timeout_ms=0)
        claim = (await store.queue.claim("s", "me")).claim
        assert claim is not None
        assert not await store.waits.work("s", timeout_ms=0)
        assert not await store.waits.work(timeout_ms=0)
        await store.queue.abandon(claim)
        assert not await store.waits.work("s", timeout_ms=0)
        assert not await store.waits.work(timeout_ms=0)
        await store.queue.cancel("s", await enqueue(store, "s"))
        assert not await store.waits.work(timeout_ms=0)
        await enqueue(store, "s")
        claim = (await store.queue.claim("s", "me")).claim
        assert claim is not None
        await store.sessions.commit(Turn(session="s", claims=[claim.settlement]))
        assert not await store.waits.work("s", timeout_ms=0)
        assert not await store.waits.work(timeout_ms=0)


async def test_law_w08_a_wait_wakes_when_there_is_work(kit: Kit) -> None:
    """A wait for work wakes when some is enqueued, given back or put back, whichever handle does
    it. (w08)"""
    async with kit.open() as store, kit.open() as other:
        await grow(store, "s")
        for session in ("s", None):
            async with waiting(store.waits.work(session, timeout_ms=LONG_MS)) as task:
                await enqueue(other, "s", max_attempts=2)
            assert task.result() is True
            claim = (await store.queue.claim("s", "me")).claim
            assert claim is not None
            async with waiting(store.waits.work(session, timeout_ms=LONG_MS)) as task:
                await other.queue.abandon(claim)
            assert task.result() is True
            claim = (await store.queue.claim("s", "me")).claim
            assert claim is not None
            await store.queue.abandon(claim, dead=True)
            async with waiting(store.waits.work(session, timeout_ms=LONG_MS)) as task:
                await other.queue.requeue("s", claim.work[0].work)
            assert task.result() is True
            await store.queue.cancel("s", claim.work[0].work)


async def test_law_w09_time_alone_brings_work(kit: Kit) -> None:
    """A wait for work wakes without anybody's doing when delayed work becomes available, and when
    the claim or the lane that holds it lapses. (w09)"""
    async with kit.open() as store:
        await grow(store, "s")
        for session in ("s", None):
            await enqueue(store, "s", delay_ms=300)
            async with waiting(store.waits.work(session, timeout_ms=LONG_MS)) as task:
                pass
            assert task.result() is True
            assert (await store.queue.claim("s", "gone", ttl_ms=300)).claim is not None
            async with waiting(store.waits.work(session, timeout_ms=LONG_MS)) as task:
                pass
            assert task.result() is True
            assert (await store.queue.claim_next("gone", lane_ttl_ms=300)).claim is not None
            async with waiting(store.waits.work(session, timeout_ms=LONG_MS)) as task:
                pass
            assert task.result() is True
            claim = (await store.queue.claim("s", "me")).claim
            assert claim is not None
            await store.sessions.commit(Turn(session="s", claims=[claim.settlement]))


async def test_law_w10_who_holds_the_lane_decides_for_whom_there_is_work(kit: Kit) -> None:
    """While somebody holds the lane, there is work for the holder's fence only, and for all others
    when the lane is given back; a fence that is not held any more is refused. (w10)"""
    async with kit.open() as store:
        await grow(store, "s")
        await enqueue(store, "s")
        fence = (await store.lanes.claim("s", "me", ttl_ms=LONG_MS)).fence
        assert await store.waits.work("s", fence=fence, timeout_ms=0)
        assert not await store.waits.work("s", timeout_ms=0)
        assert not await store.waits.work(timeout_ms=0)
        async with (
            waiting(store.waits.work("s", timeout_ms=LONG_MS)) as one,
            waiting(store.waits.work(timeout_ms=LONG_MS)) as any_one,
        ):
            await store.lanes.release(fence)
        assert (one.result(), any_one.result()) == (True, True)
        with pytest.raises(LaneLost):
            await store.waits.work("s", fence=fence, timeout_ms=0)


async def test_law_w11_a_holder_waits_for_what_it_may_claim(kit: Kit) -> None:
    """With a boundary and a kind a wait answers what a claim with the same would find, and ends
    with the lane when an operator takes it. (w11)"""
    async with kit.open() as store:
        await grow(store, "s")
        fence = (await store.lanes.claim("s", "me", ttl_ms=LONG_MS)).fence
        later = await enqueue(store, "s", delivery="after-turn")
        assert not await store.waits.work("s", fence=fence, boundary="checkpoint", timeout_ms=0)
        assert await store.waits.work("s", fence=fence, boundary="idle", timeout_ms=0)
        assert not await store.waits.work("s", fence=fence, kind="command", timeout_ms=0)
        wait = store.waits.work("s", fence=fence, kind="command", timeout_ms=LONG_MS)
        async with waiting(wait) as task:
            await enqueue(store, "s", kind="command")
            await store.queue.cancel("s", later)
        assert task.result() is True
        wait = store.waits.work("s", fence=fence, kind="turn", timeout_ms=LONG_MS)
        async with waiting(wait) as task:
            await store.lanes.displace("s")
        assert isinstance(task.exception(), LaneLost)


async def test_law_w12_a_wait_sees_its_own_tenant_only(kit: Kit) -> None:
    """What another tenant does ends no wait, whatever its sessions are called. (w12)"""
    async with kit.open() as store, kit.open(kit.other_tenant()) as foreign:
        await grow(store, "s", "a")
        await grow(foreign, "s", "a")
        async with (
            waiting(store.waits.head("s", after=1, timeout_ms=600)) as head,
            waiting(store.waits.work(timeout_ms=600)) as work,
        ):
            await grow(foreign, "s", "b")
            await enqueue(foreign, "s")
        assert (head.result(), work.result()) == (None, False)


async def test_law_w13_a_handle_that_is_closed_ends_its_waits(kit: Kit) -> None:
    """Closing a handle ends the waits on it, and a wait on a closed handle is refused. (w13)"""
    async with kit.open() as store:
        await grow(store, "s", "a")
        async with (
            waiting(store.waits.head("s", after=1)) as head,
            waiting(store.waits.work()) as work,
        ):
            await store.close()
        assert isinstance(head.exception(), HandleClosed)
        assert isinstance(work.exception(), HandleClosed)
        with pytest.raises(HandleClosed):
            await store.waits.head("s", after=1, timeout_ms=0)


async def test_law_w14_a_wait_that_makes_no_sense_is_invalid(kit: Kit) -> None:
    """A negative revision or timeout, and a boundary, a kind or a fence without a session, are
    invalid. (w14)"""
    async with kit.open() as store:
        await grow(store, "s")
        fence = (await store.lanes.claim("s", "me")).fence
        for wait in (
            lambda: store.waits.head("s", after=-1, timeout_ms=0),
            lambda: store.waits.head("s", after=0, timeout_ms=-1),
            lambda: store.waits.head("", after=0, timeout_ms=0),
            lambda: store.waits.work("s", timeout_ms=-1),
            lambda: store.waits.work(kind="command", timeout_ms=0),
            lambda: store.waits.work(boundary="checkpoint", timeout_ms=0),
            lambda: store.waits.work(fence=fence, timeout_ms=0),
        ):
            with pytest.raises(Invalid):
                await wait()


async def register(store: Store, process: str, **more: Any) -> None:
    """A process whose log takes ticks and tocks."""
    kinds = [EventType(name="tick"), EventType(name="tock")]
    await store.processes.register(NewProcess(process=process, events=kinds, **more))


async def append(store: Store, process: str, type: str) -> int:
    """The sequence of an event that is appended now."""
    return (await store.processes.append(process, NewEvent(type=type))).event.sequence


async def test_law_w15_an_event_that_is_there_answers_at_once(kit: Kit) -> None:
    """A wait for an event answers at once the first one later than `after`, of the type if one is
    named, and never an older one. (w15)"""
    async with kit.open() as store:
        await register(store, "p")
        one, two, three = [await append(store, "p", type) for type in ("tick", "tock", "tick")]
        for after, type, found in (
            (0, None, one),
            (one, None, two),
            (0, "tock", two),
            (one, "tick", three),
        ):
            event = await store.waits.event("p", after=after, type=type, timeout_ms=0)
            assert event is not None
            assert event.sequence == found
        assert await store.waits.event("p", after=three, timeout_ms=0) is None
        assert await store.waits.event("p", after=two, type="tock", timeout_ms=0) is None


async def test_law_w16_a_wait_wakes_when_an_event_is_appended(kit: Kit) -> None:
    """A wait for an event wakes when it is appended, whichever handle appends it, and not by one of
    another type. (w16)"""
    async with kit.open() as store, kit.open() as other:
        await register(store, "p")
        last = 0
        for writer in (store, other):
            wait = store.waits.event("p", after=last, type="tick", timeout_ms=LONG_MS)
            async with waiting(wait) as task:
                await append(writer, "p", "tock")
                assert not task.done()
                last = await append(writer, "p", "tick")
            event = task.result()
            assert event is not None
            assert (event.sequence, event.type) == (last, "tick")


async def test_law_w17_a_wait_wakes_when_a_process_ends(kit: Kit) -> None:
    """A wait for the end answers the process when it has ended, at once when it had ended before,
    and None when the time is up. (w17)"""
    async with kit.open() as store, kit.open() as other:
        for process, writer in (("p", store), ("q", other)):
            await register(store, process)
            assert await store.waits.ended(process, timeout_ms=0) is None
            async with waiting(store.waits.ended(process, timeout_ms=LONG_MS)) as task:
                await append(writer, process, "tick")
                assert not task.done()
                await writer.processes.end(process, output="well", authority="operator")
            record = task.result()
            assert record is not None
            assert (record.process, record.state, record.output) == (
                process,
                "completed",
                b'"well"',
            )
            assert await store.waits.ended(process, timeout_ms=0) == record


async def test_law_w18_the_end_of_a_child_is_an_event_of_its_parent(kit: Kit) -> None:
    """A wait for an event of a process wakes when a child of it ends. (w18)"""
    async with kit.open() as store:
        await register(store, "parent")
        await register(store, "child", parent="parent")
        async with waiting(store.waits.event("parent", after=0, timeout_ms=LONG_MS)) as task:
            await store.processes.end("child", authority="operator")
        event = task.result()
        assert event is not None
        assert (event.process, event.sequence) == ("parent", 1)


async def test_law_w19_a_wait_for_an_event_that_cannot_come_is_refused(kit: Kit) -> None:
    """A wait on a process that does not exist is refused; one for an event of a process that ends
    first ends with that, and an event that was there before the end is answered. (w19)"""
    async with kit.open() as store:
        with pytest.raises(ProcessUnknown):
            await store.waits.event("p", after=0, timeout_ms=LONG_MS)
        with pytest.raises(ProcessUnknown):
            await store.waits.ended("p", timeout_ms=LONG_MS)
        await register(store, "p")
        last = await append(store, "p", "tick")
        wait = store.waits.event("p", after=last, type="tick", timeout_ms=LONG_MS)
        async with waiting(wait) as task:
            await store.processes.end("p", authority="operator")
        assert isinstance(task.exception(), ProcessEnded)
        event = await store.waits.event("p", after=0, type="tick", timeout_ms=0)
        assert event is not None
        assert event.sequence == last
        end = await store.waits.event("p", after=last, timeout_ms=0)
        assert end is not None
        assert end.ends == "completed"


async def test_law_w20_an_event_that_wakes_a_session_ends_its_wait_for_work(kit: Kit) -> None:
    """What an event of a process wakes a session with is work, and ends a wait for it. (w20)"""
    async with kit.open() as store, kit.open() as other:
        await grow(store, "s")
        wakes = EventType(name="done", wakes=WakeRule(input=Const(value="come")))
        new = NewProcess(process="p", events=[wakes], wake=Scope(session="s"))
        await store.processes.register(new)
        async with (
            waiting(store.waits.work("s", timeout_ms=LONG_MS)) as one,
            waiting(store.waits.work(timeout_ms=LONG_MS)) as any_one,
        ):
            await append(other, "p", "done")
        assert (one.result(), any_one.result()) == (True, True)
